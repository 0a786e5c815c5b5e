"""What a record does to an aggregate, and what an aggregate tells, whatever its rows are kept by.

Keeps I24.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from statestore.model.batch import Batch, Column, MadeColumn
from statestore.model.fields_read import FieldForm
from statestore.model.nulls import any_none
from statestore.model.records import Serde
from statestore.stores.kinds.registry import kind_of
from statestore.stores.specs import StoreSpec
from statestore.topology.failures import mismatch
from statestore.topology.nodes import Forward, SendOldValues

_NUMBERS: Final[dict[type, Any]] = {int: np.int64, float: np.float64}
_NAMES: Final = {int: "int64", float: "double"}
"""What Arrow calls them."""
Step = Callable[[Any, Any, Any], Any]
Many = Callable[[NDArray[np.intp], "Values", list[Any]], list[Any]]
"""From the row and the value of each record, and the aggregate of each row before, to those after.

A row is a number: its place in both lists of aggregates. None: there was none before; there is one
after each record.
"""
S = TypeVar("S", bound=StoreSpec)
Tell = Callable[[Batch, "Updates"], None]
"""Takes what the records of a batch have changed."""


class Values:
    """The values of the records of a batch that count in a row.

    Where an operator made them as a column, no objects are made that nobody asks for.
    """

    __slots__ = ("_column", "_places")

    def __init__(self, column: Column, places: list[int] | None = None) -> None:
        """`places`: of those records, in rising order; None: all count in a row."""
        self._column = column
        self._places = places

    @property
    def objects(self) -> list[Any]:
        """The values, decoded."""
        every, places = self._column.objects, self._places
        return every if places is None else list(map(every.__getitem__, places))

    def numbers(
        self, serde: Serde[Any], field: str | None, take: Callable[[Any], Any], kind: type
    ) -> NDArray[Any] | None:
        """Return a field of each value as integers of 64 bits or, of the `kind` float, as floats.

        None if some are null, of another type, or too large. `field` is what `serde` calls it, and
        `take` takes it from a value.
        """
        array = self._array(serde, field)
        if array is not None:
            return _numbers_in(array, kind)
        values = self.objects
        if any_none(values):
            return None
        found = list(map(take, values))
        if set(map(type, found)) != {kind}:
            return None
        try:
            return np.array(found, _NUMBERS[kind])
        except OverflowError:
            return None

    def _array(self, serde: Serde[Any], field: str | None) -> Any:
        """Return the values, or that field of them, as an Arrow array; None: there are objects."""
        column = self._column
        if not column.has_fields:
            return None
        if field is None:
            array = column.unread(serde) if isinstance(column, MadeColumn) else None
        else:
            form = cast("FieldForm", serde.arrow_form())
            found = column.fields(form, [field])
            array = None if found is None else found[field]
        return array if array is None or self._places is None else array.take(self._places)


def _numbers_in(array: Any, kind: type) -> NDArray[Any] | None:
    if array.null_count or str(array.type) != _NAMES[kind]:
        return None
    made: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return made


class Fold(NamedTuple):
    """What a record does to an aggregate: `step(key, value, aggregate)`, from initial() on.

    `merge(key, one, other)` makes one aggregate of those of two sessions. `counts`: it counts
    records, so that many of them can be added at once, and needs neither keys nor values. `stable`:
    no function changes an aggregate in place, and the serde gives equal ones back. `many`: what the
    records of many rows do, equal to one step for each; it may raise where a step raises, which
    tells for which record.
    """

    initial: Callable[[], Any]
    step: Step
    merge: Step
    counts: bool = False
    stable: bool = False
    many: Many | None = None

    def next(self, key: Any, value: Any, aggregate: Any) -> Any:
        """Return the aggregate after a record; None: there is none."""
        return self.step(key, value, self.initial() if aggregate is None else aggregate)


COUNTED: Final = Fold(int, lambda _key, _value, n: n + 1, lambda _key, a, b: a + b, counts=True)


def reduced(function: Callable[[Any, Any], Any]) -> Fold:
    """Return the fold of function(old, new); the first value stands as it is."""
    return Fold(
        nothing,
        lambda _key, value, old: value if old is None else function(old, value),
        lambda _key, old, new: new if old is None else function(old, new),
    )


def nothing() -> None:
    """Return the aggregate before the first record, where the step begins with that record."""


class Updates(NamedTuple):
    """What an aggregate hands on: places in the batch, times, rows, values and old values."""

    places: list[int]
    times: list[int]
    rows: list[bytes]
    values: list[bytes | None]
    old_values: list[bytes | None]

    @classmethod
    def none(cls) -> "Updates":
        """Return no updates, to which others are added."""
        return cls([], [], [], [], [])

    @property
    def more_rows(self) -> int:
        """How many rows there are more than before; negative: fewer."""
        return self.old_values.count(None) - self.values.count(None)

    def picked(self, numbers: list[int]) -> "Updates":
        """Return the updates of these numbers, in their order."""
        return Updates(
            list(map(self.places.__getitem__, numbers)),
            list(map(self.times.__getitem__, numbers)),
            list(map(self.rows.__getitem__, numbers)),
            list(map(self.values.__getitem__, numbers)),
            list(map(self.old_values.__getitem__, numbers)),
        )

    def add(
        self, place: int, time: int, row: bytes, value: bytes | None, old_value: bytes | None
    ) -> None:
        """Append one update."""
        self.places.append(place)
        self.times.append(time)
        self.rows.append(row)
        self.values.append(value)
        self.old_values.append(old_value)


@dataclass(frozen=True)
class Aggregation(Generic[S]):
    """An aggregate as its node builds it: the store of its results, and what a record does.

    `every_update`: each record tells what it changed, not only the last one of a row in a batch.
    """

    node: str
    spec: S
    fold: Fold
    every_update: bool
    old_values: SendOldValues

    def encode(self, value: Any) -> bytes | None:
        """Return the stored form of an aggregate; SerdeMismatch if it does not fit."""
        serde = self.spec.value_serde
        try:
            return None if value is None else serde.serialize(value)
        except Exception as error:
            raise mismatch("value", value, serde, error) from error

    def telling(self, forward: Forward) -> Tell:
        """Return what forwards updates."""
        kind, keys, values = kind_of(self.spec), self.spec.key_serde, self.spec.value_serde
        old_values = self.old_values

        def tell(batch: Batch, updates: Updates) -> None:
            if not updates.rows:
                return
            then, old = batch.stream_times, None
            if old_values.enabled:
                old = Column(raw=updates.old_values, serde=values)
            told = Batch(
                keys=Column(raw=kind.logged_keys(updates.rows), serde=keys),
                values=Column(raw=updates.values, serde=values),
                timestamps=updates.times,
                headers=batch.headers_at(updates.places),
                old_values=old,
                stream_times=None if then is None else list(map(then.__getitem__, updates.places)),
            )
            forward(told, None)

        return tell
