"""What poison records leave alone: time, order, memory, other inputs and records (E9)."""

from collections.abc import Sequence
from typing import Any

import pytest

from statestore.errors import InvalidSetting, RecordFailed, TopicMissing
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import PunctuationType
from statestore.model.records import Record
from statestore.settings import Settings
from statestore.testing import TopologyTestDriver
from statestore.topology.processors.user_processors import ProcessorContext
from tests.unit.poison_rig import (
    POISON,
    SEEN,
    Picky,
    counted_too,
    dropped,
    good_and_bad,
    letters,
    piped,
    poisonous,
    refuse,
    settings,
    sunk,
    texts,
    topology,
    value_of,
)

# What happens around it.


def test_a_poison_record_does_not_move_stream_time() -> None:
    times: list[int | None] = []

    class Looking:
        def __init__(self, context: ProcessorContext) -> None:
            self.context = context

        def process(self, record: Record[Any, Any]) -> None:
            refuse(record.value)
            times.append(self.context.stream_time)

    b = texts()
    b.stream("in").process(Looking)
    with TopologyTestDriver(b.build(), settings("continue")) as driver:
        driver.pipe("in", "a", "1", 10)
        driver.pipe("in", "b", POISON, 99)
        driver.pipe("in", "c", "2", 20)
    assert times[0] == 10
    assert times[-1] == 20


def test_a_crash_after_the_verdict_and_one_after_the_commit_leave_one_dead_letter() -> None:
    with TopologyTestDriver(topology("map_values"), settings("dead_letter")) as driver:
        driver._broker.produce(TopicPartition("in", 0), Record(b"k", POISON.encode(), 5))
        driver._tasks[TaskId(0, 0)].step(0)
        assert driver.read("dead") == []
        driver.crash()
        assert list(letters(driver)) == [0]
        driver.crash()
        assert driver.read("dead") == []


def test_what_a_processor_held_of_a_poison_record_is_gone() -> None:
    made: list[Picky] = []

    def factory(context: ProcessorContext) -> Picky:
        made.append(Picky(context))
        return made[-1]

    b = texts()
    sunk(b.stream("in").process(factory, SEEN))
    with TopologyTestDriver(b.build(), settings("continue")) as driver:
        driver.pipe_all("in", good_and_bad([3], 6))
        assert POISON not in made[-1].held
        assert POISON not in dict(driver.store("seen").all()).values()


def test_a_record_is_not_blamed_for_what_an_earlier_poison_record_left_in_a_store() -> None:
    """The second record fails only beside the first, which a later branch cannot take."""

    def unlike(_key: Any, value: Any, old: Any) -> Any:
        if old == POISON:
            raise ValueError("after poison")
        return value

    b = texts()
    stream = b.stream("in")
    stream.group_by_key().aggregate(lambda: "", unlike, "latest")
    stream.map_values(value_of).to("out")
    with TopologyTestDriver(b.build(), settings("dead_letter")) as driver:
        driver.pipe_all("in", [Record("k", v, 1) for v in ("a", POISON, "b")])
        assert list(letters(driver)) == [1]
        assert dict(driver.store("latest").all()) == {"k": "b"}
        assert [r.value for r in driver.read("out")] == ["a", "b"]


def test_a_batch_that_fails_only_as_a_whole_goes_through_in_lots() -> None:
    class Few:
        def __init__(self, context: ProcessorContext) -> None:
            self.context = context

        def process_batch(self, records: Sequence[Record[Any, Any]]) -> None:
            if len(records) > 3:
                raise MemoryError("too many at once")
            for record in records:
                self.context.forward(record)

    b = texts()
    sunk(b.stream("in").process_batch(Few))
    with TopologyTestDriver(b.build(), settings("fail")) as driver:
        driver.pipe_all("in", good_and_bad([], 100))
        assert len(driver.read("out")) == 100
        assert dropped(driver) == 0


def test_poison_among_several_inputs_is_named_by_its_own_topic() -> None:
    b = texts()
    first, second = b.stream("one"), b.stream("two")
    sunk(first.merge(second).process(Picky, SEEN))
    with TopologyTestDriver(b.build(), settings("dead_letter")) as driver:
        for i in range(6):
            for topic in ("one", "two"):
                value = POISON if (topic, i) == ("two", 4) else f"{topic} {i}"
                record: Record[bytes | None, bytes | None] = Record(b"k", value.encode(), 10 * i)
                driver._broker.produce(TopicPartition(topic, 0), record)
        driver._drain()
        ((_, _, headers),) = letters(driver).values()
        assert headers["__streams.errors.topic"] == b"two"
        assert headers["__streams.errors.offset"] == b"4"
        assert len(driver.read("out")) == 11


def test_nothing_but_poison_is_passed_over_to_the_last() -> None:
    with TopologyTestDriver(topology("map_values"), settings("dead_letter")) as driver:
        driver.pipe_all("in", good_and_bad(range(50), 50))
        assert sorted(letters(driver)) == list(range(50))
        assert driver.read("out") == []
        assert driver._tasks[TaskId(0, 0)].report.rewinds == 1, "all are found at once"


def test_a_dead_letter_too_large_for_its_topic_ends_the_run_by_name() -> None:
    with TopologyTestDriver(topology("map_values"), settings("dead_letter")) as driver:
        driver._broker.state.configs["dead"] = {"max.message.bytes": "3"}
        with pytest.raises(RecordFailed, match=r"dead letters of in-0 offset 1 .*record for dead"):
            poisonous(driver)


@pytest.mark.parametrize("handler", ["continue", "dead_letter", "fail"])
def test_a_sink_topic_that_is_gone_is_no_records_fault_and_ends_the_run(handler: str) -> None:
    b = texts()
    b.stream("in").filter(lambda k, _v: k == "k").to("gone")
    counted_too(b.stream("in"))
    with TopologyTestDriver(b.build(), settings(handler)) as driver:
        log = driver._broker.state.topics.pop("gone")
        with pytest.raises(TopicMissing, match="gone"):
            piped(driver, b"k", b"v")
        assert driver._tasks[TaskId(0, 0)].report.rewinds == 0, "no record is sought"
        driver._broker.state.topics["gone"] = log
        driver.crash()
        assert dict(driver.store("counts").all()) == {"a": 1, "k": 1, "z": 1}, (
            "none was passed over"
        )
        assert driver.read("dead") == []


def test_what_a_processor_forwards_amiss_is_its_records_failure() -> None:
    class Amiss(Picky):
        def process(self, record: Record[Any, Any]) -> None:
            amiss: Any = "no record"
            self.context.forward(amiss if record.value == POISON else record)

    b = texts()
    sunk(b.stream("in").process(Amiss, SEEN))
    with TopologyTestDriver(b.build(), settings("dead_letter")) as driver:
        poisonous(driver)
        ((_, _, headers),) = letters(driver).values()
        assert headers["__streams.errors.exception"] == b"TypeError"
        assert [r.value for r in driver.read("out")] == ["1", "2"]


def test_a_processor_that_fails_to_close_keeps_nothing_else_open() -> None:
    class Stubborn(Picky):
        def close(self) -> None:
            raise ValueError("not now")

    b = texts()
    sunk(b.stream("in").process(Stubborn, SEEN))
    with TopologyTestDriver(b.build(), settings("continue")) as driver:
        poisonous(driver)
        assert [r.value.split()[-1] for r in driver.read("out")] == ["1", "2"]


def test_dead_letters_without_a_topic_are_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"errors\.dead\.letter\.queue\.topic\.name"):
        Settings.from_mapping({"processing.exception.handler": "dead_letter"})


def test_an_input_cannot_be_the_topic_of_the_dead_letters() -> None:
    wanted = settings("dead_letter") | {"errors.dead.letter.queue.topic.name": "in"}
    with pytest.raises(InvalidSetting, match=r"'in' is an input .* without end"):
        TopologyTestDriver(topology("map_values"), wanted)


@pytest.mark.parametrize("handler", ["fail", "dead_letter"])
@pytest.mark.parametrize("what", ["raises", "writes too much"])
def test_no_record_is_blamed_for_what_a_punctuation_does(what: str, handler: str) -> None:
    class Timed:
        def __init__(self, context: ProcessorContext) -> None:
            self.context = context
            context.schedule(10, PunctuationType.STREAM_TIME, self.punctuate, at=10)

        def process(self, record: Record[Any, Any]) -> None:
            self.context.forward(record)

        def punctuate(self, time_ms: int) -> None:
            if what == "raises":
                raise ValueError("not now")
            self.context.forward(Record("k", "x" * 1_100_000, time_ms))

    b = texts()
    sunk(b.stream("in").process(Timed, name="timed"))
    with TopologyTestDriver(b.build(), settings(handler)) as driver:
        driver.pipe("in", "a", "1", 1)
        if handler == "fail":
            with pytest.raises(RecordFailed, match="punctuation at 15"):
                driver.pipe("in", "b", "2", 15)
            return
        driver.pipe("in", "b", "2", 15)
        assert [record.key for record in driver.read("out")] == ["a", "b"]
        (letter,) = driver.read("dead")
        assert (letter.key, letter.value, letter.timestamp_ms) == (None, None, 15)


def test_nulls_that_no_join_can_use_are_dropped_and_counted() -> None:
    b = texts()
    prices = b.table("prices", materialized="prices")
    stream = b.stream("in")
    stream.join(prices, lambda left, right: f"{left} {right}").to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("prices", "a", "9", 1)
        driver.pipe_all("in", [Record(key, value, 2) for key, value in (("a", "1"), ("z", "2"))])
        assert dropped(driver) == 0, "a stream record without a row is not a null"
        piped(driver, None, b"v")
        piped(driver, b"a", None)
        assert dropped(driver) == 2
        assert {r.value for r in driver.read("out")} == {"1 9"}


@pytest.mark.parametrize("handler", ["fail", "continue"])
def test_a_record_for_a_topic_that_was_not_named_is_an_error_of_processing(handler: str) -> None:
    b = texts()
    b.stream("in").to(lambda record: record.value, topics=["x", "y"], name="by value")
    settings = {"processing.exception.handler": handler}
    with TopologyTestDriver(b.build(), settings=settings) as driver:
        driver.pipe("in", "k", "x", 1)
        if handler == "fail":
            with pytest.raises(RecordFailed, match=r"'z', which topics= does not name; .* x, y"):
                driver.pipe("in", "k", "z", 2)
            return
        driver.pipe("in", "k", "z", 2)
        driver.pipe("in", "k", "y", 3)
        assert [r.value for r in driver.read("x")] == ["x"]
        assert [r.value for r in driver.read("y")] == ["y"]
