"""The DAG partition_change: its shape, what its form makes of the command, all of it in Airflow."""

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.definitions.param import Param
from airflow.sdk.exceptions import ParamValidationError

from statestore.commands.repartition import repartition_command
from statestore.operations.repartition.partition_plan import MOST, Inputs
from statestore.testing.local_kafka import LocalKafka
from tests.dags.project_rig import ROOT, Project, params_of
from tests.dags.test_state_relocation import TASKS
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App, counted

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def dag() -> DAG:
    return DagBag(str(ROOT / "dags")).dags["partition_change"]


def parsed(dag: DAG, task_id: str, **conf: Any) -> dict[str, Any]:
    """What the command makes of the flags that a task gives it."""
    task = dag.get_task(task_id)
    command = vars(task)["command"].split()
    flags = task.render_template(vars(task)["flags"], {"params": params_of(dag, **conf)})
    assert command.pop(0) == "repartition"
    return repartition_command.make_context("repartition", [*command, *shlex.split(flags)]).params


def test_each_task_follows_the_one_before_it(dag: DAG) -> None:
    assert set(dag.task_ids) == set(TASKS)
    for before, after in pairwise(TASKS):
        assert dag.get_task(before).downstream_task_ids == {after}
    assert not dag.schedule
    assert dag.max_active_runs == 1


def test_nothing_is_approved_nor_deleted_unless_somebody_says_so(dag: DAG) -> None:
    given = params_of(dag, partitions=6)
    assert (given["approve"], given["inputs"], given["resume"]) == (False, "keep", True)
    for task_id in ("dry_run", "apply", "look_again"):
        found = parsed(dag, task_id, partitions=6)
        assert found["partitions"] == 6
        assert not found["grow_inputs"]
        assert not found["recreate_inputs"]
        assert found["partitioner"] is None
        assert found["dry_run"] is (task_id != "apply")


def test_the_form_says_what_the_command_takes(dag: DAG) -> None:
    found = dag.params.get_param("inputs")
    assert isinstance(found, Param)
    assert found.schema["enum"] == [one.value for one in Inputs]
    grown = parsed(dag, "apply", partitions=MOST, inputs="grow", partitioner="crc32")
    assert (grown["partitions"], grown["grow_inputs"]) == (MOST, True)
    assert grown["partitioner"] == "crc32"
    anew = parsed(dag, "apply", partitions=1, inputs="recreate", partitioner="murmur2")
    assert (anew["recreate_inputs"], anew["yes"]) == (True, True)


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"partitions": 0},
        {"partitions": MOST + 1},
        {"partitions": "6; rm"},
        {"partitions": 6, "inputs": "delete"},
        {"partitions": 6, "partitioner": "md5"},
        {"partitions": 6, "application": "nobody's"},
    ],
    ids=str,
)
def test_the_form_refuses_what_the_command_would(dag: DAG, conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        params_of(dag, **conf)


@pytest.mark.kafka
@pytest.mark.slow
def test_what_is_approved_is_divided_once_and_the_next_run_goes_on(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = "tests.kafka.repartition_pipelines:several"
    app = App(kafka, "divided", tmp_path / "state", pipeline).create_topics(partitions=4)
    app.produce(range(500))
    monkeypatch.setenv(PREFIX_VARIABLE, "divided")
    app.drained()
    applications = f"""[applications.divided]
pipeline = "{pipeline}"
bootstrap_servers = "{kafka.bootstrap_servers}"
state_dir = "{app.state_dir}"
processing_guarantee = "exactly_once"
"""
    project = Project.copied(tmp_path, applications)
    project.switch_on("divided__micro_batches")
    asked = {"application": "divided", "partitions": 6, "inputs": "grow"}
    shown = project.succeed("partition_change", **asked).states
    assert [shown[task, -1] for task in ("dry_run", "apply")] == ["success", "skipped"]
    approved = project.succeed("partition_change", **asked, approve=True)
    assert approved.states == dict.fromkeys(((task, -1) for task in TASKS), "success")
    again = project.succeed("partition_change", **asked, approve=True).states
    assert [again[task, -1] for task in ("dry_run", "apply")] == ["success", "skipped"]
    app.produce(range(500, 1000))
    app.drained()
    assert app.stored("counts", 1) == counted(range(1000))
