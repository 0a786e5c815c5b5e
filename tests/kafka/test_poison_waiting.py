"""What waited and fails on a real broker is judged by itself, never what woke it (E8a)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.poison_pipelines import LARGE
from tests.kafka.run_rig import START_MS, App, name_of
from tests.kafka.test_poison import (
    COUNT,
    GUARANTEES,
    REFUSED,
    STAGES,
    TOO_LARGE_FOR_THE_BROKER,
    TOO_LARGE_FOR_THE_CLIENT,
    UNREADABLE,
    headers,
    letters,
    value_of,
)

pytestmark = pytest.mark.kafka

POISON = (REFUSED, TOO_LARGE_FOR_THE_CLIENT, TOO_LARGE_FOR_THE_BROKER)
END_MS = START_MS + 30_000


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    """Three poison records among 60 that wait, and one that wakes whatever still does."""
    settings = {f"{stage}.exception.handler": "dead_letter" for stage in STAGES}
    name = name_of(request.node.name)
    settings["errors.dead.letter.queue.topic.name"] = f"{name}-dead"
    pipeline = "tests.kafka.poison_pipelines:kept"
    made = App(kafka, name, tmp_path / "state", pipeline, settings)
    for topic in ("in", "table", "dead"):
        kafka.create_topic(f"{name}-{topic}", 1, {"retention.ms": -1})
    for topic in ("out", "counted"):
        kafka.create_topic(f"{name}-{topic}", 1, {"retention.ms": -1, "max.message.bytes": LARGE})
    rows = [(f"k{n}", value_of(n), START_MS + n) for n in range(COUNT) if n != UNREADABLE]
    made.produce_raw([*rows, ("end", value_of(COUNT), END_MS)])
    yield made
    made.end_children()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_what_waited_and_is_refused_is_passed_over_and_nothing_else(
    app: App, guarantee: str
) -> None:
    summary = app.drained(f"--processing-guarantee={guarantee}")
    assert summary["caught_up"]
    good = [n for n in range(COUNT) if n not in (*POISON, UNREADABLE)]
    for topic in ("out", "counted"):
        written = [row.value["number"] for row in app.read(topic)]
        assert set(written) == set(good)
        assert guarantee == "at_least_once" or sorted(written) == good
    dead = [(m.key(), headers(m)) for m in letters(app)]
    waited = {key: told for key, told in dead if told["store"] == "priced-buffer"}
    windows = {(key or b"")[:-8]: told for key, told in dead if told["store"] == "finals"}
    poison = {b"k%d" % n for n in POISON}
    assert set(waited) == set(windows) == poison
    assert summary["dropped_records"] == 2 * len(POISON)
    # Without a transaction, a letter sent before another one failed stays.
    assert guarantee == "at_least_once" or len(dead) == 2 * len(POISON)
    for key, told in waited.items():
        number = int((key or b"")[1:])
        assert json.loads(told["offset"]) == number - (number > UNREADABLE)
    assert app.drained()["records_in"] == 0, "and none comes back"
