"""The DAG crash_drill: its order, its confirmation, its flags, all of it in Airflow."""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from jinja2 import Environment

from statestore.commands.drill import drill_command
from statestore_airflow.command import StateStoreCommandOperator

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dag() -> DAG:
    return DagBag(str(ROOT / "dags")).dags["crash_drill"]


def operator(dag: DAG) -> StateStoreCommandOperator:
    task = dag.get_task("drill")
    assert isinstance(task, StateStoreCommandOperator)
    return task


def rendered(dag: DAG, field: str, **changed: object) -> list[str]:
    params = {**dag.params.dump(), **changed}
    template = str(getattr(operator(dag), field))
    return shlex.split(Environment(autoescape=False).from_string(template).render(params=params))


def test_it_drills_only_what_was_confirmed(dag: DAG) -> None:
    confirmed: Any = dag.get_task("confirmed")
    assert dag.get_task("confirmed").downstream_task_ids == {"drill"}
    given = dag.params.dump()
    confirmed.python_callable(params=given)
    shared = {**given, "brokers": "application"}
    with pytest.raises(AirflowFailException, match="Confirm"):
        confirmed.python_callable(params=shared)
    confirmed.python_callable(params={**shared, "confirm": True})
    with pytest.raises(AirflowFailException, match="brokers = application"):
        confirmed.python_callable(params={**given, "workload": "clone"})


def test_the_command_takes_every_flag_the_form_gives(dag: DAG) -> None:
    for changed in ({}, {"seed": 7, "confirm": True, "brokers": "application", "points": "none"}):
        flags = rendered(dag, "flags", **changed)
        with drill_command.make_context("drill", flags) as context:
            assert context.params["moments"] == 5
            assert context.params["seed"] == changed.get("seed")
            assert context.params["confirm"] is changed.get("confirm", False)
    assert rendered(dag, "script") == []
    assert rendered(dag, "script", runs_on="spark") == ["jobs/drill.py"]


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("runs_on", ["process", pytest.param("spark", marks=pytest.mark.spark)])
def test_in_airflow_a_drill_ends_green_and_its_verdicts_are_in_the_xcom(
    tmp_path: Path, runs_on: str
) -> None:
    for name in ("dags", "scripts", "jobs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("airflow.cfg", "statestore.toml"):
        shutil.copy(ROOT / name, tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    asked = {"points": "commit.log-done", "moments": 0, "specials": "none", "seed": 3}
    given = json.dumps({**asked, "runs_on": runs_on})
    done = subprocess.run(
        [sys.executable, "scripts/airflow_local.py", "run", "crash_drill", "--conf", given],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT), "STATESTORE_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    with sqlite3.connect(tmp_path / ".scratch" / "airflow" / "airflow.db") as database:
        (value,) = database.execute(
            "select value from xcom where task_id = 'drill' and key = 'return_value'"
        ).fetchone()
    database.close()
    report = json.loads(value)
    report = json.loads(report) if isinstance(report, str) else report
    assert [(one["name"], one["outcome"]) for one in report["drills"]] == [
        ("commit.log-done", "green")
    ]
    assert Path(report["report"]).is_file()
    assert Path(report["report"]).is_relative_to(tmp_path / "state")
