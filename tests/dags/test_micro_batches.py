"""The DAG files, as Airflow loads them."""

import copy
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.definitions.param import Param
from airflow.sdk.exceptions import ParamValidationError

from statestore.airflow import StateStoreJobOperator, load_applications, micro_batches, when_input

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parents[2]
DAGS = ROOT / "dags"
TWO_APPLICATIONS = """
[applications.flights]
pipeline = "jobs.pipelines.flights:topology"
schedule = "*/5 * * * *"

[applications.orders]
pipeline = "shop.orders:topology"
"""


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(str(DAGS))


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DagBag:
    config = tmp_path / "statestore.toml"
    config.write_text(TWO_APPLICATIONS, encoding="utf-8")
    monkeypatch.setenv("STATESTORE_CONFIG", str(config))
    return DagBag(str(DAGS))


def runs_of(bag: DagBag) -> list[DAG]:
    """The DAGs of this kind."""
    return [dag for dag_id, dag in bag.dags.items() if dag_id.endswith("micro_batches")]


def process(dag: DAG) -> StateStoreJobOperator:
    task = dag.get_task("process")
    assert isinstance(task, StateStoreJobOperator)
    return task


def test_the_sample_application_has_the_dag_micro_batches(bag: DagBag) -> None:
    assert bag.dags["micro_batches"].task_ids == ["process"]


def test_an_application_may_have_dags_with_another_prefix_but_no_odd_one(
    tmp_path: Path,
) -> None:
    config = tmp_path / "statestore.toml"
    config.write_text('[applications.orders]\ndag_prefix = "shop-"\n', encoding="utf-8")
    assert micro_batches("orders", config=config).dag_id == "shop-micro_batches"
    assert when_input("orders", config=config).dag_id == "shop-when_input"
    config.write_text('[applications.orders]\ndag_prefix = "our shop"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="dag_prefix 'our shop' has other characters"):
        micro_batches("orders", config=config)


def test_every_application_gets_a_dag_of_its_own(two: DagBag) -> None:
    assert two.import_errors == {}
    assert {dag.dag_id for dag in runs_of(two)} == {
        "flights__micro_batches",
        "orders__micro_batches",
    }
    assert {process(dag).application_id for dag in runs_of(two)} == {"flights", "orders"}


def test_one_line_makes_the_dag_of_an_application_and_takes_what_its_operator_takes(
    tmp_path: Path,
) -> None:
    config = tmp_path / "statestore.toml"
    config.write_text(TWO_APPLICATIONS, encoding="utf-8")
    dag = micro_batches("orders", config=config, spark_connection="mine", pool="mine", retries=1)
    assert dag.dag_id == "orders__micro_batches"
    task = process(dag)
    assert task.source.config == config
    assert (task._conn_id, task.pool, task.retries) == ("mine", "mine", 1)


def test_an_application_that_is_not_in_the_file_is_named_with_those_that_are(
    tmp_path: Path,
) -> None:
    config = tmp_path / "statestore.toml"
    config.write_text(TWO_APPLICATIONS, encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"no \[applications\.shop\]; the file has: flights, orders"
    ):
        micro_batches("shop", config=config)


@pytest.mark.parametrize("place", ["dags/statestore.toml", "statestore.toml"])
def test_the_file_is_found_in_the_folder_of_dags_and_one_above(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dags").mkdir()
    monkeypatch.delenv("STATESTORE_CONFIG", raising=False)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    with pytest.raises(ValueError, match="set STATESTORE_CONFIG to its path, pass config=, or"):
        load_applications()
    (tmp_path / place).write_text(TWO_APPLICATIONS, encoding="utf-8")
    (first, _) = load_applications()
    assert first.config == tmp_path / place


def test_the_schedule_is_the_one_in_the_applications_file(two: DagBag) -> None:
    schedules: dict[str, object] = {dag.dag_id: dag.schedule for dag in runs_of(two)}
    assert schedules == {"flights__micro_batches": "*/5 * * * *", "orders__micro_batches": None}


def test_the_job_runs_in_the_pool_of_spark_slots(bag: DagBag) -> None:
    task = process(bag.dags["micro_batches"])
    assert task.pool == "statestore_slots"
    assert task.retries == 3
    assert task.retry_delay == timedelta(seconds=30)
    assert task.retry_policy is not None


def test_later_dags_can_be_scheduled_on_the_committed_state(bag: DagBag) -> None:
    uris = [getattr(outlet, "uri", None) for outlet in process(bag.dags["micro_batches"]).outlets]
    assert uris == ["statestore://flights/state"]


@pytest.mark.parametrize(
    "until",
    [
        "latest",
        "1357016400000",
        "2013-07-01T06:00Z",
        "2013-07-01 06:00:00.5+02:00",
        "2013-07-01T06:00:00Z",
        "{{ data_interval_end }}",
        "{{logical_date}}",
    ],
)
def test_until_accepts_latest_a_time_and_a_time_of_the_run(bag: DagBag, until: str) -> None:
    assert param(bag, "until").resolve(until) == until


@pytest.mark.parametrize(
    "until", ["", "now", "-1", "2013-07-01", "2013-07-01T06:00", "{{ var.value.secret }}", None]
)
def test_until_refuses_what_the_job_would_refuse(bag: DagBag, until: str | None) -> None:
    with pytest.raises(ParamValidationError):
        param(bag, "until").resolve(until)


@pytest.mark.parametrize("run_for", [None, "300", "300s", "5m", "250ms", "1h", "2d"])
def test_run_for_accepts_nothing_or_a_span(bag: DagBag, run_for: str | None) -> None:
    assert param(bag, "run_for").resolve(run_for) == run_for


@pytest.mark.parametrize("run_for", ["", "0", "5 minutes", "-5m", 300])
def test_run_for_refuses_what_is_no_span(bag: DagBag, run_for: object) -> None:
    with pytest.raises(ParamValidationError):
        param(bag, "run_for").resolve(run_for)


def test_a_broken_applications_file_is_named_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "broken.toml"
    config.write_text("[applications.", encoding="utf-8")
    monkeypatch.setenv("STATESTORE_CONFIG", str(config))
    with pytest.raises(ValueError, match=r"broken\.toml.*set STATESTORE_CONFIG"):
        load_applications()


def test_a_schedule_that_is_no_text_names_file_and_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "statestore.toml"
    config.write_text("[applications.orders]\nschedule = 5\n", encoding="utf-8")
    monkeypatch.setenv("STATESTORE_CONFIG", str(config))
    with pytest.raises(ValueError, match=r"statestore\.toml: schedule of \[applications\.orders\]"):
        load_applications()


def param(bag: DagBag, name: str) -> Param:
    found = bag.dags["micro_batches"].params.get_param(name)
    assert isinstance(found, Param)
    return copy.copy(found)  # resolving a value keeps it
