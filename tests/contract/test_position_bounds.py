"""Readers of an owner's process with a PositionBound, at each isolation level (S14)."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import NotUpToBound
from statestore.model.ids import Position, TopicPartition
from statestore.model.records import Record
from tests.contract.task_rig import TaskRig

IN = TopicPartition("in", 0)
TYPED: dict[str, Any] = {"key_serde": serdes.STRING, "value_serde": serdes.INT64}
PLAIN = ss.persistent_key_value_store("plain", **TYPED)
BRIEF = ss.persistent_key_value_store("brief", ttl=1_000_000, **TYPED)
TIMES = ss.persistent_versioned_key_value_store("times", 1_000_000, **TYPED)
PANES = ss.persistent_window_store("panes", 10, 1_000_000, **TYPED)
VISITS = ss.persistent_session_store("visits", 1_000_000, **TYPED)
STORES = (PLAIN, BRIEF, TIMES, PANES, VISITS)


class Keep:
    """Puts the value of each record into all stores; a negative one is poison."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self.plain, self.brief = context.store(PLAIN), context.store(BRIEF)
        self.times, self.panes = context.store(TIMES), context.store(PANES)
        self.visits = context.store(VISITS)

    def process(self, record: Record[str, int]) -> None:
        if record.value < 0:
            raise ValueError("poison")
        self.plain.put("n", record.value)
        self.brief.put("n", record.value)
        self.times.put("n", record.value, record.timestamp_ms)
        self.panes.put("n", record.value, 0)
        self.visits.put(ss.Windowed("n", 0, 1), record.value)


LOOKS: dict[str, list[Callable[[Any], Any]]] = {
    "plain": [
        lambda r: r.get("n"),
        lambda r: r.get_many(["n"])[0],
        lambda r: dict(r.all()).get("n"),
        lambda r: dict(r.range("a", "z")).get("n"),
    ],
    "brief": [
        lambda r: r.get("n"),
        lambda r: r.get_many(["n"])[0],
        lambda r: dict(r.all()).get("n"),
    ],
    "times": [
        lambda r: (r.get("n") or [None])[0],
        lambda r: (r.get("n", as_of=1 << 40) or [None])[0],
        lambda r: next(iter([one.value for one in r.history("n")]), None),
        lambda r: next(iter([one.value for _, one in r.range_as_of("a", "z", 1 << 40)]), None),
    ],
    "panes": [
        lambda r: r.get("n", 0),
        lambda r: next(iter([value for _, value in r.fetch("n")]), None),
    ],
    "visits": [
        lambda r: next(iter([value for _, value in r.fetch("n")]), None),
    ],
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TaskRig]:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.stream("in").process(Keep, *STORES, name="keep")
    rig = TaskRig(b.build(), tmp_path)
    rig.settings = {"processing.exception.handler": "continue"}
    yield rig
    rig.end()


def send(rig: TaskRig, *values: int) -> None:
    for value in values:
        rig.broker.produce(IN, Record(b"k", serdes.INT64.serialize(value), 1000 + abs(value)))


def bound(last: int) -> ss.PositionBound:
    return ss.PositionBound.at(Position.of({IN: last}))


@pytest.mark.parametrize("store", LOOKS)
def test_a_reader_of_pending_writes_is_bound_by_what_was_processed(
    rig: TaskRig, store: str
) -> None:
    task = rig.start()
    owned: Any = task.store(store)
    send(rig, 0)
    task.step(0)
    task.step_commit()
    send(rig, 1, 2)
    task.step(0)
    pending = owned.reader("read_uncommitted", bound(2))
    committed = owned.reader("read_committed", bound(2))
    for look in LOOKS[store]:
        assert look(pending) == 2
        assert look(owned.reader("read_committed", bound(0))) == 0
        with pytest.raises(NotUpToBound):
            look(owned.reader("read_uncommitted", bound(3)))
        with pytest.raises(NotUpToBound):
            look(committed)
    assert owned.position() == Position.of({IN: 2})
    task.step_commit()
    assert [look(committed) for look in LOOKS[store]] == [2] * len(LOOKS[store])


@pytest.mark.parametrize("store", LOOKS)
def test_a_task_that_goes_back_takes_back_how_far_it_had_come(rig: TaskRig, store: str) -> None:
    task = rig.start()
    owned: Any = task.store(store)
    send(rig, 0)
    task.step(0)
    reader = owned.reader("read_uncommitted", bound(0))
    assert [look(reader) for look in LOOKS[store]] == [0] * len(LOOKS[store])
    send(rig, -1)
    task.step(0)
    for look in LOOKS[store]:
        with pytest.raises(NotUpToBound):
            look(reader)
    task.step(0)
    assert [look(reader) for look in LOOKS[store]] == [0] * len(LOOKS[store])


def test_no_reader_is_given_less_than_it_asked_for_while_the_task_goes_back_again_and_again(
    rig: TaskRig,
) -> None:
    task = rig.start()
    ended, wrong, answered = threading.Event(), list[str](), list[int]()
    stores = {name: task.store(name) for name in LOOKS}

    def watch(name: str) -> None:
        owned: Any = stores[name]
        while not ended.is_set():
            last = dict(owned.position().as_dict()).get(IN, 0)
            reader = owned.reader("read_uncommitted", bound(last))
            for look in LOOKS[name]:
                try:
                    found = look(reader)
                except NotUpToBound:
                    continue
                answered.append(1)
                # A record's value is its offset, or less its sign; poison is left out.
                if (-1 if found is None else found) < last - (last % 7 == 0):
                    wrong.append(f"{name}: {found} at {last}")

    threads = [threading.Thread(target=watch, args=(name,)) for name in stores]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for offset in range(1, 400):
            send(rig, -offset if offset % 7 == 0 else offset)
            task.step(0)
        for _ in range(100):
            task.step(0)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert task.report.rewinds > 50
    assert answered
    assert wrong == []


def test_what_operators_keep_is_there_as_soon_as_their_position_says_so(tmp_path: Path) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    stream = b.stream("in")
    grouped = stream.group_by_key()
    grouped.count("counts")
    grouped.windowed_by(ss.TumblingWindows(10_000)).count("windows")
    stream.to_table("rows")
    rig = TaskRig(b.build(), tmp_path)
    task = rig.start()
    send(rig, 1, 2)
    task.step(0)
    stores: dict[str, Any] = {name: task.store(name) for name in ("counts", "windows", "rows")}
    readers = {name: store.reader("read_uncommitted", bound(1)) for name, store in stores.items()}
    assert readers["counts"].get("k") == readers["windows"].get("k", 0) == 2
    assert readers["rows"].get("k") == 2
    rig.end()
