"""A filter of records in each format against the same filter of JSON, in one process.

    python -m tests.bench.bench_serdes [--records 100000] [--repeats 5]

The records lie in a broker in memory; all that one core does is to read, filter and write half of
them. Figures are of processor time. Four of them take a schema registry, which is fetched and
started.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from time import process_time
from typing import Any

import click
import msgspec
import pydantic

import statestore as ss
from statestore import serdes
from statestore.testing import TopologyTestDriver
from tests import order_pb2
from tests.bench.harness import Bench, scratch
from tests.schema_registry_rig import local_registry

CUSTOMER = "a customer"
AVRO = """{"type": "record", "name": "Order", "fields": [
    {"name": "customer", "type": "string"}, {"name": "cents", "type": "long"}]}"""
Message: Any = order_pb2.Order  # type: ignore[attr-defined]  # made at run time
Make = Callable[[int], Any]


class Order(msgspec.Struct):
    customer: str
    cents: int


@dataclass
class PlainOrder:
    customer: str
    cents: int


class Model(pydantic.BaseModel):
    customer: str
    cents: int


def of(kind: Any) -> Make:
    return lambda cents: kind(customer=CUSTOMER, cents=cents)


def cases(registry: ss.SchemaRegistry) -> dict[str, tuple[ss.Serde[Any], Make]]:
    """A serde by name, and what makes the values that it takes."""
    return {
        "JSON": (serdes.JSON, of(dict)),
        "json, a Struct": (serdes.json(Order), of(Order)),
        "json, a dataclass": (serdes.json(PlainOrder), of(PlainOrder)),
        "json, a pydantic model": (serdes.json(Model), of(Model)),
        "avro, dicts": (serdes.avro(AVRO), of(dict)),
        "avro, a Struct": (serdes.avro(AVRO, Order), of(Order)),
        "protobuf": (serdes.protobuf(Message), of(Message)),
        "json_schema, a Struct": (serdes.json_schema(None, Order), of(Order)),
        "registry avro, dicts": (serdes.avro(AVRO, registry=registry), of(dict)),
        "registry avro, a Struct": (serdes.avro(AVRO, Order, registry=registry), of(Order)),
        "registry protobuf": (serdes.protobuf(Message, registry=registry), of(Message)),
        "registry json_schema": (serdes.json_schema(None, Order, registry=registry), of(Order)),
    }


def rate(serde: ss.Serde[Any], make: Make, records: int) -> float:
    """Records per second of processor time."""
    cents = itemgetter("cents") if isinstance(make(0), dict) else attrgetter("cents")
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serde)
    builder.stream("in").filter(lambda _key, value: cents(value) % 2 == 0).to("out")
    write = serde.at("in", "value").serialize
    with TopologyTestDriver(builder.build()) as driver:
        for i in range(records):
            record = ss.Record(b"k%d" % (i % 500), write(make(i)), i)
            driver._produce("in", record)
        began = process_time()
        driver._drain()
        return records / (process_time() - began)


@click.command()
@click.option("--records", default=100_000)
@click.option("--repeats", default=5)
def main(records: int, repeats: int) -> None:
    """Measure all formats in turns."""
    bench = Bench("bench_serdes")
    rates: dict[str, list[float]] = {}
    with scratch() as folder, local_registry(folder) as running:
        made = cases(ss.SchemaRegistry(running.url, auto_register=True))
        for _ in range(repeats):
            for name, (serde, make) in made.items():
                rates.setdefault(name, []).append(rate(serde, make, records))
    for name, found in rates.items():
        bench.add(name, "records/s", found)
        if name != "JSON":
            bench.ratios(f"{name} / JSON", found, rates["JSON"])
    bench.finish()


if __name__ == "__main__":
    main()
