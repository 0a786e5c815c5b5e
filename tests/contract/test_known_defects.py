"""Defects others met on the way to transactional stores, those no other test names.

docs/invariants.md lists all of them, each with its test.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import statestore as ss
from tests.contract.conftest import rocks_rows
from tests.contract.store_worlds import WORLDS, Store, StoreWorld
from tests.contract.task_rig import TaskRig, rows_of

WRITES: dict[str, Callable[[StoreWorld, Store], object]] = {
    "put": lambda w, s: s.put(w.key("a"), w.value("9")),
    "put of None": lambda w, s: s.put(w.key("a"), None),
    "put_all": lambda w, s: s.put_all(w.pairs("a=9 b z=9")),
    "put_all of many": lambda w, s: s.put_all(w.pairs(" ".join(f"n{i}=1" for i in range(99)))),
    "put_if_absent": lambda w, s: s.put_if_absent(w.key("z"), w.value("9")),
    "delete": lambda w, s: s.delete(w.key("a")),
    "discard": lambda w, s: s.discard(w.key("a")),
    "delete_range": lambda w, s: s.delete_range(None, None),
    "delete_prefix": lambda w, s: s.delete_prefix(w.key("a")),
}


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    with StoreWorld(*WORLDS[request.param], tmp_path) as made:
        yield made


@pytest.mark.parametrize("write", WRITES)
def test_no_write_of_any_kind_passes_the_pending_writes_by(world: StoreWorld, write: str) -> None:
    store = world.holding("a=1 b=2")
    committed = store.reader("READ_COMMITTED")
    WRITES[write](world, store)
    assert world.shown(store.all()) != "a=1 b=2"
    assert store.approximate_num_uncommitted_entries() > 0
    assert world.shown(committed.all()) == "a=1 b=2"
    store.rollback()
    assert world.shown(store.all()) == world.shown(committed.all()) == "a=1 b=2"
    WRITES[write](world, store)
    after = world.shown(store.all())
    store.commit()
    assert world.shown(committed.all()) == after
    if world.persistent:
        store.close()
        assert len(rocks_rows(world.folder, "data")) == len(after.split())


class Clearing:
    """Puts each record; the key `clear` deletes a range."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._store: ss.KeyValueStore[bytes, bytes] = context.store("prices")

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        if record.key == b"clear":
            low, high = record.value.split()
            self._store.delete_range(low, high)
        else:
            self._store.put(record.key, record.value)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TaskRig]:
    builder = ss.StreamsBuilder()
    builder.stream("in").process(Clearing, ss.persistent_key_value_store("prices"), name="c")
    made = TaskRig(builder.build(), tmp_path)
    yield made
    made.end()


def commit(rig: TaskRig, *rows: tuple[str, str]) -> None:
    rig.send("in", rows)
    rig.running[0].step(0)
    rig.running[0].step_commit()


def test_a_range_delete_is_logged_key_by_key_and_restored_so(rig: TaskRig) -> None:
    rig.start()
    commit(rig, ("a", "1"), ("b", "2"), ("bb", "3"), ("c", "4"))
    commit(rig, ("new", "5"), ("clear", "b bz"))
    logged = [(r.key, r.value) for r in rig.broker.records("shop-prices-changelog")]
    assert logged[4:] == [(b"new", b"5"), (b"b", None), (b"bb", None)]
    rig.crash()
    left = {b"a": b"1", b"c": b"4", b"new": b"5"}
    assert rows_of(rig.start(), "prices") == left == rig.changelog("prices")


def test_a_store_killed_again_and_again_before_its_first_commit_is_never_wiped(
    rig: TaskRig,
) -> None:
    """No marker waits in a buffer: what says that the folder is whole is on disk at once."""
    for _ in range(4):
        task = rig.start()
        assert (task.report.quarantined, task.report.restored_records) == ([], 0)
        rig.send("in", [("a", "1")])
        task.step(0)
        rig.crash()
    assert rig.quarantine() == []


def test_a_store_killed_again_and_again_after_its_restore_is_never_wiped(
    rig: TaskRig,
) -> None:
    rig.start()
    commit(rig, *((f"k{i}", "1") for i in range(50)))
    rig.crash()
    for _ in range(4):
        task = rig.start()
        assert task.report.quarantined == []
        assert len(rows_of(task, "prices")) == 50
        rig.crash()
    assert rig.quarantine() == []
