"""What a poll takes out of the client's messages is what they hold, however they come in chunks."""

import pytest
from confluent_kafka import Message

from statestore.kafka.source import Arrivals
from statestore.model.ids import TopicPartition
from statestore.model.records import Record

INPUT = TopicPartition("t", 3)
HEADERS: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None)]


def message(offset: int, *, headers: bool = False) -> Message:
    return Message(
        topic=INPUT.topic,
        partition=INPUT.partition,
        offset=offset,
        key=None if offset % 5 == 0 else b"k%d" % offset,
        value=None if offset % 3 == 0 else b"v%d" % offset,
        timestamp=(1, 1000 + offset),
        headers=HEADERS if headers else None,
    )


def record(offset: int, *, headers: bool = False) -> Record[bytes | None, bytes | None]:
    return Record(
        None if offset % 5 == 0 else b"k%d" % offset,
        None if offset % 3 == 0 else b"v%d" % offset,
        1000 + offset,
        (("a", b"1"), ("a", None)) if headers else (),
        INPUT.topic,
        INPUT.partition,
        offset,
    )


def arrived(text: str, *, keep: bool) -> Arrivals:
    """Chunks of offsets; those with a star have headers."""
    found = Arrivals(keep=keep)
    for chunk in text.split(";"):
        found.add([message(int(at.rstrip("*")), headers="*" in at) for at in chunk.split()])
    return found


def records(text: str) -> list[Record[bytes | None, bytes | None]]:
    places = text.replace(";", " ").split()
    return [record(int(at.rstrip("*")), headers="*" in at) for at in places]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "text",
    ["7", "7 8 9", "7 8; 9; 10 11", "7 9 10; 11", "7; 9; 10", "7 8; 9* 10; 11", "7*; 8", "7; 8*"],
)
def test_a_batch_is_what_the_messages_hold(text: str, keep: bool) -> None:
    batch = arrived(text, keep=keep).batch(INPUT)
    assert list(batch.records()) == records(text)
    assert list(batch.slice(1, 3).records()) == records(text)[1:3]
    assert batch.offsets is not None
    assert batch.offsets[-1] == records(text)[-1].offset


def test_messages_are_kept_only_after_some_had_headers() -> None:
    assert not arrived("7 8; 9", keep=False).have_headers()
    assert arrived("7 8; 9* 10", keep=False).have_headers()
    assert arrived("7 8; 9", keep=True).have_headers()


def test_records_without_headers_pay_for_none() -> None:
    assert arrived("7 8; 9", keep=False).batch(INPUT).headers is None
