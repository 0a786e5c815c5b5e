"""Random lives of a versioned store, persistent and in memory, against lists of versions.

The oracle keeps every accepted version of a key and looks at all of them for every answer; it
shares no code with the store. Deaths and restores from the changelog are rules too. The profile
says how many lives; a failure prints its steps and the blob that repeats it.
"""

import copy
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.model.modes import IsolationLevel
from statestore.model.records import PutResult, VersionedRecord
from statestore.runtime.public import open_store
from statestore.stores.logged import read_versions
from statestore.stores.specs import VersionedSpec
from statestore.stores.versioned.store import TransactionalVersionedStore, VersionedReader
from tests.builders import LogRow, log_batch, log_rows

# The long profile takes minutes.
pytestmark = pytest.mark.timeout(1800)

LOG = TopicPartition("shop-rates-changelog", 0)
KEYS = st.sampled_from([b"", b"a", b"a\x80\x00\x00\x00\x00\x00\x00\x05", b"ab", b"\xff"])
VALUES = st.sampled_from([None, b"", b"x", b"yy"])
AHEAD = st.integers(-40, 25)
WRITES = st.lists(st.tuples(KEYS, VALUES, AHEAD), max_size=12)
SETTINGS = {"statestore.wal": False, "statestore.flush.lag.max.records": 25}
EVER = 10**9


Shown = VersionedRecord[bytes]


@dataclass
class Oracle:
    """Every accepted version, by key and time; None is a tombstone."""

    retention: int
    versions: dict[bytes, dict[int, bytes | None]] = field(default_factory=dict)
    now: int | None = None

    def put(self, key: bytes, value: bytes | None, time: int) -> PutResult:
        if self.now is not None and time < self.now - self.retention:
            return PutResult(accepted=False, latest=False, valid_to_ms=None)
        self.now = time if self.now is None else max(self.now, time)
        times = self.versions.setdefault(key, {})
        times[time] = value
        later = [other for other in times if other > time]
        return PutResult(accepted=True, latest=not later, valid_to_ms=min(later, default=None))

    def all(self, key: bytes) -> list[tuple[bytes | None, int, int | None]]:
        """Value, begin and end of every version ever, oldest first."""
        times = sorted(self.versions.get(key, {}))
        ends = [*times[1:], None]
        return [(self.versions[key][at], at, end) for at, end in zip(times, ends, strict=False)]

    def history(self, key: bytes, first: int, last: int) -> list[Shown]:
        if self.now is None:
            return []
        return [
            VersionedRecord(value, begins, ends)
            for value, begins, ends in reversed(self.all(key))
            if value is not None
            and begins <= last
            and (ends is None or ends > max(first, self.now - self.retention))
        ]

    def as_of(self, key: bytes, time: int) -> Shown | None:
        for value, begins, ends in self.all(key):
            gone = self.now is None or (ends is not None and time < self.now - self.retention)
            if begins <= time and (ends is None or time < ends) and not gone:
                return None if value is None else VersionedRecord(value, begins, ends)
        return None


View = tuple[TransactionalVersionedStore[bytes, bytes] | VersionedReader[bytes, bytes], Oracle]


class VersionedMachine(RuleBasedStateMachine):
    """The store, the oracle of what is committed, and that of what is pending."""

    persistent: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="statestore-machine-"))
        self.log: list[LogRow] = []
        self.opened = False

    @precondition(lambda self: not self.opened)
    @rule(retention=st.sampled_from([0, 1, 7, 30, 100]), interval=st.sampled_from([1, 4, 10, 60]))
    def begin(self, retention: int, interval: int) -> None:
        self.spec = VersionedSpec(
            "rates", retention, serdes.BYTES, serdes.BYTES, interval, persistent=self.persistent
        )
        self.interval_ms = interval
        self.committed = Oracle(retention)
        self.pending = copy.deepcopy(self.committed)
        self.opened = True
        self.open()

    def open(self) -> None:
        self.store: TransactionalVersionedStore[bytes, bytes] = open_store(
            self.spec, self.directory, settings=SETTINGS
        )
        self.store.table.is_logged = True
        self.readers = {level: self.store.reader(level) for level in IsolationLevel}

    def teardown(self) -> None:
        if self.opened:
            self.store.close()
        shutil.rmtree(self.directory)

    def at(self, ahead: int) -> int:
        return (self.pending.now or 0) + ahead

    @precondition(lambda self: self.opened)
    @rule(key=KEYS, value=VALUES, ahead=AHEAD)
    def put(self, key: bytes, value: bytes | None, ahead: int) -> None:
        time = self.at(ahead)
        assert self.store.put(key, value, time) == self.pending.put(key, value, time)

    @precondition(lambda self: self.opened)
    @rule(writes=WRITES)
    def put_all(self, writes: list[tuple[bytes, bytes | None, int]]) -> None:
        triples = [(key, value, self.at(ahead)) for key, value, ahead in writes]
        self.store.put_all(triples)
        for triple in triples:
            self.pending.put(*triple)

    @precondition(lambda self: self.opened)
    @rule(key=KEYS, ahead=AHEAD)
    def delete(self, key: bytes, ahead: int) -> None:
        time = self.at(ahead)
        was = self.pending.as_of(key, time)
        late = (
            self.pending.now is not None
            and time < self.pending.now - self.spec.history_retention_ms
        )
        assert self.store.delete(key, time) == (None if late else was)
        self.pending.put(key, None, time)

    @precondition(lambda self: self.opened)
    @rule(writes=WRITES, kept=st.booleans(), asked=st.booleans())
    def unit(self, writes: list[tuple[bytes, bytes | None, int]], kept: bool, asked: bool) -> None:
        before = copy.deepcopy(self.pending)
        unit = self.store.transaction()
        unit.__enter__()
        self.put_all(writes)
        if asked:
            self.ask_the_owner()
        error = None if kept else KeyError("a user's")
        assert not unit.__exit__(type(error) if error else None, error, None)
        if not kept:
            self.pending = before

    @precondition(lambda self: self.opened)
    @rule()
    def commit(self) -> None:
        self.log += log_rows(self.store.table.changes())
        self.store.commit({LOG: len(self.log)})
        self.committed = copy.deepcopy(self.pending)

    @precondition(lambda self: self.opened)
    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.pending = copy.deepcopy(self.committed)

    @precondition(lambda self: self.opened)
    @rule()
    def reopen(self) -> None:
        self.store.rollback()
        self.store.close()
        if not self.persistent:
            self.restore_into_a_new_one()
        else:
            self.open()
        self.pending = copy.deepcopy(self.committed)

    @precondition(lambda self: self.opened)
    @rule(percent=st.integers(0, 100), forgets=st.booleans())
    def clean(self, percent: int, forgets: bool) -> None:
        """A cleaner goes over the first part of the log, and may forget the deletes there."""
        end = len(self.log) * percent // 100
        last = {row[0]: at for at, row in enumerate(self.log[:end])}
        self.log[:end] = [
            row
            for at, row in enumerate(self.log[:end])
            if last[row[0]] == at and not (forgets and row[1] is None)
        ]

    @precondition(lambda self: self.opened)
    @rule(stretch=st.integers(1, 30))
    def lose_all_and_restore(self, stretch: int) -> None:
        """From the log's beginning, or from what a cleaner left of it."""
        self.store.rollback()
        self.store.close()
        shutil.rmtree(self.directory / "rates", ignore_errors=True)
        self.restore_into_a_new_one(stretch)
        self.pending = copy.deepcopy(self.committed)

    @precondition(lambda self: self.opened)
    @rule()
    def forgotten(self) -> None:
        """The log has no more versions than the store may show, but those of the last segment."""
        self.commit()
        bound = (self.committed.now or 0) - self.spec.history_retention_ms
        kept_from = (bound // self.interval_ms) * self.interval_ms
        left = {row[0] for row in self.log} - {
            key for key, value in {row[0]: row[1] for row in self.log}.items() if value is None
        }
        may_be_left = sum(
            ends is None or ends >= kept_from
            for key in self.committed.versions
            for _, _, ends in self.committed.all(key)
        )
        # The record that says how far versions were forgotten is one more.
        assert len(left) <= may_be_left + 1

    def restore_into_a_new_one(self, stretch: int = 10) -> None:
        self.open()
        for start in range(0, len(self.log), stretch):
            rows = self.log[start : start + stretch]
            found = read_versions(log_batch(rows), is_whole=self.store.table.log.is_whole)
            self.store.table.restore(found, {LOG: start + len(rows)})
        if self.log:
            assert self.store.metrics()["dropped-records-total"] == 0

    @precondition(lambda self: self.opened)
    @rule(key=KEYS, ahead=st.integers(-150, 30), length=st.integers(0, 60))
    def look(self, key: bytes, ahead: int, length: int) -> None:
        time = self.at(ahead)
        for reads, oracle in self.views():
            assert reads.get(key, as_of=time) == oracle.as_of(key, time)
            found = list(reads.history(key, from_time=time, to_time=time + length))
            assert found == oracle.history(key, time, time + length)
            with reads.range_as_of(key, None, time) as rows:
                names = sorted(k for k in oracle.versions if k >= key)
                expected = [(k, oracle.as_of(k, time)) for k in names]
                assert list(rows) == [(k, one) for k, one in expected if one is not None]

    @precondition(lambda self: self.opened)
    @rule(
        ends=st.tuples(st.none() | KEYS, st.none() | KEYS),
        ahead=st.integers(-150, 30),
        length=st.integers(0, 150),
        descending=st.booleans(),
        reverse=st.booleans(),
    )
    def look_through_a_range(
        self,
        ends: tuple[bytes | None, bytes | None],
        ahead: int,
        length: int,
        *,
        descending: bool,
        reverse: bool,
    ) -> None:
        (lo, hi), first = ends, self.at(ahead)
        for reads, oracle in self.views():
            expected = []
            for key in sorted(oracle.versions, reverse=reverse):
                if (lo is None or key >= lo) and (hi is None or key <= hi):
                    found = oracle.history(key, first, first + length)
                    expected += [(key, one) for one in (found if descending else found[::-1])]
            with reads.range_history(
                lo, hi, first, first + length, descending=descending, reverse=reverse
            ) as rows:
                assert list(rows) == expected

    def views(self) -> list[View]:
        return [
            (self.store, self.pending),
            (self.readers[IsolationLevel.READ_UNCOMMITTED], self.pending),
            (self.readers[IsolationLevel.READ_COMMITTED], self.committed),
        ]

    @precondition(lambda self: self.opened)
    @rule()
    def ask_the_owner(self) -> None:
        """Only now and then: its reads look up what puts have left for later."""
        self.compare(self.views()[:1])

    @invariant()
    def readers_see_the_latest_and_the_whole_history_of_the_oracles(self) -> None:
        if self.opened:
            self.compare(self.views()[1:])

    def compare(self, views: list[View]) -> None:
        for reads, oracle in views:
            assert reads.observed_stream_time() == oracle.now
            for key in oracle.versions:
                assert reads.get(key) == oracle.as_of(key, EVER)
                assert list(reads.history(key)) == oracle.history(key, -EVER, EVER)


class PersistentMachine(VersionedMachine):
    persistent = True


class InMemoryMachine(VersionedMachine):
    persistent = False


MACHINE_SETTINGS = settings(stateful_step_count=30, print_blob=True)
TestPersistentStore = PersistentMachine.TestCase
# Every other life opens several databases.
TestPersistentStore.settings = settings(
    MACHINE_SETTINGS, max_examples=max(20, MACHINE_SETTINGS.max_examples // 3)
)
TestInMemoryStore = InMemoryMachine.TestCase
TestInMemoryStore.settings = MACHINE_SETTINGS
