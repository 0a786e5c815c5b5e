"""scripts/airflow_local.py on a copy of the project, whose job needs neither Kafka nor state."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psutil
import pytest
from tenacity import Retrying, retry_if_not_result, stop_after_delay, wait_fixed

from tests import processes as processes_rig

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120

DAG_FILE = """\
from statestore.airflow import load_applications, micro_batches

dags = [micro_batches(one, job="jobs/process.py") for one in load_applications()]
"""

# Ends as the file beside it says; with none, it waits until it is ended.
JOB = """\
import json, signal, sys
from pathlib import Path
told = Path(__file__).with_name("told.json")
print("the job runs", flush=True)
if not told.exists():
    Path(__file__).with_name("waiting").touch()
    signal.pause()
summary = json.loads(told.read_text())
Path(sys.argv[sys.argv.index("--summary-file") + 1]).write_text(json.dumps(summary))
sys.exit(summary["error"]["exit_code"] if summary["error"] else 0)
"""
LOCKED = {"class": "Locked", "message": "owned by host b", "exit_code": 6, "action": "retry_later"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    for name in ("dags", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "dags" / "micro_batches.py").write_text(DAG_FILE, encoding="utf-8")
    for name in ("airflow.cfg", "statestore.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "jobs").mkdir()
    (folder / "jobs" / "process.py").write_text(JOB, encoding="utf-8")
    yield folder
    local(folder, "down")


@pytest.fixture(autouse=True)
def clean(project: Path) -> None:
    for name in ("told.json", "waiting"):
        (project / "jobs" / name).unlink(missing_ok=True)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def tell(project: Path, error: dict[str, Any] | None) -> dict[str, Any]:
    summary = {"application_id": "flights", "records_in": 7, "error": error}
    (project / "jobs" / "told.json").write_text(json.dumps(summary), encoding="utf-8")
    return summary


def environment(port: int | None = None) -> dict[str, str]:
    """Ours without what other tests set for Airflow."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "STATESTORE"))
    }
    return kept | ({"AIRFLOW__API__PORT": str(port)} if port else {})


def command(project: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(project / "scripts" / "airflow_local.py"), *arguments]


def local(
    project: Path, *arguments: str, port: int | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(project, *arguments),
        env=environment(port),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def prepared(project: Path) -> None:
    """The home as each command leaves it that calls Airflow, without the import of Airflow."""
    code = "from scripts import airflow_local; airflow_local.environment()"
    python = [sys.executable, "-c", code]
    processes_rig.run(python, cwd=project, env=environment(), timeout=DEADLINE_S, check=True)


def query(project: Path, sql: str) -> list[Any]:
    with sqlite3.connect(project / ".scratch" / "airflow" / "airflow.db") as database:
        rows = database.execute(sql).fetchall()
    database.close()
    return rows


def processes(project: Path) -> list[psutil.Process]:
    """What still runs of this project: named by a path, or started with its Airflow's home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and (
                str(project) in " ".join(process.cmdline())
                or process.environ().get("AIRFLOW_HOME", "").startswith(str(project))
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    Retrying(
        retry=retry_if_not_result(bool), stop=stop_after_delay(DEADLINE_S), wait=wait_fixed(0.2)
    )(condition)


@pytest.mark.slow
def test_run_submits_the_job_and_records_its_summary(project: Path) -> None:
    summary = tell(project, None)
    done = local(project, "run", "--until", "2013-07-01T00:00Z")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the job runs" in done.stdout
    kept = project / ".scratch" / "airflow" / "last-run.json"
    assert json.loads(kept.read_text(encoding="utf-8")) == summary
    ((pushed,),) = query(project, "select value from xcom where key = 'summary'")
    assert json.loads(pushed) == summary
    ((event,),) = query(project, "select extra from asset_event")
    assert json.loads(event)["summary"] == summary
    assert query(project, "select slots from slot_pool where pool = 'statestore_slots'")
    assert processes(project) == []


@pytest.mark.slow
def test_run_of_a_failing_job_ends_with_one_line_and_the_jobs_exit_code(project: Path) -> None:
    tell(project, LOCKED)
    done = local(project, "run")
    assert done.returncode == 6, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "micro_batches: Locked: owned by host b"
    assert processes(project) == []


@pytest.mark.slow
def test_run_that_is_stopped_leaves_no_process(project: Path) -> None:
    with subprocess.Popen(
        command(project, "run"),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        wait_until((project / "jobs" / "waiting").exists)
        running.send_signal(signal.SIGTERM)
        assert running.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert processes(project) == []


def test_the_configuration_holds_nothing_deprecated_or_unknown_and_its_secrets_are_for_their_owner(
    project: Path,
) -> None:
    done = local(project, "airflow", "config", "lint")
    assert "No issues found" in done.stdout, done.stdout + done.stderr
    secrets = list((project / ".scratch" / "airflow" / "secrets").iterdir())
    assert len(secrets) == 3
    assert all(mode(secret) == 0o600 for secret in secrets)


def test_what_lies_beside_airflows_database_is_for_its_owner_only(project: Path) -> None:
    home = project / ".scratch" / "airflow"
    home.mkdir(parents=True, exist_ok=True)
    passwords = home / "simple_auth_manager_passwords.json.generated"
    passwords.write_text("{}", encoding="utf-8")
    home.chmod(0o755)
    passwords.chmod(0o644)  # as an earlier version left it
    prepared(project)
    assert (mode(home), mode(passwords)) == (0o700, 0o600)
    passwords.unlink()
    prepared(project)
    assert (mode(passwords), passwords.read_text(encoding="utf-8")) == (0o600, "")


@pytest.mark.thorough
def test_a_key_that_a_dag_does_not_know_fails_its_run_at_once(project: Path) -> None:
    done = local(project, "run", "--conf", '{"run_fro": "5m"}')
    assert done.returncode == 1
    told = "the conf of this run has 'run_fro': did you mean 'run_for'? the DAG takes until, run_fo"
    assert told in done.stdout + done.stderr
    assert "the job runs" not in done.stdout


class Health(BaseHTTPRequestHandler):
    """Answers as Airflow's monitor does, with the state that the server has now."""

    state = "healthy"

    def do_GET(self) -> None:
        states = {"metadatabase": {"status": "healthy"}, "scheduler": {"status": self.state}}
        body = json.dumps(states).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None: ...


def test_up_says_up_already_only_of_an_airflow_that_is_healthy(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = project / ".scratch" / "airflow" / "standalone.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    with (
        subprocess.Popen(["sleep", "600"], start_new_session=True) as runs,
        HTTPServer(("127.0.0.1", 0), Health) as server,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        began = psutil.Process(runs.pid).create_time()
        said = {"leader": runs.pid, "started": began, "boot_id": boot_id}
        record.write_text(json.dumps(said), encoding="utf-8")
        assert "up already" in local(project, "up", port=server.server_port).stdout
        monkeypatch.setattr(Health, "state", "unhealthy")
        refused = local(project, "up", port=server.server_port)
        server.shutdown()
        runs.kill()
    record.unlink()
    assert refused.returncode == 1
    assert "but scheduler is unhealthy: run `make down`, then `make up`" in refused.stderr


@pytest.mark.slow
def test_up_gives_a_healthy_airflow_whose_dag_can_be_triggered_and_down_ends_it_all(
    project: Path,
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = local(project, "up", port=port)
    assert started.returncode == 0, started.stdout + started.stderr
    assert f"http://localhost:{port}" in started.stdout
    home = project / ".scratch" / "airflow"
    generated = home / "simple_auth_manager_passwords.json.generated"
    # Both name the password.
    assert [mode(home / "standalone.log"), mode(generated)] == [0o600, 0o600]
    user, password = started.stdout.split("Login:")[1].split()[::2]
    address = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=address, trust_env=False, timeout=DEADLINE_S) as client:
        answer = client.post("/auth/token", json={"username": user, "password": password})
        client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        wait_until(lambda: client.get("/api/v2/dags/micro_batches").is_success)
        dag = "/api/v2/dags/micro_batches"
        wrong = client.post(f"{dag}/dagRuns", json={"logical_date": None, "conf": {"until": "x"}})
        assert wrong.is_client_error
        client.patch(dag, json={"is_paused": False}).raise_for_status()
        client.post(
            f"{dag}/dagRuns", json={"logical_date": None, "conf": {"run_for": "5m"}}
        ).raise_for_status()
        wait_until((project / "jobs" / "waiting").exists)
    assert "up already" in local(project, "up", port=port).stdout
    assert "Stopped Airflow" in local(project, "down").stdout
    assert processes(project) == []
    assert "not running" in local(project, "down").stdout
