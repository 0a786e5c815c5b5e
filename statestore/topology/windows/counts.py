"""Count windows: so many records of a key, in the order in which they come (docs/adr/0033).

A window begins with a record of its key, and another one begins `advance` records later. It is full
when it has `size` records; then its result goes out, and the window is gone. The table has the last
result of each key. The open windows of all keys are in a store of their own, one row for each key:
the list of its windows, the oldest first, as `composed.count_windows` writes it.

A batch makes one look-up and one write of the rows of its keys, whose records are folded in memory.

Keeps I24.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.batch import Batch
from statestore.model.records import Serde
from statestore.serdes import composed
from statestore.serdes.composed import CountWindow
from statestore.stores.migration import GONE, MigratingSerde, Migration, migrating
from statestore.stores.specs import KeyValueSpec
from statestore.topology.aggregates.folds import Aggregation, Updates
from statestore.topology.failures import decoded, each, encoded, processing
from statestore.topology.nodes import Build, Forward, NodeContext, Push
from statestore.topology.windows.fold import Rule, Windowing

_OPEN_MAX: Final = 1000
_SIZE_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True)
class CountWindows:
    """Windows of `size` records of a key, one beginning every `advance` records.

    `CountWindows.of(5)` are side by side, as Quix's tumbling_count_window(5). With `advance_by(2)`
    they overlap, as its hopping_count_window(5, 2); with `advance_by(1)` there is a result of the
    last five records with every record, as of its sliding_count_window(5). Misuse if the size is
    not positive, if the advance is not between 1 and the size, or if more than 1000 windows of a
    key would be open at once.
    """

    size: int
    advance: int

    @classmethod
    def of(cls, size: int) -> "CountWindows":
        """Return windows of so many records, side by side."""
        return cls(size, size)

    def advance_by(self, advance: int) -> "CountWindows":
        """Return windows of the same size, one beginning every `advance` records."""
        return CountWindows(self.size, advance)

    @property
    def rule(self) -> "Rule":
        """What operators do in these windows."""
        return _Rule(self)

    def __post_init__(self) -> None:
        for name in ("size", "advance"):
            given: object = getattr(self, name)
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise Misuse(f"CountWindows: the {name} is {given!r:.60}: pass 1 record or more")
            if given > _SIZE_MAX:
                raise Misuse(f"CountWindows: the {name} is {given}: pass at most {_SIZE_MAX:,}")
        if self.advance > self.size:
            raise Misuse(
                f"CountWindows: with windows of {self.size} records every {self.advance}, records "
                f"between two windows would count in none: advance by {self.size} at most"
            )
        opened = -(-self.size // self.advance)
        if opened > _OPEN_MAX:
            raise Misuse(
                f"CountWindows: with windows of {self.size} records every {self.advance}, each "
                f"record would count in {opened:,} open windows of its key: advance by "
                f"{-(-self.size // _OPEN_MAX)} at least"
            )


@dataclass(frozen=True)
class _Rule:
    """The rule of windows that are full after so many records, which time does not close."""

    windows: CountWindows
    closes: None = None

    def specs(
        self, plain: KeyValueSpec[Any, Any], terms: tuple[str, ...]
    ) -> tuple[KeyValueSpec[Any, Any], ...]:
        """Return the store of the results, which is the plain one, and that of open windows."""
        opened = KeyValueSpec(
            f"{plain.name}-windows",
            plain.key_serde,
            _of_windows(plain.value_serde),
            plain.persistent,
            plain.changelog_config,
            (f"count {self.windows.size}", f"advance {self.windows.advance}", *terms),
        )
        return plain, opened

    def build(self, how: Aggregation[KeyValueSpec[Any, Any]], windowing: Windowing) -> Build:
        """Build an aggregate per key and count window.

        With results on update, a window also tells what it has so far: to each record that counts
        in it, if every update is told, else to the last one of a key in a batch.
        """
        _, kept = self.specs(how.spec, windowing.terms)
        tells_open, node = not windowing.final, how.node
        every_update = how.every_update and tells_open

        def build(context: NodeContext, forward: Forward) -> Push:
            results, opened = context.table(how.spec.name), context.table(kept.name)
            tell = how.telling(forward)

            def push(batch: Batch) -> None:
                keys = encoded(node, batch, "key", how.spec.key_serde)
                values = None if how.fold.counts else decoded(node, batch, "value")
                nulls = set(batch.values.nulls())
                missing = [i for i, key in enumerate(keys) if key is None or i in nulls]
                if missing:
                    context.drop(node, batch, missing, "null_key_or_value")
                left_out = set(missing)
                known: list[tuple[int, bytes]] = [
                    (i, key) for i, key in enumerate(keys) if key is not None and i not in left_out
                ]
                if not known:
                    return
                unique = sorted({key for _, key in known})
                stored = opened.get_many(unique)
                old = how.old_values.enabled
                told = results.get_many(unique) if old else [None] * len(unique)
                with processing(node, batch):
                    work = _Folding(how, kept, self.windows, batch)
                    work.load(unique, stored, told)
                    work.run(known, values, tells_open=every_update)
                    if tells_open:
                        work.tell_open()
                    rows = work.rows()
                before = dict(zip(unique, stored, strict=True))
                opened.put_all(
                    {key: row for key, row in rows.items() if row is not None or before[key]}
                )
                if work.told:
                    updates = work.updates()
                    last = dict(zip(updates.rows, updates.times, strict=True))
                    results.put_all(
                        dict(zip(updates.rows, updates.values, strict=True)), list(last.values())
                    )
                    tell(batch, updates)

            return push

        return build


def _of_windows(value_serde: Serde[Any]) -> Serde[list[CountWindow]]:
    """Return the serde of the rows of windows whose values have this one, migrated as they are."""
    if not isinstance(value_serde, MigratingSerde):
        return composed.count_windows(value_serde)
    *olds, current = value_serde.generations
    return migrating(
        composed.count_windows(current),
        [
            Migration.gone()
            if old is GONE
            else Migration(composed.count_windows(old), None if change is None else _Each(change))
            for old, change in zip(olds, value_serde.changes, strict=True)
        ],
    )


@dataclass(frozen=True)
class _Each:
    """Changes the values of all windows of a row as `change` does; it travels between processes."""

    change: Any

    def __call__(self, windows: list[CountWindow]) -> list[CountWindow]:
        change = self.change
        return [
            one if one.value is None else one._replace(value=change(one.value)) for one in windows
        ]


class _Window:
    """An open window while a batch is folded.

    `data` is its value in bytes, None if that is an immutable `value`, or if there is none.
    """

    __slots__ = ("data", "records", "size", "time_ms", "value")

    def __init__(self, size: int, records: int, time_ms: int, value: Any) -> None:
        self.size = size
        self.records = records
        self.time_ms = time_ms
        self.value = value
        self.data: bytes | None = None


class _OfKey:
    """The open windows of a key, the oldest first, and the last result that was told."""

    __slots__ = ("name", "named", "told", "untold", "windows")

    def __init__(self, windows: list[_Window], told: bytes | None) -> None:
        self.windows = windows
        self.told = told
        self.untold: int | None = None
        """The last record of the batch, if it has told nothing."""
        self.name: Any = None
        self.named = False


class _Folding:
    """One batch on its way into windows."""

    def __init__(
        self,
        how: Aggregation[KeyValueSpec[Any, Any]],
        kept: KeyValueSpec[Any, list[CountWindow]],
        windows: CountWindows,
        batch: Batch,
    ) -> None:
        self.told: list[tuple[int, int, bytes, bytes | None, bytes | None]] = []
        """Place, time, key, value and old value of each update."""
        self._how = how
        self._fold = how.fold
        self._serde = how.spec.value_serde
        self._rows_serde = kept.value_serde
        self._windows = windows
        self._batch = batch
        self._unchanged = serdes.unchanged(self._serde)
        self._of_keys: dict[bytes, _OfKey] = {}

    def load(
        self, keys: list[bytes], rows: Iterable[bytes | None], told: Iterable[bytes | None]
    ) -> None:
        """Read the open windows of the batch's keys."""
        read = self._rows_serde.deserialize
        for key, row, last in zip(keys, rows, told, strict=True):
            windows = [] if row is None else [_Window(*one) for one in read(row)]
            self._of_keys[key] = _OfKey(windows, last)

    def run(
        self, known: list[tuple[int, bytes]], values: list[Any] | None, *, tells_open: bool
    ) -> None:
        """Fold the records of these places and keys; NodeFailed names the one that fails."""

        def fold_all(ahead: Iterator[tuple[int, bytes]]) -> None:
            for place, key in ahead:
                value = None if values is None else values[place]
                self._one(place, key, value, tells_open=tells_open)

        each(self._how.node, self._batch, known, fold_all, place_of=lambda row: known[row][0])

    def _one(self, place: int, key: bytes, value: Any, *, tells_open: bool) -> None:
        """Count a record in the open windows of its key, and tell which of them it fills."""
        of, time_ms = self._of_keys[key], self._batch.timestamps[place]
        if not of.windows or of.windows[-1].records >= self._windows.advance:
            of.windows.append(_Window(self._windows.size, 0, time_ms, None))
        if not (of.named or self._fold.counts):
            of.name, of.named = self._how.spec.key_serde.deserialize(key), True
        for window in of.windows:
            self._add(window, of.name, value)
            window.records += 1
            window.time_ms = max(window.time_ms, time_ms)
        # Where another size was deployed, a window keeps the one with which it began.
        full = [window for window in of.windows if window.records >= window.size]
        of.untold = None if full or tells_open else place
        for window in full or (of.windows[:1] if tells_open else ()):
            self._tell(of, place, key, window)
        if full:
            of.windows = [window for window in of.windows if window.records < window.size]

    def tell_open(self) -> None:
        """Tell the oldest open windows of the keys whose last record has told nothing."""
        for key, of in self._of_keys.items():
            if of.untold is not None:
                self._tell(of, of.untold, key, of.windows[0])

    def rows(self) -> dict[bytes, bytes | None]:
        """Return the rows of all keys; None where no window is open."""
        return {key: self._row(of.windows) for key, of in self._of_keys.items()}

    def updates(self) -> Updates:
        """Return what was told, in the order of the records."""
        self.told.sort(key=_by_place)
        updates = Updates.none()
        for update in self.told:
            updates.add(*update)
        return updates

    def _add(self, window: _Window, name: Any, value: Any) -> None:
        # A value passes through its serde from record to record, so a function may change it.
        old = window.value if window.data is None else self._serde.deserialize(window.data)
        made = self._fold.step(name, value, self._fold.initial() if old is None else old)
        window.value, window.data = made, None
        if type(made) not in self._unchanged:
            window.value, window.data = None, self._how.encode(made)

    def _tell(self, of: _OfKey, place: int, key: bytes, window: _Window) -> None:
        data = self._how.encode(window.value) if window.data is None else window.data
        self.told.append((place, window.time_ms, key, data, of.told))
        of.told = data

    def _row(self, windows: list[_Window]) -> bytes | None:
        if not windows:
            return None
        read = self._serde.deserialize
        row = [
            CountWindow(
                one.size,
                one.records,
                one.time_ms,
                one.value if one.data is None else read(one.data),
            )
            for one in windows
        ]
        try:
            return self._rows_serde.serialize(row)
        except Exception:
            for window in row:
                self._how.encode(window.value)  # This says which value does not fit.
            raise


def _by_place(update: tuple[int, int, bytes, bytes | None, bytes | None]) -> int:
    return update[0]
