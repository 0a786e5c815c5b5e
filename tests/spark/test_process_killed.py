"""SIGKILL of a Spark run: of the whole tree of processes, and of the worker alone.

The same input, output and audit as tests/crash, with Spark in between.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from statestore.commands.running import report_run
from statestore.errors import RecordFailed
from statestore.faults import VARIABLE, CrashPoint
from statestore.operations.running.run import RunSummary
from statestore.spark.process import run_on_spark
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import ELSEWHERE, Kill, Rig
from tests.crash.pipeline import PREFIX_VARIABLE
from tests.crash.poison_pipeline import is_refused
from tests.spark.cluster_rig import kill_tree, tree_of
from tests.spark.local_spark import local_spark

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
ROOT = Path(__file__).resolve().parents[2]
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
MASTER = "local[2,4]"
# The whole tree is to die, so no worker is to come back first and clean up what was open.
NO_RETRY = "local[2]"
SEED = 336_776
VISITED = [point for point in CrashPoint if point not in ELSEWHERE]
# On either side of the log's commit, and where nothing is open.
WHERE_IT_MATTERS = [
    CrashPoint.CLAIM_OWNED,
    CrashPoint.COMMIT_OFFSETS_SENT,
    CrashPoint.COMMIT_LOG_DONE,
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("kill tests", MASTER) as session:
        yield session


def rig_on(kafka: LocalKafka, folder: Path, name: str) -> Rig:
    settings = {"commit.interval.ms": 1}
    rig = Rig(kafka, folder, application_id=name, topic_prefix=name, settings=settings)
    rig.create_topics()
    return rig


def flags(rig: Rig) -> dict[str, object]:
    """The command line of a rig as parsed flags."""
    found: dict[str, object] = {"pairs": ()}
    for argument in rig.command():
        name, _, value = argument.removeprefix("--").partition("=")
        if name == "set":
            found["pairs"] = (*found["pairs"], value)  # type: ignore[misc]  # a tuple of strings
        else:
            found[name.replace("-", "_")] = value
    absent = ("until", "run_for", "config", "summary_file")
    defaults = dict.fromkeys(absent) | {"until": "latest"}
    switches = {"accept_new_topology": False, "accept_empty_changelog": False}
    return defaults | switches | found


def run_in_session(rig: Rig, monkeypatch: pytest.MonkeyPatch, crash_at: str | None) -> RunSummary:
    if crash_at is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, crash_at)
    summary = report_run(flags(rig), run_on_spark)
    assert summary.error is None
    assert summary.caught_up
    return summary


def counts_of(summary: RunSummary) -> tuple[int, int, int]:
    """What a run says of records: exact, however often a part of it was begun anew."""
    return summary.records_in, summary.records_out, summary.dropped_records


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("workers", WHERE_IT_MATTERS),
        pytest.param("worker-points", VISITED, marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_is_retried_by_spark_and_nothing_is_seen_twice(
    kafka: LocalKafka,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    points: Sequence[CrashPoint],
) -> None:
    rig = replace(
        rig_on(kafka, tmp_path / "state", name),
        pipeline=f"tests.crash.pipeline:{name.replace('-', '_')}",
    )
    rig.produce(4000)
    whole = counts_of(run_in_session(rig, monkeypatch, None))
    assert whole[0] == 2 * 4000, "each record once, and once more out of the repartition topic"
    for number, point in enumerate(points):
        rig.produce(4000)
        nth = 2 if point.value.startswith("commit.") else 1
        token = tmp_path / f"token-{number}"
        summary = run_in_session(rig, monkeypatch, f"{point}:{nth}:{token}")
        assert token.exists(), f"{point} was not reached: it proves nothing"
        assert counts_of(summary) == whole, f"{point}: what the killed worker did counts too"
    assert rig.findings() == []


@pytest.mark.slow
def test_poison_records_are_buried_once_by_workers_that_are_killed(
    kafka: LocalKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "worker-poison"
    rig = Rig(
        kafka,
        tmp_path / "state",
        application_id=name,
        topic_prefix=name,
        pipeline="tests.crash.poison_pipeline:worker_poison",
        settings={
            "processing.exception.handler": "dead_letter",
            "errors.dead.letter.queue.topic.name": f"{name}-dead",
        },
        is_poison=is_refused,
    )
    rig.create_topics()
    for point in (CrashPoint.COMMIT_OFFSETS_SENT, CrashPoint.COMMIT_LOG_DONE):
        rig.produce(1000)
        token = tmp_path / point
        run_in_session(rig, monkeypatch, f"{point}:3:{token}")
        assert token.exists(), f"{point} was not reached: it proves nothing"
    assert rig.findings() == []
    assert rig.burial_findings() == []
    failing = replace(rig, settings={})
    failing.produce(200)
    with pytest.raises(RecordFailed, match=rf"{name}-in-[01] offset \d+: ValueError: refused"):
        run_in_session(failing, monkeypatch, None)


def kill_a_worker(rig: Rig, span_s: float, done: threading.Event) -> Kill:
    """SIGKILL one Python worker of this process's Spark, `span_s` after the run's first commit."""
    before = rig.committed()
    while not done.is_set() and rig.committed() == before:
        done.wait(0.02)
    if done.wait(span_s):
        return Kill(died=False, commits_before=False, writes_open=False)
    daemons = [p for p in psutil.Process().children(recursive=True) if "daemon" in _command(p)]
    workers = [p for daemon in daemons for p in daemon.children()]
    if not workers:
        return Kill(died=False, commits_before=False, writes_open=False)
    os.kill(workers[0].pid, signal.SIGKILL)
    return Kill(died=True, commits_before=True, writes_open=rig.writes_open())


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.slow
def test_workers_killed_at_ten_random_moments_are_retried_and_nothing_is_seen_twice(
    kafka: LocalKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(SEED)
    rig = Rig(
        kafka,
        tmp_path / "state",
        application_id="worker-moments",
        topic_prefix="worker-moments",
        pipeline="tests.crash.pipeline:worker_moments",
        settings={"commit.interval.ms": 100, "statestore.batch.max.records": 200},
    )
    rig.create_topics()
    kills = []
    for _ in range(40):
        rig.produce(20_000)
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(kill_a_worker, rig, rng.uniform(0, 0.6), done)
            run_in_session(rig, monkeypatch, None)
            done.set()
            kills.append(killed.result())
        if sum(kill.counts for kill in kills) == 10:
            break
    print(f"seed {SEED}: {kills}")  # noqa: T201 - what the kills met is part of the result
    assert sum(kill.counts for kill in kills) == 10, f"seed {SEED}"
    assert rig.findings() == [], f"seed {SEED}"


def submit(rig: Rig, crash_at: str | None, log: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, PREFIX_VARIABLE: rig.topic_prefix, "PYTHONPATH": str(ROOT)}
    environment.pop(VARIABLE, None)
    if crash_at:
        environment[VARIABLE] = crash_at
    master = NO_RETRY if crash_at else MASTER
    command = [str(SPARK_SUBMIT), "--master", master, "jobs/process.py", *rig.command()]
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)


def killed_tree(root: "subprocess.Popen[bytes]") -> list[str]:
    """SIGKILL driver JVM, driver Python, daemon and workers; their names."""
    names = [process.name() for process in tree_of(root)]
    kill_tree(root)
    return names


def killed_run(rig: Rig, tmp_path: Path, *, point: CrashPoint | None, span_s: float) -> Kill:
    """One spark-submit killed whole: at `point`, or `span_s` after its first commit."""
    token = tmp_path / f"token-{time.monotonic_ns()}"
    before = rig.committed()
    nth = 4 if point is not None and point.value.startswith("commit.") else 1
    process = submit(rig, f"{point}:{nth}:{token}" if point else None, tmp_path / "submit.log")
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if point is not None and token.exists():
            break
        moment = point is None and rig.committed() != before
        try:
            process.wait(timeout=span_s if moment else 0.005)
        except subprocess.TimeoutExpired:
            if moment:
                break
    if process.poll() is not None:
        return Kill(died=False, commits_before=False, writes_open=False)
    names = killed_tree(process)
    commits = bool(before) or rig.committed() != before
    kill = Kill(died=True, commits_before=commits, writes_open=rig.writes_open())
    print(f"killed {names}: {kill}")  # noqa: T201 - what the kill met is part of the result
    return kill


def finish(rig: Rig, tmp_path: Path) -> None:
    log = tmp_path / "submit.log"
    process = submit(rig, None, log)
    assert process.wait(timeout=180) == 0, log.read_text(errors="replace")[-4000:]


@pytest.mark.slow
def test_a_spark_run_killed_whole_goes_on_from_the_last_commit(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path / "state", "tree")
    kills: list[Kill] = []
    # The client sends records on its own: the offsets may be in the log before the first of them.
    while not any(kill.counts for kill in kills):
        rig.produce(20_000)
        kills.append(killed_run(rig, tmp_path, point=CrashPoint.COMMIT_OFFSETS_SENT, span_s=0))
        assert len(kills) <= 5, kills
    finish(rig, tmp_path)
    assert rig.findings() == []


@pytest.mark.slow
def test_a_spark_run_killed_whole_at_every_point_goes_on_from_the_last_commit(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path / "state", "tree-points")
    rig.produce(10_000)
    finish(rig, tmp_path)
    for point in VISITED:
        rig.produce(20_000)
        assert killed_run(rig, tmp_path, point=point, span_s=0).died, point
    finish(rig, tmp_path)
    assert rig.findings() == []


@pytest.mark.slow
def test_a_spark_run_killed_whole_at_ten_random_moments_goes_on_from_the_last_commit(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    rig = rig_on(kafka, tmp_path / "state", "tree-moments")
    moments = 0
    for _ in range(40):
        rig.produce(40_000)
        moments += killed_run(rig, tmp_path, point=None, span_s=rng.uniform(0, 1.0)).counts
        if moments == 10:
            break
    assert moments == 10, f"seed {SEED}"
    finish(rig, tmp_path)
    assert rig.findings() == [], f"seed {SEED}"
