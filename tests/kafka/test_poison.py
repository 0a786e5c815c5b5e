"""Poison records on a real broker: passed over, buried, named; nothing of them stays (E9)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.poison_pipelines import LARGE
from tests.kafka.run_rig import DEADLINE_S, START_MS, App, assert_refused, counted, name_of, user

pytestmark = pytest.mark.kafka

PIPELINE = "tests.kafka.poison_pipelines:poisoned"
STAGES = ("deserialization", "processing", "production")
GUARANTEES = ["exactly_once", "at_least_once"]
COUNT = 60
UNREADABLE, REFUSED, TOO_LARGE_FOR_THE_CLIENT, TOO_LARGE_FOR_THE_BROKER = 11, 23, 31, 47
POISON = (UNREADABLE, REFUSED, TOO_LARGE_FOR_THE_CLIENT, TOO_LARGE_FOR_THE_BROKER)


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    """Four poison records of four kinds among 60, in one partition."""
    settings = {f"{stage}.exception.handler": "dead_letter" for stage in STAGES}
    name = name_of(request.node.name)
    settings["errors.dead.letter.queue.topic.name"] = f"{name}-dead"
    made = App(kafka, name, tmp_path / "state", PIPELINE, settings)
    for topic in ("in", "counted", "dead"):
        kafka.create_topic(f"{name}-{topic}", 1, {"retention.ms": -1})
    kafka.create_topic(f"{name}-out", 1, {"retention.ms": -1, "max.message.bytes": LARGE})
    made.produce_raw([(f"k{n}", value_of(n), START_MS + n) for n in range(COUNT)])
    yield made
    made.end_children()


def value_of(number: int) -> bytes:
    value: dict[str, Any] = {"user": user(number), "number": number}
    match number:
        case n if n == UNREADABLE:
            return b"{not json"
        case n if n == REFUSED:
            value["refuse"] = True
        case n if n == TOO_LARGE_FOR_THE_CLIENT:
            value["size"] = 2_000_000
        case n if n == TOO_LARGE_FOR_THE_BROKER:
            value["size"] = 4 * LARGE
    return json.dumps(value).encode()


def letters(app: App) -> list[Message]:
    """Every committed dead letter."""
    name = f"{app.name}-dead"
    ((_, end),) = app.bounds(name).values()
    consumer = Consumer(
        {
            "bootstrap.servers": app.kafka.bootstrap_servers,
            "group.id": "mourner",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(name, 0, 0)])
    found: list[Message] = []
    deadline, ended = time.monotonic() + DEADLINE_S, end == 0
    while not ended:
        assert time.monotonic() < deadline, "deadline: reading dead letters"
        for message in consumer.consume(100, 0.2):
            ended = ended or message.error() is not None
            if not message.error():
                found.append(message)
    consumer.close()
    return found


GOOD = [n for n in range(COUNT) if n not in POISON]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_four_kinds_of_poison_become_four_dead_letters_and_nothing_else(
    app: App, guarantee: str
) -> None:
    summary = app.drained(f"--processing-guarantee={guarantee}")
    assert summary["dropped_records"] == 4
    assert summary["caught_up"]
    dead = {json.loads(headers(m)["offset"]): m for m in letters(app)}
    assert sorted(dead) == list(POISON)
    for number, message in dead.items():
        assert (message.key(), message.value()) == (b"k%d" % number, value_of(number))
        assert message.timestamp()[1] == START_MS + number
        told = headers(message)
        assert (told["topic"], told["partition"]) == (f"{app.name}-in", "0")
        assert "Traceback" in told["stacktrace"]
    names = [headers(dead[number])["exception"].rpartition(".")[2] for number in POISON]
    assert names == ["DecodeError", "ValueError", "RecordFailed", "RecordFailed"]
    written = [row.value["number"] for row in app.read()]
    if guarantee == "exactly_once":
        assert written == GOOD
        assert app.stored("seen", 0) == app.stored() == counted(GOOD)
    assert set(written) == set(GOOD)
    assert app.drained()["records_in"] == 0, "and none comes back"
    assert len(letters(app)) == 4


@pytest.mark.parametrize("number", POISON)
def test_with_fail_the_error_names_the_one_record_and_those_before_it_are_done(
    app: App, number: int
) -> None:
    stage = {UNREADABLE: "deserialization", REFUSED: "processing"}.get(number, "production")
    ended = app.run(f"--set={stage}.exception.handler=fail", *others(stage))
    first = {"deserialization": UNREADABLE, "processing": REFUSED}.get(stage)
    expected = first if first is not None else TOO_LARGE_FOR_THE_CLIENT
    assert ended.code == 5
    assert ended.summary["error"]["class"] == "RecordFailed"
    assert f"{app.name}-in-0 offset {expected}" in ended.message


def others(stage: str) -> list[str]:
    return [f"--set={name}.exception.handler=continue" for name in STAGES if name != stage]


def test_the_topic_of_the_dead_letters_must_exist_before_anything_is_written(app: App) -> None:
    missing = f"{app.name}-nowhere"
    with app.unchanged():
        ended = app.run(f"--set=errors.dead.letter.queue.topic.name={missing}")
        assert_refused(ended, 2, "TopicMissing", missing, "create")


def headers(message: Message) -> dict[str, str]:
    """The error headers of a dead letter, by their last word."""
    told = cast("list[tuple[str, bytes]]", message.headers())
    return {
        name.rpartition(".")[2]: value.decode()
        for name, value in told
        if name.startswith("__streams.errors.")
    }
