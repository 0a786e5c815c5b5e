"""Filters of a query that the store answers itself: of keys, partitions and times.

A filter that is taken over holds exactly: `PushedFilters.of` leaves no other row, whatever was
read. What they say of keys and times also narrows what is read (`Narrowed`). Filters of which the
bytes do not tell, such as those of numbers in order, or of fields of a key, stay with Spark.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from itertools import compress
from operator import eq, ge, gt, le, lt
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from statestore import serdes
from statestore.model.records import Serde
from statestore.reading.rows import Narrowed
from statestore.stores.kinds.kind import Columns

_OPERATORS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: eq,
    EqualNullSafe: eq,
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
}
# Equal values have equal bytes, which is not so for floats, and nobody else writes other bytes.
_EXACT: Final = (
    *(serdes.STRING, serdes.BYTES, serdes.BOOLEAN),
    *(serdes.INT64, serdes.INT32, serdes.INT16),
)
_IN_ORDER: Final = (serdes.STRING, serdes.BYTES)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US: Final = dt.timedelta(microseconds=1)
_LAST: Final = b"\xff"


class _Test(NamedTuple):
    """A comparison of a column with a value; `operator` None: with any of several values."""

    column: str
    operator: Callable[[Any, Any], bool] | None
    value: Any

    def holds(self, found: Any) -> bool:
        """Tell whether it holds for what a row has there."""
        if found is None:
            return False
        if self.operator is None:
            return found in self.value
        return self.operator(found, self.value)


class PushedFilters:
    """The filters that were taken over."""

    def __init__(self, spans: Sequence[str]) -> None:
        """`spans`: the names of the columns with the times of rows."""
        self._spans = tuple(spans)
        self._tests: list[_Test] = []
        self._nulls: list[tuple[str, bool]] = []

    def take(self, one: Filter, key_serde: Serde[Any]) -> bool:
        """Take a filter over; False if it stays with Spark."""
        path: tuple[str, ...] = getattr(one, "attribute", ())
        column = path[0] if len(path) == 1 else ""
        if column not in {"stream_task", "partition", "key", *self._spans}:
            return False
        match one:
            case IsNotNull() | IsNull():
                self._nulls.append((column, isinstance(one, IsNull)))
                return True
            case StringStartsWith() if column == "key" and key_serde is serdes.STRING:
                return self._take_prefix(one.value.encode())
            case In():
                values = [
                    self._stored(column, value, key_serde)
                    for value in one.value
                    if value is not None
                ]
                if None in values:
                    return False
                self._tests.append(_Test(column, None, frozenset(values)))
                return True
        operator = _OPERATORS.get(type(one))
        value = None if operator is None else self._stored(column, one.value, key_serde)  # type: ignore[attr-defined]  # of comparisons
        in_order = any(key_serde is serde for serde in _IN_ORDER)
        ordered = column in {"partition", *self._spans} or (column == "key" and in_order)
        if operator is None or value is None or (operator is not eq and not ordered):
            return False
        self._tests.append(_Test(column, operator, value))
        return True

    def wants(self, stream_task: str, partition: int) -> bool:
        """Tell whether rows of a stream task may be among those that are asked for."""
        found = {"stream_task": stream_task, "partition": partition}
        if any(isnull for column, isnull in self._nulls if column in {*found, "key"}):
            return False
        return all(test.holds(found[test.column]) for test in self._tests if test.column in found)

    def part(self) -> Narrowed:
        """Return what has to be read."""
        keys: frozenset[bytes] | None = None
        low: bytes | None = None
        high: bytes | None = None
        for test in self._tests:
            if test.column != "key":
                continue
            if test.operator is None or test.operator is eq:
                some = test.value if test.operator is None else frozenset([test.value])
                keys = some if keys is None else keys & some
            elif test.operator in (gt, ge):
                low = test.value if low is None else max(low, test.value)
            else:
                high = test.value if high is None else min(high, test.value)
        return Narrowed(None if keys is None else sorted(keys), low, high, *self._times())

    def of(self, rows: Columns) -> Columns:
        """Return the rows for which all filters hold."""
        for column, isnull in self._nulls:
            if column in self._spans:
                times = self._times_in(rows, column)
                rows = _kept(rows, [(time is None) is isnull for time in times])
        for test in self._tests:
            if test.column == "key":
                rows = _kept(rows, list(map(test.holds, rows.keys)))
            elif test.column in self._spans:
                micros = [
                    None if time is None else time * 1000
                    for time in self._times_in(rows, test.column)
                ]
                rows = _kept(rows, list(map(test.holds, micros)))
        return rows

    def _take_prefix(self, prefix: bytes) -> bool:
        if prefix:
            self._tests.append(_Test("key", ge, prefix))
            # No text has a byte 0xff, so this is beyond all that begin with the prefix.
            self._tests.append(_Test("key", lt, prefix + _LAST))
        return True

    def _stored(self, column: str, value: Any, key_serde: Serde[Any]) -> Any:
        """Return a value as rows have it; None if Spark has to compare it."""
        if column in self._spans:
            zoned = isinstance(value, dt.datetime) and value.tzinfo is not None
            return (value - _EPOCH) // _US if zoned else None
        if column != "key":
            wanted = str if column == "stream_task" else int
            return value if isinstance(value, wanted) else None
        if not any(key_serde is serde for serde in _EXACT):
            return None
        try:
            return key_serde.serialize(value)
        except Exception:  # noqa: BLE001  # a value of another type, or out of range
            return None

    def _times_in(self, rows: Columns, column: str) -> list[int | None]:
        return rows.begins if column == self._spans[0] else rows.ends

    def _times(self) -> tuple[int | None, int | None, int | None]:
        """Return the least and the largest first time of rows, and their least second time, in ms.

        They are whole milliseconds, and include more than the filters do.
        """
        least: dict[str, int] = {}
        most: dict[str, int] = {}
        for test in self._tests:
            if test.column not in self._spans or test.operator is None:
                continue
            time = test.value // 1000
            if test.operator in (gt, ge, eq):
                least[test.column] = max(time, least.get(test.column, time))
            if test.operator in (lt, le, eq):
                most[test.column] = min(time, most.get(test.column, time))
        first = self._spans[0] if self._spans else ""
        second = self._spans[1] if self._spans else ""
        return least.get(first), most.get(first), least.get(second)


def _kept(rows: Columns, wanted: Sequence[bool]) -> Columns:
    return rows if all(wanted) else Columns(*(list(compress(column, wanted)) for column in rows))
