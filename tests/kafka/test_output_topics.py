"""Output topics that vanish under a run, or take less at once than the client sends."""

import random
from collections.abc import Sequence

import pytest

from tests.kafka.run_rig import START_MS, App, assert_refused, end_of, running

pytestmark = pytest.mark.kafka

COPIED = "tests.kafka.output_pipelines:copied"
FOUND = 300


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("handler", ["continue", "dead_letter"])
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
