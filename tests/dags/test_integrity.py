"""What every DAG must be, whoever wrote it: loadable, light, documented, owned, bounded."""

import copy
import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, BaseSensorOperator
from airflow.sdk.definitions.param import Param
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from statestore.airflow import StateStoreJobOperator
from statestore.airflow.retries import RETRY_LATER_DELAY, RetryLater
from statestore.airflow.waiting import OneRunOperator
from tests.dags.project_rig import loaded, params_of

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parents[2]
DAGS = ROOT / "dags"
FILES = sorted(path.stem for path in DAGS.glob("*.py"))
# These make a DAG for each application, the others one for all.
OF_ONE = {"micro_batches", "when_input"}
HEAVY = (
    "jobs",
    "pyspark",
    "great_expectations",
    "rocksdict",
    "confluent_kafka",
    "numpy",
    "pandas",
    "pyarrow",
)
LIGHT = {
    "statestore",
    "statestore.applications",
    "statestore.errors",
    "statestore.extras",
    "statestore.model",
    "statestore.model.broker_addresses",
    "statestore.model.ids",
    "statestore.model.left_out",
    "statestore.model.modes",
    "statestore.model.texts",
    "statestore.settings",
    "statestore.unknown_settings",
}
LINES_MAX = 10


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(str(DAGS))


@pytest.fixture(scope="module", params=FILES)
def dag(bag: DagBag, request: pytest.FixtureRequest) -> DAG:
    """A DAG of the sample."""
    return bag.dags[request.param]


def params(dag: DAG) -> dict[str, Param]:
    return {name: dag.params.get_param(name) for name in dag.params}


def test_every_dag_file_loads_and_makes_the_dags_it_is_named_after(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert bag.captured_warnings == {}
    assert sorted(bag.dags) == FILES


def test_parsing_imports_neither_what_the_library_does_nor_what_it_drives() -> None:
    code = f"""
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import BundleDagBag
before = set(sys.modules)
bag = BundleDagBag({str(DAGS)!r}, bundle_path=Path({str(DAGS)!r}), bundle_name="dags-folder")
new = set(sys.modules) - before
roots = {{name.partition(".")[0] for name in new}}
ours = {{name for name in new if name.startswith("statestore")}}
ours -= {{name for name in ours if name.startswith("statestore.airflow")}}
print(json.dumps([sorted(bag.dags), sorted(roots.intersection({HEAVY!r})), sorted(ours)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": ""},
    )
    dags, heavy, ours = json.loads(done.stdout.splitlines()[-1])
    assert (dags, heavy) == (FILES, [])
    assert set(ours) <= LIGHT


def test_parsing_twice_gives_one_version_of_each_dag(bag: DagBag) -> None:
    again = DagBag(str(DAGS))
    for dag_id, dag in bag.dags.items():
        first, second = (DagSerialization.to_dict(each) for each in (dag, again.dags[dag_id]))
        assert first == second


@pytest.mark.parametrize("names", [[], ["one"], ["one", "two"]], ids=len)
def test_the_files_load_for_any_number_of_applications(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"[applications.{name}]\n" for name in names)
    bag = loaded(tmp_path, text, monkeypatch)
    runs = [f"{name}__micro_batches" for name in names]
    of_all = {file for file in FILES if file not in OF_ONE}
    assert set(bag.dags) == {*of_all, *runs}
    for dag in bag.dags.values():
        DagSerialization.to_dict(dag)


def test_a_form_that_asks_for_one_application_takes_none_for_granted_among_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bag = loaded(tmp_path, "[applications.one]\n[applications.two]\n", monkeypatch)
    asking = [dag for dag in bag.dags.values() if "application" in dag.params]
    assert {dag.dag_id for dag in asking} == {"crash_drill", "partition_change", "state_relocation"}
    for dag in asking:
        rest = {"partitions": 6} if "partitions" in dag.params else {}
        assert params_of(dag, **rest, application="two")["application"] == "two"
        for conf in ({}, {"application": None}, {"application": "three"}):
            with pytest.raises(ParamValidationError):
                params_of(dag, **rest, **conf)


def test_airflow_knows_a_dag_by_the_file_that_asks_for_it(dag: DAG) -> None:
    assert Path(dag.fileloc) == DAGS / f"{dag.dag_id}.py"


def test_a_dag_file_is_a_few_lines() -> None:
    long = {
        path.name: lines
        for path in DAGS.glob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINES_MAX
    }
    assert long == {}


def test_it_says_what_it_is_for_and_whose_it_is(dag: DAG) -> None:
    assert dag.description
    assert dag.doc_md
    assert dag.doc_md.lstrip().startswith("# ")
    assert "statestore" in dag.tags
    assert dag.owner == "statestore"
    assert [task.task_id for task in dag.tasks if not task.doc_md] == []


def test_runs_neither_overlap_nor_catch_up(dag: DAG) -> None:
    assert dag.max_active_runs == 1
    assert not dag.catchup


def test_what_a_dag_waits_for_another_makes_under_the_same_name(bag: DagBag) -> None:
    said = {dag_id: DagSerialization.to_dict(dag)["dag"] for dag_id, dag in bag.dags.items()}
    made = {
        (outlet["name"], outlet["uri"])
        for dag in said.values()
        for task in dag["tasks"]
        for outlet in (each["__var"] for each in task["__var"].get("outlets", []))
    }
    waited_for = {
        (asset["name"], asset["uri"])
        for dag in said.values()
        for asset in dag["timetable"]["__var"].get("asset_condition", {}).get("objects", [])
    }
    assert waited_for
    assert waited_for <= made
    assert len({uri for _, uri in made}) == len(made)


def test_every_task_ends_some_day(dag: DAG) -> None:
    """Sensors by their own timeout; the rest by theirs."""
    endless = [
        task.task_id
        for task in dag.tasks
        if task.execution_timeout is None and not hasattr(task, "poke")
    ]
    assert endless == []


def operator_class(task: Any) -> type[Any]:
    """That of a mapped task too."""
    found: type[Any] = getattr(task, "operator_class", type(task))
    return found


def test_what_calls_us_is_retried_by_the_class_of_its_error_mapped_or_not(dag: DAG) -> None:
    for task in dag.tasks:
        kind = operator_class(task)
        if issubclass(kind, (BaseSensorOperator, OneRunOperator)):
            continue  # they call nothing of ours
        if kind.__module__.startswith("statestore.airflow."):
            assert task.retry_policy is not None, task.task_id
            decided = task.retry_policy.evaluate(RetryLater("held"), 1, 3)
            assert decided.retry_delay == RETRY_LATER_DELAY, task.task_id
            assert task.has_retry_policy
            assert task.retry_delay >= timedelta(seconds=10)


def test_a_slow_airflow_turns_no_task_red_at_its_first_try(dag: DAG) -> None:
    """What must not be retried says so by the error it raises."""
    assert [task.task_id for task in dag.tasks if not task.retries] == []


@pytest.mark.parametrize(
    ("pool", "job", "taken"),
    [(None, None, 1), ("4", None, 4), ("4", "2", 2), ("1", None, 1), ("1", "4", 1)],
)
def test_a_job_takes_the_slots_it_uses(
    pool: str | None, job: str | None, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("STATESTORE_SLOTS", pool), ("STATESTORE_JOB_SLOTS", job)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    slots = {
        (dag.dag_id, task.task_id): (task.pool, task.pool_slots)
        for dag in bag.dags.values()
        for task in dag.tasks
        if task.pool != "default_pool"
    }
    assert slots == {
        ("micro_batches", "process"): ("statestore_slots", taken),
        ("consistency_check", "audit"): ("statestore_slots", taken),
        ("crash_drill", "drill"): ("statestore_slots", min(taken, 2)),
    }


def test_what_submits_to_spark_does_so_in_the_pool(dag: DAG) -> None:
    for task in dag.tasks:
        kwargs = getattr(task, "partial_kwargs", vars(task))
        submits = bool(kwargs.get("job"))
        assert submits or not issubclass(operator_class(task), StateStoreJobOperator)
        assert (task.pool == "statestore_slots") is submits, task.task_id


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_of_slots_is_named(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATESTORE_SLOTS", wrong)
    errors = DagBag(str(DAGS)).import_errors
    assert any(f"STATESTORE_SLOTS='{wrong}'" in error for error in errors.values())


def test_its_form_explains_and_checks_every_field(dag: DAG) -> None:
    for name, param in params(dag).items():
        assert param.schema.get("title"), name
        checked = {"enum", "pattern", "type", "minimum", "items"} & param.schema.keys()
        assert checked, name
        if not (dag.dag_id == "partition_change" and name == "partitions"):
            resolved = copy.copy(param).resolve()
            assert resolved == param.value, "the default is valid"


@pytest.mark.parametrize("value", ["; rm -rf /", "$(id)", "a' b", "{{ var.value.secret }}", "\n"])
def test_no_field_takes_what_a_shell_or_a_template_would(dag: DAG, value: str) -> None:
    for param in params(dag).values():
        with pytest.raises(ParamValidationError):
            copy.copy(param).resolve(value)


def test_templates_name_only_fields_of_the_form(dag: DAG) -> None:
    known = set(params(dag))
    for task in dag.tasks:
        for field in getattr(task, "template_fields", ()):
            named = set(re.findall(r"params\.(\w+)", str(getattr(task, field, ""))))
            assert named <= known, (task.task_id, field)


def values(dag: DAG) -> dict[str, Any]:
    return {name: param.value for name, param in params(dag).items()}


def test_defaults_destroy_nothing(dag: DAG) -> None:
    """What moves, deletes or burdens others is off until somebody says so."""
    for name in ("approve", "confirm"):
        if name in values(dag):
            assert values(dag)[name] is False
