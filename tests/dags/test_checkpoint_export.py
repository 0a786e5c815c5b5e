"""The DAG checkpoint_export: its shape, whom it exports, all of it in Airflow on a real broker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

import statestore as ss
from statestore.layout.activity_files import NoProgress
from statestore.operations.exports.catalog import Exports
from statestore.runtime import SystemClock
from statestore.targets import FsspecTarget
from statestore.testing.local_kafka import LocalKafka
from tests.dags.project_rig import Project, loaded, params_of
from tests.kafka import run_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App

pytestmark = pytest.mark.airflow

THREE = """
[applications.flights]
[applications.flights.settings]
"statestore.export.target" = "s3://bucket/a"
[applications.orders]
[applications.orders.settings]
"statestore.export.target" = "exports"
[applications.trial]
"""


@pytest.fixture
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DAG:
    return loaded(tmp_path, THREE, monkeypatch).dags["checkpoint_export"]


class Uri(NamedTuple):
    uri: str


def test_each_export_is_verified_then_old_ones_are_pruned(dag: DAG) -> None:
    steps = [f"exported.{name}" for name in ("export", "verify", "prune")]
    assert dag.task_ids == ["chosen", *steps]
    assert dag.get_task("chosen").downstream_task_ids == set(steps)
    assert dag.get_task(steps[0]).downstream_task_ids == {steps[1]}
    assert dag.get_task(steps[1]).downstream_task_ids == {steps[2]}


def test_it_follows_the_micro_batches_of_those_that_say_where_exports_go(dag: DAG) -> None:
    said = DagSerialization.to_dict(dag)["dag"]["timetable"]["__var"]["asset_condition"]
    assert said["__type"] == "asset_any"
    watched = {(asset["name"], asset["uri"]) for asset in said["objects"]}
    assert watched == {
        ("flights_state", "statestore://flights/state"),
        ("orders_state", "statestore://orders/state"),
    }
    assert dag.max_active_runs == 1


def exported_by(dag: DAG, events: Mapping[Any, Any] | None = None, **conf: object) -> list[str]:
    """The applications a run exports, triggered with `conf` or by asset events."""
    chosen: Any = dag.get_task("chosen")
    params = params_of(dag, **conf)
    found: list[str] = chosen.python_callable(params=params, triggering_asset_events=events or {})
    return found


def test_who_was_processed_is_exported_and_by_hand_who_was_chosen(dag: DAG) -> None:
    events = {Uri("statestore://orders/state"): [1], Uri("statestore://other/x"): [2]}
    assert exported_by(dag, events) == ["orders"]
    assert exported_by(dag) == ["flights", "orders"]
    assert exported_by(dag, applications=["trial"]) == ["trial"]


@pytest.mark.parametrize(
    "conf",
    [
        {"applications": ["nobody"]},
        {"applications": "flights"},
        {"applications": []},
        {"keep": 0},
        {"keep_for": "ever"},
    ],
    ids=str,
)
def test_the_form_refuses_what_the_command_would(dag: DAG, conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        params_of(dag, **conf)


def test_where_nobody_says_where_exports_go_a_run_names_whom_to_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = loaded(tmp_path, "[applications.one]\n", monkeypatch).dags["checkpoint_export"]
    assert not dag.schedule
    with pytest.raises(ParamValidationError, match="applications"):
        exported_by(dag)
    with pytest.raises(ParamValidationError, match="applications"):
        exported_by(dag, applications=[])
    assert exported_by(dag, applications=["one"]) == ["one"]


# In Airflow, on a real broker.


@pytest.mark.slow
@pytest.mark.kafka
def test_two_applications_are_exported_side_by_side_and_a_rerun_uploads_nothing(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ""
    for name in ("one", "two"):
        app = App(kafka, name, tmp_path / "state").create_topics()
        app.produce(range(20))
        monkeypatch.setenv(PREFIX_VARIABLE, name)
        ss.run(run_pipelines.counts(), app.run_settings())
        text += f"""[applications.{name}]
pipeline = "tests.kafka.run_pipelines:counts"
bootstrap_servers = "{kafka.bootstrap_servers}"
state_dir = "{app.state_dir}"
[applications.{name}.settings]
"statestore.export.target" = "{tmp_path / "exports"}"
"""
    project = Project.copied(tmp_path, text)
    steps = {(f"exported.{step}", i) for step in ("export", "verify", "prune") for i in (0, 1)}
    conf = {"applications": ["one", "two"], "keep": 1}
    done = project.succeed("checkpoint_export", **conf)
    assert done.states == dict.fromkeys({("chosen", -1), *steps}, "success")
    found = {
        name: Exports(FsspecTarget(str(tmp_path / "exports")), name, SystemClock())
        for name in ("one", "two")
    }
    contents = {name: exports.contents() for name, exports in found.items()}
    first = {name: exports.ids() for name, exports in found.items()}
    project.succeed("checkpoint_export", **conf)
    for name, exports in found.items():
        assert exports.contents() == contents[name], "nothing new"
        assert len(exports.ids()) == 1
        assert exports.ids() > first[name], "the old one is pruned"
        exports.verify(exports.read(), NoProgress())
