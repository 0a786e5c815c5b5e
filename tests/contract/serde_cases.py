"""Typed serdes in topics and stores, each as a text table; see operator_tables."""

from typing import Any, TypedDict

import msgspec

import statestore as ss
from statestore import serdes
from tests import order_pb2
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
AVRO = {
    "type": "record",
    "name": "Total",
    "fields": [{"name": "cents", "type": "long"}, {"name": "coupon", "type": "string"}],
}
Message: Any = order_pb2.Order  # type: ignore[attr-defined]  # made at run time


class Entry(TypedDict):
    """A value as dicts have it."""

    n: int


class Total(msgspec.Struct):
    """A row of a store."""

    cents: int
    coupon: str = ""


@case("""
    | in               | out            |
    | a {"n":1} 0      |                |
    | a {"n":2} 1      | a {"n":2} 1    |
    | a {"n":2,"m":1} 2 | a {"n":2} 2   |
    | a - 3            |                |
""")
def typed_json_of_a_topic(of: Case) -> None:
    entry = serdes.json(Entry)
    kept = of.stream(value_serde=entry).filter(lambda _key, value: value and value["n"] > 1)
    kept.to(of.of("out"), value_serde=entry)


SUMS = """
    | in       | out      |
    | a 1 0    | a 1 0    |
    | b 5 1    | b 5 1    |
    | a 2 2    | a 3 2    |
    | a 0 3    | a 3 3    |
"""


def sums(of: Case, serde: ss.Serde[Any], total: Any) -> None:
    """Sum up values in rows of this serde."""
    kept = ss.Materialized(of.of("kept"), caching=False, value_serde=serde)
    table = (
        of.stream()
        .group_by_key()
        .aggregate(
            lambda: total(cents=0), lambda _key, value, row: total(cents=row.cents + value), kept
        )
    )
    of.out(table.to_stream().map_values(lambda row: row.cents))


@case(SUMS)
def rows_of_typed_json(of: Case) -> None:
    sums(of, serdes.json(Total), Total)


@case(SUMS)
def rows_of_avro(of: Case) -> None:
    sums(of, serdes.avro(AVRO, Total), Total)


@case(SUMS)
def rows_of_protobuf(of: Case) -> None:
    sums(of, serdes.protobuf(Message), Message)


@case(SUMS)
def rows_of_json_schema(of: Case) -> None:
    sums(of, serdes.json_schema(None, Total), Total)
