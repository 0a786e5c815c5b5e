"""Random lives of a key-value store, persistent and in memory, against an oracle of dicts.

The profile says how many: `quick` in `make test`, `HYPOTHESIS_PROFILE=long` in `make test-all`. A
failure prints its steps and the blob that repeats it.
"""

import shutil
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statestore.errors import StoreClosed, UncommittedWrites
from statestore.model.ids import Position, TopicPartition
from statestore.model.modes import IsolationLevel
from statestore.runtime.public import open_store
from statestore.stores.keyvalue import KeyValueReader, TransactionalKeyValueStore
from statestore.stores.pending import ENTRY_COST
from statestore.stores.reads import RowScan
from statestore.stores.specs import in_memory_key_value_store, persistent_key_value_store

# The long profile takes minutes.
pytestmark = pytest.mark.timeout(1800)

Rows = dict[bytes, bytes]
Pending = dict[bytes, bytes | None]

# Few and kin: prefixes of each other, the lowest and the highest bytes.
KEYS = st.sampled_from(
    [
        b"",
        b"\x00",
        b"a",
        b"a\x00",
        b"ab",
        b"abc",
        b"a\xff",
        b"b",
        b"key",
        b"key2",
        b"\xff",
        b"\xff\xff",
    ]
)
VALUES = st.binary(max_size=3)
WRITES = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=20)
BOUNDS = st.none() | KEYS
LOGS = st.builds(TopicPartition, st.just("shop-prices-changelog"), st.integers(0, 1))
SETTINGS = {"statestore.wal": False, "statestore.flush.lag.max.records": 25}


class Held(NamedTuple):
    """An iterator somebody holds on to, and what it has still to show."""

    scan: RowScan[tuple[bytes, bytes]]
    left: list[tuple[bytes, bytes]]


class KeyValueMachine(RuleBasedStateMachine):
    """The store, and the oracle: committed rows, and pending writes by open unit."""

    persistent: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="statestore-machine-"))
        self.committed: Rows = {}
        self.pending: list[Pending] = [{}]
        self.units: list[AbstractContextManager[None]] = []
        self.offsets: dict[TopicPartition, int] = {}
        self.position = Position()
        self.held: list[Held] = []
        self.dead: list[RowScan[tuple[bytes, bytes]] | KeyValueReader[bytes, bytes]] = []
        self.open()

    def open(self) -> None:
        make = persistent_key_value_store if self.persistent else in_memory_key_value_store
        self.store: TransactionalKeyValueStore[bytes, bytes] = open_store(
            make("prices"), self.directory, settings=SETTINGS
        )
        self.readers = {level: self.store.reader(level) for level in IsolationLevel}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    # The oracle.

    def visible(self) -> Rows:
        rows: dict[bytes, bytes | None] = {**self.committed, **self.pending[-1]}
        return {key: value for key, value in rows.items() if value is not None}

    def seen_by(self, level: IsolationLevel) -> Rows:
        return self.visible() if level is IsolationLevel.READ_UNCOMMITTED else self.committed

    def ended(self) -> None:
        """After a commit or a rollback nothing is pending; open units go back to here."""
        self.pending = [{} for _ in self.pending]

    # Writes.

    @rule(key=KEYS, value=st.none() | VALUES)
    def put(self, key: bytes, value: bytes | None) -> None:
        self.store.put(key, value)
        self.pending[-1][key] = value

    @rule(writes=WRITES)
    def put_all(self, writes: list[tuple[bytes, bytes | None]]) -> None:
        self.store.put_all(writes)
        self.pending[-1].update(writes)

    @rule(key=KEYS, value=VALUES)
    def put_if_absent(self, key: bytes, value: bytes) -> None:
        found = self.visible().get(key)
        assert self.store.put_if_absent(key, value) == found
        if found is None:
            self.pending[-1][key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        found = self.visible().get(key)
        assert self.store.delete(key) == found
        if found is not None:
            self.pending[-1][key] = None

    @rule(key=KEYS)
    def discard(self, key: bytes) -> None:
        self.store.discard(key)
        self.pending[-1][key] = None

    @rule(lo=BOUNDS, hi=BOUNDS)
    def delete_range(self, lo: bytes | None, hi: bytes | None) -> None:
        self.store.delete_range(lo, hi)
        self.pending[-1].update(dict.fromkeys(dict(between(self.visible(), lo, hi))))

    @rule(prefix=KEYS)
    def delete_prefix(self, prefix: bytes) -> None:
        self.store.delete_prefix(prefix)
        gone = [key for key in self.visible() if key.startswith(prefix)]
        self.pending[-1].update(dict.fromkeys(gone))

    # Units, commits, rollbacks.

    @precondition(lambda self: len(self.units) < 3)
    @rule()
    def begin_unit(self) -> None:
        unit = self.store.transaction()
        unit.__enter__()
        self.units.append(unit)
        self.pending.append(dict(self.pending[-1]))

    @precondition(lambda self: self.units)
    @rule()
    def leave_unit(self) -> None:
        self.units.pop().__exit__(None, None, None)
        self.pending[-2:] = [self.pending[-1]]

    @precondition(lambda self: self.units)
    @rule()
    def leave_unit_by_an_exception(self) -> None:
        error = KeyError("a user's")
        assert not self.units.pop().__exit__(KeyError, error, None)
        self.pending.pop()

    @rule(
        offsets=st.dictionaries(LOGS, st.none() | st.integers(0, 99)),
        last=st.none() | st.integers(0, 99),
    )
    def commit(self, offsets: dict[TopicPartition, int | None], last: int | None) -> None:
        position = None if last is None else Position.of({"in": {0: last}})
        self.store.commit(offsets, position=position)
        self.committed = self.visible()
        self.ended()
        merged = {**self.offsets, **offsets}
        self.offsets = {tp: offset for tp, offset in merged.items() if offset is not None}
        self.position = self.position.merge(position or Position())

    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.ended()

    @rule()
    def reopen(self) -> None:
        """Pending writes are lost, iterators and readers end, committed rows stay on disk."""
        clean = not self.pending[-1]
        try:
            self.store.__exit__(None, None, None)
            assert clean
        except UncommittedWrites:
            assert not clean
        self.dead = [one.scan for one in self.held]
        self.dead += self.readers.values()
        self.held, self.units, self.pending = [], [], [{}]
        if not self.persistent:
            self.committed, self.offsets, self.position = {}, {}, Position()
        self.open()
        if self.persistent:
            for tp in [TopicPartition("shop-prices-changelog", p) for p in (0, 1)]:
                assert self.store.durable_offset(tp) == self.offsets.get(tp)

    # Reads.

    @rule(keys=st.lists(KEYS, max_size=6))
    def get(self, keys: list[bytes]) -> None:
        views = [(self.store, self.visible())]
        views += [(reader, self.seen_by(level)) for level, reader in self.readers.items()]  # type: ignore[misc]  # readers read as stores do
        for reads, rows in views:
            assert reads.get_many(keys) == [rows.get(key) for key in keys]
            assert [reads.get(key, b"?") for key in keys] == [rows.get(key, b"?") for key in keys]
            assert [key in reads for key in keys] == [key in rows for key in keys]

    @rule(lo=BOUNDS, hi=BOUNDS, reverse=st.booleans(), prefix=KEYS)
    def scan(self, lo: bytes | None, hi: bytes | None, reverse: bool, prefix: bytes) -> None:
        step = -1 if reverse else 1
        visible = self.visible()
        kin = {key: value for key, value in visible.items() if key.startswith(prefix)}
        assert list(self.store.range(lo, hi, reverse)) == between(visible, lo, hi)[::step]
        assert list(self.store.prefix_scan(prefix, reverse)) == between(kin)[::step]
        for level, reader in self.readers.items():
            rows = self.seen_by(level)
            assert list(reader.range(lo, hi, reverse)) == between(rows, lo, hi)[::step]

    # Iterators held over whatever comes.

    @precondition(lambda self: len(self.held) < 4)
    @rule(level=st.none() | st.sampled_from(IsolationLevel), lo=BOUNDS, reverse=st.booleans())
    def hold(self, level: IsolationLevel | None, lo: bytes | None, reverse: bool) -> None:
        rows = self.visible() if level is None else self.seen_by(level)
        reads = self.store if level is None else self.readers[level]
        expected = between(rows, lo, None)
        if reverse:
            expected.reverse()
        self.held.append(Held(reads.range(lo, None, reverse), expected))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 3), count=st.integers(1, 5))
    def advance(self, which: int, count: int) -> None:
        scan, left = self.held[which % len(self.held)]
        for _ in range(count):
            expected = left.pop(0) if left else None
            assert next(scan, None) == expected

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 3))
    def let_go(self, which: int) -> None:
        scan, _ = self.held.pop(which % len(self.held))
        scan.close()
        with pytest.raises(StoreClosed):
            next(scan)

    # What always holds.

    @invariant()
    def owner_and_readers_see_what_is_theirs(self) -> None:
        assert list(self.store.all()) == between(self.visible())
        for level, reader in self.readers.items():
            assert list(reader.all()) == between(self.seen_by(level))

    @invariant()
    def pending_writes_are_counted(self) -> None:
        pending = self.pending[-1]
        size = sum(len(key) + len(value or b"") + ENTRY_COST for key, value in pending.items())
        assert self.store.approximate_num_uncommitted_entries() == len(pending)
        assert self.store.approximate_num_uncommitted_bytes() == size

    @invariant()
    def offsets_and_position_are_the_last_commits(self) -> None:
        assert self.store.position() == self.position
        for partition in (0, 1):
            tp = TopicPartition("shop-prices-changelog", partition)
            expected = self.offsets.get(tp) if self.persistent else None
            assert self.store.committed_offset(tp) == expected

    @invariant()
    def what_a_closed_store_gave_is_refused(self) -> None:
        for thing in self.dead:
            with pytest.raises(StoreClosed):
                thing.get(b"a") if isinstance(thing, KeyValueReader) else next(thing)


def between(
    rows: Rows, lo: bytes | None = None, hi: bytes | None = None
) -> list[tuple[bytes, bytes]]:
    """The rows from `lo` to `hi`, both included, in order."""
    return sorted(
        (key, value)
        for key, value in rows.items()
        if (lo is None or key >= lo) and (hi is None or key <= hi)
    )


class PersistentMachine(KeyValueMachine):
    persistent = True


class InMemoryMachine(KeyValueMachine):
    persistent = False


MACHINE_SETTINGS = settings(stateful_step_count=50, print_blob=True)
TestPersistentStore = PersistentMachine.TestCase
TestPersistentStore.settings = MACHINE_SETTINGS
TestInMemoryStore = InMemoryMachine.TestCase
TestInMemoryStore.settings = MACHINE_SETTINGS
