"""process_values: processors whose records keep their keys (KIP-820)."""

from collections.abc import Callable
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, RecordFailed
from statestore.testing.driver import TopologyTestDriver

Forward = Callable[[Any, Any], None]
SETTINGS = {"ensure.explicit.internal.resource.naming": False}


class Calling:
    """Calls a function with each record and its context."""

    def __init__(self, context: ss.ProcessorContext, function: Forward) -> None:
        self._context, self._function = context, function

    def process(self, record: ss.Record[Any, Any]) -> None:
        self._function(self._context, record)


def calling(function: Forward) -> Callable[[ss.ProcessorContext], Calling]:
    return lambda context: Calling(context, function)


def made(function: Forward, **settings: object) -> TopologyTestDriver:
    builder = ss.StreamsBuilder(key_serde=serdes.JSON, value_serde=serdes.JSON)
    builder.stream("in").process_values(calling(function), name="p").to("out")
    return TopologyTestDriver(builder.build(), SETTINGS | settings)


def test_value_time_and_headers_may_change_and_the_key_keeps_its_bytes() -> None:
    def doubled(context: Any, record: Any) -> None:
        context.forward(record.replace(value=record.value * 2, timestamp_ms=7))
        context.forward(record.replace(headers=(("h", b"1"),)))

    with made(doubled) as driver:
        driver.pipe_bytes("in", b" 1 ", b"21", 3)  # not how the serde writes it
        raw = [(r.key, r.value, r.timestamp_ms, r.headers) for r in driver.read("out")]
    assert raw == [(1, 42, 7, ()), (1, 21, 3, (("h", b"1"),))]


def test_a_key_that_equals_the_records_own_is_the_records_own() -> None:
    with made(lambda c, r: c.forward(ss.Record(True, r.value, 0))) as driver:
        driver.pipe("in", 1, "v", 0)
        assert [repr(record.key) for record in driver.read("out")] == ["1"]


@pytest.mark.parametrize("key", ["b", None, ["a"], 1])
def test_another_key_is_refused(key: Any) -> None:
    with made(lambda c, r: c.forward(r.replace(key=key))) as driver:
        with pytest.raises(RecordFailed) as refused:
            driver.pipe("in", "a", "v", 0)
        told = str(refused.value)
        assert "node p" in told
        assert "in-0" in told
        assert "process_values() keeps keys: the record has the key 'a'" in told
        assert f"{key!r} was forwarded: forward record.replace(value=…), or use process()" in told


def test_only_the_record_with_another_key_is_skipped() -> None:
    def forwards(context: Any, record: Any) -> None:
        context.forward(record)
        if record.value == 2:
            context.forward(record.replace(key="other"))

    with made(forwards, **{"processing.exception.handler": "continue"}) as driver:
        driver.pipe_all("in", [ss.Record("a", n, n) for n in range(4)])
        assert [record.value for record in driver.read("out")] == [0, 1, 3]


def test_what_is_forwarded_must_be_a_record() -> None:
    with (
        made(lambda c, r: c.forward((r.key, r.value))) as driver,
        pytest.raises(RecordFailed, match=r"forward\(\) takes a Record, not tuple"),
    ):
        driver.pipe("in", "a", 1, 0)


class Keyed:
    """Has a key and nothing else that a record has."""

    key = "a"


def test_what_has_only_a_key_is_no_record() -> None:
    with (
        made(lambda c, r: c.forward(Keyed())) as driver,
        pytest.raises(RecordFailed, match=r"forward\(\) takes a Record, not Keyed"),
    ):
        driver.pipe("in", "a", 1, 0)


class Timed:
    """Forwards in a timer what it was given last."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context = context
        self._last: Any = None
        context.schedule(10, ss.PunctuationType.STREAM_TIME, self._tick, at=10)

    def process(self, record: ss.Record[Any, Any]) -> None:
        self._last = record

    def _tick(self, _time_ms: int) -> None:
        self._context.forward(self._last)


def test_a_timer_has_no_key_to_keep() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    builder.stream("in").process_values(Timed, name="p").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "a", "1", 0)
        with pytest.raises(RecordFailed, match="a timer has no record whose key it could keep"):
            driver.pipe("in", "a", "2", 50)


def test_no_repartition_follows_and_the_keys_keep_their_serde() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    numbered = builder.stream("in", key_serde=serdes.INT64)
    kept = numbered.process_values(calling(lambda c, r: c.forward(r)))
    kept.group_by_key().count("n").to_stream().to("out", value_serde=serdes.INT64)
    topology = builder.build()
    assert "repartition" not in topology.describe()
    assert "KSTREAM-PROCESSVALUES-0000000001" in topology.describe()
    with TopologyTestDriver(topology, SETTINGS) as driver:
        driver.pipe("in", 5, "x", 0)
        assert [(record.key, record.value) for record in driver.read("out")] == [(5, 1)]


def test_records_go_to_the_child_that_is_named() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)

    def by_parity(context: Any, record: Any) -> None:
        context.forward(record, to="odd" if record.value % 2 else "even")
        context.forward(record.replace(value=-record.value))

    stream = builder.stream("in").process_values(calling(by_parity), name="p")
    stream.map_values(lambda n: ["odd", n], name="odd").to("out")
    stream.map_values(lambda n: ["even", n], name="even").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe_all("in", [ss.Record("a", n, n) for n in (1, 2)])
        found = sorted(record.value for record in driver.read("out"))
    assert found == [["even", -2], ["even", -1], ["even", 2], ["odd", -2], ["odd", -1], ["odd", 1]]


class Batches:
    """Takes batches only."""

    def __init__(self, _context: ss.ProcessorContext) -> None: ...
    def process_batch(self, _records: Any) -> None: ...


class Yielding:
    """Would never run."""

    def __init__(self, _context: ss.ProcessorContext) -> None: ...
    def process(self, _record: Any) -> Any:
        yield


def test_what_is_no_processor_of_records_is_refused() -> None:
    stream = ss.StreamsBuilder().stream("in")
    wrong: Any = Batches(None)  # type: ignore[arg-type]  # it takes no notice of it
    with pytest.raises(Misuse, match=r"process_values 'p': Yielding.process\(\) is a generator"):
        stream.process_values(Yielding, name="p")
    with pytest.raises(Misuse, match=r"process_values 'p' needs a function of 1 argument"):
        stream.process_values(wrong, name="p")
    builder = ss.StreamsBuilder()
    of_batches: Any = Batches
    builder.stream("in").process_values(of_batches, name="p").to("out")
    with pytest.raises(
        InvalidTopology, match=r"its factory made Batches, which has no process\(\)"
    ):
        TopologyTestDriver(builder.build())
