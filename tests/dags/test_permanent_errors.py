"""What cannot pass is never retried, and what may pass is: the same for each operator."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.context import OutletEventAccessors

from statestore.airflow import (
    Application,
    KafkaLagSensor,
    StateStoreCommandOperator,
    StateStoreJobOperator,
    StatusOperator,
)
from statestore.airflow.retries import JobFailed
from statestore.airflow.waiting import OneRunOperator, SwitchedOnSensor

pytestmark = pytest.mark.airflow

CONFIG = """
[applications.orders]
pipeline = "{pipeline}"
bootstrap_servers = "127.0.0.1:{port}"
state_dir = "{state_dir}"
[applications.orders.settings]
{settings}
"""
SHOP = """
import statestore as ss
from statestore import serdes

def orders() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("orders").to("out")
    return b.build()

def broken() -> ss.Topology:
    raise RuntimeError("their own mistake")
"""
# As spark-submit does: it starts the job and hides its exit code.
SUBMIT = """\
#!{python}
import subprocess, sys
at = next(i for i, word in enumerate(sys.argv) if word.endswith(".py") and i)
run = [sys.executable, "-m", "statestore", "run", *sys.argv[at + 1:]]
sys.exit(1 if subprocess.run(run).returncode else 0)
"""


class TaskInstance:
    """The part of Airflow's task instance that an operator sees here."""

    def xcom_push(self, key: str, value: Any) -> None: ...


def context() -> Context:
    given = {"ti": TaskInstance(), "outlet_events": OutletEventAccessors(), "params": {}}
    return cast("Context", given)


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes an applications file; its broker never answers."""

    def write(pipeline: str = "shop:orders", settings: str = "") -> Path:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = f'"default.api.timeout.ms" = 300\n{settings}'
        text = CONFIG.format(
            pipeline=pipeline, port=port, state_dir=tmp_path / "state", settings=settings
        )
        (tmp_path / "statestore.toml").write_text(text, encoding="utf-8")
        (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
        submit = tmp_path / "spark-submit"
        submit.write_text(SUBMIT.format(python=sys.executable), encoding="utf-8")
        submit.chmod(0o755)
        return tmp_path / "statestore.toml"

    return write


def command(config: Path, **fields: Any) -> StateStoreCommandOperator:
    fields = {"command": "run", "application_id": "orders", "config": str(config)} | fields
    return StateStoreCommandOperator(task_id="call", **fields)


def status(config: Path, **fields: Any) -> StatusOperator:
    limits: Any = {"orders": {"seconds_behind": 5}}
    fields = {"application_id": "orders", "config": str(config), "limits": limits} | fields
    return StatusOperator(task_id="look", **fields)


def job(config: Path, **fields: Any) -> StateStoreJobOperator:
    target = Application(application_id=fields.pop("application_id", "orders"), config=config)
    binary = str(config.with_name("spark-submit"))
    return StateStoreJobOperator(task_id="process", target=target, spark_binary=binary, **fields)


def raised(task: Any) -> BaseException:
    with pytest.raises(AirflowException) as caught:
        task.execute(context())
    if isinstance(task, StateStoreJobOperator) and task._hook and task._hook._submit_sp:
        task._hook._submit_sp.stdout.close()
    return caught.value


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no such application": ({}, {"application_id": "order"}),
    "no such setting": ({"settings": '"no.such.setting" = 1'}, {}),
    "a wrong value": ({"settings": '"commit.interval.ms" = "soon"'}, {}),
    "no such connection": ({}, {"statestore_conn_id": "nowhere"}),
}
OF_RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **WRONG,
    "no such module": ({"pipeline": "shops:orders"}, {}),
    "no such function": ({"pipeline": "shop:order"}, {}),
    "a pipeline that raises": ({"pipeline": "shop:broken"}, {}),
}


BY_JOB = [(what, job) for what in OF_RUNS]


@pytest.mark.parametrize(
    ("what", "make"),
    [
        *((what, command) for what in OF_RUNS),
        *BY_JOB[:1],
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in BY_JOB[1:]),
    ],
)
def test_a_mistake_fails_a_run_at_once(
    what: str, make: Callable[..., Any], config: Callable[..., Path]
) -> None:
    written, fields = OF_RUNS[what]
    assert type(raised(make(config(**written), **fields))) is AirflowFailException


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_fails_a_look_at_once(what: str, config: Callable[..., Path]) -> None:
    written, fields = WRONG[what]
    assert type(raised(status(config(**written), **fields))) is AirflowFailException


@pytest.mark.parametrize("make", [command, job, status])
def test_a_missing_applications_file_fails_at_once(
    make: Callable[..., Any], config: Callable[..., Path]
) -> None:
    path = config()
    task = make(path)
    path.unlink()
    failed = raised(task)
    assert type(failed) is AirflowFailException
    assert str(path) in str(failed)


@pytest.mark.parametrize("make", [command, status])
def test_flags_that_cannot_be_split_fail_at_once(
    make: Callable[..., Any], config: Callable[..., Path]
) -> None:
    failed = raised(make(config(), flags="--store 'of two"))
    assert type(failed) is AirflowFailException
    assert "close the quote" in str(failed)


def test_a_spark_connection_that_was_named_and_is_missing_fails_at_once(
    config: Callable[..., Path],
) -> None:
    failed = raised(job(config(), conn_id="spark_nowhere"))
    assert type(failed) is AirflowFailException
    assert "there is no connection 'spark_nowhere'" in str(failed)


def test_without_any_spark_connection_the_worker_is_the_spark(
    config: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    raised(job(config()))
    assert "Spark runs on this worker" in capfd.readouterr().out


@pytest.mark.parametrize("make", [command, job, status])
def test_a_broker_that_does_not_answer_is_retried(
    make: Callable[..., Any], config: Callable[..., Path]
) -> None:
    assert type(raised(make(config()))) is JobFailed


def test_the_sensor_fails_for_good_without_its_file_before_it_waits(
    config: Callable[..., Path],
) -> None:
    path = config()
    sensor = KafkaLagSensor(task_id="wait", application_id="orders", config=str(path))
    path.unlink()
    with pytest.raises(AirflowFailException, match="is missing on this worker"):
        sensor.execute(context())


class Dags:
    """A task instance that knows no DAG, or cannot ask."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code

    def get_dag(self, dag_id: str) -> Any:
        detail = {"status_code": self.status_code, "message": dag_id}
        raise AirflowRuntimeError(ErrorResponse(detail=detail))


def test_a_dag_that_is_not_there_yet_is_waited_for_and_other_troubles_are_not_hidden() -> None:
    sensor = SwitchedOnSensor(task_id="wait", waited_for="orders__micro_batches")
    assert sensor.poke(cast("Context", {"ti": Dags(404)})) is False
    with pytest.raises(AirflowRuntimeError):
        sensor.poke(cast("Context", {"ti": Dags(500)}))
    # Airflow before 3.2 tells tasks nothing about DAGs.
    assert sensor.poke(cast("Context", {"ti": object()})) is True


@pytest.mark.parametrize(("state", "fails"), [("failed", True), ("success", False)])
def test_a_run_that_failed_is_not_started_again(state: str, fails: bool) -> None:
    task = OneRunOperator(task_id="process", trigger_dag_id="mine", failed_states=["failed"])
    event = ("trigger", {"run_ids": ["r"], "r": state})
    if not fails:
        task.execute_complete(context(), event)
        return
    with pytest.raises(AirflowFailException, match="mine failed"):
        task.execute_complete(context(), event)


def test_a_file_of_json_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", json.dumps({"conn_type": "statestore", "extra": "["}))
    task = StateStoreCommandOperator(
        task_id="call",
        command="status",
        application_id="orders",
        settings={"state.dir": "s"},
        statestore_conn_id="broken",
    )
    failed = raised(task)
    assert type(failed) is AirflowFailException
    assert "its extra is not JSON" in str(failed)
