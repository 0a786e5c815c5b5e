"""A password that is planted where users put one is nowhere in what commands say, show and leave.

Looked through: command lines of all processes of a run while it works, what it prints with its
debug log, every file of the state dir, of the export and of Spark's event log.
"""

import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.builders import ROOT, files_with
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import (
    PASSWORD,
    STATESTORE,
    USER,
    App,
    counted,
    end_of,
    running,
    updates_in_order,
)

pytestmark = pytest.mark.kafka
SECRET = "planted-0b5e4f37-horse"
CLIENTS = ("librdkafka", "wire")


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(users={USER: SECRET}) as broker:
        yield broker


@pytest.fixture
def app_settings(
    user_settings: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, object]:
    assert PASSWORD not in SECRET
    monkeypatch.setenv("BROKER_PASSWORD", SECRET)
    return user_settings


def configured(app: App, client: str) -> Path:
    """An applications file as users write it."""
    path = app.state_dir.parent / "statestore.toml"
    said = {**app.settings, "kafka.client": client}
    pairs = "".join(f'"{key}" = {value!r}\n' for key, value in said.items())
    path.write_text(
        f"[applications.{app.name}]\n"
        'pipeline = "tests.kafka.run_pipelines:counts"\n'
        f'bootstrap_servers = "{app.kafka.sasl_servers}"\n'
        f'state_dir = "{app.state_dir}"\n'
        'processing_guarantee = "exactly_once"\n'
        f"[applications.{app.name}.settings]\n{pairs}"
    )
    return path


def environment(app: App) -> dict[str, str]:
    return {
        **os.environ,
        PREFIX_VARIABLE: app.name,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{app.state_dir.parent}",
    }


def call(app: App, config: Path, *words: str, program: str = str(STATESTORE)) -> str:
    """What a command prints, which must succeed."""
    command = [program, *words, f"--config={config}", f"--application-id={app.name}"]
    done = subprocess.run(
        command,
        env=environment(app),
        capture_output=True,
        text=True,
        check=False,
        cwd=config.parent,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def test_a_search_for_it_finds_it(tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    (tmp_path / "log").write_text(f"sasl.password={SECRET}")
    assert files_with(SECRET, tmp_path) == [tmp_path / "log"]


@pytest.mark.thorough
@pytest.mark.parametrize("client", CLIENTS)
def test_a_password_is_nowhere_in_what_runs_and_commands_leave(app: App, client: str) -> None:
    config = configured(app, client)
    printed = app.state_dir.parent / "printed"
    handle = printed.open("w")
    child = subprocess.Popen(
        [
            *(STATESTORE, "-v", "run", f"--config={config}", f"--application-id={app.name}"),
            *("--workers=2", "--run-for=120s", "--set=commit.interval.ms=100"),
        ],
        env=environment(app),
        cwd=config.parent,
        stdout=handle,
        stderr=subprocess.STDOUT,
        text=True,
    )
    handle.close()
    app.children.append(child)
    running(app, child, lambda: sum(app.committed().values()) == 20)
    every = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    lines = [word for process in every for word in process.cmdline()]
    child.terminate()
    end_of(child, 0)
    target = app.state_dir.parent / "exports"
    rest = call(app, config, "run")
    said = [
        *(*lines, printed.read_text(), rest),
        call(app, config, "export", f"--target={target}"),
        call(app, config, "status", "--json"),
        call(app, config, "topology", "check"),
    ]
    assert len(every) >= 3
    assert not [text[-2000:] for text in said if SECRET in text]
    assert (app.state_dir / app.name / "topology.json").exists()
    assert not files_with(SECRET, app.state_dir, target, config.parent)
    assert updates_in_order(app.read()) == counted(range(20))
    assert stat.S_IMODE((app.state_dir / app.name).stat().st_mode) & 0o007 == 0


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("client", CLIENTS)
def test_a_password_is_nowhere_in_what_spark_logs(app: App, client: str) -> None:
    config, events = configured(app, client), app.state_dir.parent / "events"
    events.mkdir()
    submit = STATESTORE.with_name("spark-submit")
    job = subprocess.run(
        [STATESTORE, "spark-job", "process"], capture_output=True, text=True, check=True
    ).stdout.strip()
    logged = [
        "--conf",
        "spark.eventLog.enabled=true",
        "--conf",
        f"spark.eventLog.dir=file://{events}",
    ]
    told = call(app, config, "--master=local[2]", *logged, job, program=str(submit))
    assert SECRET not in told
    assert sum(path.stat().st_size for path in events.rglob("*") if path.is_file()) > 1000
    assert not files_with(SECRET, config.parent)
    assert updates_in_order(app.read()) == counted(range(20))
