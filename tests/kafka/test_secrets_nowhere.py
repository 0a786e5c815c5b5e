"""Passwords that are planted where users put them are nowhere in what commands say, show and leave.

They are a user's, and that of the key to a certificate; all goes over TLS. Looked through: command
lines of all processes of a run while it works, what it prints with its debug log, every file of the
state dir, of the export and of Spark's event log.
"""

import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.builders import files_with
from tests.kafka.run_rig import STATESTORE, App, counted, end_of, running, updates_in_order
from tests.kafka.secured_rig import (
    CLIENTS,
    KEY_SECRET,
    VARIABLES,
    Secured,
    environment,
    secured_kafka,
    with_certificate,
    write_config,
)

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_kafka(tmp_path_factory.mktemp("certificates")) as made:
        yield made


@pytest.fixture(scope="module")
def kafka(secured: Secured) -> LocalKafka:
    return secured.kafka


def configured(app: App, secured: Secured, client: str) -> Path:
    issued = secured.authority.issue("client", KEY_SECRET.encode())
    return write_config(app, secured.settings() | with_certificate(issued), client=client)


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


def assert_nowhere(said: Sequence[str], *folders: Path) -> None:
    for secret in VARIABLES.values():
        assert not [text[-2000:] for text in said if secret in text]
        assert not files_with(secret, *folders)


def test_a_search_for_it_finds_it(tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    for secret in VARIABLES.values():
        (tmp_path / "log").write_text(f"password={secret}")
        assert files_with(secret, tmp_path) == [tmp_path / "log"]


@pytest.mark.thorough
@pytest.mark.parametrize("client", CLIENTS)
def test_a_password_is_nowhere_in_what_runs_and_commands_leave(
    app: App, secured: Secured, client: str
) -> None:
    config = configured(app, secured, client)
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
    assert_nowhere(said, app.state_dir, target, config.parent)
    assert (app.state_dir / app.name / "topology.json").exists()
    assert updates_in_order(app.read()) == counted(range(20))
    assert stat.S_IMODE((app.state_dir / app.name).stat().st_mode) & 0o007 == 0


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("client", CLIENTS)
def test_a_password_is_nowhere_in_what_spark_logs(app: App, secured: Secured, client: str) -> None:
    config, events = configured(app, secured, client), app.state_dir.parent / "events"
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
    assert sum(path.stat().st_size for path in events.rglob("*") if path.is_file()) > 1000
    assert_nowhere([told], config.parent)
    assert updates_in_order(app.read()) == counted(range(20))
