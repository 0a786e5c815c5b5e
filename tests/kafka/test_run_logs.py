"""What `statestore run` writes to its log: no more lines than commits, and no traceback."""

import pytest

from tests.kafka.run_rig import App

pytestmark = pytest.mark.kafka


def test_a_run_of_many_commits_has_at_most_a_line_for_each(app: App) -> None:
    app.produce(range(20, 100))
    ended = app.run("--set=statestore.batch.max.records=1", "--set=commit.interval.ms=1")
    commits = ended.summary["commits"]
    assert commits > 100
    assert ended.err.count(" INFO ") <= commits, ended.err
    # What is told is of the start, the end, and every ten seconds between them.
    assert ended.err.count(" INFO ") < 40, ended.err
    assert "Traceback" not in ended.err
