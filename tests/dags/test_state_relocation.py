"""The DAG state_relocation: its shape, its operator on the real command, all of it in Airflow."""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Context
from airflow.sdk.definitions.param import Param
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

import statestore as ss
from statestore.airflow.command_operator import StateStoreCommandOperator
from statestore.airflow.retries import RetryLater
from statestore.airflow.waiting import NoRunSensor, SwitchedOnSensor
from statestore.layout import owners
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId
from statestore.testing.local_kafka import LocalKafka
from tests.builders import ManualClock
from tests.dags.project_rig import ROOT, Project, params_of
from tests.kafka import run_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App, counted, updates_in_order
from tests.relocation_rig import Rig, expected_stores

pytestmark = pytest.mark.airflow

TASKS = [
    "wait_for_runs",
    "dry_run",
    "approved",
    "apply",
    "look_again",
    "check",
    "wanted",
    "wait_until_on",
    "resume",
]


@pytest.fixture(scope="module")
def dag() -> DAG:
    return DagBag(str(ROOT / "dags")).dags["state_relocation"]


# Its shape.


def test_each_task_follows_the_one_before_it(dag: DAG) -> None:
    assert set(dag.task_ids) == set(TASKS)
    for before, after in pairwise(TASKS):
        assert dag.get_task(before).downstream_task_ids == {after}


def test_it_runs_when_asked_and_one_at_a_time(dag: DAG) -> None:
    assert not dag.schedule
    assert dag.max_active_runs == 1
    assert dag.get_task("apply").retries == 3


def test_nothing_is_approved_unless_somebody_does(dag: DAG) -> None:
    defaults = dag.params.dump()
    assert defaults == {"application": "flights", "approve": False, "keep": [], "resume": True}
    for name in defaults:
        found = dag.params.get_param(name)
        assert isinstance(found, Param)
        assert found.schema["title"]


@pytest.mark.parametrize(
    ("anything", "approve", "goes_on"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_it_goes_on_only_where_something_is_to_be_done_and_approved(
    dag: DAG, anything: bool, approve: bool, goes_on: bool
) -> None:
    approved: Any = dag.get_task("approved")
    plan, params = {"anything": anything}, params_of(dag, approve=approve)
    assert approved.python_callable(plan=plan, params=params) is goes_on


def test_what_is_left_after_all_fails_the_check(dag: DAG) -> None:
    check: Any = dag.get_task("check")
    check.python_callable(plan={"anything": False})
    with pytest.raises(AirflowFailException, match="still to be done"):
        check.python_callable(plan={"anything": True})


@pytest.mark.parametrize(
    "conf",
    [{"keep": ["first"]}, {"keep": "2_14"}, {"application": "nobody's"}, {"approve": "yes"}],
    ids=str,
)
def test_the_form_refuses_what_the_command_would(dag: DAG, conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        params_of(dag, **conf)


# Its operator and its sensor.


class StoredDag(NamedTuple):
    is_paused: bool


class TaskInstance:
    """The part of Airflow's task instance they see."""

    def __init__(self, running: int = 0, *, paused: bool = False) -> None:
        self.pushed: dict[str, Any] = {}
        self.running = running
        self.paused = paused

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def get_dr_count(self, dag_id: str, states: list[str]) -> int:
        assert (dag_id, states) == ("shop__micro_batches", ["running"])
        return self.running

    def get_dag(self, dag_id: str) -> "StoredDag":
        assert dag_id == "shop__micro_batches"
        return StoredDag(self.paused)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """An application of the file whose stores lie where its pipeline does not look."""
    config = tmp_path / "statestore.toml"
    config.write_text(
        '[applications.shop]\npipeline = "tests.contract.test_relocate_command:after"\n'
        'state_dir = "state"\n[applications.shop.settings]\n"statestore.lock.wait.ms" = 0\n'
    )
    monkeypatch.setenv("STATESTORE_CONFIG", str(config))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Rig(tmp_path).deploy("A|B")


def call(flags: str, instance: TaskInstance | None = None) -> dict[str, Any]:
    task = StateStoreCommandOperator(
        task_id="call", command="relocate", application_id="shop", flags=flags
    )
    return task.execute(cast("Context", {"ti": instance or TaskInstance()}))


def test_the_operator_returns_what_the_command_says(rig: Rig) -> None:
    assert len(call("--dry-run")["moves"]) == 4
    assert call("--offline")["applied"]
    assert rig.stores() == expected_stores("B|A")
    assert not call("--dry-run")["anything"]


def test_an_error_of_the_command_fails_or_is_retried_by_its_class(rig: Rig) -> None:
    instance = TaskInstance()
    with pytest.raises(AirflowFailException, match="pass old=new"):
        call("--rename A", instance)
    assert instance.pushed["result"]["error"]["exit_code"] == 2
    folder = StateLayout(rig.folder / "state", "shop").task_dir(TaskId(0, 0))
    held = owners.claim(folder, what="", wait_ms=0, clock=ManualClock())
    with pytest.raises(RetryLater, match="task 0_0"):
        call("--offline")
    held.release()


def test_the_sensor_waits_while_a_run_is_on() -> None:
    sensor = NoRunSensor(task_id="wait", waited_for="shop__micro_batches")
    assert not sensor.poke(cast("Context", {"ti": TaskInstance(running=1)}))
    assert sensor.poke(cast("Context", {"ti": TaskInstance()}))


def test_what_is_left_to_start_waits_until_somebody_switches_it_on() -> None:
    sensor = SwitchedOnSensor(task_id="wait", waited_for="shop__micro_batches")
    assert not sensor.poke(cast("Context", {"ti": TaskInstance(paused=True)}))
    assert sensor.poke(cast("Context", {"ti": TaskInstance()}))


# In Airflow, on a real broker.


@pytest.mark.kafka
@pytest.mark.slow
def test_what_is_approved_moves_once_and_nothing_is_restored_after(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(kafka, "moved", tmp_path / "state").create_topics()
    for name in ("other", "other-out"):
        kafka.create_topic(f"moved-{name}", 2, {"retention.ms": -1})
    app.produce(range(20))
    monkeypatch.setenv(PREFIX_VARIABLE, "moved")
    ss.run(run_pipelines.counts(), app.run_settings())
    applications = f"""[applications.moved]
pipeline = "tests.kafka.run_pipelines:counts_reordered"
bootstrap_servers = "{kafka.bootstrap_servers}"
state_dir = "{app.state_dir}"
processing_guarantee = "exactly_once"
[applications.moved.settings]
"automatic.state.relocation" = false
"""
    project = Project.copied(tmp_path, applications)
    project.switch_on("moved__micro_batches")
    asked = {"application": "moved", "approve": True}
    old, new = (app.state_dir / "moved" / f"{n}_0" / "rocksdb" / "counts" for n in (1, 2))
    approved = project.succeed("state_relocation", **asked)
    assert approved.states == dict.fromkeys(((task, -1) for task in TASKS), "success")
    assert (old.exists(), new.exists()) == (False, True)
    again = project.succeed("state_relocation", **asked).states
    ended = [again[task, -1] for task in ("dry_run", "apply", "resume")]
    assert ended == ["success", "skipped", "skipped"]
    app.produce(range(20, 40))
    off = {"automatic.state.relocation": False}
    done = ss.run(run_pipelines.counts_reordered(), app.run_settings(**off))
    assert done.restored_records == 0
    assert updates_in_order(app.read()) == counted(range(40)) == app.stored(ordinal=2)
