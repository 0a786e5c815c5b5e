"""Sources that find their topics by a pattern, on a broker: runs as users start them."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.airflow.input_watch import InputWatch
from statestore.faults import CrashPoint
from statestore.layout.folders import StateLayout
from statestore.operations.deployed import read_deployed
from statestore.testing.local_kafka import LocalKafka
from tests.kafka import run_pipelines
from tests.kafka.run_rig import App, end_of, name_of, running

pytestmark = pytest.mark.kafka
FIRST, SECOND = range(60), range(40, 100)


@pytest.fixture
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[App]:
    settings = {"commit.interval.ms": 50, "statestore.lock.wait.ms": 20_000}
    made = App(kafka, name_of(request.node.name), tmp_path / "state", settings=settings)
    made.create_topics(partitions=2)
    monkeypatch.setenv(run_pipelines.PREFIX_VARIABLE, made.name)
    yield made
    made.end_children()


def join(app: App, topic: str, partitions: int = 2) -> None:
    app.kafka.create_topic(f"{app.name}-{topic}", partitions, {"retention.ms": -1})


def stored(app: App) -> dict[str, int]:
    return app.stored(ordinal=0)


def counted(*produced: range) -> dict[str, int]:
    return dict(Counter(f"k{n}" for numbers in produced for n in numbers))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_new_topic_joins_at_the_next_run_and_is_lag_until_then(app: App, workers: int) -> None:
    how = {"pipeline": "counts_by_pattern"}
    app.produce(FIRST)
    assert app.drained(f"--workers={workers}", **how)["records_in"] == len(FIRST)
    watch = InputWatch(
        app.name,
        None,
        overrides={
            "state.dir": str(app.state_dir),
            "bootstrap.servers": app.kafka.bootstrap_servers,
        },
        folder=None,
        records=0,
        age_s=None,
    )
    try:
        assert watch.look() is None
        join(app, "in-2")
        app.produce(SECOND, topic="in-2")
        found = watch.look()
        assert found is not None
        assert found["records"] == len(SECOND)
        summary = app.drained(f"--workers={workers}", **how)
        assert watch.look() is None
    finally:
        watch.close()
    assert summary["records_in"] == len(SECOND)
    assert summary["lineage"]["inputs"] == [f"{app.name}-in", f"{app.name}-in-2"]
    assert stored(app) == counted(FIRST, SECOND)


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.COMMIT_LOG_DONE,
        pytest.param(CrashPoint.COMMIT_OFFSETS_SENT, marks=pytest.mark.thorough),
    ],
)
def test_a_run_killed_as_a_topic_joins_counts_each_record_once(app: App, point: CrashPoint) -> None:
    how = {"pipeline": "counts_by_pattern"}
    app.produce(FIRST)
    app.drained(**how)
    join(app, "in-2")
    app.produce(SECOND, topic="in-2")
    app.produce(SECOND)
    killed = app.run(crash_at=point, **how)
    assert killed.code == -signal.SIGKILL
    app.drained("--workers=2", **how)
    assert stored(app) == counted(FIRST, SECOND, SECOND)


def test_a_topic_that_is_gone_takes_nothing_with_it(app: App) -> None:
    """Its broker forgets the committed offsets of a topic that is deleted."""
    how = {"pipeline": "counts_by_pattern"}
    join(app, "in-2", 4)
    app.produce(FIRST)
    app.produce(SECOND, topic="in-2")
    app.drained(**how)
    before = stored(app)
    app.delete_topic(f"{app.name}-in-2")
    for _ in range(2):
        summary = app.drained(**how)
        assert (summary["stream_tasks"], summary["records_in"]) == (4, 0)
    assert stored(app) == before
    app.produce(SECOND)
    assert app.drained(**how)["records_in"] == len(SECOND)
    continuous = app.drained("--run-for=1s", **how)
    assert (continuous["stream_tasks"], continuous["records_in"]) == (4, 0)


def test_the_command_line_tells_what_matches(app: App) -> None:
    join(app, "in-2")
    ended = app.checked(pipeline="counts_by_pattern")
    assert f'"{app.name}-in.*":["{app.name}-in","{app.name}-in-2"]' in ended.out
    app.delete_topic(f"{app.name}-in-2")
    app.delete_topic(f"{app.name}-in")
    for how in ([], ["--workers=2"], ["--run-for=1s"]):
        summary = app.run(*how, pipeline="counts_by_pattern")
        assert (summary.code, summary.summary["records_in"]) == (0, 0), summary.err
        assert f"no topic matches '{app.name}-in.*' of source" in summary.err


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_continuous_run_begins_anew_with_a_new_topic_and_without_one_that_is_gone(
    app: App, workers: int
) -> None:
    app.produce(FIRST)
    how = ("--run-for=forever", f"--workers={workers}", "--set=statestore.pattern.refresh.ms=100")
    process = app.start(*how, pipeline="counts_by_pattern")
    running(app, process, lambda: sum(app.committed().values()) == len(FIRST))
    join(app, "in-2")
    app.produce(SECOND, topic="in-2")
    running(app, process, lambda: sum(app.committed("in-2").values()) == len(SECOND))
    app.delete_topic(f"{app.name}-in-2")
    layout = StateLayout(app.state_dir, app.name)

    def deployed() -> list[str]:
        return read_deployed(layout).sub_topologies[0].source_topics

    running(app, process, lambda: deployed() == [f"{app.name}-in"])
    app.produce(FIRST)
    running(app, process, lambda: sum(app.committed().values()) == 2 * len(FIRST))
    process.send_signal(signal.SIGTERM)
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err[-4000:]
    records = 2 * len(FIRST) + len(SECOND)
    assert (ended.summary["records_in"], ended.summary["error"]) == (records, None)
    assert ended.summary["lineage"]["inputs"] == [f"{app.name}-in"]
    assert stored(app) == counted(FIRST, SECOND, FIRST)
