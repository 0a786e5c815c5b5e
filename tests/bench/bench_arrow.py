"""A step over Arrow columns against the same step record by record, in one process.

    python -m tests.bench.bench_arrow [--records 100000] [--repeats 5]

The step reads orders, keeps half of them and writes bills with sums that were computed. The records
lie in a broker in memory. Figures are of processor time of the whole pipeline; `the step alone` is
what reading, the functions and writing take without broker and tasks.
"""

import struct
from collections.abc import Callable
from time import process_time
from typing import Any

import click
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import statestore as ss
from statestore import serdes
from statestore.testing import TopologyTestDriver
from tests.bench.harness import Bench

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "pieces", "type": "long"},
        {"name": "discount", "type": "double"},
        {"name": "country", "type": "string"},
    ],
}
BILL = {
    "type": "record",
    "name": "Bill",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "net", "type": "double"},
        {"name": "tax", "type": "double"},
        {"name": "total", "type": "double"},
        {"name": "large", "type": "boolean"},
    ],
}


class Order(msgspec.Struct):
    customer: str
    cents: int
    pieces: int
    discount: float
    country: str


class Bill(msgspec.Struct):
    customer: str
    net: float
    tax: float
    total: float
    large: bool


def order(i: int) -> Order:
    return Order(f"customer {i % 997}", 100 + i % 5000, 1 + i % 7, (i % 10) / 100, "AT")


def is_wanted(_key: str, one: Order) -> bool:
    return one.cents % 2 == 0


def bill(one: Order) -> Bill:
    net = one.cents * one.pieces * (1.0 - one.discount) / 100.0
    tax = net * 0.2
    total = net + tax
    return Bill(one.customer, net, tax, total, total > 100.0)


def is_wanted_dict(_key: str, one: dict[str, Any]) -> bool:
    return bool(one["cents"] % 2 == 0)


def bill_dict(one: dict[str, Any]) -> dict[str, Any]:
    net = one["cents"] * one["pieces"] * (1.0 - one["discount"]) / 100.0
    tax = net * 0.2
    total = net + tax
    return {
        "customer": one["customer"],
        "net": net,
        "tax": tax,
        "total": total,
        "large": total > 100.0,
    }


def are_wanted(orders: pa.Array) -> pa.Array:
    return pc.equal(pc.bit_wise_and(pc.struct_field(orders, "cents"), 1), 0)


def bills(orders: pa.Array) -> pa.Array:
    cents, pieces, discount = (
        pc.struct_field(orders, name) for name in ("cents", "pieces", "discount")
    )
    net = pc.divide(pc.multiply(pc.multiply(cents, pieces), pc.subtract(1.0, discount)), 100.0)
    tax = pc.multiply(net, 0.2)
    total = pc.add(net, tax)
    return pa.StructArray.from_arrays(
        [pc.struct_field(orders, "customer"), net, tax, total, pc.greater(total, 100.0)],
        names=["customer", "net", "tax", "total", "large"],
    )


class Fixed:
    """Columns of 64 bits each, one after the other, as numpy reads and writes them."""

    def __init__(self, **kinds: str) -> None:
        self._layout = np.dtype([(name, f"<{kind}8") for name, kind in kinds.items()])
        types = {"i": pa.int64(), "f": pa.float64()}
        self.type = pa.struct([(name, types[kind]) for name, kind in kinds.items()])

    def decode(self, rows: list[bytes | None]) -> pa.Array:
        if any(row is None or len(row) != self._layout.itemsize for row in rows):
            raise ValueError(f"want {self._layout.itemsize} bytes")
        found = np.frombuffer(b"".join(row or b"" for row in rows), self._layout)
        columns = [np.ascontiguousarray(found[field.name]) for field in self.type]
        arrays = [
            pa.Array.from_buffers(field.type, len(rows), [None, pa.py_buffer(column)])
            for field, column in zip(self.type, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type))

    def encode(self, column: pa.Array) -> list[bytes | None]:
        made = np.empty(len(column), self._layout)
        for field, values in zip(self.type, column.flatten(), strict=True):
            made[field.name] = values.to_numpy()
        written, size = made.tobytes(), self._layout.itemsize
        return [written[at : at + size] for at in range(0, len(written), size)]


def fixed(name: str, layout: str, kind: Callable[..., Any], **kinds: str) -> ss.Serde[Any]:
    packed = struct.Struct(layout)
    return ss.Serde(
        name,
        lambda one: packed.pack(*msgspec.structs.astuple(one)),
        lambda data: kind(*packed.unpack(data)),
        arrow=lambda: Fixed(**kinds),
    )


class Item(msgspec.Struct):
    cents: int
    pieces: int
    discount: float


class Sum(msgspec.Struct):
    net: float
    total: float


def sum_of(one: Item) -> Sum:
    net = one.cents * one.pieces * (1.0 - one.discount) / 100.0
    return Sum(net, net * 1.2)


def sums(items: pa.Array) -> pa.Array:
    cents, pieces, discount = items.flatten()
    net = pc.divide(pc.multiply(pc.multiply(cents, pieces), pc.subtract(1.0, discount)), 100.0)
    return pa.StructArray.from_arrays([net, pc.multiply(net, 1.2)], names=["net", "total"])


Functions = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
"""Which are wanted; and what is made of one, and of a column."""
OBJECTS: Functions = (is_wanted, bill, bills)
DICTS: Functions = (is_wanted_dict, bill_dict, bills)
FORMATS: dict[str, tuple[ss.Serde[Any], ss.Serde[Any], Functions]] = {
    "json, a Struct": (serdes.json(Order), serdes.json(Bill), OBJECTS),
    "avro, dicts": (serdes.avro(ORDER), serdes.avro(BILL), DICTS),
    "avro, a Struct": (serdes.avro(ORDER, Order), serdes.avro(BILL, Bill), OBJECTS),
    "json_schema, a Struct": (
        serdes.json_schema(None, Order),
        serdes.json_schema(None, Bill),
        OBJECTS,
    ),
    "a fixed layout": (
        fixed("ITEM", "<qqd", Item, cents="i", pieces="i", discount="f"),
        fixed("SUM", "<dd", Sum, net="f", total="f"),
        (is_wanted, sum_of, sums),
    ),
}


def row(name: str, i: int) -> bytes:
    """The bytes of an order."""
    if name == "a fixed layout":
        one = order(i)
        return FORMATS[name][0].serialize(Item(one.cents, one.pieces, one.discount))
    if "avro" in name:
        return FORMATS["avro, dicts"][0].serialize(msgspec.to_builtins(order(i)))
    return msgspec.json.encode(order(i))


def rate(name: str, records: int, *, in_arrow: bool) -> float:
    """Records per second of processor time."""
    read, write, (keep, make, make_columns) = FORMATS[name]
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=write)
    stream = builder.stream("in", value_serde=read)
    if in_arrow:
        stream.filter_arrow(are_wanted).map_values_arrow(make_columns).to("out")
    else:
        stream.filter(keep).map_values(make).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for i in range(records):
            driver._produce("in", ss.Record(b"k%d" % (i % 500), row(name, i), i))
        began = process_time()
        driver._drain()
        return records / (process_time() - began)


def step_rate(name: str, records: int, *, in_arrow: bool) -> float:
    """Records per second of processor time of the step alone, in batches of 10,000."""
    read, write, (keep, make, make_columns) = FORMATS[name]
    rows: list[bytes | None] = [row(name, i) for i in range(records)]
    began = process_time()
    for start in range(0, records, 10_000):
        some = rows[start : start + 10_000]
        if in_arrow:
            reads, writes = read.arrow_form(), write.arrow_form()
            assert reads is not None
            assert writes is not None
            column = reads.decode(some)
            writes.encode(make_columns(column.filter(are_wanted(column))))
        else:
            objects = [read.deserialize(data) for data in some if data is not None]
            [write.serialize(make(one)) for one in objects if keep("", one)]
    return records / (process_time() - began)


@click.command()
@click.option("--records", default=100_000)
@click.option("--repeats", default=5)
def main(records: int, repeats: int) -> None:
    """Measure all formats in turns."""
    bench = Bench("bench_arrow")
    pc.add(pa.array([1]), 1)  # Arrow imports pandas once, if it is installed.
    measures = {"the pipeline": rate, "the step alone": step_rate}
    for what, measure in measures.items():
        for name in FORMATS:
            rows, columns = [], []
            for _ in range(repeats):
                rows.append(measure(name, records, in_arrow=False))
                columns.append(measure(name, records, in_arrow=True))
            bench.add(f"{what}, {name}, row by row", "records/s", rows)
            bench.add(f"{what}, {name}, in Arrow", "records/s", columns)
            bench.ratios(f"{what}, {name}: Arrow / rows", columns, rows)
    bench.finish()


if __name__ == "__main__":
    main()
