"""The provider as Airflow finds it, and connections whose secrets reach jobs and nothing else."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from contextlib import aclosing
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from statestore.airflow import (
    Application,
    KafkaLagTrigger,
    StateStoreCommandOperator,
    StateStoreHook,
    StateStoreJobOperator,
)
from statestore.airflow.hook import settings_of
from statestore.airflow_provider import get_provider_info
from statestore.testing.local_kafka import LocalKafka

pytestmark = pytest.mark.airflow

PASSWORD = "hunter2-is-nowhere"
SECURE = {
    "conn_type": "statestore",
    "host": "kafka-1:9092,kafka-2:9092",
    "login": "ada",
    "password": PASSWORD,
    "extra": {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.key.password": "another-" + PASSWORD,
        "state.dir": "/mnt/state",
    },
}

# It keeps its arguments and environment, as anything that Airflow starts might.
PROGRAM = """\
import json, os, sys
from pathlib import Path
kept = dict(argv=sys.argv, env=dict(os.environ), cwd=os.getcwd())
Path({kept!r}).write_text(json.dumps(kept))
if "--summary-file" in sys.argv:
    at = sys.argv[sys.argv.index("--summary-file") + 1]
    Path(at).write_text(json.dumps(dict(application_id="orders", error=None)))
print("a line of the job", file=sys.stderr)
print(json.dumps(dict(done=True)))
"""


class TaskInstance:
    """The part of Airflow's task instance that an operator sees here."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def context() -> Context:
    return cast("Context", {"ti": TaskInstance(), "outlet_events": OutletEventAccessors()})


def connect(monkeypatch: pytest.MonkeyPatch, conn_id: str, said: dict[str, Any]) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(said))


def connection(**fields: Any) -> Connection:
    extra = fields.pop("extra", None)
    return Connection(conn_id="c", extra=None if extra is None else json.dumps(extra), **fields)


# What Airflow finds.


def test_the_description_is_what_airflows_schema_asks_for() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_the_entry_point_gives_the_description_without_importing_airflow() -> None:
    points = distribution("statestore").entry_points
    (found,) = points.select(group="apache_airflow_provider", name="provider_info")
    assert found.value == "statestore.airflow_provider:get_provider_info"
    assert found.load()() == get_provider_info()
    code = f"import sys, {found.module}; print(sorted(n for n in sys.modules if 'airflow.' in n))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_airflow_knows_links_and_modules() -> None:
    manager = ProvidersManager()  # type: ignore[no-untyped-call]  # Airflow's
    assert manager.providers["statestore"].version
    assert {
        "statestore.airflow.reports.ReportLink",
        "statestore.airflow.reports.DataDocsLink",
        "statestore.airflow.reports.SparkUILink",
    } <= set(manager.extra_links_class_names)
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for module in info[kind][0]["python-modules"]:
            __import__(module)


# What a connection says.


def test_a_connection_becomes_settings() -> None:
    assert settings_of(connection(**SECURE)) == {
        "bootstrap.servers": "kafka-1:9092,kafka-2:9092",
        "sasl.username": "ada",
        "sasl.password": PASSWORD,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.key.password": "another-" + PASSWORD,
        "state.dir": "/mnt/state",
    }


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"host": "k", "port": 9092}, {"bootstrap.servers": "k:9092"}),
        ({}, {}),
        ({"extra": {"commit.interval.ms": 5}}, {"commit.interval.ms": "5"}),
        ({"extra": {"statestore": {"cloud": True}}}, {"statestore.cloud": "true"}),
        ({"extra": {"security.protocol": None, "state.dir": ""}}, {}),
        ({"host": "a:1", "extra": {"bootstrap.servers": "b:2"}}, {"bootstrap.servers": "b:2"}),
    ],
    ids=str,
)
def test_fields_that_are_left_out_say_nothing(
    fields: dict[str, Any], settings: dict[str, str]
) -> None:
    assert settings_of(connection(conn_type="statestore", **fields)) == settings


def test_kafkas_own_connection_serves_without_the_group_of_its_clients() -> None:
    extra = {
        "bootstrap.servers": "k:9092",
        "group.id": "theirs",
        "enable.auto.commit": "false",
        "security.protocol": "SSL",
        "ssl.ca.location": "/ca.pem",
    }
    assert settings_of(connection(conn_type="kafka", extra=extra)) == {
        "bootstrap.servers": "k:9092",
        "security.protocol": "SSL",
        "ssl.ca.location": "/ca.pem",
    }


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "isn't defined"),
        ({"conn_type": "http", "host": "h"}, "it is of the type 'http'"),
        ({"conn_type": "statestore", "extra": {"a": [1]}}, "a of its extra is neither text"),
    ],
    ids=["missing", "other type", "list"],
)
def test_a_connection_that_cannot_be_used_fails_for_good(
    said: dict[str, Any] | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is not None:
        connect(monkeypatch, "broken", said)
    task = StateStoreCommandOperator(
        task_id="call",
        command="status",
        application_id="orders",
        settings={"state.dir": "s"},
        statestore_conn_id="broken",
    )
    with pytest.raises(AirflowFailException, match="connection 'broken' cannot be used") as failed:
        task.execute(context())
    assert told in str(failed.value)


# Where its secrets go.


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the job that stands beside the applications file keeps what it was given."""
    kept = tmp_path / "kept.json"
    (tmp_path / "job.py").write_text(PROGRAM.format(kept=str(kept)), encoding="utf-8")
    (tmp_path / "statestore.toml").write_text("[applications.orders]\n", encoding="utf-8")
    submit = tmp_path / "spark-submit"
    submit.write_text(f"#!{sys.executable}\n{PROGRAM.format(kept=str(kept))}", encoding="utf-8")
    submit.chmod(0o755)
    connect(monkeypatch, "secure", SECURE)
    return kept


def call(kept: Path) -> StateStoreCommandOperator:
    return StateStoreCommandOperator(
        task_id="call",
        command="status",
        job="job.py",
        application_id="orders",
        config=str(kept.parent / "statestore.toml"),
        statestore_conn_id="secure",
    )


def submit(kept: Path) -> StateStoreJobOperator:
    return StateStoreJobOperator(
        task_id="submit",
        target=Application(application_id="orders", config=kept.parent / "statestore.toml"),
        spark_binary=str(kept.parent / "spark-submit"),
        statestore_conn_id="secure",
    )


@pytest.mark.parametrize("master", ["local[2]", "spark://h:7077", "yarn"])
@pytest.mark.parametrize("make", [call, submit])
def test_secrets_reach_the_job_by_its_environment_alone(
    make: Any,
    master: str,
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    connect(monkeypatch, "spark_default", {"conn_type": "spark", "host": master})
    task = make(kept)
    ran = context()
    task.execute(ran)
    if make is submit:  # the provider leaves it open until its process ends
        task._hook._submit_sp.stdout.close()
    given = json.loads(kept.read_text(encoding="utf-8"))
    assert "sasl.password=${STATESTORE_CONNECTION_SASL_PASSWORD}" in given["argv"]
    assert given["env"]["STATESTORE_CONNECTION_SASL_PASSWORD"] == PASSWORD
    assert given["env"]["STATESTORE_CONNECTION_STATE_DIR"] == "/mnt/state"
    printed = capsys.readouterr()
    fields = {name: getattr(task, name, None) for name in task.template_fields}
    places = [given["argv"], printed.out, printed.err, caplog.text, fields, vars(task)]
    places += [cast("Any", ran)["ti"].pushed]
    assert not [place for place in places if PASSWORD in str(place)]
    assert not [name for name in os.environ if name.startswith("STATESTORE_CONNECTION_")]


def test_settings_of_a_connection_reach_spark_connect_and_its_secrets_are_refused(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "spark_default", {"conn_type": "spark_connect", "host": "spark"})
    with pytest.raises(AirflowFailException, match=r"has secrets .*sasl\.password") as refused:
        submit(kept).execute(context())
    assert PASSWORD not in str(refused.value)
    assert not kept.exists()
    said = {"conn_type": "statestore", "host": "broker:9092", "extra": {"state.dir": "/mnt/state"}}
    connect(monkeypatch, "open", said)
    StateStoreJobOperator(
        task_id="client",
        target=Application(application_id="orders", config=kept.parent / "statestore.toml"),
        job="job.py",
        statestore_conn_id="open",
    ).execute(context())
    given = json.loads(kept.read_text(encoding="utf-8"))
    assert {"bootstrap.servers=broker:9092", "state.dir=/mnt/state"} <= set(given["argv"])
    assert not [name for name in given["env"] if name.startswith("STATESTORE_CONNECTION_")]


def test_arguments_of_the_dag_file_take_precedence_over_the_connection(
    kept: Path,
) -> None:
    task = StateStoreCommandOperator(
        task_id="call",
        command="status",
        job="job.py",
        application_id="orders",
        config=str(kept.parent / "statestore.toml"),
        settings={"state.dir": "/other", "processing.guarantee": "exactly_once"},
        statestore_conn_id="secure",
    )
    task.execute(context())
    argv = json.loads(kept.read_text(encoding="utf-8"))["argv"]
    assert "state.dir=/other" in argv
    assert not [word for word in argv if "STATE_DIR" in word]


@pytest.mark.kafka
def test_the_trigger_keeps_the_id_of_the_connection_and_no_secret(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"conn_type": "statestore", "host": kafka.bootstrap_servers}
    connect(monkeypatch, "plain", {**said, "extra": {"state.dir": str(tmp_path)}})

    async def first(conn_id: str, application_id: str = "orders") -> dict[str, Any]:
        trigger = KafkaLagTrigger(application_id=application_id, statestore_conn_id=conn_id)
        assert PASSWORD not in str(trigger.serialize())
        async with aclosing(trigger.run()) as events:  # type: ignore[type-var]
            async for event in events:
                return dict(event.payload)
        raise AssertionError("no event")

    assert asyncio.run(first("plain"))["is_first_run"]
    assert "nowhere" in asyncio.run(first("nowhere"))["error"]
    connect(monkeypatch, "wrong", {**said, "extra": {"no.such.setting": "1"}})
    assert "no.such.setting" in asyncio.run(first("wrong"))["error"]


@pytest.mark.kafka
def test_the_form_of_a_connection_can_try_it(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "up", {"conn_type": "statestore", "host": kafka.bootstrap_servers})
    assert StateStoreHook("up").test_connection() == (
        True,
        f"the brokers {kafka.bootstrap_servers} answer",
    )
    connect(monkeypatch, "empty", {"conn_type": "statestore"})
    works, told = StateStoreHook("empty").test_connection()
    assert not works
    assert "bootstrap.servers is not set" in told
