"""Operators over Arrow columns, each as a text table; see operator_tables."""

from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from statestore import serdes
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
AVRO = {
    "type": "record",
    "name": "Entry",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "of", "type": ["null", "string"], "default": None},
    ],
}


class Entry(TypedDict):
    """A value with fields."""

    n: int
    of: str | None


ENTRY = serdes.json(Entry)


def large(entries: pa.Array) -> pa.Array:
    return pc.greater(pc.struct_field(entries, "n"), 1)


def doubled(entries: pa.Array) -> pa.Array:
    n = pc.multiply(pc.struct_field(entries, "n"), 2)
    return pa.StructArray.from_arrays([n, pc.struct_field(entries, "of")], names=["n", "of"])


def named(keys: pa.Array, entries: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([keys, pc.struct_field(entries, "n")], names=["of", "n"])


def numbers(entries: pa.Array) -> pa.Array:
    return pc.struct_field(entries, "n")


@case("""
    | in                 | out                       |
    | a {"n":1,"of":null} 0        |                           |
    | a {"n":2,"of":null} 1        | a {"n":2,"of":null} 1     |
    | - {"n":3,"of":null} 2        | - {"n":3,"of":null} 2     |
    | a - 3              |                           |
""")
def filter_arrow(of: Case) -> None:
    of.out(of.stream(value_serde=ENTRY).filter_arrow(large))


@case("""
    | in                 | out                       |
    | a {"n":1,"of":null} 0        | a {"n":2,"of":null} 0     |
    | - {"n":2,"of":"x"} 1 | - {"n":4,"of":"x"} 1    |
    | a - 2              | a - 2                     |
""")
def map_values_arrow(of: Case) -> None:
    of.out(of.stream(value_serde=ENTRY).map_values_arrow(doubled, value_serde=ENTRY))


@case("""
    | in                 | out                       |
    | a {"n":1,"of":null} 0        | a {"n":1,"of":"a"} 0      |
    | - {"n":2,"of":null} 1        | - {"n":2,"of":null} 1     |
    | b - 2              | b - 2                     |
""")
def map_values_arrow_with_key(of: Case) -> None:
    stream = of.stream(key_serde=serdes.STRING, value_serde=ENTRY)
    of.out(stream.map_values_arrow(named, value_serde=ENTRY))


@case("""
    | in                 | out      |
    | a {"n":1,"of":null} 0        |          |
    | a {"n":2,"of":null} 1        | a 1 1    |
    | b {"n":2,"of":null} 2        | b 1 2    |
    | a {"n":5,"of":null} 3        | a 2 3    |
""")
def numbers_counted(of: Case) -> None:
    large_ones = of.stream(value_serde=ENTRY).filter_arrow(large)
    found = large_ones.map_values_arrow(numbers, value_serde=serdes.INT64)
    of.out(found.group_by_key().count(of.kept()).to_stream())


@case("""
    | in       | out                    |
    | a 1 0    | a {"n":2,"of":null} 0  |
    | a 0 1    |                        |
    | a - 2    | a - 2                  |
""")
def between_operators_of_single_records(of: Case) -> None:
    made = of.stream().map_values(lambda n: None if n is None else {"n": n, "of": None})
    avro: Any = serdes.avro(AVRO)
    entries = made.repartition(of.of("avro"), value_serde=avro)
    twice = entries.map_values_arrow(doubled, value_serde=avro)
    some = twice.filter(lambda _key, entry: entry is None or entry["n"] > 0)
    of.out(some.map_values(lambda entry: entry))
