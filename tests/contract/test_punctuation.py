"""Functions scheduled by stream time and by the wall clock, in the stream tasks of production."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, RecordFailed
from statestore.model.modes import PunctuationType
from statestore.model.records import Record
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.processors.user_processors import ProcessorContext
from statestore.topology.punctuation import Punctuation
from tests.builders import table_rows
from tests.contract.task_rig import TaskRig

STREAM, WALL = PunctuationType.STREAM_TIME, PunctuationType.WALL_CLOCK_TIME
SEEN = ss.persistent_key_value_store("seen", key_serde=serdes.STRING, value_serde=serdes.INT64)
Scheduled = list[Punctuation]


class Ticking:
    """Counts records in a store; each punctuation forwards its time and that count."""

    def __init__(
        self,
        context: ProcessorContext,
        interval: Any,
        kind: PunctuationType,
        made: Scheduled,
        at: Any = None,
    ) -> None:
        self.context = context
        self.store = context.store(SEEN)
        made.append(context.schedule(interval, kind, self.tick, at=at))

    def tick(self, time_ms: int) -> None:
        count = self.store.get("n", 0)
        self.context.forward(Record("tick", f"{time_ms}:{count}", time_ms))

    def process(self, record: Record[str, str]) -> None:
        self.store.put("n", self.store.get("n", 0) + 1)
        self.context.forward(record)

    def process_batch(self, records: Sequence[Record[str, str]]) -> None:
        for record in records:
            self.process(record)


def texts() -> ss.StreamsBuilder:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)


def ticking(
    interval: Any,
    kind: PunctuationType,
    made: Scheduled | None = None,
    *,
    batches: bool = False,
    at: Any = None,
) -> ss.Topology:
    b = texts()
    stream = b.stream("in")
    process = stream.process_batch if batches else stream.process

    def factory(context: ProcessorContext) -> Ticking:
        return Ticking(context, interval, kind, [] if made is None else made, at)

    process(factory, SEEN).to("out")
    return b.build()


def records(*times_ms: int) -> list[Record[str, str]]:
    return [Record("k", f"r{time_ms}", time_ms) for time_ms in times_ms]


def values(d: TopologyTestDriver) -> list[str]:
    return [record.value for record in d.read("out")]


@pytest.mark.parametrize("batches", [False, True], ids=["per record", "per batch"])
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "in one batch"])
def test_stream_time_fires_right_after_the_record_that_reaches_a_multiple(
    *, batches: bool, at_once: bool
) -> None:
    with TopologyTestDriver(ticking(10, STREAM, batches=batches)) as d:
        given = records(3, 9, 10, 4, 19, 47, 49, 50)
        if at_once:
            d.pipe_all("in", given)
        else:
            for one in given:
                d.pipe("in", one.key, one.value, one.timestamp_ms)
        assert values(d) == [
            "r3", "3:1", "r9", "r10", "10:3", "r4", "r19", "r47", "47:6", "r49", "r50", "50:8",
        ]  # fmt: skip


FROM = """
    | at | records                     | what comes out                                            |
    |    | 13 15 20 47 49 50           | r13 13:1 r15 r20 20:3 r47 47:4 r49 r50 50:6               |
    | 0  | 13 15 20 47 49 50           | r13 13:1 r15 r20 20:3 r47 47:4 r49 r50 50:6               |
    | 3  | 13 15 20 47 53 54           | r13 13:1 r15 r20 r47 47:4 r53 53:5 r54                    |
    | 25 | 13 15 20 47 53 54 55        | r13 r15 r20 r47 47:4 r53 r54 r55 55:7                     |
    | 47 | 13 15 20 47 53 57           | r13 r15 r20 r47 47:4 r53 r57 57:6                         |
    | 99 | 13 15 20 47                 | r13 r15 r20 r47                                           |
"""


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "in one batch"])
@pytest.mark.parametrize(("at", "given", "out"), table_rows(FROM))
def test_stream_time_fires_from_its_start_on_as_in_kafka_streams(
    at: str, given: str, out: str, *, at_once: bool
) -> None:
    with TopologyTestDriver(ticking(10, STREAM, at=int(at) if at else None)) as d:
        lot = records(*map(int, given.split()))
        for part in [lot] if at_once else [[one] for one in lot]:
            d.pipe_all("in", part)
            if not at_once:
                d.crash()
        assert " ".join(values(d)) == out


def test_stream_time_goes_on_from_where_it_was_committed() -> None:
    with TopologyTestDriver(ticking(10, STREAM)) as d:
        d.pipe("in", "k", "a", 9)
        assert values(d) == ["a", "9:1"]
        d.crash()
        d.pipe("in", "k", "b", 8)
        assert values(d) == ["b"]
        d.pipe("in", "k", "c", 11)
        assert values(d) == ["c", "11:3"]


def test_the_wall_clock_fires_once_per_interval_from_the_opening_on() -> None:
    with TopologyTestDriver(ticking(timedelta(milliseconds=10), WALL)) as d:
        assert values(d) == []
        d.pipe("in", "k", "a", 5)
        assert values(d) == ["a"]
        d.advance_wall_clock(9)
        assert values(d) == []
        d.advance_wall_clock(1)
        assert values(d) == ["10:1"]
        d.advance_wall_clock(35)
        assert values(d) == ["45:1"], "those that passed unseen are not made up for"
        d.advance_wall_clock(5)
        assert values(d) == ["50:1"], "and the next is on time"
        d.crash()
        d.advance_wall_clock(9)
        assert values(d) == [], "a task that opens anew begins anew"
        d.advance_wall_clock(1)
        assert values(d) == ["60:1"]


@pytest.mark.parametrize(
    ("at", "fires"),
    [
        (0, [43, 57, 65]),
        (3, [43, 57, 65]),
        (37, [37, 47, 57]),
        (40, [43, 57, 65]),
        (datetime.fromtimestamp(0.050, UTC), [57, 65]),
        (99, []),
    ],
)
def test_the_wall_clock_fires_from_its_start_on_as_in_kafka_streams(
    at: Any, fires: list[int]
) -> None:
    with TopologyTestDriver(ticking(10, WALL, at=at)) as d:
        d.advance_wall_clock(37)
        d.read("out")
        d.crash()
        found = values(d)
        for step in (6, 4, 10, 8):
            d.advance_wall_clock(step)
            found += values(d)
    assert [int(value.partition(":")[0]) for value in found] == fires


@pytest.mark.parametrize("at", ["soon", 1.5, True, 1 << 63])
def test_a_start_that_is_no_time_is_refused(at: Any) -> None:
    with pytest.raises(Misuse, match=r"schedule: at is .*, which is no time"):
        TopologyTestDriver(ticking(10, STREAM, at=at))


@pytest.mark.parametrize("kind", [STREAM, WALL])
def test_a_cancelled_punctuation_fires_no_more(kind: PunctuationType) -> None:
    made: Scheduled = []
    with TopologyTestDriver(ticking(10, kind, made)) as d:
        d.pipe_all("in", records(1, 11))
        d.read("out")
        made[0].cancel()
        made[0].cancel()
        d.advance_wall_clock(100)
        d.pipe("in", "k", "a", 100)
        assert values(d) == ["a"]


class Once:
    """Schedules when a record comes, and ends that when it has fired."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self.timer: Punctuation | None = None

    def process(self, record: Record[str, str]) -> None:
        self.timer = self.context.schedule(10, WALL, self.fire)

    def fire(self, time_ms: int) -> None:
        assert self.timer is not None
        self.timer.cancel()
        self.context.forward(Record("k", str(time_ms), time_ms))


def test_one_scheduled_while_the_task_runs_waits_an_interval_and_may_end_itself() -> None:
    b = texts()
    b.stream("in").process(Once).to("out")
    with TopologyTestDriver(b.build()) as d:
        d.advance_wall_clock(3)
        d.pipe("in", "k", "a", 0)
        assert values(d) == []
        d.advance_wall_clock(9)
        assert values(d) == []
        d.advance_wall_clock(50)
        d.advance_wall_clock(50)
        assert values(d) == ["62"]


def test_what_a_punctuation_forwards_goes_on_through_repartition_topics() -> None:
    b = texts()
    made: Scheduled = []
    ticks = b.stream("in").process(lambda c: Ticking(c, 10, WALL, made), SEEN)
    ticks.repartition("r").map_values(str.upper).to("out")
    with TopologyTestDriver(b.build()) as d:
        d.advance_wall_clock(10)
        assert values(d) == ["10:0"]


class Broken:
    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        context.schedule(10, STREAM, self.fire, at=10)

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)

    def fire(self, time_ms: int) -> None:
        self.context.forward(Record("k", "half", time_ms))
        raise KeyError("seven")


def test_one_that_raises_names_node_and_time_and_commits_nothing() -> None:
    b = texts()
    b.stream("in").process(Broken, name="broken").to("out")
    with TopologyTestDriver(b.build()) as d:
        d.pipe("in", "k", "a", 9)
        told = r"node broken, punctuation at 12 \(.* from in\): KeyError: 'seven'"
        with pytest.raises(RecordFailed, match=told):
            d.pipe("in", "k", "b", 12)
        assert values(d) == ["a"]


@pytest.mark.parametrize("interval", [0, -1, timedelta(0)])
def test_an_interval_below_a_millisecond_is_refused(interval: Any) -> None:
    with pytest.raises(Misuse, match=re.escape("must be at least 1 ms")):
        TopologyTestDriver(ticking(interval, STREAM))


# Over stores on disk.


@pytest.fixture
def rig_of(tmp_path: Path) -> Iterator[Callable[[ss.Topology], TaskRig]]:
    made: list[TaskRig] = []

    def make(topology: ss.Topology) -> TaskRig:
        made.append(TaskRig(topology, tmp_path))
        return made[-1]

    yield make
    for rig in made:
        rig.end()


class Counting:
    """Writes its own store by the wall clock."""

    def __init__(self, context: ProcessorContext) -> None:
        self.store = context.store(SEEN)
        context.schedule(10, WALL, self.tick, at=context.wall_clock_ms())

    def tick(self, _time_ms: int) -> None:
        self.store.put("n", self.store.get("n", 0) + 1)

    def process(self, record: Record[str, str]) -> None: ...


def counting() -> ss.Topology:
    b = texts()
    b.stream("in").process(Counting, SEEN)
    return b.build()


def folded(rig: TaskRig) -> int | None:
    value = rig.changelog("seen").get(b"n")
    return None if value is None else int.from_bytes(value)


def test_writes_of_a_punctuation_alone_are_committed_after_the_interval(
    rig_of: Callable[[ss.Topology], TaskRig],
) -> None:
    rig = rig_of(counting())
    task = rig.start()
    task.step(0)
    assert folded(rig) is None, "not before commit.interval.ms"
    rig.clock.advance(1000)
    task.step(0)
    assert folded(rig) == 2
    assert task.report.commits == 1


def test_writes_of_a_punctuation_that_were_not_committed_die_with_the_task(
    rig_of: Callable[[ss.Topology], TaskRig],
) -> None:
    rig = rig_of(counting())
    rig.start().step(0)
    rig.crash()
    task = rig.start()
    task.step(0)
    task.finish()
    assert folded(rig) == 1


def test_a_punctuation_that_writes_nothing_commits_nothing(
    rig_of: Callable[[ss.Topology], TaskRig],
) -> None:
    b = texts()

    class Idle(Counting):
        def tick(self, _time_ms: int) -> None: ...

    b.stream("in").process(Idle, SEEN)
    rig = rig_of(b.build())
    task = rig.start()
    for _ in range(5):
        rig.clock.advance(1000)
        task.step(0)
    assert task.report.commits == 0
