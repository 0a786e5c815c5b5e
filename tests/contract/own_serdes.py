"""A pipeline whose stores have serdes of its own, which nobody registered."""

import json
from dataclasses import asdict, dataclass
from decimal import Decimal

import statestore as ss
from statestore import serdes


@dataclass(frozen=True)
class Place:
    """A key of a class of the user's own."""

    city: str
    shelf: int


def _place(data: bytes) -> Place:
    return Place(**json.loads(data))


PLACE: ss.Serde[Place] = ss.Serde(
    "PLACE",
    lambda place: json.dumps(asdict(place)).encode(),
    _place,
    schema=ss.Schema("JSON", "{}"),
)
MONEY: ss.Serde[Decimal] = ss.Serde(
    "MONEY", lambda amount: f"{amount:f}".encode(), lambda data: Decimal(data.decode())
)
CODE: ss.Serde[str] = ss.Serde("CODE", str.encode, bytes.decode)
STOCK = ss.persistent_key_value_store("stock", key_serde=PLACE, value_serde=MONEY)
RATES = ss.persistent_versioned_key_value_store("rates", 10_000, key_serde=CODE, value_serde=MONEY)


class Passing:
    """Has stores, does nothing."""

    def process(self, record: "ss.Record[bytes, bytes]") -> None: ...


def topology() -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.stream("in").process(lambda _: Passing(), STOCK, RATES, name="all")
    in_windows = builder.stream("sold", key_serde=CODE, value_serde=MONEY).group_by_key()
    in_windows.windowed_by(ss.TumblingWindows(60_000)).aggregate(
        Decimal, lambda _, value, total: total + value, ss.Materialized("sums", value_serde=MONEY)
    )
    return builder.build()


def without_stores() -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.stream("in").to("out")
    return builder.build()


def broken() -> ss.Topology:
    raise ValueError("no topology today")


def with_other_values() -> ss.Topology:
    """The store of that name, with a serde that does not read its rows."""
    builder = ss.StreamsBuilder()
    builder.stream("in").process(
        lambda _: Passing(),
        ss.persistent_key_value_store("stock", key_serde=PLACE, value_serde=serdes.INT64),
        name="all",
    )
    return builder.build()
