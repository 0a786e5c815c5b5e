"""The DAG consistency_check: its shape and its form; red and green in Airflow, on a real broker."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.definitions.param import Param
from airflow.sdk.exceptions import ParamValidationError

from statestore.layout.audits import Audits, Verdict
from statestore.layout.folders import StateLayout
from statestore.testing.local_kafka import LocalKafka
from tests.audit_rig import PIPELINE, Audited, audited, missing_key

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dag() -> DAG:
    return DagBag(str(ROOT / "dags")).dags["consistency_check"]


def test_an_audit_follows_the_choice_and_its_docs_are_published_whatever_it_says(dag: DAG) -> None:
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        "chosen": {"audit"},
        "audit": {"publish"},
        "publish": set(),
    }
    publish: Any = dag.get_task("publish")
    assert publish.is_teardown
    assert not publish.on_failure_fail_dagrun
    assert dag.max_active_runs == 1
    assert dag.tags
    assert dag.doc_md


def test_all_applications_are_audited_unless_one_is_chosen(dag: DAG) -> None:
    chosen: Any = dag.get_task("chosen")
    assert chosen.python_callable(params={"application": None}) == ["flights"]
    assert chosen.python_callable(params={"application": "one"}) == ["one"]


@pytest.mark.parametrize(
    ("name", "value"), [("application", "nobody's"), ("stores", ["../etc"]), ("stores", "counts")]
)
def test_the_form_refuses_what_the_job_would(dag: DAG, name: str, value: object) -> None:
    found = dag.params.get_param(name)
    assert isinstance(found, Param)
    assert found.schema["title"]
    with pytest.raises(ParamValidationError):
        Param(**{"default": found.value, **found.schema}).resolve(value)


# In Airflow, on a real broker and Spark.


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    with LocalKafka() as kafka:
        yield audited(kafka, "checked", tmp_path_factory.mktemp("checked") / "state")


def in_airflow(folder: Path, one: Audited, **conf: object) -> tuple[int, str, dict[str, Any]]:
    """A run of the DAG: its exit code, its log, and the XComs of `publish`."""
    for name in ("dags", "scripts", "jobs"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "airflow.cfg", folder)
    (folder / "statestore.toml").write_text(
        f"""[applications.checked]
pipeline = "{PIPELINE}"
bootstrap_servers = "{one.app.kafka.bootstrap_servers}"
state_dir = "{one.app.state_dir}"
"""
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")
    }
    environment |= {"STATESTORE_CONFIG": str(folder / "statestore.toml"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [
            sys.executable,
            "scripts/airflow_local.py",
            "run",
            "consistency_check",
            "--conf",
            json.dumps(conf),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    with sqlite3.connect(folder / ".scratch" / "airflow" / "airflow.db") as database:
        asked = "select key, value from xcom where task_id = 'publish'"
        found = {key: json.loads(value) for key, value in database.execute(asked).fetchall()}
    database.close()
    return done.returncode, done.stdout + done.stderr, found


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_run_is_green_on_sound_stores_and_red_with_the_key_on_others(
    sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    layout = StateLayout(one.app.state_dir, one.app.name)
    (tmp_path / "green").mkdir()
    code, log, xcoms = in_airflow(tmp_path / "green", one)
    assert code == 0, log[-6000:]
    last = Audits(layout).last()
    assert last is not None
    assert last.passed
    assert xcoms["data_docs"] == {"checked": last.link}
    assert last.link is not None
    assert Path(unquote(urlparse(last.link).path)).is_file()
    key, _ = missing_key(one)
    (tmp_path / "red").mkdir()
    code, log, xcoms = in_airflow(tmp_path / "red", one, application="checked", stores=["counts"])
    assert code == 12, log[-6000:]
    assert "no key missing: store 'counts' of task 1_1: " in log
    assert key in log
    assert "not retried" in log
    (told,) = xcoms["return_value"]
    assert told["verdict"] == "wrong"
    assert [store["store"] for store in told["stores"]] == ["counts"]
    last = Audits(layout).last()
    assert last is not None
    assert last.verdict is Verdict.WRONG
    assert xcoms["data_docs"] == {"checked": last.link}
