"""Typed serdes in topics and stores, each as a text table; see operator_tables."""

import uuid
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


@case("""
    | in        | out             |
    | a 1 0     | a [1] 0         |
    | b - 1     |                 |
    | a 70000 2 | a [1,70000] 2   |
    | b 3 3     | b [3] 3         |
    | a 0 4     | a [1,70000,0] 4 |
""")
def rows_of_lists_in_javas_bytes(of: Case) -> None:
    kept = ss.Materialized(of.of("kept"), caching=False, value_serde=serdes.list_of(serdes.INT32))
    table = of.stream().group_by_key().aggregate(list, lambda _, value, row: [*row, value], kept)
    of.out(table.to_stream().map_values(list))


@case("""
    | in       | out                                          |
    | a 1 0    | 00000000-0000-0000-0000-000000000001 true 0  |
    | b 7 1    | 00000000-0000-0000-0000-000000000007 false 1 |
    | c 1 2    | 00000000-0000-0000-0000-000000000001 true 2  |
""")
def keys_of_uuids_and_rows_of_booleans(of: Case) -> None:
    keyed = of.stream().map(lambda _, value: (uuid.UUID(int=value), value == 1))
    flags = keyed.repartition(of.of("by-id"), key_serde=serdes.UUID, value_serde=serdes.BOOLEAN)
    table = flags.to_table(of.kept())
    of.out(table.to_stream().map(lambda key, value: (str(key), value)))


@case("""
    | in      | out                     |
    | a 0.1 0 | a 0.10000000149011612 0 |
    | a 0.1 1 | a 0.20000000298023224 1 |
    | a 0.1 2 | a 0.30000001192092896 2 |
""")
def rows_of_single_precision_are_rounded_with_each_record(of: Case) -> None:
    kept = ss.Materialized(of.of("kept"), caching=False, value_serde=serdes.FLOAT32)
    table = of.stream().group_by_key().aggregate(float, lambda _, value, row: row + value, kept)
    of.out(table.to_stream().map_values(lambda row: row))
