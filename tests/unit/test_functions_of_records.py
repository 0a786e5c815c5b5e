"""Functions of whole records: what they may return, and what is said of anything else."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import RecordFailed
from statestore.testing.driver import TopologyTestDriver

Stream = ss.KStream[Any, Any]
AT = datetime(2020, 1, 1, tzinfo=UTC)
NO_TIMES = [True, None, 1.0, -1, 2**63, "5", AT.replace(tzinfo=None), AT.replace(year=1960)]
NO_HEADERS = [None, 5, "ab", {"a": b"1"}, [("a", "1")], [("a", b"1", 2)], [("a", bytearray(b"1"))]]
HEADERS = [[("a", b"1"), ("b", None)], (["a", b"1"],), [], [("", b""), ("", b"")]]


def out(write: Callable[[Stream], Stream], **settings: object) -> list[ss.Record[Any, Any]]:
    """What comes of three records, of which the first has the value 1."""
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    write(builder.stream("in")).to("out")
    with TopologyTestDriver(builder.build(), settings or None) as driver:
        driver.pipe_all("in", [("a", 1, 10), ("b", 2, 20), (None, None, 30)])
        return driver.read("out")


@pytest.mark.parametrize("made", NO_TIMES, ids=repr)
def test_what_is_no_time_of_a_record_is_an_error_of_processing(made: Any) -> None:
    with pytest.raises(RecordFailed, match=r"in-0 offset 0.*did not return a time"):
        out(lambda stream: stream.set_timestamp(lambda _record: made))


@pytest.mark.parametrize("made", NO_HEADERS, ids=repr)
def test_what_are_no_headers_is_an_error_of_processing(made: Any) -> None:
    with pytest.raises(RecordFailed, match=r"in-0 offset 0.*did not return headers"):
        out(lambda stream: stream.set_headers(lambda _record: made))


def test_a_time_may_be_a_datetime() -> None:
    made = out(lambda stream: stream.set_timestamp(lambda _record: AT))
    assert {record.timestamp_ms for record in made} == {1_577_836_800_000}


@pytest.mark.parametrize("made", HEADERS, ids=repr)
def test_headers_may_be_any_pairs_of_text_and_bytes(made: Any) -> None:
    headers = [one.headers for one in out(lambda stream: stream.set_headers(lambda _record: made))]
    assert headers == [tuple(tuple(pair) for pair in made)] * 3


def test_a_record_that_gets_no_headers_has_none_of_its_neighbours() -> None:
    named = out(lambda stream: stream.set_headers(lambda r: [("n", b"")] if r.key == "a" else []))
    assert [record.headers for record in named] == [(("n", b""),), (), ()]
    kept = out(lambda stream: stream.filter_records(lambda record: not record.key))
    assert [record.key for record in kept] == [None]


def test_a_record_that_fails_is_passed_over_alone() -> None:
    settings = {"application.id": "app", "processing.exception.handler": "continue"}
    made = out(lambda stream: stream.set_timestamp(lambda r: 7 // (r.value - 1)), **settings)
    assert [(record.key, record.timestamp_ms) for record in made] == [("b", 7)]


class Forwarding:
    """Forwards each record with another time."""

    time_ms: Any = None

    def __init__(self, context: ss.ProcessorContext[Any, Any]) -> None:
        self._context = context

    def process(self, record: ss.Record[Any, Any]) -> None:
        self._context.forward(record.replace(timestamp_ms=self.time_ms))


@pytest.mark.parametrize("time_ms", [1 << 63, -(1 << 63), None, True, 1.5, "1"])
@pytest.mark.parametrize("verb", ["process", "process_values"])
def test_what_is_forwarded_has_a_time(time_ms: object, verb: str) -> None:
    b = ss.StreamsBuilder()
    made = type("Forwarding", (Forwarding,), {"time_ms": time_ms})
    getattr(b.stream("in"), verb)(made, name="timed").to("out")
    with (
        TopologyTestDriver(b.build()) as driver,
        pytest.raises(RecordFailed, match=r"timed, in-0 offset 0: .*takes a Record with a time"),
    ):
        driver.pipe("in", b"k", b"v", 5)
