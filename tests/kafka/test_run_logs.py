"""What `statestore run` writes to its log: no more lines than commits, and no traceback."""

from collections.abc import Iterator

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import App, end_of, running

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka() as broker:
        yield broker


def test_a_run_of_many_commits_has_at_most_a_line_for_each(app: App) -> None:
    app.produce(range(20, 100))
    ended = app.run("--set=statestore.batch.max.records=1", "--set=commit.interval.ms=1")
    commits = ended.summary["commits"]
    assert commits > 100
    assert ended.err.count(" INFO ") <= commits, ended.err
    # What is told is of the start, the end, and every ten seconds between them.
    assert ended.err.count(" INFO ") < 40, ended.err
    assert "Traceback" not in ended.err


def test_a_broker_that_is_gone_is_told_in_a_few_lines(app: App) -> None:
    process = app.start("--run-for=300s", "--set=default.api.timeout.ms=4000")
    running(app, process, lambda: sum(app.committed().values()) == 20)
    app.kafka.kill_broker(0)
    ended = end_of(process, 0)
    app.kafka.start_broker(0)
    assert ended.code == 7, ended.err
    assert "Traceback" not in ended.err, ended.err
    assert len(ended.err.splitlines()) < 60, ended.err
    assert "Unavailable" in ended.message
