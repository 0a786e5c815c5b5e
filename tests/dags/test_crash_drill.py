"""The DAG crash_drill: its order, its confirmation, its flags, all of it in Airflow."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from jinja2 import Environment

from statestore.airflow.command_operator import StateStoreCommandOperator
from statestore.testing.drills.drill_command import drill_command
from tests.dags.project_rig import ROOT, Project, params_of

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def dag() -> DAG:
    return DagBag(str(ROOT / "dags")).dags["crash_drill"]


def operator(dag: DAG) -> StateStoreCommandOperator:
    task = dag.get_task("drill")
    assert isinstance(task, StateStoreCommandOperator)
    return task


def rendered(dag: DAG, field: str, **changed: object) -> list[str]:
    params = params_of(dag, **changed)
    template = str(getattr(operator(dag), field))
    return shlex.split(Environment(autoescape=False).from_string(template).render(params=params))


def test_it_drills_only_what_was_confirmed(dag: DAG) -> None:
    confirmed: Any = dag.get_task("confirmed")
    assert dag.get_task("confirmed").downstream_task_ids == {"drill"}
    confirmed.python_callable(params=params_of(dag))
    shared = {"brokers": "application"}
    with pytest.raises(AirflowFailException, match="Confirm"):
        confirmed.python_callable(params=params_of(dag, **shared))
    confirmed.python_callable(params=params_of(dag, **shared, confirm=True))
    with pytest.raises(AirflowFailException, match="brokers = application"):
        confirmed.python_callable(params=params_of(dag, workload="clone"))


def test_the_command_takes_every_flag_the_form_gives(dag: DAG) -> None:
    for changed in ({}, {"seed": 7, "confirm": True, "brokers": "application", "points": "none"}):
        flags = rendered(dag, "flags", **changed)
        with drill_command.make_context("drill", flags) as context:
            assert context.params["moments"] == 5
            assert context.params["seed"] == changed.get("seed")
            assert context.params["confirm"] is changed.get("confirm", False)
    assert rendered(dag, "job") == []
    assert rendered(dag, "job", runs_on="spark") == ["drill"]


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("runs_on", ["process", pytest.param("spark", marks=pytest.mark.spark)])
def test_in_airflow_a_drill_ends_green_and_its_verdicts_are_in_the_xcom(
    tmp_path: Path, runs_on: str
) -> None:
    asked = {"points": "commit.log-done", "moments": 0, "specials": "none", "seed": 3}
    done = Project.copied(tmp_path).succeed("crash_drill", **asked, runs_on=runs_on)
    report = done.xcoms["drill", "return_value"]
    assert [(one["name"], one["outcome"]) for one in report["drills"]] == [
        ("commit.log-done", "green")
    ]
    assert Path(report["report"]).is_file()
    assert Path(report["report"]).is_relative_to(tmp_path / "state")
