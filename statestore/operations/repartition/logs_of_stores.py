"""Reads changelogs and says where each of their records belongs.

A changelog is all that a store has, whatever its kind and wherever its files are: so records of
changelogs are divided, and not rows of files (docs/adr/0052). They keep their order, and with it
what later records of a key say. Before anything is copied, `Census` reads all of them once: each
record has to lie where the hash of its key puts it. A store whose operator, processor or producer
places rows otherwise is refused by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from statestore.errors import Misuse
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds, Changelog, Records
from statestore.stores.kinds.kind import LoggedRow, StoreKind
from statestore.stores.kinds.registry import kind_of
from statestore.stores.logged import sendable, true_times
from statestore.stores.specs import MovedRow, RowsOfPartition, StoreSpec

Place = Callable[[Sequence[bytes], int], list[int]]
"""Tells the partition of each key, given how many there are."""
_AT_ONCE = 20_000


class LoggedStore(NamedTuple):
    """A store whose changelog is to be divided."""

    spec: StoreSpec
    topic: str
    before: int
    after: int

    @property
    def kind(self) -> StoreKind:
        return kind_of(self.spec)

    @property
    def apart(self) -> RowsOfPartition | None:
        """What says where its rows lie, if their keys do not."""
        found: RowsOfPartition | None = getattr(self.spec, "apart", None)
        return found


def last_rows(changelog: Changelog, tp: TopicPartition, bounds: Bounds) -> dict[bytes, MovedRow]:
    """Return the rows that a partition of a plain changelog has in the end, by key."""
    found: dict[bytes, MovedRow] = {}
    for stretch in changelog.replay(tp, bounds.start, bounds.end):
        batch = stretch.batch
        columns = zip(batch.keys.objects, batch.values.objects, true_times(batch), strict=True)
        for key, value, time_ms in columns:
            if key is None:
                continue
            found.pop(key, None)
            if value is not None:
                found[key] = MovedRow(tp.partition, key, value, time_ms)
    return found


@dataclass
class Census:
    """What the logs of one sub-topology's stores have, and which hashes may have placed it."""

    changelog: Changelog
    places: Mapping[str, Place]
    whose: str = "neither murmur2 nor crc32, nor what other rows are placed by,"
    """What places keys, for messages."""
    fitting: set[str] = field(default_factory=set)
    keys: int = 0

    def __post_init__(self) -> None:
        self.fitting = set(self.places)

    def count(self, store: LoggedStore, bounds: Mapping[TopicPartition, Bounds]) -> int:
        """Read the log of a store and return how many records it has.

        Misuse if a record lies where no hash puts it, or if what partitions have as a whole cannot
        be one.
        """
        records, about = 0, list[LoggedRow]()
        for p in range(store.before):
            tp = TopicPartition(store.topic, p)
            if store.apart is not None:
                rows = last_rows(self.changelog, tp, bounds[tp])
                keys = [store.apart.placing(row.key, row.value) for row in rows.values()]
                self._check(store, tp, keys)
                records += len(rows)
                continue
            is_whole = True
            of_all: dict[bytes, LoggedRow] = {}
            for stretch in self.changelog.replay(tp, bounds[tp].start, bounds[tp].end):
                batch = stretch.batch
                records += len(batch)
                keys = store.kind.placing_keys(store.spec, batch)
                self._check(store, tp, keys)
                of_all |= rows_about_all(batch, keys, p)
                is_whole = store.kind.is_whole(batch, before=is_whole)
            if not is_whole:
                raise Misuse(
                    f"store {store.spec.name}: changelog {tp} was written by an older version and "
                    "not changed over yet: start the application once with this version, then "
                    "repeat the command"
                )
            about += of_all.values()
        try:
            store.kind.about_all(store.spec, about)
        except Misuse as error:
            raise Misuse(f"store {store.spec.name}: {error}") from None
        return records

    def _check(self, store: LoggedStore, tp: TopicPartition, keys: list[bytes | None]) -> None:
        known = [key for key in keys if key is not None]
        self.keys += len(known)
        wrong = b""
        for name in sorted(self.fitting):
            placed = self.places[name](known, store.before)
            if any(p != tp.partition for p in placed):
                self.fitting.discard(name)
                wrong = next(key for key, p in zip(known, placed, strict=True) if p != tp.partition)
        if known and not self.fitting:
            raise Misuse(
                f"store {store.spec.name}: the row of key {wrong[:60]!r} is in partition "
                f"{tp.partition} of {store.before}, where {self.whose} puts it, so it is not known "
                "where it belongs from now on: its producer has a partitioner of its own, or one "
                "that also looks at other things than the key, or a processor puts rows under "
                "other keys than those of its records; start under another application id"
            )


def rows_about_all(
    batch: Batch, placing: Sequence[bytes | None], partition: int
) -> dict[bytes, LoggedRow]:
    """Return the last records with a key, but without a place, by key."""
    found: dict[bytes, LoggedRow] = {}
    for i, place in enumerate(placing):
        key = batch.keys.objects[i] if place is None else None
        if key is not None:
            headers = () if batch.headers is None else tuple(batch.headers[i])
            value, time_ms = batch.values.objects[i], batch.timestamps[i]
            found[key] = LoggedRow(partition, key, value, time_ms, headers)
    return found


@dataclass(frozen=True)
class Division:
    """The records of one store's log, as the partitions of a topic are to have them."""

    changelog: Changelog
    store: LoggedStore
    place: Place
    into: str

    def records(self, bounds: Mapping[TopicPartition, Bounds]) -> Iterator[Records]:
        """Yield the records for each new partition, those of one key in their order."""
        if self.store.apart is None:
            yield from self._streamed(bounds)
        else:
            yield from self._joined(self.store.apart, bounds)

    def _streamed(self, bounds: Mapping[TopicPartition, Bounds]) -> Iterator[Records]:
        store, about = self.store, list[LoggedRow]()
        for p in range(store.before):
            tp, of_all = TopicPartition(store.topic, p), dict[bytes, LoggedRow]()
            for stretch in self.changelog.replay(tp, bounds[tp].start, bounds[tp].end):
                keys = store.kind.placing_keys(store.spec, stretch.batch)
                of_all |= rows_about_all(stretch.batch, keys, p)
                yield from self._divided(stretch.batch, keys)
            about += of_all.values()
        for row in store.kind.about_all(store.spec, about):
            for p in range(store.after):
                yield Records(self.into, [row.key], [row.value], [row.time_ms], p, [row.headers])

    def _divided(self, batch: Batch, keys: list[bytes | None]) -> Iterator[Records]:
        known = [i for i, key in enumerate(keys) if key is not None]
        placed = self.place([key for key in keys if key is not None], self.store.after)
        rows: dict[int, list[int]] = {}
        for i, p in zip(known, placed, strict=True):
            rows.setdefault(p, []).append(i)
        for p, found in rows.items():
            part = batch.take(found)
            yield Records(
                self.into,
                part.keys.objects,
                part.values.objects,
                part.timestamps,
                p,
                part.headers,
            )

    def _joined(
        self, apart: RowsOfPartition, bounds: Mapping[TopicPartition, Bounds]
    ) -> Iterator[Records]:
        """An operator's own rows are few: those that wait. So they are put together in memory."""
        store, about = self.store, list[MovedRow]()
        own: list[list[MovedRow]] = [[] for _ in range(store.after)]
        for p in range(store.before):
            tp = TopicPartition(store.topic, p)
            for row in last_rows(self.changelog, tp, bounds[tp]).values():
                key = apart.placing(row.key, row.value)
                if key is None:
                    about.append(row)
                else:
                    own[self.place([key], store.after)[0]].append(row)
        for p, rows in enumerate(own):
            made = list(apart.joined(rows, about))
            for at in range(0, len(made), _AT_ONCE):
                part = made[at : at + _AT_ONCE]
                times, headers = sendable([row.time_ms for row in part])
                keys, values = [row.key for row in part], [row.value for row in part]
                yield Records(self.into, keys, values, times, p, headers)
