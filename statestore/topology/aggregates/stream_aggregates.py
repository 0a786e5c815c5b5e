"""The aggregates of a stream: count, reduce and aggregate, by key or by key and window.

A node makes one get_many and one put_all per batch. An update stands at the place of its key's last
record in the batch. As in Kafka Streams, it is stamped with the latest time of everything that it
comes from; the time of the stored row is looked up only where a record is earlier than some that
came before it. A `Keying` decides what a row of the store is, a key or a key in a window, and in
how many rows a record counts.

Keeps I24.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from statestore import serdes
from statestore.model import big_endian
from statestore.model.batch import Batch, Column
from statestore.model.byte_columns import MaybePacked, PackedRows, unpacked
from statestore.model.nulls import any_none
from statestore.model.records import Serde
from statestore.stores.specs import KeyValueSpec
from statestore.stores.staged_table import StagedTable
from statestore.topology.aggregates.folds import Aggregation, Tell, Updates, Values
from statestore.topology.aggregates.row_ranks import ranked_rows, ranked_windows
from statestore.topology.failures import decoded, each, encoded, failed_at, processing
from statestore.topology.nodes import Build, NodeContext, Push, in_order

_NO_COUNT = serdes.INT64.serialize(0)


class RowsOfWindows(NamedTuple):
    """The rows of entries, each a window and a key: nobody has to make them one by one.

    An entry counts in its row if `counted` says so. `places` has the index of each one's key in
    `keys`; None: its own. A row begins with the start of its window. A null key counts nowhere.
    """

    keys: MaybePacked
    starts: NDArray[np.int64]
    counted: NDArray[np.bool_]
    places: NDArray[np.intp] | None = None

    def objects(self) -> list[bytes | None]:
        """Return the row of each entry; None for one that counts in none."""
        keys = unpacked(self.keys)
        if self.places is not None:
            keys = list(map(keys.__getitem__, self.places.tolist()))
        prefixes: list[bytes] = big_endian.packed(self.starts)
        if self.counted.all():
            return list(map(add, prefixes, cast("list[bytes]", keys)))
        return [
            prefix + key if counted and key is not None else None
            for prefix, key, counted in zip(prefixes, keys, self.counted.tolist(), strict=True)
        ]


class Placed(NamedTuple):
    """The rows in which the records of a batch count, in the order of the records.

    `rows` has None for a record that counts in none. `places` has the index of each row's record;
    None: each record has one entry, in its place. `times` are those of the entries, where they are
    known as an array.
    """

    rows: MaybePacked | RowsOfWindows
    places: list[int] | None = None
    times: NDArray[np.int64] | None = None

    def over(self, batch: Batch) -> Batch:
        """Return the batch with one record for each entry."""
        return batch if self.places is None else batch.take(self.places)

    def objects(self) -> list[bytes | None]:
        """Return the rows as objects."""
        rows = self.rows
        return rows.objects() if isinstance(rows, RowsOfWindows) else unpacked(rows)


class Keying(NamedTuple):
    """Which rows of a store the records of a batch count in.

    `serde` is that of the records' keys, with which rows end after `prefix` bytes. `drops_nulls`:
    as in Kafka Streams, null values do not count by key alone, but they do in windows.
    """

    place: Callable[[Batch], Placed]
    serde: Serde[Any]
    prefix: int
    drops_nulls: bool

    def without_key(self, node: str, batch: Batch) -> list[int]:
        """Return the indices of the records without a key."""
        keys = encoded(node, batch, "key", self.serde)
        return [i for i, key in enumerate(keys) if key is None]

    def names(self, node: str, batch: Batch, rows: list[bytes]) -> list[Any]:
        """Return the key that a user's function is given for each row of a batch.

        NodeFailed for the records whose key cannot be decoded.
        """
        read, at = self.serde.deserialize, self.prefix
        if self.serde is serdes.BYTES:
            return [row[at:] for row in rows]
        try:
            return [read(row[at:]) for row in rows]
        except Exception:
            keys = Column(raw=encoded(node, batch, "key", self.serde), serde=self.serde)
            decoded(node, batch.with_columns(keys=keys), "key")
            raise


def by_key(how: Aggregation[KeyValueSpec[Any, Any]]) -> Build:
    """Build an aggregate with one row for each key."""
    serde = how.spec.key_serde

    def place(batch: Batch) -> Placed:
        return Placed(batch.keys.packed(serde) or encoded(how.node, batch, "key", serde))

    keying = Keying(place, serde, prefix=0, drops_nulls=True)
    return lambda context, forward: by_rows(how, keying, context, how.telling(forward))


def by_rows(how: Aggregation[Any], keying: Keying, context: NodeContext, tell: Tell) -> Push:
    """Return what folds the records of a batch into the rows in which they count."""
    fold = _counting if how.fold.counts else _folding
    return fold(how, keying, context, tell)


def _counting(how: Aggregation[Any], keying: Keying, context: NodeContext, tell: Tell) -> Push:
    """Return what counts the records of each row and decodes none of them."""
    table, node = context.table(how.spec.name), how.node

    def push(batch: Batch) -> None:
        placed = keying.place(batch)
        rows, came = placed.rows, batch.timestamps
        if placed.places is not None:
            came = list(map(came.__getitem__, placed.places))
        valueless = batch.values.nulls() if keying.drops_nulls else []
        if valueless:
            rows = placed.objects().copy()
            dropped = [i for i in valueless if rows[i] is not None]
            _drop(context, node, batch, dropped, "null_value")
            for i in valueless:
                rows[i] = None
        found = _distinct(rows, came, placed.times)
        if found.none:
            _drop(context, node, batch, keying.without_key(node, batch), "null_key")
        if not found.rows:
            return
        stored = table.get_many(found.rows)
        counts = big_endian.unpacked([_NO_COUNT if count is None else count for count in stored])
        more = np.bincount(found.numbers, minlength=len(found.rows))
        after = big_endian.packed(counts + more)
        times = table.later(found.rows, found.times)
        if how.every_update:
            stamps = _Stamps(table, found.rows, came)
            updates = _each(found, counts, more, stored, came, stamps)
        else:
            updates = _last_of(found, times, after, stored)
        table.put_all(dict(zip(found.rows, after, strict=True)), times)
        if placed.places is not None:
            there = list(map(placed.places.__getitem__, updates.places))
            updates = updates._replace(places=there)
        tell(batch, updates)

    return push


class _Distinct(NamedTuple):
    """The rows of a batch in byte order: the place of each one's last entry, and its latest time.

    `places` are those of the entries that count in a row, and `none` is the number of all others.
    `numbers` says which row each of the former counts in.
    """

    rows: list[bytes]
    places: NDArray[np.intp]
    numbers: NDArray[np.intp]
    last: NDArray[np.int64]
    times: list[int]
    none: int


def _distinct(
    rows: MaybePacked | RowsOfWindows, times: list[int], array: NDArray[np.int64] | None
) -> _Distinct:
    """Return the distinct rows, in byte order so that neither look-up nor commit has to sort.

    `array` has the times, too, if somebody made one.
    """
    places, numbers, made = _numbered(rows)
    last = np.empty(len(made), np.int64)
    last[numbers] = places  # Of equal numbers, the last assignment stays.
    if in_order(times) if array is None else (array[1:] >= array[:-1]).all():
        latest = list(map(times.__getitem__, last.tolist()))
    else:
        largest = np.full(len(made), np.iinfo(np.int64).min)
        np.maximum.at(largest, numbers, np.array(times, np.int64)[places])
        latest = largest.tolist()
    return _Distinct(made, places, numbers, last, latest, len(times) - len(places))


def _numbered(
    rows: MaybePacked | RowsOfWindows,
) -> tuple[NDArray[np.intp], NDArray[np.intp], list[bytes]]:
    """Return the places of the entries that count, which row each counts in, and these rows."""
    if isinstance(rows, RowsOfWindows):
        places = np.flatnonzero(rows.counted)
        of_keys = places if rows.places is None else rows.places[places]
        return places, *ranked_windows(rows.keys, of_keys, rows.starts[places])
    known = _known(rows)
    places = np.arange(len(rows))
    if len(known) < len(rows):
        places = np.array([i for i, row in enumerate(rows) if row is not None], np.intp)
    return places, *ranked_rows(known)


def _known(rows: MaybePacked) -> MaybePacked:
    if isinstance(rows, PackedRows) and not rows.may_have_nulls:
        return rows
    # all() takes empty rows for none; those are rare, and the comprehension keeps them.
    found = unpacked(rows)
    return found if all(found) else [row for row in found if row is not None]


class _Stamps:
    """The times of rows, while the records of a batch pass one by one."""

    def __init__(self, table: StagedTable, rows: list[bytes], times: list[int]) -> None:
        """`times` are the batch's; where they are in order, each is the latest of its row."""
        self._times: dict[bytes, int] | None = None
        if not in_order(times) or not table.all_latest(times):
            known = zip(rows, table.times_of(rows), strict=True)
            self._times = {row: time for row, time in known if time is not None}

    def next(self, row: bytes, time: int, *, is_new: bool = False) -> int:
        """Return the time of a row after a record of this time; `is_new`: it had no row before."""
        times = self._times
        if times is not None:
            if not is_new:
                time = max(time, times.get(row, time))
            times[row] = time
        return time


def _last_of(
    found: _Distinct,
    times: list[int],
    after: list[bytes | None],
    old: list[bytes | None],
) -> Updates:
    """Return one update per row, at the place of its last entry."""
    # Python's numbers, because numpy's take twice as long one by one.
    updates = Updates(found.last.tolist(), times, found.rows, after, old)
    return updates.picked(np.argsort(found.last).tolist())


def _each(
    found: _Distinct,
    counts: NDArray[np.int64],
    more: NDArray[np.int64],
    stored: list[bytes | None],
    times: list[int],
    stamps: _Stamps,
) -> Updates:
    """Return one update of a count per entry.

    `counts` and `stored` are those before the batch, to which it adds so many `more`.
    """
    row_of = found.numbers
    # How many entries of its row come before each one.
    by_row = np.argsort(row_of, kind="stable")
    nth = np.empty(len(row_of), np.int64)
    nth[by_row] = np.arange(len(row_of)) - np.repeat(np.cumsum(more) - more, more)
    before = counts[row_of] + nth
    old = big_endian.packed(before)
    is_new = np.array([count is None for count in stored])
    for at in np.flatnonzero((nth == 0) & is_new[row_of]).tolist():
        old[at] = None
    rows = list(map(found.rows.__getitem__, row_of.tolist()))
    places = found.places.tolist()
    return Updates(
        places,
        list(map(stamps.next, rows, map(times.__getitem__, places))),
        rows,
        big_endian.packed(before + 1),
        old,
    )


def _folding(how: Aggregation[Any], keying: Keying, context: NodeContext, tell: Tell) -> Push:
    """Return what calls the fold's functions for each record of a row."""
    table, fold = context.table(how.spec.name), _Folding(how, keying)

    def push(batch: Batch) -> None:
        placed = keying.place(batch)
        shared = placed.places is not None and not how.fold.stable
        if shared or not batch.values.has_fields:
            decoded(how.node, batch, "value")  # Each value once, however many rows it counts in.
        batch = placed.over(batch)
        found, values = _with_values(context, how.node, batch, keying, placed)
        if not found.rows:
            return
        with processing(how.node, batch):
            after, times, updates = fold.run(table, batch, found, values)
        table.put_all(dict(zip(found.rows, after, strict=True)), times)
        tell(batch, updates)

    return push


@dataclass(frozen=True)
class _Folding:
    how: Aggregation[Any]
    keying: Keying

    def run(
        self, table: StagedTable, batch: Batch, found: _Distinct, records: Values
    ) -> tuple[list[bytes | None], list[int], Updates]:
        """Return the new rows, their times and the updates; NodeFailed names a failing record.

        `records` are the values of those that count in a row. An aggregate passes through its serde
        from record to record, as it would if each record came in its own batch. So a function may
        change what it is given, and no result depends on where batches end.
        """
        stored = table.get_many(found.rows)
        decode = self.how.spec.value_serde.deserialize
        values = [None if old is None else decode(old) for old in stored]
        if self.how.every_update:
            stamps = _Stamps(table, found.rows, batch.timestamps)
            noted = _Noted(self.how, stamps, batch, found, stored)
            self._step_all(batch, found, records.objects, values, noted)
            return noted.running, noted.times, noted.updates
        begun: list[int] = []
        made = self._many(found, records, values)
        if made is None:
            made, objects = values, records.objects
            begun = self._step_all(batch, found, objects, values, None)
        elif self.keying.serde is not serdes.BYTES:
            self.keying.names(self.how.node, batch, found.rows)  # Keys that cannot be read fail.
        times = _times_of(table, batch, found, stored, begun)
        after = self._encoded(made)
        return after, times, _last_of(found, times, after, stored)

    def _many(self, found: _Distinct, records: Values, values: list[Any]) -> list[Any] | None:
        """Return the values of the rows, all records folded into them at once.

        None: the fold cannot, or a step is to tell what failed.
        """
        many = self.how.fold.many
        if many is None:
            return None
        try:
            # A copy, as it may change what it is given before it fails.
            return many(found.numbers, records, values.copy())
        except Exception:  # noqa: BLE001  # whatever a value of a user's raises
            return None

    def _step_all(
        self,
        batch: Batch,
        found: _Distinct,
        records: list[Any],
        values: list[Any],
        noted: "_Noted | None",
    ) -> list[int]:
        """Call the function for each record, in order; `noted` takes in what each has made.

        `values`, one for each row, are changed. Return the places among the records of those before
        which there was no row.
        """
        initial, step, *_ = self.how.fold
        names = self.keying.names(self.how.node, batch, found.rows)
        stable, places, numbers = self.how.fold.stable, found.places.tolist(), found.numbers
        unchanged = serdes.unchanged(self.how.spec.value_serde)
        begun: list[int] = []
        # The rows whose value may be changed, or which the serde may give back as another one, by
        # the places of the records that made them.
        made: dict[int, int] = {}

        def fold(ahead: Iterator[Any]) -> None:
            for at, (value, row) in enumerate(zip(ahead, numbers.tolist(), strict=True)):
                old = values[row]
                if row in made:
                    data = None if noted is None else noted.running[row]
                    old = self._reread(batch, made.pop(row), old, data)
                is_new = old is None
                if is_new:
                    begun.append(at)
                    old = initial()
                new = values[row] = step(names[row], value, old)
                if noted is not None:
                    noted.add(places[at], row, new, is_new=is_new)
                if not (stable or type(new) in unchanged):
                    made[row] = places[at]

        each(self.how.node, batch, records, fold, place_of=places.__getitem__)
        return begun

    def _reread(self, batch: Batch, place: int, value: Any, data: bytes | None) -> Any:
        """Return the value that the record at `place` made, as the store would give it back."""
        try:
            written = self.how.encode(value) if data is None else data
            return None if written is None else self.how.spec.value_serde.deserialize(written)
        except Exception as error:
            raise failed_at(self.how.node, batch, place, error) from error

    def _encoded(self, values: list[Any]) -> list[bytes | None]:
        serde: Serde[Any] = self.how.spec.value_serde
        try:
            return serde.serialize_all(values)
        except Exception:  # noqa: BLE001  # one by one, it is told which value does not fit
            return list(map(self.how.encode, values))


def _times_of(
    table: StagedTable,
    batch: Batch,
    found: _Distinct,
    stored: list[bytes | None],
    begun: list[int],
) -> list[int]:
    """Return the time of each row after the records of a batch.

    `begun`: the places, among the records that count, of those before which there was no row.
    """
    times, came = found.times.copy(), batch.timestamps
    if len(begun) > stored.count(None):
        # A row that ended and began again has the time of what came since.
        stamps, anew = _Stamps(table, found.rows, came), set(begun)
        entries = zip(found.numbers.tolist(), found.places.tolist(), strict=True)
        for at, (row, place) in enumerate(entries):
            times[row] = stamps.next(found.rows[row], came[place], is_new=at in anew)
    elif not table.all_latest(times):
        there = [row for row, old in enumerate(stored) if old is not None]
        later = table.later([found.rows[row] for row in there], [times[row] for row in there])
        for row, time in zip(there, later, strict=True):
            times[row] = time
    return times


class _Noted:
    """What is noted where each record tells what it changed: the times of rows, and updates."""

    def __init__(
        self,
        how: Aggregation[Any],
        stamps: _Stamps,
        batch: Batch,
        found: _Distinct,
        stored: list[bytes | None],
    ) -> None:
        self.times = found.times.copy()
        self.updates = Updates.none()
        self.running = stored.copy()
        self._rows = found.rows
        self._how = how
        self._stamps = stamps
        self._came = batch.timestamps

    def add(self, place: int, row: int, new: Any, *, is_new: bool) -> None:
        """Note what the record at `place` made of a row; `is_new`: there was none."""
        key = self._rows[row]
        time = self.times[row] = self._stamps.next(key, self._came[place], is_new=is_new)
        data = self._how.encode(new)
        self.updates.add(place, time, key, data, self.running[row])
        self.running[row] = data


def _with_values(
    context: NodeContext, node: str, batch: Batch, keying: Keying, placed: Placed
) -> tuple[_Distinct, Values]:
    """Return the rows that records count in, and the values of these records; drop the others.

    A value must not be null, if the keying says so.
    """
    column, rows = batch.values, placed.rows
    valueless: list[int] = []
    if column.has_fields:
        nulls = column.nulls() if keying.drops_nulls else []
    else:
        values = decoded(node, batch, "value")
        some = keying.drops_nulls and any_none(values)
        nulls = [i for i, value in enumerate(values) if value is None] if some else []
    if nulls:
        rows = placed.objects().copy()
        valueless = [i for i in nulls if rows[i] is not None]
        for i in valueless:
            rows[i] = None
    found = _distinct(rows, batch.timestamps, placed.times)
    if not found.none:
        return found, Values(column)
    # A record that has a key but no row was dropped, and counted, by the Keying.
    gone = sorted({*valueless, *keying.without_key(node, batch)})
    _drop(context, node, batch, gone, "null_key_or_value" if keying.drops_nulls else "null_key")
    return found, Values(column, found.places.tolist())


def _drop(context: NodeContext, node: str, batch: Batch, indices: list[int], reason: str) -> None:
    if indices:
        context.drop(node, batch, indices, reason)
