"""Stores of a user's own class inside a stream task: offsets, crashes, rewinds (S5, ADR 6).

Shows I10.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore.errors import Misuse, RecordFailed
from statestore.layout.files import read_checkpoint
from statestore.model.ids import TopicPartition
from statestore.testing import TopologyTestDriver
from tests.contract.task_rig import APPLICATION, TaskRig
from tests.contract.user_stores import UserStore, rows_in, supplier, topology

CHANGELOG = TopicPartition(f"{APPLICATION}-book-changelog", 0)
WORLDS = {
    "manages its offsets": supplier(manages=True),
    "commits, without offsets": supplier(),
    "writes through": supplier(through=True),
}
UNMANAGED = [name for name in WORLDS if not name.startswith("manages")]


def rig_of(world: str, root: Path, *, guarantee: str = "exactly_once") -> TaskRig:
    return TaskRig(topology(WORLDS[world]), root, guarantee)


def store_of(task: object) -> UserStore:
    found = task.store("book")  # type: ignore[attr-defined]  # a StreamTask
    assert isinstance(found, UserStore)
    return found


def outputs(rig: TaskRig) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in rig.broker.records("out")]


@pytest.fixture(params=WORLDS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> TaskRig:
    return rig_of(request.param, tmp_path)


@pytest.fixture(params=UNMANAGED)
def unmanaged(request: pytest.FixtureRequest, tmp_path: Path) -> TaskRig:
    return rig_of(request.param, tmp_path)


def entry(rig: TaskRig) -> int | None:
    return read_checkpoint(rig.folder).get(CHANGELOG)


def commit_two(rig: TaskRig) -> None:
    """a=2 b=1 committed, the task running."""
    task = rig.start()
    rig.send("in", [("a", "1"), ("b", "1"), ("a", "2")])
    task.step(0)
    task.step_commit()


def test_what_it_logs_is_in_the_changelog_once_per_key_with_its_last_value(rig: TaskRig) -> None:
    commit_two(rig)
    logged = [(r.key, r.value) for r in rig.broker.records(CHANGELOG.topic)]
    assert logged == [(b"a", b"2"), (b"b", b"1")]
    assert outputs(rig) == [(b"a", b"none"), (b"b", b"none"), (b"a", b"1")]
    assert rows_in(rig.store_dir("book")) == {"a": "2", "b": "1"}


def test_after_a_clean_end_it_goes_on_where_it_stood(rig: TaskRig) -> None:
    commit_two(rig)
    rig.end()
    assert entry(rig) == rig.broker.changelog().bounds([CHANGELOG])[CHANGELOG].end - 1
    task = rig.start()
    assert (task.report.restored_records, task.report.quarantined) == (0, [])
    rig.send("in", [("a", "3")])
    task.step(0)
    rig.end()
    assert outputs(rig)[-1] == (b"a", b"2")
    assert rows_in(rig.store_dir("book")) == {"a": "3", "b": "1"}


def test_after_a_crash_it_holds_what_was_committed_and_nothing_else(rig: TaskRig) -> None:
    commit_two(rig)
    rig.send("in", [("a", "lost"), ("c", "lost")])
    rig.running[0].step(0)
    rig.crash()
    task = rig.start()
    expected = {"a": "2", "b": "1"}
    assert store_of(task).all() == expected
    task.step(0)
    rig.end()
    assert outputs(rig)[3:] == [(b"a", b"2"), (b"c", b"none")]
    assert rows_in(rig.store_dir("book")) == {"a": "lost", "b": "1", "c": "lost"}


def test_without_offsets_of_its_own_a_crash_quarantines_it_and_restores_it(
    unmanaged: TaskRig,
) -> None:
    commit_two(unmanaged)
    unmanaged.crash()
    task = unmanaged.start()
    assert (task.report.quarantined, unmanaged.quarantine()) == (["book"], ["unclean"])
    assert task.report.restored_records == 2
    assert store_of(task).all() == {"a": "2", "b": "1"}


def test_with_offsets_of_its_own_a_crash_costs_nothing(tmp_path: Path) -> None:
    rig = rig_of("manages its offsets", tmp_path)
    commit_two(rig)
    rig.crash()
    task = rig.start()
    assert (task.report.quarantined, task.report.restored_records) == ([], 0)


def test_its_entry_is_gone_before_its_first_write_and_back_after_a_clean_end(
    unmanaged: TaskRig,
) -> None:
    commit_two(unmanaged)
    unmanaged.end()
    task = unmanaged.start()
    stood = entry(unmanaged)
    assert stood is not None
    seen: list[int | None] = []
    store = store_of(task)
    put = store.put

    def watched(key: str, value: str | None) -> None:
        seen.append(entry(unmanaged))
        put(key, value)

    store.put = watched  # type: ignore[method-assign]  # looks at the file when the write comes
    unmanaged.send("in", [("z", "1")])
    task.step(0)
    assert seen == [None]
    task.step_commit()
    assert entry(unmanaged) is None
    unmanaged.end()
    assert (entry(unmanaged) or 0) > stood


def test_a_crash_before_its_first_write_quarantines_nothing(unmanaged: TaskRig) -> None:
    commit_two(unmanaged)
    unmanaged.end()
    for _ in range(3):
        unmanaged.start()
        unmanaged.crash()
    assert unmanaged.start().report.quarantined == []


def test_a_crash_in_its_very_first_transaction_is_no_refusal(unmanaged: TaskRig) -> None:
    """The changelog is empty then, and nothing was committed that could be lost."""
    task = unmanaged.start()
    unmanaged.send("in", [("a", "1")])
    task.step(0)
    unmanaged.crash()
    task = unmanaged.start()
    assert store_of(task).all() == {}
    task.step(0)
    unmanaged.end()
    assert rows_in(unmanaged.store_dir("book")) == {"a": "1"}


def test_an_emptied_changelog_is_refused_while_it_has_rows(unmanaged: TaskRig) -> None:
    commit_two(unmanaged)
    unmanaged.crash()
    end = unmanaged.broker.changelog().bounds([CHANGELOG])[CHANGELOG].end
    unmanaged.broker.cluster(APPLICATION).delete_before({CHANGELOG: end})
    with pytest.raises(Misuse, match="--accept-empty-changelog"):
        unmanaged.start()
    unmanaged.accept_empty_changelog = True
    assert store_of(unmanaged.start()).all() == {}


def test_an_end_that_fails_vouches_for_nothing(unmanaged: TaskRig) -> None:
    commit_two(unmanaged)
    store_of(unmanaged.running[0]).fails_to_close = True
    unmanaged.end()
    assert entry(unmanaged) is None
    assert unmanaged.start().report.quarantined == ["book"]


@pytest.mark.parametrize("world", UNMANAGED)
def test_at_least_once_its_entry_is_written_with_every_commit(world: str, tmp_path: Path) -> None:
    rig = rig_of(world, tmp_path, guarantee="at_least_once")
    commit_two(rig)
    assert entry(rig) == 2
    rig.send("in", [("c", "1")])
    rig.running[0].step(0)
    rig.running[0].step_commit()
    assert entry(rig) == 3
    rig.crash()
    task = rig.start()
    assert (task.report.quarantined, task.report.restored_records) == ([], 0)
    assert store_of(task).all() == {"a": "2", "b": "1", "c": "1"}


def test_where_all_manage_their_offsets_no_commit_writes_the_file(tmp_path: Path) -> None:
    for guarantee in ("exactly_once", "at_least_once"):
        rig = rig_of("manages its offsets", tmp_path / guarantee, guarantee=guarantee)
        rig.start()
        at_start = (rig.folder / ".checkpoint").stat()
        rig.send("in", [("a", "1")])
        rig.running[0].step(0)
        rig.running[0].step_commit()
        assert (rig.folder / ".checkpoint").stat().st_mtime_ns == at_start.st_mtime_ns
        rig.end()
        assert (entry(rig) or 0) > 0


def retry_of(rig: TaskRig) -> None:
    """A commit that fails, and the rewind after it."""
    rig.send("in", [("a", "9"), ("d", "1")])
    task = rig.running[0]
    task.step(0)
    rig.broker.expire(f"{APPLICATION}-0_0")
    task.step_commit()
    assert task.report.rewinds == 1


def test_a_rewind_rolls_it_back_or_restores_it(rig: TaskRig) -> None:
    commit_two(rig)
    retry_of(rig)
    task = rig.running[0]
    assert store_of(task).all() == {"a": "2", "b": "1"}
    task.step(0)
    rig.end()
    assert outputs(rig)[3:] == [(b"a", b"2"), (b"d", b"none")]
    assert rows_in(rig.store_dir("book")) == {"a": "9", "b": "1", "d": "1"}
    through = store_of(task).through
    assert rig.quarantine() == (["no-rollback"] if through else [])


def test_a_record_that_fails_leaves_it_as_the_record_before_it_did(rig: TaskRig) -> None:
    commit_two(rig)
    rig.send("in", [("a", "7"), ("b", "fail")])
    task = rig.running[0]
    task.step(0)  # it is tried again alone
    with pytest.raises(RecordFailed, match=r"in-0 offset 4: ValueError"):
        task.step(0)
    rig.running.pop().close()
    assert store_of(rig.start()).all() == {"a": "7", "b": "1"}


def test_what_it_has_pending_counts_for_the_budget(tmp_path: Path) -> None:
    for world in WORLDS:
        rig = rig_of(world, tmp_path / world)
        rig.settings = {"statestore.uncommitted.max.records": 10}
        task = rig.start()
        rig.send("in", [(f"k{i}", "x") for i in range(95)])
        task.step(0)
        assert task.report.commits >= 5, world
        rig.end()


def in_memory(context: ss.StoreContext) -> UserStore:
    context.directory.mkdir(parents=True, exist_ok=True)
    (context.directory / "rows.json").unlink(missing_ok=True)
    store = UserStore(context)
    store.persistent = lambda: False  # type: ignore[method-assign]  # says that it forgets
    return store


def test_one_in_memory_is_restored_at_every_start(tmp_path: Path) -> None:
    spec = ss.StoreSupplier("book", in_memory, UserStore.restore, persistent=False)
    rig = TaskRig(topology(spec), tmp_path)
    commit_two(rig)
    rig.end()
    assert entry(rig) is None
    task = rig.start()
    assert task.report.restored_records == 2
    assert store_of(task).all() == {"a": "2", "b": "1"}


def test_one_that_denies_what_its_supplier_says_is_refused(tmp_path: Path) -> None:
    spec = ss.StoreSupplier("book", UserStore, UserStore.restore, persistent=False)
    with pytest.raises(Misuse, match=r"'book': its persistent\(\) is True"):
        TaskRig(topology(spec), tmp_path).start()


def kept_in(store: Any) -> ss.Materialized:
    """Type checkers refuse what is not a store for a table, too."""
    return ss.Materialized(store)


USES: dict[str, Callable[[ss.KStream[Any, Any]], object]] = {
    "count": lambda stream: stream.group_by_key().count(kept_in(supplier())),
    "to_table": lambda stream: stream.to_table(kept_in(supplier())),
}


@pytest.mark.parametrize("use", USES)
def test_built_in_operators_refuse_it_and_say_where_it_goes(use: str) -> None:
    with pytest.raises(Misuse, match="pass a store of your own to process"):
        USES[use](ss.StreamsBuilder().stream("in"))


def test_the_test_driver_runs_it_and_survives_its_crash() -> None:
    with TopologyTestDriver(topology(supplier(through=True))) as driver:
        driver.pipe("in", "a", "1")
        driver.pipe("in", "a", "2")
        driver.crash()
        driver.pipe("in", "a", "3")
        assert [record.value for record in driver.read("out")] == ["none", "1", "2"]
        assert driver.store("book").all() == {"a": "3"}
