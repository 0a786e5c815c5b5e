"""Mistakes made on purpose: each is answered with what happened, where, and the way out."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidSetting, Misuse, RecordFailed, SerdeMismatch, UnknownStore
from statestore.testing import TopologyTestDriver

# Types would stop most of these mistakes, so here nothing has any.
Stream = Any


class Forwarding:
    """Forwards what a function makes of each record."""

    def __init__(self, context: Any, make: Callable[[Any], Any]) -> None:
        self.context = context
        self.make = make

    def process(self, record: Any) -> None:
        self.context.forward(self.make(record))


def forwarding(make: Callable[[Any], Any]) -> Callable[[Any], Forwarding]:
    return lambda context: Forwarding(context, make)


def builder() -> Any:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)


def uncalled() -> ss.Topology:
    raise AssertionError("nobody calls it")


def copying() -> ss.Topology:
    b = builder()
    b.stream("in").to("out")
    built: ss.Topology = b.build()
    return built


# What functions of a pipeline return.

RETURNED: dict[str, tuple[Callable[[Stream], Any], type[Exception], list[str]]] = {
    "map: None": (
        lambda s: s.map(lambda _k, _v: None, name="it"),
        RecordFailed,
        ["did not return a pair: return (key, value)", "it returned None"],
    ),
    "map: a value": (
        lambda s: s.map(lambda _k, _v: 5, name="it"),
        RecordFailed,
        ["return (key, value)", "it returned 5, which is int"],
    ),
    "map: a text of two characters": (
        lambda s: s.map(lambda _k, _v: "ab", name="it"),
        RecordFailed,
        ["return (key, value)", "it returned 'ab', which is str"],
    ),
    "map: three": (
        lambda s: s.map(lambda k, v: (k, v, 1), name="it"),
        RecordFailed,
        ["return (key, value)", "it returned a tuple of 3 items"],
    ),
    "flat_map: None": (
        lambda s: s.flat_map(lambda _k, _v: None, name="it"),
        RecordFailed,
        ["return a list of (key, value), or yield them; an empty list for none"],
    ),
    "flat_map: one pair": (
        lambda s: s.flat_map(lambda k, v: (k, v), name="it"),
        RecordFailed,
        ["return a list of (key, value), or yield them"],
    ),
    "flat_map_values: None": (
        lambda s: s.flat_map_values(lambda _v: None, name="it"),
        RecordFailed,
        ["return a list of them, or yield them; an empty list for none"],
    ),
    "flat_map_values: a text": (
        lambda s: s.flat_map_values(lambda v: v, name="it"),
        RecordFailed,
        ["return a list of them", "it returned 'text', which is str"],
    ),
    "map_values: not what the sink takes": (
        lambda s: s.map_values(lambda _v: 5),
        SerdeMismatch,
        ["the value is int but its serde is STRING", "pass value_serde=… to `to('out')`"],
    ),
    "group_by: a key of another type": (
        lambda s: s.group_by(lambda _k, v: len(v), name="g").count("c").to_stream(),
        SerdeMismatch,
        ["the key is int but its serde is STRING", "pass key_serde=… to group_by()"],
    ),
    "select_key: a key of another type": (
        lambda s: s.select_key(lambda _k, v: len(v)).group_by_key(name="g").count("c").to_stream(),
        SerdeMismatch,
        ["the key is int", "pass key_serde=… to a repartition() before 'g'"],
    ),
    "forward: a tuple": (
        lambda s: s.process(forwarding(lambda r: (r.key, r.value)), name="it"),
        RecordFailed,
        ["forward() takes a Record, not tuple", "record.replace(key=…, value=…)"],
    ),
    "forward: None": (
        lambda s: s.process(forwarding(lambda _r: None), name="it"),
        RecordFailed,
        ["forward() takes a Record, not NoneType", "ss.Record(key, value, timestamp_ms)"],
    ),
}


@pytest.mark.parametrize("mistake", RETURNED)
def test_what_a_function_returned_amiss_is_named_with_its_record(mistake: str) -> None:
    build, kind, told = RETURNED[mistake]
    b = builder()
    build(b.stream("in")).to("out")
    with TopologyTestDriver(b.build()) as driver:
        with pytest.raises(kind) as caught:
            driver.pipe("in", "k", "text", 0)
        where = "node it, in-0 offset 0" if kind is RecordFailed else "-0 offset 0"
        missing = [text for text in (where, *told) if text not in str(caught.value)]
        assert not missing, str(caught.value)


def test_the_record_is_the_one_for_which_the_function_returned_amiss() -> None:
    b = builder()
    b.stream("in").map(lambda k, v: (k, v) if v == "right" else v, name="it").to("out")
    told = r"in-0 offset 1: .*it returned 'wrong'"
    with TopologyTestDriver(b.build()) as driver, pytest.raises(RecordFailed, match=told):
        driver.pipe_all("in", [("k", value, 0) for value in ("right", "wrong", "right")])


def test_an_error_of_the_function_itself_is_not_explained_away() -> None:
    def fails(_key: Any, _value: Any) -> Any:
        raise TypeError("mine")

    b = builder()
    b.stream("in").map(fails).to("out")
    told = rf"TypeError: mine \({__file__}:\d+\); correct the record"
    with TopologyTestDriver(b.build()) as driver, pytest.raises(RecordFailed, match=told):
        driver.pipe("in", "k", "v", 0)


def test_a_list_of_two_is_a_pair_as_well() -> None:
    b = builder()
    b.stream("in").map(lambda k, v: [v, k]).to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "k", "v", 0)
        assert [(r.key, r.value) for r in driver.read("out")] == [("v", "k")]


# How a pipeline is written.

WRITTEN: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "count": (lambda b: b.stream("in").count("c"), AttributeError, "group the records first"),
    "aggregate": (lambda b: b.stream("in").aggregate(), AttributeError, "group_by_key()"),
    "reduce": (lambda b: b.stream("in").reduce(), AttributeError, "or group_by(function)"),
    "windows": (lambda b: b.stream("in").windowed_by(), AttributeError, "group the records first"),
    "a group's sink": (
        lambda b: b.stream("in").group_by_key().to("out"),
        AttributeError,
        "'KGroupedStream' object has no attribute 'to': aggregate the groups first: count()",
    ),
    "a table's sink": (
        lambda b: b.table("in").to("out"),
        AttributeError,
        "'KTable' object has no attribute 'to': make a stream of the table first: to_stream()",
    ),
    "a table's group": (
        lambda b: b.table("in").count(),
        AttributeError,
        "group the rows first: group_by(function)",
    ),
    "Java's spelling": (
        lambda b: b.stream("in").mapValues(str),
        AttributeError,
        "did you mean map_values()?",
    ),
    "a misspelling": (lambda b: b.stream("in").filtr(bool), AttributeError, "did you mean filter"),
    "C#'s ForEach": (lambda b: b.stream("in").for_each(print), AttributeError, "call foreach("),
    "nothing like it": (lambda b: b.stream("in").zzz(), AttributeError, "it has branch, filter"),
    "a processor, not its class": (
        lambda b: b.stream("in").process(Forwarding(None, str)),
        Misuse,
        "pass the class Forwarding, or lambda context: Forwarding(…)",
    ),
    "an aggregate to begin with": (
        lambda b: b.stream("in").group_by_key().aggregate(0, lambda _k, _v, a: a, "c"),
        Misuse,
        "aggregate initial needs a function of 0 arguments, not 0: pass lambda: 0",
    ),
    "no topic to read": (lambda b: b.stream(None), Misuse, "stream() takes the name of a topic"),
    "no topic to write": (lambda b: b.stream("in").to(None), Misuse, "to() takes the name of a"),
    "the name of a serde": (
        lambda b: b.stream("in", key_serde="string"),
        Misuse,
        "'string' is not a key_serde: pass one of statestore.serdes, such as serdes.STRING",
    ),
    "a type for a serde": (
        lambda b: b.stream("in").to("out", value_serde=str),
        Misuse,
        "<class 'str'> is not a value_serde",
    ),
}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_pipeline_written_amiss_is_answered_where_it_is_written(mistake: str) -> None:
    write, kind, told = WRITTEN[mistake]
    with pytest.raises(kind) as caught:
        write(builder())
    assert told in str(caught.value)


def test_what_is_missing_is_missing_for_hasattr_and_copies_as_well() -> None:
    stream = builder().stream("in")
    assert not hasattr(stream, "count")
    assert not hasattr(stream, "__deepcopy__")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "a function that builds one ends with `return b.build()`"),
        (uncalled, "call it: uncalled()"),
        (builder(), "call its build()"),
        ("shop:topology", "`statestore run --pipeline` takes a path"),
        (5, "StreamsBuilder.build() returns one"),
    ],
)
@pytest.mark.parametrize("starts", [lambda it: ss.run(it, {}), TopologyTestDriver])
def test_what_is_no_topology_is_refused(
    given: Any, told: str, starts: Callable[[Any], object]
) -> None:
    with pytest.raises(Misuse, match="needs a Topology, not ") as caught:
        starts(given)
    assert told in str(caught.value)


# Settings.

OF_KAFKA_STREAMS = {
    "auto.offset.reset": "ss.AutoOffsetReset.latest()",
    "consumer.auto.offset.reset": "`statestore reset --to-latest`",
    "num.stream.threads": "`statestore run --workers N`",
    "commit.interval": "the key is commit.interval.ms",
    "cache.max.bytes.buffering": "statestore.uncommitted.max.bytes bounds the memory",
    "statestore.cache.max.bytes": "Materialized(…, caching=False)",
    "state.cleanup.delay.ms": "statestore.quarantine.retention.ms",
    "num.standby.replicas": "no standbys",
    "application.server": "ss.open_snapshot",
    "default.key.serde": "pass key_serde= and value_serde= to StreamsBuilder",
    "default.deserialization.exception.handler": "the key is deserialization.exception.handler",
    "group.id": "set application.id",
    "max.poll.records": "statestore.batch.max.records",
    "compression.type": "producer.compression.type",
    "restore.consumer.fetch.max.bytes": "use consumer.",
    "topic.retention.ms": "changelog_config",
    "commit.interval.millis": "did you mean 'commit.interval.ms'?",
    "nonsense": "`statestore settings` lists all",
}


@pytest.mark.parametrize("key", OF_KAFKA_STREAMS)
def test_a_setting_of_another_product_is_answered_with_what_to_do_here(key: str) -> None:
    with pytest.raises(InvalidSetting, match=f"unknown setting '{key}'") as caught:
        ss.Settings.from_mapping({key: "1"})
    assert OF_KAFKA_STREAMS[key] in str(caught.value)


def test_a_span_may_be_a_timedelta_for_any_setting_in_ms() -> None:
    second = timedelta(seconds=1)
    settings = ss.Settings.from_mapping(
        {"commit.interval.ms": second, "consumer.fetch.wait.max.ms": second}
    )
    assert settings.commit_interval_ms == 1000
    assert settings.client_config("consumer")["fetch.wait.max.ms"] == "1000"
    assert ss.Settings(commit_interval_ms=second).commit_interval_ms == 1000  # type: ignore[arg-type]  # accepted
    with pytest.raises(InvalidSetting, match=r"statestore\.batch\.max\.records = .*not a span of"):
        ss.Settings.from_mapping({"statestore.batch.max.records": second})


WRONG: dict[str, tuple[object, str]] = {
    "commit.interval.ms": ("1s", "commit.interval.ms = '1s': use a whole number"),
    "topology.optimization": ("yes", "use one of none, all, reuse.ktable.source.topics"),
    "processing.exception.handler": (
        "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
        "use one of fail, continue, dead_letter",
    ),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_value_that_is_not_allowed_is_answered_with_those_that_are(key: str) -> None:
    value, told = WRONG[key]
    with pytest.raises(InvalidSetting) as caught:
        ss.Settings.from_mapping({key: value})
    assert told in str(caught.value)


def test_a_path_is_no_settings() -> None:
    path: Any = "statestore.toml"
    with pytest.raises(InvalidSetting, match=r"ss\.Settings\.load\(path, application_id\)"):
        ss.run(copying(), path)


# The test driver.

DRIVEN: dict[str, tuple[Callable[[Any], object], type[Exception], list[str]]] = {
    "topic": (lambda d: d.pipe("inn", "k", "v"), Misuse, ["does not read 'inn'; it reads: in"]),
    "read": (lambda d: d.read("outt"), Misuse, ["does not write 'outt'; it writes: out"]),
    "key": (
        lambda d: d.pipe("in", 5, "v"),
        SerdeMismatch,
        ["topic 'in'", "the key 5 is int", "reads keys as STRING", "pass key_serde=…"],
    ),
    "value": (
        lambda d: d.pipe("in", "k", b"v"),
        SerdeMismatch,
        ["topic 'in'", "the value b'v' is bytes", "STRING", "pipe_bytes() takes bytes"],
    ),
    "bytes": (lambda d: d.pipe_bytes("in", "k", b""), Misuse, ["the key is str", "use pipe()"]),
    "past": (lambda d: d.pipe("in", "k", "v", -5), Misuse, ["topic 'in'", "the time -5"]),
    "fraction": (lambda d: d.pipe("in", "k", "v", 1.5), Misuse, ["whole milliseconds"]),
    "future": (lambda d: d.pipe("in", "k", "v", 1 << 63), Misuse, ["no broker takes a record"]),
    "zone": (
        lambda d: d.pipe("in", "k", "v", datetime(2026, 1, 1)),  # noqa: DTZ001  # the mistake
        Misuse,
        ["has no time zone: pass an aware datetime"],
    ),
    "partition": (
        lambda d: d.pipe("in", "k", "v", partition=9),
        Misuse,
        ["topic 'in': there is no partition 9, they are 0 to 1", "partitions=…"],
    ),
    "header": (lambda d: d.pipe("in", "k", "v", headers=["h"]), Misuse, ["pass (name, bytes)"]),
    "no record": (lambda d: d.pipe_all("in", [("k",)]), Misuse, ["topic 'in'", "ss.Record(key"]),
    "store": (lambda d: d.store("nope"), UnknownStore, ["no store 'nope'"]),
    "back": (lambda d: d.advance_wall_clock(-5), Misuse, ["cannot go back"]),
}


@pytest.mark.parametrize("mistake", DRIVEN)
def test_the_driver_refuses_what_no_broker_would_take_and_names_topic_and_serde(
    mistake: str,
) -> None:
    drive, kind, told = DRIVEN[mistake]
    with TopologyTestDriver(copying(), partitions=2) as driver:
        with pytest.raises(kind) as caught:
            drive(driver)
        assert [text for text in told if text not in str(caught.value)] == [], str(caught.value)
        assert mistake == "read" or driver.read("out") == []


def test_if_one_of_several_records_is_refused_none_is_processed() -> None:
    with TopologyTestDriver(copying()) as driver:
        with pytest.raises(SerdeMismatch):
            driver.pipe_all("in", [("k", "v", 0), ("k", 5, 0)])
        driver.commit()
        assert driver.read("out") == []


def test_records_may_have_times_with_a_zone() -> None:
    with TopologyTestDriver(copying()) as driver:
        driver.pipe_all("in", [("k", "v", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))])
        assert [record.timestamp_ms for record in driver.read("out")] == [1000]


def test_bytes_that_do_not_decode_fail_as_they_do_on_a_broker() -> None:
    with TopologyTestDriver(copying()) as driver:
        driver.pipe_bytes("in", b"k", b"v", 7, headers=[("h", b"x")])
        (record,) = driver.read("out")
        assert (record.key, record.value, record.timestamp_ms) == ("k", "v", 7)
    b = builder()
    b.stream("in").map_values(str.upper).to("out")
    told = "in-0 offset 0: cannot decode the value as STRING: UnicodeDecodeError"
    with TopologyTestDriver(b.build()) as driver, pytest.raises(RecordFailed, match=told):
        driver.pipe_bytes("in", b"k", b"\xff")


def test_a_closed_driver_says_so() -> None:
    driver = TopologyTestDriver(copying())
    driver.close()
    for ask in (lambda: driver.pipe("in", "k", "v"), lambda: driver.store("s"), driver.commit):
        with pytest.raises(Misuse, match="is closed: use it inside its `with`"):
            ask()


def test_the_driver_tells_of_names_that_a_run_refuses(caplog: pytest.LogCaptureFixture) -> None:
    b = builder()
    b.stream("in").group_by_key().count().to_stream().to("out")
    with TopologyTestDriver(b.build()):
        assert "a run would refuse this topology: no name of their own: store KSTREAM" in (
            caplog.text
        )


# Records that are passed over.


def poisoned(records: int, settings: Mapping[str, object], text: str = "x\ny") -> None:
    b = builder()
    b.stream("in").map_values(int).to("out", value_serde=serdes.INT64)
    with TopologyTestDriver(b.build(), settings) as driver:
        driver.pipe_all("in", [("k", text, 0)] * records)


def test_a_record_passed_over_is_one_line_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    poisoned(1, {"processing.exception.handler": "continue"})
    (line,) = [it for it in caplog.records if it.levelno >= logging.WARNING]
    assert line.exc_info is None
    said = line.getMessage()
    assert "\n" not in said
    for told in ("task 0_0", "in-0 offset 0 is passed over", "KSTREAM-MAPVALUES", "ValueError"):
        assert told in said
    assert "start again" not in said


def test_of_many_records_passed_over_few_are_told(caplog: pytest.LogCaptureFixture) -> None:
    poisoned(100, {"processing.exception.handler": "continue"})
    told = [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING]
    assert len(told) == 13
    assert told[9].endswith("(10 so far; the next line is the 20th)")
    assert "offset 79 " in told[-1]
    assert told[-1].endswith("(80 so far; the next line is the 160th)")
