"""Aggregates that are named instead of written, for `aggregate` of grouped streams and tables.

Each keeps a state, which is what the store has, and tells a result. Each takes the field of values
with that name, or the value itself, and leaves out nulls.
"""

from typing import Any

from statestore.topology.aggregates.declared import Aggregate


def count(field: str | None = None) -> Aggregate[int]:
    """Count records or, with `field`, those in which it is not null."""
    return Aggregate("count", field)


def sum(field: str | None = None) -> Aggregate[Any]:  # noqa: A001 - as everybody calls it
    """Add up numbers, from 0 on: integers exactly, floats in the order of their records.

    A sum that is no finite number is an error of processing.
    """
    return Aggregate("sum", field)


def mean(field: str | None = None) -> Aggregate[float | None]:
    """Return the arithmetic mean of numbers, or None if there was none.

    The state is their sum and count.
    """
    return Aggregate("mean", field)


def min(field: str | None = None) -> Aggregate[Any]:  # noqa: A001 - as everybody calls it
    """Return the least value, or None if there was none. A group of a table cannot take it out."""
    return Aggregate("min", field)


def max(field: str | None = None) -> Aggregate[Any]:  # noqa: A001 - as everybody calls it
    """Return the largest value, or None if there was none. A table's group cannot take it out."""
    return Aggregate("max", field)


def first(field: str | None = None) -> Aggregate[Any]:
    """Return the value that came first, or None. A group of a table cannot take it out."""
    return Aggregate("first", field)


def last(field: str | None = None) -> Aggregate[Any]:
    """Return the value that came last, or None. A group of a table cannot take it out."""
    return Aggregate("last", field)


def collect(field: str | None = None) -> Aggregate[list[Any]]:
    """Return all values in a list, in the order in which they came.

    The state is as long, and is written whole with each change.
    """
    return Aggregate("collect", field)


def approx_distinct(field: str | None = None) -> Aggregate[int]:
    """Count distinct values: exactly up to 256, then with a standard error of 2.3 %.

    The state then has 2 048 bytes. A group of a table cannot take a value out.
    """
    return Aggregate("approx_distinct", field)
