"""Each record of a batch that meets a row of a table has a row of its own."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from statestore.topology.joins.own_rows import rows_of


class Flat(msgspec.Struct):
    name: str
    at: datetime | None = None


class Frozen(msgspec.Struct, frozen=True):
    name: str


class Open(msgspec.Struct, dict=True):
    name: str


class Nested(msgspec.Struct):
    names: list[str]


class ListOfOurs(list[str]):
    pass


def rename(row: Any) -> None:
    row.name = "changed"


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object], bool]] = {
    "a dict": (lambda: {"a": 1, "b": None}, lambda row: row.pop("a"), True),
    "a dict in it": (lambda: {"a": {"b": 1}}, lambda row: row["a"].clear(), False),
    "a key that is a tuple": (lambda: {1: "a", (2,): "b"}, lambda row: row.clear(), False),
    "a list": (lambda: ["a", 1.5], lambda row: row.append(2), True),
    "a list in it": (lambda: [["a"]], lambda row: row[0].append(2), False),
    "a list of a kind of its own": (lambda: ListOfOurs("ab"), lambda row: row.append("c"), False),
    "a Struct": (lambda: Flat("a", datetime(2026, 1, 2, tzinfo=UTC)), rename, True),
    "a Struct with attributes": (lambda: Open("a"), rename, False),
    "a list in a Struct": (lambda: Nested(["a"]), lambda row: row.names.append("b"), False),
    "a bytearray": (lambda: bytearray(b"a"), lambda row: row.append(1), False),
}
"""What makes a row, what changes it, and whether it is copied."""


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("beside", [None, {"n": 1}, "text", [[]]], ids=repr)
def test_a_row_that_one_record_changes_is_whole_for_all_others(case: str, beside: object) -> None:
    make, change, copied = CHANGES[case]
    others: dict[bytes, Callable[[], object]] = {b"k": make, b"other": lambda: beside}
    asked: list[bytes] = []

    def look(keys: list[bytes]) -> list[Any]:
        asked.extend(keys)
        return [others[key]() if key in others else None for key in keys]

    keys = [b"k", b"none", b"other", b"k", None, b"k", b"other"]
    rows = rows_of(look, keys)
    for place in (0, 3, 5):
        kept = vars(rows[place]) if hasattr(rows[place], "__dict__") else {}
        assert (rows[place], kept) == (make(), {})
        change(rows[place])
    assert (rows[1], rows[2], rows[4], rows[6]) == (None, beside, None, beside)
    assert asked.count(b"k") == (1 if copied else 3)


def test_a_row_that_nothing_can_change_is_one_object_for_all_records() -> None:
    row = "x" * 100
    found = rows_of(lambda keys: [row for _ in keys], [b"k"] * 3)
    assert all(one is row for one in found)


def test_a_frozen_struct_is_copied_too() -> None:
    """`msgspec.structs.force_setattr` changes it all the same."""
    found = rows_of(lambda keys: [Frozen("a") for _ in keys], [b"k"] * 2)
    msgspec.structs.force_setattr(found[0], "name", "b")
    assert found[1] == Frozen("a")
