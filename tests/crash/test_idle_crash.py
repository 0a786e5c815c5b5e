"""A store nobody writes to any more becomes durable in time: a kill then costs nothing (S10)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore.model.ids import TopicPartition
from statestore.stores.keyvalue import TransactionalKeyValueStore
from tests.builders import DEADLINE_S, child, eventually
from tests.contract.task_rig import APPLICATION, TaskRig, rows_of

LOG = TopicPartition("log", 0)
SPEC = ss.persistent_key_value_store("prices")

COMMIT_THEN_IDLE = """
import json, sys, threading
import statestore as ss
settings = {"statestore.wal": False, "statestore.flush.lag.max.ms": int(sys.argv[2])}
store = ss.open_store(ss.persistent_key_value_store("prices"), sys.argv[1], settings=settings)
log = ss.TopicPartition("log", 0)
store.put(b"a", b"1")
store.commit({log: 1})
print(json.dumps({"durable": store.durable_offset(log)}), flush=True)
while sys.stdin.readline():
    print(json.dumps({"durable": store.durable_offset(log)}), flush=True)
"""


def killed_when_idle(folder: Path, lag_ms: int, *, until_durable: bool) -> None:
    """A process commits, then only idles, until it is killed."""
    with child(COMMIT_THEN_IDLE, folder, lag_ms) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers, questions = process.stdout, process.stdin
        assert json.loads(answers.readline()) == {"durable": None}

        def durable() -> bool:
            questions.write("?\n")
            questions.flush()
            return bool(json.loads(answers.readline())["durable"] == 1)

        if until_durable:
            eventually(durable, "what was committed is durable", DEADLINE_S)
        process.kill()


def test_an_idle_store_on_its_own_without_a_log_is_flushed_in_time(tmp_path: Path) -> None:
    killed_when_idle(tmp_path, 100, until_durable=True)
    with ss.open_store(SPEC, tmp_path) as store:
        assert (store.committed_offset(LOG), store.get(b"a")) == (1, b"1")


def test_before_that_time_a_kill_costs_the_commit_whole(tmp_path: Path) -> None:
    killed_when_idle(tmp_path, 3_600_000, until_durable=False)
    with ss.open_store(SPEC, tmp_path) as store:
        assert (store.committed_offset(LOG), store.get(b"a")) == (None, None)


def test_many_idle_stores_are_flushed_each_in_its_time_and_forgotten_when_closed(
    tmp_path: Path,
) -> None:
    settings = {"statestore.wal": False, "statestore.flush.lag.max.ms": 50}
    stores: list[TransactionalKeyValueStore[bytes, bytes]] = []
    for number in range(5):
        spec = ss.persistent_key_value_store(f"s{number}")
        stores.append(ss.open_store(spec, tmp_path, settings=settings))
        stores[-1].put(b"a", b"1")
        stores[-1].commit({LOG: 7})
        if number % 2:
            stores[-1].close()
    still_open = stores[::2]
    for offset in (7, 8):
        eventually(
            lambda offset=offset: all(s.durable_offset(LOG) == offset for s in still_open),  # type: ignore[misc]  # a default has no type
            "all are durable",
        )
        for store in still_open:
            store.put(b"b", b"2")
            store.commit({LOG: offset + 1})
    for store in still_open:
        store.close()


# In a stream task.


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TaskRig]:
    builder = ss.StreamsBuilder()
    builder.table("in", materialized=ss.Materialized(SPEC))
    made = TaskRig(builder.build(), tmp_path, settings={"statestore.flush.lag.max.ms": 60_000})
    yield made
    made.end()


@pytest.mark.parametrize(("idle_ms", "restored"), [(59_999, 1), (60_000, 0)])
def test_an_idle_store_of_a_task_is_flushed_by_its_steps(
    rig: TaskRig, idle_ms: int, restored: int
) -> None:
    task = rig.start()
    rig.send("in", [("a", "1")])
    task.step(0)
    task.step_commit()
    staged = task._stores.opened["prices"].store.staged
    changelog = TopicPartition(f"{APPLICATION}-prices-changelog", 0)
    assert staged.durable_offset(changelog) is None
    rig.clock.advance(idle_ms)
    task.step(0)
    assert (staged.durable_offset(changelog) is None) is bool(restored)
    rig.crash()
    task = rig.start()
    assert task.report.restored_records == restored
    assert rows_of(task, "prices") == {b"a": b"1"}
