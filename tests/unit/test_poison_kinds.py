"""Poison records of every kind: where each is found, and what becomes of it (SEMANTICS E9)."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from statestore import serdes
from statestore.errors import RecordFailed, SerdeMismatch
from statestore.model.records import Record
from statestore.stores.specs import persistent_key_value_store
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.streams import KStream
from statestore.topology.graph import Topology
from statestore.topology.processors.user_processors import ProcessorContext
from tests.unit.poison_rig import (
    BAD_TEXT,
    GUARANTEES,
    POISON,
    counted_too,
    dropped,
    last_of,
    letters,
    piped,
    plain,
    poisonous,
    settings,
    texts,
    value_of,
)

# Every kind of poison, at every stage.


def unreadable_key(driver: TopologyTestDriver) -> None:
    piped(driver, BAD_TEXT, b"v")


def unreadable_value(driver: TopologyTestDriver) -> None:
    piped(driver, b"k", BAD_TEXT)


def large(driver: TopologyTestDriver) -> None:
    piped(driver, b"k", b"large")


def inflated(value: Any) -> str:
    return "x" * 1_100_000 if value == "large" else str(value)


def number_or_text(value: Any) -> Any:
    return 5 if value == POISON else value


LATEST = persistent_key_value_store("latest", key_serde=serdes.STRING, value_serde=serdes.STRING)


def into_table(stream: KStream[Any, Any]) -> None:
    stream.map_values(inflated).to_table("latest").to_stream().filter(lambda _k, _v: False)
    plain(stream)


def reduced(stream: KStream[Any, Any]) -> None:
    stream.group_by_key().reduce(lambda old, _new: old, "latest")
    plain(stream)


def wrongly_typed_table(stream: KStream[Any, Any]) -> None:
    stream.map_values(number_or_text).to_table("latest")
    plain(stream)


def wrongly_typed_aggregate(stream: KStream[Any, Any]) -> None:
    grouped = stream.group_by_key()
    grouped.aggregate(lambda: "", lambda _k, v, _old: number_or_text(v), "latest")
    plain(stream)


def wrongly_typed_put(stream: KStream[Any, Any]) -> None:
    class Putting:
        def __init__(self, context: ProcessorContext) -> None:
            self.store = context.store(LATEST)

        def process(self, record: Record[Any, Any]) -> None:
            self.store.put(record.key, number_or_text(record.value))

    stream.process(Putting, LATEST)
    plain(stream)


KINDS: dict[str, tuple[Callable[[KStream[Any, Any]], None], Callable[..., None], str, type]] = {
    "a key that cannot be decoded": (plain, unreadable_key, "deserialization", RecordFailed),
    "a value that cannot be decoded": (plain, unreadable_value, "deserialization", RecordFailed),
    "an aggregate's value that cannot be decoded": (
        reduced,
        unreadable_value,
        "deserialization",
        RecordFailed,
    ),
    "an aggregate's key that cannot be decoded": (
        reduced,
        unreadable_key,
        "deserialization",
        RecordFailed,
    ),
    "a function that raises": (
        lambda s: plain(s.map_values(value_of)),
        poisonous,
        "processing",
        RecordFailed,
    ),
    "a table's value of another type": (
        wrongly_typed_table,
        poisonous,
        "processing",
        SerdeMismatch,
    ),
    "an aggregate of another type": (
        wrongly_typed_aggregate,
        poisonous,
        "processing",
        SerdeMismatch,
    ),
    "a processor's put of another type": (
        wrongly_typed_put,
        poisonous,
        "processing",
        SerdeMismatch,
    ),
    "a sink's value of another type": (
        lambda s: s.map_values(number_or_text).to("out"),
        poisonous,
        "production",
        SerdeMismatch,
    ),
    "a sink's key of another type": (
        lambda s: s.map(lambda k, v: (number_or_text(v) if v == POISON else k, v)).to("out"),
        poisonous,
        "production",
        SerdeMismatch,
    ),
    "a record too large for its topic": (
        lambda s: s.map_values(inflated).to("out"),
        large,
        "production",
        RecordFailed,
    ),
    "a row too large for its changelog": (into_table, large, "production", RecordFailed),
}


def of_kind(kind: str) -> Topology:
    b = texts()
    stream = b.stream("in")
    counted_too(stream)
    KINDS[kind][0](stream)
    return b.build()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_poison_record_becomes_a_dead_letter_and_nothing_else(kind: str, guarantee: str) -> None:
    _, pipe, stage, _ = KINDS[kind]
    only = {**settings("fail", guarantee), f"{stage}.exception.handler": "dead_letter"}
    with TopologyTestDriver(of_kind(kind), only) as driver:
        pipe(driver)
        dead = driver.read("dead")
        sent = driver._broker.records("in")[1]
        assert [(r.key, r.value, r.timestamp_ms) for r in dead] == [(sent.key, sent.value, 7)]
        trace, *told = dead[0].headers
        assert trace == ("trace", b"here")
        headers = dict(told)
        assert [name.rpartition(".")[2] for name in headers] == [
            "exception",
            "message",
            "stacktrace",
            "topic",
            "partition",
            "offset",
        ]
        assert [headers[f"__streams.errors.{n}"] for n in ("topic", "partition", "offset")] == [
            b"in",
            b"0",
            b"1",
        ]
        assert b"Traceback" in (headers["__streams.errors.stacktrace"] or b"")
        if guarantee == "exactly_once" or "changelog" not in kind:
            # Else found at the commit, with all else sent; in the other mode that stays (E6).
            assert last_of(driver.read("out")) == {"a": "1", "z": "2"}
            assert dict(driver.store("counts").all()) == {"a": 1, "z": 1}
        assert dropped(driver) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_handler_of_its_stage_alone_decides(kind: str, guarantee: str) -> None:
    _, pipe, stage, error = KINDS[kind]
    others = {**settings("continue", guarantee), f"{stage}.exception.handler": "fail"}
    with (
        TopologyTestDriver(of_kind(kind), others) as driver,
        pytest.raises(error, match="in-0 offset 1"),
    ):
        pipe(driver)


def test_bytes_that_nobody_decodes_are_no_poison() -> None:
    b = texts()
    stream = b.stream("in")
    stream.group_by_key().count("counts")
    stream.to("out", key_serde=serdes.STRING, value_serde=serdes.STRING)
    with TopologyTestDriver(b.build()) as driver:
        unreadable_value(driver)
        assert dict(driver.store("counts").all()) == {"a": 1, "k": 1, "z": 1}
        assert len(driver._broker.records("out")) == 3


# Null keys, which Kafka Streams drops whatever the handlers say.


def test_null_keys_are_dropped_where_kafka_streams_drops_them_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    b = texts()
    stream = b.stream("in")
    stream.group_by_key().count("counts")
    stream.group_by_key().reduce(lambda _old, new: new, "latest")
    stream.to_table("table")
    plain(stream)
    with caplog.at_level(logging.WARNING), TopologyTestDriver(b.build()) as driver:
        piped(driver, None, b"v")
        assert [r.key for r in driver.read("out")] == ["a", None, "z"]
        assert dict(driver.store("counts").all()) == {"a": 1, "z": 1}
        assert dict(driver.store("table").all()) == {"a": "1", "z": "2"}
        assert dropped(driver) == 3, "once for each node that has no use for it"
    assert caplog.text.count("dropped 1 records of in-0, offset 1: null key") == 3


# Timestamp extractors.


def timed(extract: Callable[[Record[Any, Any]], Any]) -> Topology:
    b = texts()
    stream = b.stream("in", timestamp_extractor=extract)
    counted_too(stream)
    plain(stream)
    return b.build()


def by_value(record: Record[Any, Any]) -> Any:
    return {POISON: "soon", "large": -5, "far": 1 << 63}.get(record.value) or int(record.value)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(
    ("value", "stage", "exception"),
    [
        (b"no number", "processing", b"ValueError"),
        (POISON.encode(), "processing", b"TypeError"),
        (b"far", "processing", b"ValueError"),
        (BAD_TEXT, "deserialization", b"UnicodeDecodeError"),
    ],
)
def test_a_record_an_extractor_has_no_time_for_is_poison(
    guarantee: str, value: bytes, stage: str, exception: bytes
) -> None:
    only = {**settings("fail", guarantee), f"{stage}.exception.handler": "dead_letter"}
    with TopologyTestDriver(timed(by_value), only) as driver:
        piped(driver, b"k", value)
        ((_, found, headers),) = letters(driver).values()
        assert (found, headers["__streams.errors.exception"]) == (value, exception)
        assert [(r.key, r.timestamp_ms) for r in driver.read("out")] == [("a", 1), ("z", 2)]
        assert dict(driver.store("counts").all()) == {"a": 1, "z": 1}
    with (
        TopologyTestDriver(timed(by_value), settings("fail", guarantee)) as driver,
        pytest.raises(RecordFailed, match=r"in-0 offset 1: .*Error"),
    ):
        piped(driver, b"k", value)


def test_a_negative_time_is_dropped_whatever_the_handlers_say() -> None:
    with TopologyTestDriver(timed(by_value), settings("fail")) as driver:
        piped(driver, b"k", b"large")
        assert [(r.key, r.timestamp_ms) for r in driver.read("out")] == [("a", 1), ("z", 2)]
        assert dropped(driver) == 1
        assert driver.read("dead") == []
