"""Spark's jobs and sink over TLS and SCRAM, before a broker that speaks both itself.

The job of a run is in tests/kafka/test_secrets_nowhere.py.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.builders import ROOT
from tests.kafka.run_rig import STATESTORE, App, counted, name_of
from tests.kafka.secured_rig import (
    SECRET,
    VARIABLES,
    WRONG,
    Secured,
    ended,
    environment,
    secured_kafka,
    write_config,
)
from tests.kafka.writing_rig import committed, values_of

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.thorough,
    pytest.mark.timeout(3_600),
]
CALL_S = 1_500
LINES = [f"{number:03}-line" for number in range(40)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_kafka(tmp_path_factory.mktemp("certificates")) as made:
        yield made


@pytest.fixture(scope="module")
def kafka(secured: Secured) -> LocalKafka:
    return secured.kafka


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    made = App(kafka, name_of(request.node.name), tmp_path / "state")
    made.create_topics().produce(range(20))
    yield made
    made.end_children()


def called(app: App, *command: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [str(word) for word in command],
        env=environment(app, **variables),
        cwd=app.state_dir.parent,
        capture_output=True,
        text=True,
        timeout=CALL_S,
        check=False,
    )
    shown = {SECRET, WRONG, *VARIABLES.values()}
    assert not [secret for secret in shown if secret in done.stdout + done.stderr]
    return done


def job(name: str, app: App, config: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A job of the package through spark-submit."""
    path = called(app, STATESTORE, "spark-job", name).stdout.strip()
    submit = [STATESTORE.with_name("spark-submit"), "--master=local[2]", path]
    flags = [f"--config={config}", f"--application-id={app.name}"]
    return called(app, *submit, *flags, **variables)


def test_jobs_read_state_and_brokers_and_name_what_is_refused(app: App, secured: Secured) -> None:
    target = {"statestore.export.target": str(app.state_dir.parent / "exports")}
    config = write_config(app, secured.settings() | target)
    mistaken = write_config(app, secured.mistaken() | target, name="mistaken")
    assert ended(app, config, "run").code == 0
    for name in ("export", "audit"):
        done = job(name, app, config)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert sum(app.stored().values()) == sum(counted(range(20)).values())
    for done, way_out in (
        (job("process", app, config, BROKER_PASSWORD=WRONG), "sasl.password"),
        (job("audit", app, mistaken), "ssl.ca.location"),
    ):
        told = done.stdout + done.stderr  # spark-submit mixes them
        assert done.returncode == 2, told[-4000:]
        wanted = rf"^statestore: InvalidSetting: .*127\.0\.0\.1:.*correct .*{way_out}"
        assert re.search(wanted, told, re.MULTILINE), told[-4000:]
        assert "did not answer" not in told


def written(
    app: App, given: Mapping[str, str], **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Lines of files, streamed into the topic by a program of a user's own."""
    lines = app.state_dir.parent / "lines"
    lines.mkdir(exist_ok=True)
    (lines / "all.txt").write_text("\n".join(LINES), encoding="utf-8")
    checkpoint = app.state_dir.parent / "checkpoint"
    words = (app.kafka.sasl_servers, f"{app.name}-out", lines, checkpoint, "local[2]", "partition")
    options = [f"kafka.{key}={value}" for key, value in given.items()]
    program = (sys.executable, "-m", "tests.spark.sink_program")
    return called(app, *program, *words, *options, PYTHONPATH=str(ROOT), **variables)


def test_a_stream_is_written_once_after_refusals_that_are_named(app: App, secured: Secured) -> None:
    for done, way_out in (
        (written(app, secured.settings(), BROKER_PASSWORD=WRONG), "sasl.password"),
        (written(app, secured.mistaken()), "ssl.ca.location"),
    ):
        assert done.returncode != 0
        assert re.search(f"127.0.0.1:.*correct .*{way_out}", done.stderr), done.stderr[-6000:]
        assert "did not answer" not in done.stderr
    for _ in range(2):
        done = written(app, secured.settings())
        assert done.returncode == 0, done.stderr[-6000:]
    found = values_of(committed(app.kafka.bootstrap_servers, f"{app.name}-out"))
    assert found == Counter(LINES)
