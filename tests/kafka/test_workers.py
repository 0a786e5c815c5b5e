"""A run with several worker processes, as a user without Spark starts it."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

import statestore as ss
from statestore.errors import Misuse
from statestore.layout.owners import read_owner
from statestore.tasks.progress_file import read_progress
from statestore.testing.local_kafka import LocalKafka
from tests.builders import ROOT, eventually
from tests.kafka import run_pipelines as pipelines
from tests.kafka.run_rig import (
    DEADLINE_S,
    App,
    assert_refused,
    counted,
    end_of,
    name_of,
    running,
    updates_in_order,
)
from tests.processes import AnyProcess

pytestmark = pytest.mark.kafka
PARTITIONS = 2
FOREVER = "--run-for=forever"
METRICS_AT = re.compile(r"metrics at (http://\S+/metrics)")


@pytest.fixture
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[App]:
    settings = {"statestore.lock.wait.ms": 20_000, "commit.interval.ms": 50}
    made = App(kafka, name_of(request.node.name), tmp_path / "state", settings=settings)
    made.create_topics(partitions=PARTITIONS)
    monkeypatch.setenv(pipelines.PREFIX_VARIABLE, made.name)
    yield made
    made.end_children()


def assert_exact(app: App, numbers: range) -> None:
    """Output, store and oracle agree: every record counted once."""
    assert updates_in_order(app.read()) == counted(numbers) == app.stored()


def workers_of(process: AnyProcess) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


def owners_of(app: App) -> dict[str, int]:
    """The process that each stream task was claimed by last."""
    found = {}
    for folder in sorted((app.state_dir / app.name).glob("?_?")):
        owner = read_owner(folder)
        assert owner is not None
        found[folder.name] = owner.pid
    return found


def assert_gone(processes: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, DEADLINE_S)
    assert alive == []


def drained_in_the_end(app: App, numbers: range) -> Callable[[], bool]:
    """Whether all of these were counted; asks the group, not the run."""

    def holds() -> bool:
        repartitioned = f"{app.name}-by-user-repartition"
        if sum(app.committed().values()) < len(numbers) or repartitioned not in app.topics():
            return False
        return len(app.read()) == len(numbers)

    return holds


# What is processed.


@pytest.mark.thorough
def test_the_stream_tasks_of_all_waves_are_spread_over_the_workers(app: App) -> None:
    app.produce(range(80))
    summary = app.drained("--workers=2")
    assert (summary["stream_tasks"], summary["records_in"], summary["records_out"]) == (4, 160, 160)
    assert (summary["caught_up"], summary["error"]) == (True, None)
    assert_exact(app, range(80))
    assert len(set(owners_of(app).values())) == 2
    app.produce(range(80, 100))
    again = app.drained("--workers=100")
    assert len(set(owners_of(app).values())) <= PARTITIONS, "more are of no use"
    folders = (app.state_dir / app.name).glob("?_?")
    assert {read_progress(folder).slots for folder in folders} == {PARTITIONS}, "nor need memory"
    assert (again["stream_tasks"], again["records_in"]) == (4, 40)
    assert_exact(app, range(100))


HOST = """
import os
import socket

socket.gethostname = lambda: os.environ["POD"]
"""


@pytest.mark.thorough
def test_another_host_sees_who_owns_what_is_refused_and_takes_over(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python imports it at its start, in the worker processes as well.
    (app.state_dir.parent / "sitecustomize.py").write_text(HOST)
    monkeypatch.setenv("POD", "pod-a")
    app.produce(range(40))
    process = app.start(FOREVER, "--workers=2")
    running(app, process, drained_in_the_end(app, range(40)))
    owners = owners_of(app)
    workers = workers_of(process)
    assert {owners["0_0"], owners["0_1"]} == {worker.pid for worker in workers}
    assert (owners["0_0"], owners["0_1"]) == (owners["1_0"], owners["1_1"])
    monkeypatch.setenv("POD", "pod-b")
    status = app.start(command="status")
    told = json.loads(status.communicate(timeout=DEADLINE_S)[0])
    assert (told["state"], told["owner"]) == ("running", f"process {process.pid} on pod-a, epoch 1")
    assert {task["stream_task"]: task["owner"] for task in told["stream_tasks"]} == {
        task: f"process {pid} on pod-a, epoch 1" for task, pid in owners.items()
    }
    refused = replace(app, settings={"statestore.lock.wait.ms": 100}).run("--workers=2")
    assert_refused(refused, 6, "Locked", f"owned by process {process.pid} on pod-a, epoch 1")
    process.kill()
    assert_gone(workers)
    app.produce(range(40, 60))
    summary = app.drained("--workers=2")
    assert (summary["stream_tasks"], summary["caught_up"]) == (4, True)
    assert updates_in_order(app.read()) == counted(range(60))


# What is lived through.


@pytest.mark.thorough
def test_one_scrape_has_the_stores_of_all_workers_and_of_one_that_takes_over(app: App) -> None:
    app.produce(range(40))
    process = app.start(FOREVER, "--workers=2", "--metrics-port=0")
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    (url,) = next(found for line in lines if (found := METRICS_AT.findall(line)))

    def written() -> dict[str, float]:
        families = text_string_to_metric_families(httpx.get(url, timeout=DEADLINE_S).text)
        (rows,) = [one for one in families if one.name == "statestore_records_written"]
        return {
            one.labels["task"]: one.value for one in rows.samples if one.labels["store"] == "counts"
        }

    def scraped() -> bool:
        found = written()
        return found.keys() == {"1_0", "1_1"} and sum(found.values()) > 0

    running(app, process, drained_in_the_end(app, range(40)))
    running(app, process, scraped)
    owners = owners_of(app)
    os.kill(owners["1_0"], signal.SIGKILL)
    running(app, process, lambda: owners_of(app)["1_0"] != owners["1_0"])
    running(app, process, scraped)
    app.produce(range(40, 60))
    running(app, process, drained_in_the_end(app, range(60)))
    process.send_signal(signal.SIGTERM)
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err[-4000:]
    assert_exact(app, range(60))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_scrape_has_the_brokers_part_of_commits_and_the_records_and_lag_of_each_input(
    app: App, workers: int
) -> None:
    app.produce(range(40))
    process = app.start(FOREVER, f"--workers={workers}", "--metrics-port=0")
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    (url,) = next(found for line in lines if (found := METRICS_AT.findall(line)))
    scraped: dict[str, dict[tuple[str, ...], float]] = {}

    def is_complete() -> bool:
        scraped.clear()
        text = httpx.get(url, timeout=DEADLINE_S).text
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                labels = (one.labels.get(name, "") for name in ("task", "topic", "part"))
                scraped.setdefault(one.name, {})[tuple(labels)] = one.value
        lags = scraped.get("statestore_task_lag_records", {})
        return set(lags.values()) == {0} and len(lags) == 4

    running(app, process, drained_in_the_end(app, range(40)))
    running(app, process, is_complete)
    waits = scraped["statestore_task_commit_wait_duration_seconds_sum"]
    assert {part for _, _, part in waits} == {"flush", "offsets", "end"}
    whole = scraped["statestore_task_commit_duration_seconds_sum"]
    for (task, _, _), seconds in whole.items():
        parts = [spent for (of, _, _), spent in waits.items() if of == task]
        assert all(spent > 0 for spent in parts)
        assert sum(parts) < seconds
    process.send_signal(signal.SIGTERM)
    assert end_of(process, 0).code == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_run_with_a_commit_and_a_summary(app: App, workers: int) -> None:
    app.produce(range(40))
    process = app.start(FOREVER, f"--workers={workers}", through=["setsid"])
    running(app, process, drained_in_the_end(app, range(40)))
    app.produce(range(40, 60))
    running(app, process, drained_in_the_end(app, range(60)))
    # As a terminal does: to all processes of the run.
    os.killpg(process.pid, signal.SIGINT)
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err[-4000:]
    assert (ended.summary["records_in"], ended.summary["error"]) == (120, None)
    assert "it ends after the next commit" in ended.err
    assert "Traceback" not in ended.err
    assert_exact(app, range(60))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_second_ctrl_c_ends_a_run_at_once(app: App, workers: int) -> None:
    (app.state_dir.parent / "stuck.py").write_text(STUCK)
    app.produce(range(4))
    process = app.start(FOREVER, f"--workers={workers}", pipeline="stuck:topology")
    stuck = app.state_dir.parent / "stuck"
    eventually(stuck.exists, "a function of the pipeline hangs", DEADLINE_S)
    children = workers_of(process)
    process.send_signal(signal.SIGINT)
    until_told(process, "again ends it at once")
    process.send_signal(signal.SIGINT)
    assert end_of(process, 0).code == 128 + signal.SIGINT
    assert_gone(children)
    stuck.with_name("go").touch()
    assert app.drained(pipeline="stuck:topology")["records_in"] == 4


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_run_that_waits_for_the_lock_ends_at_a_signal(app: App, number: signal.Signals) -> None:
    app.produce(range(4))
    owner = app.start(FOREVER)
    running(app, owner, lambda: bool(app.committed()))
    with app.unchanged_topics():
        waiting = app.start(FOREVER, "--workers=2", "--set=statestore.lock.wait.ms=600000")
        told = until_told(waiting, "waiting up to 600000 ms")
        waiting.send_signal(number)
        ended = end_of(waiting, 0)
    assert f"is owned by process {owner.pid} on " in told
    assert ended.code == 128 + number
    assert "Traceback" not in ended.err
    owner.terminate()
    assert end_of(owner, 0).code == 0


def until_told(process: AnyProcess, text: str) -> str:
    """The line on stderr that has the text; the tests' own time limit ends a wait in vain."""
    assert process.stderr is not None
    return next(line for line in process.stderr if text in line)


STUCK = """
from pathlib import Path
from threading import Event

from tests.kafka.run_pipelines import builder, prefix


def wait(_key, _value):
    Path("stuck").touch()
    while not Path("go").exists():
        Event().wait(0.01)


def topology():
    b = builder()
    b.stream(f"{prefix()}-in").peek(wait).to(f"{prefix()}-out")
    return b.build()
"""


def test_a_killed_worker_is_replaced_and_the_workers_of_a_killed_run_end(app: App) -> None:
    app.produce(range(40))
    process = app.start(FOREVER, "--workers=2")
    running(app, process, drained_in_the_end(app, range(40)))
    first, second = workers_of(process)
    first.kill()
    app.produce(range(40, 80))
    running(app, process, drained_in_the_end(app, range(80)))
    left = workers_of(process)
    assert len(left) == 2
    assert second in left
    assert first not in left
    process.kill()
    assert_gone(left)
    _, told = process.communicate()
    assert "was killed by SIGKILL: another one takes over its stream tasks: 0_" in told
    app.produce(range(80, 100))
    app.drained("--workers=2")
    assert_exact(app, range(100))


@pytest.mark.slow
def test_a_worker_that_dies_while_the_run_ends_is_not_replaced(app: App) -> None:
    app.produce(range(40))
    process = app.start(FOREVER, "--workers=2")
    running(app, process, drained_in_the_end(app, range(40)))
    stuck, _ = workers_of(process)
    stuck.suspend()
    process.terminate()
    until_told(process, "again ends it at once")
    stuck.kill()
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err
    assert "was killed by SIGKILL while the run ends" in ended.err
    assert not ended.summary["caught_up"]
    app.produce(range(40, 60))
    app.drained("--workers=2")
    assert_exact(app, range(60))


def test_the_error_of_a_worker_ends_the_run_as_it_does_in_one_process(app: App) -> None:
    app.produce(range(40))
    ended = app.run("--workers=2", pipeline="failing_processor")
    assert_refused(ended, 5, "RecordFailed", f"{app.name}-in", "offset")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_fails_tells_what_was_committed_and_the_line_that_failed(
    app: App, workers: int
) -> None:
    app.produce(range(1_500))
    ended = app.run(f"--workers={workers}", pipeline="fails_behind_counts")
    assert_refused(
        ended, 5, "RecordFailed", "node fail", f"{app.name}-by-user-repartition", "offset"
    )
    failing = inspect.getsourcelines(pipelines.fails_behind_counts)
    line = failing[1] + next(i for i, text in enumerate(failing[0]) if "1 / " in text)
    told = f"ZeroDivisionError: division by zero ({pipelines.__file__}:{line}); correct"
    assert told in ended.message
    assert ended.summary["records_in"] == ended.summary["records_out"] == 1_500
    assert ended.summary["commits"] >= 1
    assert ended.summary["caught_up"] is False


@pytest.mark.slow
def test_workers_that_die_again_and_again_end_the_run_with_an_error_to_retry(app: App) -> None:
    (app.state_dir.parent / "deadly.py").write_text(DEADLY)
    app.produce(range(4))
    ended = app.run("--workers=2", pipeline="deadly:topology")
    assert_refused(ended, 8, "HostFailure", "exited with 3, as did the 3 before it")


DEADLY = """
import os

from tests.kafka.run_pipelines import builder, prefix


def topology():
    b = builder()
    b.stream(f"{prefix()}-in").filter(lambda _key, _value: os._exit(3)).to(f"{prefix()}-out")
    return b.build()
"""


# In Python.


def test_a_script_without_a_main_guard_sends_its_own_functions_to_the_workers(app: App) -> None:
    app.produce(range(40))
    script = app.state_dir.parent / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script), json.dumps(app.run_settings())],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "80 records by 2 workers\n"
    assert_exact(app, range(40))


SCRIPT = """
import inspect
import json
import os
import sys

import statestore as ss
from statestore import serdes


class User(str):
    pass


def user(_key, value):
    assert os.getpid() != here
    return User(value["user"])


here = os.getpid()
settings = json.loads(sys.argv[1])
name = settings["application.id"]
b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
each = ss.Materialized("counts", caching=False)
counts = b.stream(f"{name}-in").group_by(user, name="by-user").count(each)
counts.to_stream().filter(lambda _key, count: count > 0).to(f"{name}-out")
workers = 2
summary = ss.run(b.build(), settings, workers=workers)
print(summary.records_in, "records by", workers, "workers")
"""


def test_a_topology_that_cannot_be_sent_is_refused_before_anything_starts(app: App) -> None:
    app.produce(range(4))
    log = (app.state_dir.parent / "log").open("w")
    b = pipelines.builder()
    b.stream(f"{app.name}-in").peek(lambda key, _value: print(key, file=log)).to(f"{app.name}-out")
    with app.unchanged(), pytest.raises(Misuse, match="cannot travel to the workers"):
        ss.run(b.build(), app.run_settings(), workers=2)
    assert ss.run(b.build(), app.run_settings(), workers=1).records_in == 4
    for wrong in (0, -1, True, "2", 1.5):
        with pytest.raises(Misuse, match="workers="):
            ss.run(b.build(), app.run_settings(), workers=wrong)  # type: ignore[arg-type]
    log.close()
