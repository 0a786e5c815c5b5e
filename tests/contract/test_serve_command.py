"""`statestore serve` and the metrics of a run, as a shell and Prometheus see them."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from statestore import faults
from statestore.cli import cli
from statestore.errors import HostFailure, Misuse
from statestore.extras import install_command
from statestore.faults import CrashPoint
from statestore.metrics import GatheredFigures, TaskFigures, figures
from statestore.ports import CommitWaits
from statestore.serving.prometheus import metrics_port
from tests.builders import DEADLINE_S, eventually
from tests.contract.task_rig import TaskRig
from tests.contract.test_serve_http import TOKEN, filled, pipeline
from tests.serving_rig import LONG_LEASE


@pytest.fixture
def rig(tmp_path: Path) -> TaskRig:
    return TaskRig(pipeline(), tmp_path, settings=LONG_LEASE)


def flags(rig: TaskRig, *more: str) -> list[str]:
    state = f"--state-dir={rig.layout.state_dir}"
    return ["serve", "--application-id=shop", state, "--port=0", *more]


def test_it_serves_until_sigterm_ends_it_with_0_and_leaves_nothing(
    rig: TaskRig, tmp_path: Path
) -> None:
    filled(rig)
    rig.end()
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    command = [sys.executable, "-m", "statestore", *flags(rig, f"--token-file={tmp_path}/tokens")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        headers = {"authorization": f"Bearer {TOKEN}"}
        eventually(
            lambda: httpx.get(f"{url}/ready", timeout=DEADLINE_S).status_code == 200, "ready"
        )
        asked = httpx.get(
            f"{url}/v1/stores/counts/get", params={"key": "k1"}, headers=headers, timeout=DEADLINE_S
        )
        assert asked.json()["row"] == {"key": "k1", "value": 3}
        assert httpx.get(f"{url}/v1/stores", timeout=DEADLINE_S).status_code == 401
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=DEADLINE_S)
    assert server.returncode == 0
    assert TOKEN not in errors
    assert "Traceback" not in errors
    assert list((rig.folder / "snapshots").iterdir()) == []


def test_what_cannot_be_served_is_refused_before_it_listens(rig: TaskRig, tmp_path: Path) -> None:
    filled(rig)
    rig.end()
    for more, said in (
        (["--host=0.0.0.0"], "others could read all state"),
        (["--token-file=/none"], "--token-file /none"),
        (["--tls-cert=a"], "TLS needs both"),
        (["--application-id=other"], "no application 'other'"),
    ):
        refused = CliRunner().invoke(cli, flags(rig, *more))
        assert isinstance(refused.exception, Misuse), more
        assert said in str(refused.exception)


def test_without_the_extra_serve_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("statestore.serving.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "statestore.commands.serve", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    refused = CliRunner().invoke(cli, ["serve"])
    assert isinstance(refused.exception, Misuse)
    assert install_command("serve") in str(refused.exception)


def test_the_metrics_of_a_run_are_scraped_under_kafka_streams_names(rig: TaskRig) -> None:
    with metrics_port("shop", "127.0.0.1", 0) as port:
        task = filled(rig)
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S).text
        found = {family.name: family for family in text_string_to_metric_families(text)}
        counts = {"application_id": "shop", "store": "counts", "task": "0_0"}
        for name in ("commit_rate", "commit_latency_avg", "put_rate", "uncommitted_bytes"):
            family = found[f"statestore_{name}"]
            assert family.type == "gauge"
            assert any(one.labels == counts for one in family.samples)
        commits = found["statestore_commits"]
        assert commits.type == "counter"
        assert [one.value for one in commits.samples if one.labels == counts] == [
            float(task._committer.stamp.number)
        ]
        with (
            pytest.raises(HostFailure, match="free the port"),
            metrics_port("x", "127.0.0.1", port),
        ):
            pass
        rig.end()


def test_the_metrics_of_a_run_have_whole_commits_records_and_lag(
    rig: TaskRig, request: pytest.FixtureRequest
) -> None:
    before = sums()

    def slow_broker(point: CrashPoint) -> None:
        if point is CrashPoint.COMMIT_LOG_DONE:
            rig.clock.advance(20_000)

    faults.on_reach(slow_broker)
    request.addfinalizer(lambda: faults.on_reach(None))
    with metrics_port("shop", "127.0.0.1", 0) as port:
        task = filled(rig)
        task.standing()
        commits = task._committer.stamp.number
        after = sums(port)
        whole = "statestore_task_commit_duration_seconds"
        assert after[f"{whole}_count"] - before[f"{whole}_count"] == commits
        assert after[f"{whole}_sum"] - before[f"{whole}_sum"] == 20 * commits
        part = "statestore_task_commit_wait_duration_seconds"
        assert after[f"{part}_count"] - before[f"{part}_count"] == 3 * commits
        own = "statestore_commit_duration_seconds"
        assert after[f"{own}_sum"] - before[f"{own}_sum"] == 0, "the stores were not slow"
        came = "statestore_task_records_in_total"
        assert after[came] - before[came] == task.report.records_in > 0
        assert after["statestore_task_lag_records"] == 0
        rig.send("in", [("late", "1"), ("later", "1")])
        rig.end()
        assert sums(port)[came] == after[came], "it never falls"
        assert "statestore_task_lag_records" not in sums(port), "nobody knows any more"


def sums(port: int | None = None) -> Counter[str]:
    """The samples of task 0_0 and its stores in this process, added up by name."""
    if port is None:
        with metrics_port("shop", "127.0.0.1", 0) as own:
            return sums(own)
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S).text
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.labels.get("task") == "0_0":
                found[one.name] += one.value  # type: ignore[assignment]  # they count floats here
    return found


def test_figures_of_workers_are_added_up_and_those_of_the_dead_stay() -> None:
    gathered = GatheredFigures()
    waits = CommitWaits(1.0, 2.0, 3.0)
    gathered.put(1, (), None, [TaskFigures("0_0", 2, 7.0, waits, {("in", 0): 5}, {("in", 0): 9})])
    gathered.put(2, (), None, [TaskFigures("0_0", 1, 6.5, waits, {("in", 1): 1}, {("in", 1): 4})])
    gathered.put(1, ())
    (found,) = gathered.tasks()
    assert (found.commits, found.commit_seconds, found.waits) == (3, 13.5, (2.0, 4.0, 6.0))
    assert found.records_in == {("in", 0): 5, ("in", 1): 1}
    assert found.lags == {("in", 1): 4}, "the first one is gone"


def test_figures_of_other_processes_are_shown_until_they_end_and_each_store_once(
    rig: TaskRig,
) -> None:
    gathered = GatheredFigures()
    filled(rig)
    theirs = figures()
    rig.end()
    gathered.put(1, theirs)
    gathered.put(2, theirs)  # as of a global table, of which every worker has all rows
    with metrics_port("shop", "127.0.0.1", 0, gathered) as port:

        def scraped() -> list[tuple[str, str]]:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S).text
            families = list(text_string_to_metric_families(text))
            (commits,) = [one for one in families if one.name == "statestore_commits"]
            return [(one.labels["store"], one.labels["task"]) for one in commits.samples]

        assert sorted(scraped()) == sorted({(one.store, one.task or "") for one in theirs})
        gathered.put(1, ())
        assert ("counts", "0_0") in scraped()
        gathered.put(2, ())
        assert scraped() == []
