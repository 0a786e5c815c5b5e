"""Punctuations that fail: the run ends, or goes on without them, as handlers say (E9)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import RecordFailed
from statestore.model.ids import TopicPartition
from statestore.model.modes import PunctuationType
from statestore.model.records import Record
from statestore.ports import TopicSpec
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.processors.user_processors import ProcessorContext
from tests.contract.task_rig import APPLICATION, TaskRig

STREAM, WALL = PunctuationType.STREAM_TIME, PunctuationType.WALL_CLOCK_TIME
SEEN = ss.persistent_key_value_store("seen", key_serde=serdes.STRING, value_serde=serdes.INT64)
IN = TopicPartition("in", 0)
GUARANTEES = ["exactly_once", "at_least_once"]


def handled(handler: str, **more: object) -> dict[str, object]:
    return {
        "processing.exception.handler": handler,
        "errors.dead.letter.queue.topic.name": "dead",
        **more,
    }


class Faulty:
    """Counts records and firings; fails where `fails` says so, having written and forwarded."""

    kind = STREAM

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.store(SEEN)
        at = 10 if self.kind is STREAM else context.wall_clock_ms()
        context.schedule(10, self.kind, self.tick, at=at)

    def fails(self, time_ms: int) -> bool:
        return time_ms % 20 != 0

    def process(self, record: Record[str, str]) -> None:
        self.count("records")
        self.context.forward(record)

    def tick(self, time_ms: int) -> None:
        self.count("ticks")
        self.context.forward(Record("tick", f"t{time_ms}", time_ms))
        if self.fails(time_ms):
            raise KeyError(f"not at {time_ms}")

    def count(self, what: str) -> None:
        self.store.put(what, self.store.get(what, 0) + 1)


class FaultyByTheClock(Faulty):
    kind = WALL


class FaultyBelow(Faulty):
    """Forwards what a later node refuses."""

    def fails(self, time_ms: int) -> bool:
        if time_ms % 20:
            self.context.forward(Record("tick", "refused", time_ms))
        return False


def refusing(value: str) -> str:
    if value == "refused":
        raise ValueError("no")
    return value


def topology(processor: type[Faulty] = Faulty) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    stream = b.stream("in").process(processor, SEEN, name="faulty")
    stream.map_values(refusing, name="refusing").to("out")
    return b.build()


def records(*times_ms: int) -> list[Record[str, str]]:
    return [Record("k", f"r{time_ms}", time_ms) for time_ms in times_ms]


def values(d: TopologyTestDriver) -> list[str]:
    return [record.value for record in d.read("out")]


def counts(d: TopologyTestDriver) -> dict[str, int]:
    return dict(d.store("seen").all())


def dropped(d: TopologyTestDriver) -> int:
    return sum(task.report.dropped_records for task in d._tasks.values())


@pytest.mark.parametrize("processor", [Faulty, FaultyBelow])
@pytest.mark.parametrize("handler", ["continue", "dead_letter"])
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "in one batch"])
def test_one_that_fails_leaves_nothing_and_the_rest_goes_on(
    processor: type[Faulty], handler: str, *, at_once: bool
) -> None:
    with TopologyTestDriver(topology(processor), handled(handler)) as d:
        for lot in (
            [records(1, 9, 10, 15, 20, 30, 31, 50, 60)]
            if at_once
            else map(records, (1, 9, 10, 15, 20, 30, 31, 50, 60))
        ):
            d.pipe_all("in", lot)
        assert values(d) == [
            "r1",
            "r9",
            "r10",
            "r15",
            "r20",
            "t20",
            "r30",
            "r31",
            "r50",
            "r60",
            "t60",
        ]
        assert counts(d) == {"records": 9, "ticks": 2}
        assert dropped(d) == 3
        letters = d.read("dead")
        assert [(r.key, r.value, r.timestamp_ms) for r in letters] == (
            [(None, None, t) for t in (10, 30, 50)] if handler == "dead_letter" else []
        )
        (task,) = d._tasks.values()
        assert task.report.rewinds == 3, "each is tried once"


def test_its_dead_letter_names_it() -> None:
    with TopologyTestDriver(topology(), handled("dead_letter")) as d:
        d.pipe_all("in", records(1, 10))
        (letter,) = d.read("dead")
        told = {
            name.removeprefix("__streams.errors."): text or b"" for name, text in letter.headers
        }
        assert told.pop("stacktrace").endswith(b"KeyError: 'not at 10'\n")
        assert told == {
            "exception": b"KeyError",
            "message": b"'not at 10'",
            "punctuation": b"stream_time",
            "node": b"faulty",
            "time": b"10",
            "task": b"0_0",
            "inputs": b"in",
        }


def test_with_fail_the_run_ends_and_nothing_of_it_is_committed() -> None:
    with TopologyTestDriver(topology(), handled("fail")) as d:
        d.pipe("in", "k", "a", 9)
        with pytest.raises(
            RecordFailed,
            match=r"faulty, punctuation at 10 \(its node gets records from in\): KeyError",
        ):
            d.pipe("in", "k", "b", 10)
        assert values(d) == ["a"]


def test_one_by_the_clock_that_always_fails_holds_up_nothing() -> None:
    class Always(FaultyByTheClock):
        def fails(self, time_ms: int) -> bool:
            return time_ms >= 0

    with TopologyTestDriver(topology(Always), handled("dead_letter")) as d:
        assert len(d.read("dead")) == 1, "the one when the task opens"
        d.pipe("in", "k", "a", 5)
        for number in range(3):
            d.advance_wall_clock(10)
            d.pipe("in", "k", f"b{number}", 5)
        assert values(d) == ["a", "b0", "b1", "b2"]
        assert counts(d) == {"records": 4}
        letters = d.read("dead")
        assert [r.timestamp_ms for r in letters] == [10, 20, 30]
        assert dict(letters[0].headers)["__streams.errors.punctuation"] == b"wall_clock_time"
        assert dropped(d) == 4


# Over stores on disk.


@pytest.fixture(params=GUARANTEES)
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TaskRig]:
    made = TaskRig(topology(), tmp_path, guarantee=request.param, settings=handled("dead_letter"))
    made.broker.cluster(APPLICATION).create([TopicSpec("dead", 1, {})])
    yield made
    made.end()


def send(rig: TaskRig, *times_ms: int) -> None:
    for one in records(*times_ms):
        data: Record[bytes | None, bytes | None] = one.replace(
            key=one.key.encode(), value=one.value.encode()
        )
        rig.broker.produce(IN, data)


def test_a_crash_before_the_commit_buries_it_once(rig: TaskRig) -> None:
    task = rig.start()
    send(rig, 1, 10)
    assert task.step(0) == 0, "it failed: back to the last commit"
    rig.crash()
    task = rig.start()
    send(rig, 20, 21)
    for _ in range(3):
        task.step(0)
    rig.crash()
    task = rig.start()
    task.step(0)
    task.finish()
    out = [record.value for record in rig.broker.records("out")]
    once = list(dict.fromkeys(out))
    assert once == [b"r1", b"r10", b"r20", b"t20", b"r21"]
    assert len(rig.broker.records("dead")) == 1
    if rig.guarantee == "exactly_once":
        assert out == once
        assert {k: int.from_bytes(v) for k, v in rig.changelog("seen").items()} == {
            b"records": 4,
            b"ticks": 1,
        }
