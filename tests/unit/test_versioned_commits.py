"""Commits of versioned stores that fail, and savepoints around commits and looks at history."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from statestore import serdes
from statestore.engines.memory import MemoryEngine
from statestore.errors import HostFailure
from statestore.model.ids import TopicPartition
from statestore.model.modes import IsolationLevel
from statestore.ports import Writes
from statestore.stores.kinds.opening import open_over
from statestore.stores.kinds.versioned_kind import VersionedKind
from statestore.stores.logged import read_versions
from statestore.stores.specs import VersionedSpec
from statestore.stores.versioned.store import TransactionalVersionedStore
from tests.builders import NO_FLUSHES, ManualClock, log_batch, log_rows
from tests.contract.versions_text import puts, shown

TP = TopicPartition("shop-rates-changelog", 0)
Store = TransactionalVersionedStore[bytes, bytes]
Ranges = Mapping[str, Sequence[tuple[bytes, bytes]]]


class FullDisk(MemoryEngine):
    """An engine in memory whose volume fills up."""

    full = False

    def write(self, writes: Mapping[str, Writes], *, ranges: Ranges | None = None) -> None:
        if self.full:
            raise HostFailure("no space left")
        super().write(writes, ranges=ranges)


def opened(engine: MemoryEngine | None = None) -> Store:
    store = open_over(
        engine or MemoryEngine(VersionedKind.tables),
        VersionedSpec("rates", 100, serdes.BYTES, serdes.BYTES, 10, persistent=False),
        where="a test",
        limits=NO_FLUSHES,
        clock=ManualClock(),
        level=IsolationLevel.READ_COMMITTED,
    )
    assert isinstance(store, TransactionalVersionedStore)
    return store


def look(store: Store) -> None:
    """What was put ahead is settled by it."""
    assert list(store.history(b"a"))


def ask_what_to_log(store: Store) -> None:
    """As a task does before each commit."""
    assert store.table.changes().keys


@pytest.mark.parametrize("meanwhile", [look, ask_what_to_log, lambda _: None])
def test_a_failed_commit_leaves_versions_pending_and_the_next_one_writes_them(
    meanwhile: Callable[[Store], None],
) -> None:
    engine = FullDisk(VersionedKind.tables)
    store = opened(engine)
    store.put_all(puts("a1@10 b1@10"))
    store.commit()
    store.put_all(puts("a2@20 a3@30"))
    engine.full = True
    with pytest.raises(HostFailure, match="no space"):
        store.commit()
    meanwhile(store)
    committed, uncommitted = (store.reader(level) for level in IsolationLevel)
    assert shown(committed.history(b"a")) == "1[10,"
    assert shown(uncommitted.history(b"a")) == "1[10,20) 2[20,30) 3[30,"
    assert (committed.observed_stream_time(), store.observed_stream_time()) == (10, 30)
    store.put_all(puts("a4@40 a9@15"))
    meanwhile(store)
    engine.full = False
    store.commit()
    assert shown(committed.history(b"a")) == "1[10,15) 9[15,20) 2[20,30) 3[30,40) 4[40,"
    assert store.approximate_num_uncommitted_entries() == 0


@pytest.mark.parametrize("before", [look, ask_what_to_log, lambda _: None])
@pytest.mark.parametrize("inside", [look, ask_what_to_log, lambda _: None])
def test_a_savepoint_undone_keeps_what_was_there_whoever_asked_for_it(
    before: Callable[[Store], None], inside: Callable[[Store], None]
) -> None:
    store = opened()
    store.put_all(puts("a0@5 a-@6 b0@5"))
    store.commit()
    store.put_all(puts("a1@10 a2@20 b1@20"))
    before(store)
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # one unit
        store.put_all(puts("a7@20 a8@30 b-@40 a9@15"))
        inside(store)
        raise KeyError
    ask_what_to_log(store)
    assert store.approximate_num_uncommitted_entries() == 3
    for _ in range(2):
        assert shown(store.history(b"a")) == "0[5,6) 1[10,20) 2[20,"
        assert shown(store.history(b"b")) == "0[5,20) 1[20,"
        store.commit()


def test_a_commit_inside_a_savepoint_stays_and_what_follows_is_undone() -> None:
    store = opened()
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # one unit
        store.put_all(puts("a1@10 a2@20"))
        store.commit({TP: 2})
        store.put_all(puts("a3@30 a9@15"))
        raise KeyError
    assert shown(store.history(b"a")) == "1[10,20) 2[20,"
    assert (store.observed_stream_time(), store.approximate_num_uncommitted_entries()) == (20, 0)


def test_what_a_commit_logs_is_every_version_once_under_a_key_of_its_own() -> None:
    store = opened()
    store.put_all(puts("a1@10 b1@90"))
    store.commit()
    store.put_all(puts("c1@95 a2@50 c1@95 c2@95 b0@80 a-@50 d1@95 d-@99 c3@96"))
    rows = log_rows(store.table.changes())
    assert len({key for key, *_ in rows}) == len(rows)
    keys, values, times, *_ = read_versions(log_batch(rows), is_whole=True)
    assert list(zip(keys, values, times, strict=True)) == puts(
        "a-@50 b0@80 c2@95 d1@95 c3@96 d-@99"
    )
