"""Output topics that vanish under a run, or take less at once than the client sends."""

import json
import random
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import START_MS, App, assert_refused, end_of, running

pytestmark = pytest.mark.kafka

COPIED = "tests.kafka.output_pipelines:copied"
FOUND = 300


@pytest.mark.parametrize(
    ("handler", "guarantee"),
    [
        ("continue", "at_least_once"),
        ("dead_letter", "exactly_once"),
        pytest.param("continue", "exactly_once", marks=pytest.mark.thorough),
        pytest.param("dead_letter", "at_least_once", marks=pytest.mark.thorough),
    ],
)
def test_input_is_kept_when_an_output_topic_vanishes(
    app: App, handler: str, guarantee: str
) -> None:
    out, dead = f"{app.name}-out", f"{app.name}-dead"
    app.kafka.create_topic(dead, 1, {"retention.ms": -1})
    flags = [
        f"--set=production.exception.handler={handler}",
        f"--set=errors.dead.letter.queue.topic.name={dead}",
        f"--processing-guarantee={guarantee}",
        "--set=commit.interval.ms=100",
        "--set=default.api.timeout.ms=3000",
    ]
    process = app.start("--run-for=300s", *flags, pipeline=COPIED)
    running(app, process, lambda: sum(app.committed().values()) == 20)
    app.delete_topic(out)
    app.produce(range(20, 20 + FOUND))
    ended = end_of(process, 0)
    assert_refused(ended, 2, "TopicMissing", out)
    assert sum(app.committed().values()) == 20, "nothing was passed over"
    app.kafka.create_topic(out, 2, {"retention.ms": -1})
    assert app.drained(*flags, pipeline=COPIED)["dropped_records"] == 0
    assert {row.value["number"] for row in app.read()} == set(range(20, 20 + FOUND))
    assert app.read("dead") == []


# Both ways a batch comes to be refused: by the topic's own limit, far below what the client sends.
LIMIT, RECORDS, RECORD_BYTES = 50_000, 20_000, 200


def produce_noise(app: App) -> None:
    """Records that compress badly: batches as large as the client makes them."""
    noise = random.Random(7)
    rows = [
        (f"k{n}", json.dumps({"number": n, "noise": noise.randbytes(RECORD_BYTES // 2).hex()}))
        for n in range(RECORDS)
    ]
    app.produce_raw([(key, text.encode(), START_MS) for key, text in rows])


@pytest.mark.parametrize(
    ("handler", "guarantee"),
    [
        ("continue", "exactly_once"),
        ("fail", "at_least_once"),
        pytest.param("fail", "exactly_once", marks=pytest.mark.thorough),
        pytest.param("continue", "at_least_once", marks=pytest.mark.thorough),
    ],
)
def test_batches_are_no_larger_than_the_topic_takes(
    kafka: LocalKafka, tmp_path: Path, handler: str, guarantee: str
) -> None:
    app = App(kafka, f"small-batches-{handler}-{guarantee}", tmp_path / "state", COPIED)
    kafka.create_topic(f"{app.name}-in", 1, {"retention.ms": -1})
    kafka.create_topic(f"{app.name}-out", 1, {"retention.ms": -1, "max.message.bytes": LIMIT})
    produce_noise(app)
    ended = app.run(
        f"--set=production.exception.handler={handler}", f"--processing-guarantee={guarantee}"
    )
    assert ended.code == 0, ended.err[-4000:]
    assert (ended.summary["records_out"], ended.summary["dropped_records"]) == (RECORDS, 0)
    assert "to find the record" not in ended.err
    assert [row.value["number"] for row in app.read()] == list(range(RECORDS))


def test_batches_of_a_changelog_are_no_larger_than_it_takes(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    app = App(kafka, "small-changelog-batches", tmp_path / "state", "latest")
    kafka.create_topic(f"{app.name}-in", 1, {"retention.ms": -1})
    kept = {"cleanup.policy": "compact", "max.message.bytes": LIMIT}
    kafka.create_topic(f"{app.name}-rows-changelog", 1, kept)
    produce_noise(app)
    ended = app.run()
    assert ended.code == 0, ended.err[-4000:]
    assert "to find the record" not in ended.err
    assert len(app.read("rows-changelog")) == RECORDS


def test_a_record_that_alone_is_larger_than_its_topic_takes_is_poison_and_the_only_one(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    app = App(kafka, "one-large-record", tmp_path / "state", COPIED)
    kafka.create_topic(f"{app.name}-in", 1, {"retention.ms": -1})
    kafka.create_topic(f"{app.name}-out", 1, {"retention.ms": -1, "max.message.bytes": LIMIT})
    noise = random.Random(7)
    sizes = [RECORD_BYTES] * 1000 + [2 * LIMIT] + [RECORD_BYTES] * 1000
    texts = [
        json.dumps({"number": n, "noise": noise.randbytes(size // 2).hex()})
        for n, size in enumerate(sizes)
    ]
    app.produce_raw([(f"k{n}", text.encode(), START_MS) for n, text in enumerate(texts)])
    ended = app.run("--set=production.exception.handler=continue")
    assert (ended.code, ended.summary["dropped_records"]) == (0, 1), ended.err[-4000:]
    assert "going back to the last commit" not in ended.err, (
        "the search is not a failure of its own"
    )
    written = [row.value["number"] for row in app.read()]
    assert written == [n for n, size in enumerate(sizes) if size < LIMIT]
