"""StoreKind: all that the library asks of a kind of store, in one object (docs/adr/0039).

Whoever has a spec, or the name of a kind in `topology.json`, a format row or an export, asks the
registry for its object and asks that, instead of comparing names and classes. So a kind is written
in one module: its spec, how its rows lie, who owns and who reads them, what its changelog has, and
how tools show it. A kind says nothing about what lies above the stores: it answers with values, of
which commands, pages and Spark make text and columns.

What is asked for each batch, commit or question is a method here; what is done for each record is
done by the owner's class and the tables, which a caller gets from the kind once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, cast

from statestore.errors import Misuse
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.modes import IsolationLevel
from statestore.model.records import Header, Serde
from statestore.ports import Engine, Writes
from statestore.serdes import composed
from statestore.stores import keyvalue, offsets
from statestore.stores.contracts import StateStore
from statestore.stores.logged import sendable, true_times
from statestore.stores.offsets import Format
from statestore.stores.pending import Entries
from statestore.stores.reads import Entry, RowScan, RowSource, SourceRows
from statestore.stores.row_times import read_times
from statestore.stores.specs import StoreSpec
from statestore.stores.staged_table import Changes, StagedTable
from statestore.stores.transaction import StagedEngine
from statestore.stores.versioned.table import VersionedTable

OwnedTable = StagedTable | VersionedTable
LookUp = Callable[[list[bytes]], list[bytes | None]]
"""From keys as the changelog has them to values; None where there is none."""
Later = Callable[[list[bytes], list[int]], list[int]]
"""From such keys, and times, to the later of each time and that of the key's row."""


ROWS_AT_ONCE: Final = 20_000
"""How many rows of files are taken at once for a changelog."""


class StoreTerms(NamedTuple):
    """What a spec says beside its name and its serdes, as the deployed topology keeps it.

    `retention_ms`: how long history, windows or rows are kept; None: without limit, or not
    recorded. `window_ms`: the size of windows. `advance_ms`: how far apart windows start; None:
    every `window_ms`. `includes_end`: the end of a window belongs to it.
    """

    retention_ms: int | None = None
    window_ms: int | None = None
    advance_ms: int | None = None
    includes_end: bool = False


class Columns(NamedTuple):
    """Rows of a store by column; `begins` and `ends` are the spans of versions and of windows."""

    keys: list[Any]
    values: list[Any]
    begins: list[int | None]
    ends: list[int | None]


class LoggedChanges(NamedTuple):
    """What records of a changelog say of rows, by column; a value of None is a delete.

    `places`: where each record is in its batch. `begins` and `ends`: the spans of windows, or when
    a version begins. `times`: the times of the changes.
    """

    places: list[int]
    keys: list[bytes]
    values: list[bytes | None]
    begins: list[int | None]
    ends: list[int | None]
    times: list[int]


class LoggedRow(NamedTuple):
    """A record of a changelog: what it says of a row of its `partition`."""

    partition: int
    key: bytes
    value: bytes | None
    time_ms: int
    headers: tuple[Header, ...] = ()


class AnyReader(Protocol):
    """A reader of whatever kind, as tools use it."""

    name: str
    span_names: ClassVar[tuple[str, ...]]
    """What the times of an entry are called; empty if rows have none."""

    def find(self, key: Any, as_of_ms: int | None = None) -> Entry | None:
        """Return the row of a key; `as_of_ms`: the one valid then."""

    def entries(
        self,
        lo: Any = None,
        hi: Any = None,
        *,
        as_of_ms: int | None = None,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        """Return the rows with lo <= key <= hi."""

    def everything(self) -> RowScan[Entry]:
        """Return all that a reader may see."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, _kind: type[BaseException] | None, *_exc: object) -> None: ...


class BuiltIn(StateStore, Protocol):
    """The store of an owner, of whatever kind: processors use it, and a stream task owns it."""

    @property
    def spec(self) -> Any: ...
    @property
    def staged(self) -> StagedEngine: ...
    @property
    def table(self) -> OwnedTable: ...


class StoreKind(ABC):
    """A kind of store.

    What is not abstract is what a kind does whose rows lie in one table, without history and
    without windows. Methods that take a spec take one of `specs`.
    """

    name: ClassVar[str]
    """What the deployed topology, format rows, exports and people call it."""
    specs: ClassVar[tuple[type, ...]]
    """The classes of its specs."""
    owner_class: ClassVar[type[Any]]
    """The class of its owners, which takes the engine, the spec, the level and who owns it."""
    reader_class: ClassVar[type[Any]]
    """The class of its readers, which takes the partitions, the spec and what releases them."""
    tables: ClassVar[tuple[str, ...]] = (keyvalue.TABLE, offsets.TABLE)
    """The tables of its database, that of the offsets last."""
    is_readable: ClassVar[bool] = True
    """Whether this library can read the files of such a store."""
    keeps_history: ClassVar[bool] = False
    """Whether its rows are versions (stores/versioned)."""
    has_windows: ClassVar[bool] = False
    """Whether its keys are in windows, of which the rows say where they lie in time."""
    has_one_user: ClassVar[bool] = False
    """Whether only one processor may have such a store."""
    rows_have_times: ClassVar[bool] = False
    """Whether a row itself says the time of the record that made it."""
    keys_field: ClassVar[str] = "key_serde"
    """Which field of a spec has the serde of the keys themselves, without their windows."""
    unlogged_from: ClassVar[bytes | None] = None
    """Rows from this one on follow from the others, and no changelog has them."""
    own_rows: ClassVar[Collection[bytes]] = ()
    """Rows that have no value of the user's."""
    clock_row: ClassVar[bytes | None] = None
    """The row, in the table and in the changelog, that has stream time; None: there is none."""
    beside: ClassVar[bytes] = b""
    """How rows beside the offsets may begin (stores/offsets.py), besides those of all stores."""
    seeded_rows: ClassVar[Writes] = MappingProxyType({})
    """What files say beside their offsets if their changelog was made of `logged_rows`."""
    span_columns: ClassVar[tuple[str, ...]] = ()
    """What the columns are called that show the two times of a row; empty if rows have none."""

    # Specs.

    def keys(self, spec: Any) -> Serde[Any]:
        """Return the serde of the keys themselves, without their windows."""
        found: Serde[Any] = getattr(spec, self.keys_field)
        return found

    def terms(self, spec: Any) -> StoreTerms:  # noqa: ARG002  # other kinds have terms
        """Return what a spec says beside its name and its serdes."""
        return StoreTerms()

    @abstractmethod
    def spec_at_rest(
        self, name: str, keys: Serde[Any], values: Serde[Any], terms: StoreTerms
    ) -> StoreSpec:
        """Describe a store that was deployed so. The serde of keys is that of `keys`."""

    def expires(self, terms: StoreTerms) -> bool:  # noqa: ARG002  # other kinds may
        """Tell whether single rows expire, by the stream time of the task that owns them."""
        return False

    def asks_files(self, spec: Any) -> bool:  # noqa: ARG002  # other kinds may
        """Tell whether a spec asks for what only the files of the store can say."""
        return False

    def check_files(self, spec: Any, found: Format) -> None:  # noqa: B027  # most check nothing
        """Raise Misuse if a store with that format row cannot go on under this spec."""

    def keeps_times(self, spec: Any) -> bool:  # noqa: ARG002  # other kinds may
        """Tell whether the owner in a task keeps the time of each row that its changelog has."""
        return False

    def kept_by_operator(self, spec: Any) -> Any:
        """Return the spec of a store in which an operator keeps a table."""
        return spec

    def for_both(self, spec: Any, equal: Any) -> Any:  # noqa: ARG002  # others compare unequal
        """Return the spec for two users of one store, who describe it alike."""
        return spec

    # The owner.

    def segment_interval(self, spec: Any) -> Callable[[int | None], int] | None:  # noqa: ARG002
        """Return what chooses the length of segments of history; None: there are none."""
        return None

    def owner(
        self, staged: StagedEngine, spec: Any, *, level: IsolationLevel, owned_by_task: bool
    ) -> BuiltIn:
        """Return the store over an engine that has its tables."""
        made: BuiltIn = self.owner_class(
            staged, spec, isolation_level=level, owned_by_task=owned_by_task
        )
        return made

    def hold_time(self, store: Any, limit_ms: int | None) -> None:  # noqa: B027  # most judge none
        """Have an owner judge rows as if stream time were no later than that."""

    # Readers.

    def part(self, source: RowSource, spec: Any, where: str) -> Any:  # noqa: ARG002  # others name it
        """Return the rows of one partition for a reader."""
        return SourceRows(source, keyvalue.TABLE)

    def reader(self, parts: Sequence[Any], spec: Any, release: Callable[[], None]) -> AnyReader:
        """Return a reader of these partitions, each as of `part`."""
        made: AnyReader = self.reader_class(parts, spec, release)
        return made

    def find_many(
        self, reader: Any, keys: Sequence[bytes], as_of_ms: int | None
    ) -> list[Entry | None]:
        """Return the row of each key, in order, as the reader's `find` does."""
        return [reader.find(key, as_of_ms) for key in keys]

    def versions(
        self,
        reader: Any,
        lo: bytes | None = None,
        hi: bytes | None = None,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        ascending: bool = False,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        """Return the versions of keys with lo <= key <= hi that were valid between both times."""
        del lo, hi, from_ms, to_ms, ascending, reverse
        raise Misuse(f"store {reader.name!r} keeps no versions: ask for the row itself")

    def windows(
        self, reader: Any, key: bytes, *, from_ms: int | None, to_ms: int | None
    ) -> RowScan[Entry]:
        """Return the windows of a key between both times."""
        del key, from_ms, to_ms
        raise Misuse(f"store {reader.name!r} has no windows: ask for the row itself")

    def within(
        self,
        reader: Any,
        lo: bytes | None,
        hi: bytes | None,
        *,
        from_ms: int | None,  # noqa: ARG002  # of windows
        to_ms: int | None,  # noqa: ARG002
    ) -> RowScan[Entry]:
        """Return the rows of keys with lo <= key <= hi, of windows those between both times."""
        found: RowScan[Entry] = reader.entries(lo, hi)
        return found

    # The changelog.

    def logged_keys(self, rows: Sequence[bytes]) -> list[bytes | None]:
        """Return the keys of rows in the changelog; None for a row that it does not have."""
        return list(rows)

    def rows_of(self, keys: list[bytes]) -> list[bytes]:
        """Return the rows of keys of the changelog: the inverse of `logged_keys`."""
        return keys

    def following(self, spec: Any, writes: Writes, look: LookUp) -> Entries:  # noqa: ARG002
        """Return the rows that follow from these rows of the changelog.

        `look` finds those that are there.
        """
        return {}

    def changes(self, store: Any, otherwise_ms: int) -> Changes:
        """Return what the next commit of an owner logs.

        `otherwise_ms`: the time of changes that were not caused by a record.
        """
        changes: Changes = store.table.changes(otherwise_ms)
        keys = self.logged_keys(changes.keys)
        if None not in keys:
            return changes._replace(keys=cast("list[bytes]", keys))
        logged = Changes([], [], [])
        for key, value, time in zip(keys, changes.values, changes.times, strict=True):
            if key is not None:
                logged.keys.append(key)
                logged.values.append(value)
                logged.times.append(time)
        return logged

    def strangers(self, batch: Batch) -> list[int]:  # noqa: ARG002
        """Return which records of a changelog, by place, only another producer can have written."""
        return []

    def restore(self, store: Any, batch: Batch, offsets_next: Mapping[TopicPartition, int]) -> None:
        """Have an owner take records of its changelog, with the offsets that they reach."""
        rows, values = self.rows_of(batch.keys.objects), batch.values.objects
        writes = dict(zip(rows, values, strict=True))
        more = self.following(store.spec, writes, store.table.get_many)
        store.table.restore(
            rows + list(more),
            values + list(more.values()),
            batch.timestamps + [0] * len(more),
            offsets_next,
        )

    def logged_rows(self, engine: Engine, otherwise_ms: int, now_ms: int) -> Iterator[Changes]:  # noqa: ARG002
        """Yield the rows of a store's files as its changelog has them, in batches.

        `otherwise_ms`: the time of rows that have none of their own.
        """
        pairs, meta = iter(engine.table(keyvalue.TABLE).scan()), engine.table(offsets.TABLE)
        while batch := list(islice(pairs, ROWS_AT_ONCE)):
            rows = [row for row, _ in batch]
            times = read_times(meta, rows, otherwise_ms)
            found = zip(self.logged_keys(rows), batch, times, strict=True)
            kept = [(key, value, time) for key, (_, value), time in found if key is not None]
            stamps, headers = sendable([time for _, _, time in kept])
            yield Changes([key for key, _, _ in kept], [v for _, v, _ in kept], stamps, headers)

    def rows_in_log(self, batch: Batch, terms: StoreTerms) -> LoggedChanges:  # noqa: ARG002
        """Return what records of the changelog say of rows, without those that are about no row."""
        keys, values, times = batch.keys.objects, batch.values.objects, true_times(batch)
        places = [i for i, key in enumerate(keys) if key is not None and key != self.clock_row]
        none: list[int | None] = [None] * len(places)
        return LoggedChanges(
            places,
            [keys[i] for i in places],
            [values[i] for i in places],
            none,
            none,
            [times[i] for i in places],
        )

    def seen_in_log(self, rows: Columns, clock: bytes | None, terms: StoreTerms) -> Columns:  # noqa: ARG002
        """Return the rows, as readers show them, that a replayed changelog has.

        `clock`: what the changelog has under `clock_row`.
        """
        return rows

    # Other numbers of partitions (docs/adr/0052).

    def placing_keys(self, spec: Any, batch: Batch) -> list[bytes | None]:
        """Return the bytes that decide in which partition each record of the changelog lies.

        None: it has no key, or is about its partition as a whole, and `about_all` takes it.
        """
        place, keys = composed.placed_by(spec.key_serde.name), batch.keys.objects
        return keys if place is None else [None if key is None else place(key) for key in keys]

    def about_all(self, spec: Any, rows: Sequence[LoggedRow]) -> list[LoggedRow]:  # noqa: ARG002
        """Return what a partition has as a whole if its rows come from the partitions of `rows`.

        `rows`: the last record of each partition and key that `placing_keys` gave None for. Misuse,
        without the name of the store, if they cannot be one.
        """
        return []

    def is_whole(self, batch: Batch, *, before: bool) -> bool:  # noqa: ARG002  # other logs may not be
        """Return whether, after these records, the log is as this version writes it.

        `before`: whether it was before them.
        """
        return True

    # The look-ups of operators.

    def look_up(self, table: Any) -> LookUp:
        """Return the look-up of values by keys as the changelog has them."""
        return lambda keys: table.get_many(self.rows_of(keys))

    def later(self, table: Any) -> Later:
        """Return the look-up of the times of rows by such keys."""
        return lambda keys, times: table.later(self.rows_of(keys), times)

    def times_of(self, rows: Sequence[bytes]) -> list[int] | None:  # noqa: ARG002
        """Return the times that rows themselves have; None: they have none."""
        return None
