"""Open windows that tell one result at their close are held back: as many as have had none."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.serdes import composed
from statestore.tasks.plan import TaskReport
from tests.contract.task_rig import TaskRig
from tests.unit.poison_rig import GUARANTEES

SHAPES: dict[str, Any] = {
    "tumbling": ss.TumblingWindows(10, grace=5),
    "hopping": ss.HoppingWindows(10, 4, grace=5, retention=100),
    "sliding": ss.SlidingWindows(10, grace=5),
    "sessions": ss.SessionWindows(4, grace=5),
}
POISON, EMPTY = "poison", "empty"


def joined(old: str, new: str) -> str | None:
    """A window is deleted by some values, and some cannot be taken."""
    if new == POISON:
        raise ValueError(new)
    return None if new == EMPTY else f"{old}{new}"


def topology(shape: str, way: str, emit: str = "on_window_close") -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    opened = b.stream("in").group_by_key().windowed_by(SHAPES[shape], emit=emit)
    made: ss.KTable[Any, Any] = (
        opened.count("made") if way == "count" else opened.reduce(joined, "made")
    )
    made.to_stream().to("out")
    return b.build()


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["count", "reduce"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=GUARANTEES)
def rig(tmp_path: Path, request: pytest.FixtureRequest, shape: str, way: str) -> Iterator[TaskRig]:
    handler = {"processing.exception.handler": "continue", "commit.interval.ms": 0}
    made = TaskRig(topology(shape, way), tmp_path, guarantee=request.param, settings=handler)
    yield made
    made.end()


def send(rig: TaskRig, time_ms: int, key: str = "k", value: str = "x") -> None:
    row: Record[bytes | None, bytes | None] = Record(key.encode(), value.encode(), time_ms)
    rig.broker.produce(TopicPartition("in", 0), row)


def drain(rig: TaskRig) -> TaskReport:
    task, before = rig.running[0], -1
    while task.step(0) or task.report.rewinds != before:
        before = task.report.rewinds
    task.step_commit()
    return task.report


def without_result(rig: TaskRig, shape: str) -> set[ss.Windowed[str]]:
    """The windows in the store that are not in the output."""
    text, size_ms = serdes.STRING, 10
    sessions = composed.session_windowed(text)
    keys = sessions if shape == "sessions" else serdes.windowed(text, size_ms)
    told = {keys.deserialize(one.key) for one in rig.broker.records("out") if one.key is not None}
    store: Any = rig.running[0].store("made")
    with store.all() as found:
        return {window for window, _ in found} - told


def test_as_many_are_held_as_have_no_result_whatever_becomes_of_records_and_processes(
    rig: TaskRig, shape: str, way: str
) -> None:
    seed = f"{shape}-{way}"
    rng, time_ms, most, values = random.Random(seed), 100, 0, ("x", "x", "x", EMPTY, POISON)
    rig.start()
    for _ in range(15):
        for _ in range(rng.randrange(12)):
            time_ms += rng.choice([0, 1, 1, 2, 7])
            send(rig, time_ms - rng.randrange(15), rng.choice("abc"), rng.choice(values))
        rig.perhaps_begin_anew(rng, 6)
        report = drain(rig)
        expected = without_result(rig, shape)
        assert report.held_records == len(expected), f"seed {seed}"
        most = max(most, report.held_records)
    assert most > 3, "the test shows nothing where nothing is held"


def test_windows_that_tell_every_update_hold_nothing_back(shape: str, tmp_path: Path) -> None:
    """So it is after another emit strategy was deployed over the same windows, either way."""
    rig = TaskRig(topology(shape, "count", "on_update"), tmp_path)
    for emit, held in (("on_update", False), ("on_window_close", True), ("on_update", False)):
        rig.topology = topology(shape, "count", emit)
        rig.start()
        send(rig, 100)
        assert bool(drain(rig).held_records) == held
        rig.end()
