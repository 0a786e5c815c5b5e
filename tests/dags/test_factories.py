"""The DAG factories: what all of them take, the ids they give, and what they refuse."""

import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from statestore import airflow as provider
from statestore.airflow import Application, StateStoreJobOperator
from statestore.airflow.options import DagOptions

pytestmark = pytest.mark.airflow

TWO = """
[applications.orders]
pipeline = "shop:orders"
state_dir = "state"
[applications.orders.input]
records = 10
[applications.payments]
pipeline = "shop:payments"
"""
FACTORIES = [
    "checkpoint_export",
    "consistency_check",
    "crash_drill",
    "micro_batches",
    "partition_change",
    "state_relocation",
    "watch",
    "when_input",
]
WORK = {
    "checkpoint_export": {"exported.export", "exported.verify", "exported.prune"},
    "consistency_check": {"audit"},
    "crash_drill": {"drill"},
    "micro_batches": {"process"},
    "partition_change": {"dry_run", "apply", "look_again"},
    "state_relocation": {"dry_run", "apply", "look_again"},
    "watch": {"look"},
    "when_input": set(),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of DAGs with an applications file in it."""
    monkeypatch.delenv("STATESTORE_CONFIG", raising=False)
    (tmp_path / "statestore.toml").write_text(TWO, encoding="utf-8")
    return tmp_path


def load(folder: Path, text: str, name: str = "mine.py") -> DagBag:
    """Write a DAG file and load the folder as Airflow does."""
    (folder / name).write_text(f"from statestore.airflow import *\n{text}\n", encoding="utf-8")
    return DagBag(str(folder), safe_mode=False)


def made_by(factory: str, *applications: str | Application, **options: Any) -> DAG:
    dag = getattr(provider, factory)(*applications, **options)
    assert isinstance(dag, DAG)
    DagSerialization.to_dict(dag)
    return dag


def kwargs_of(task: Any) -> dict[str, Any]:
    """The arguments of a task, mapped or not."""
    return {**vars(task), **getattr(task, "partial_kwargs", {})}


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_dag_in_one_line_for_each_of_two_applications(factory: str, folder: Path) -> None:
    bag = load(folder, f"a = {factory}('orders')\nb = {factory}('payments')")
    assert bag.import_errors == {}
    assert set(bag.dags) == {f"orders__{factory}", f"payments__{factory}"}
    assert all("statestore" in dag.tags for dag in bag.dags.values())
    assert {"orders", factory} <= set(bag.dags[f"orders__{factory}"].tags)


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_factory_takes_the_same_arguments(factory: str, folder: Path) -> None:
    begin = datetime(2026, 5, 1, tzinfo=UTC)
    # What runs by itself needs a value for each field of its form.
    own = {"partitions": 6} if factory == "partition_change" else {}
    dag = made_by(
        factory,
        "orders",
        **own,
        config=folder / "statestore.toml",
        settings={"commit.interval.ms": 500},
        connection="kafka_prod",
        dag_id="team_a",
        schedule="@weekly",
        start_date=begin,
        owner="team-a",
        tags=["gold"],
        retries=7,
        retry_delay=timedelta(minutes=2),
        pool="small",
        pool_slots=3,
        queue="big-machines",
        default_args={"priority_weight": 5},
        dag={"max_consecutive_failed_dag_runs": 3},
    )
    assert dag.dag_id == "team_a"
    assert str(dag.schedule) == "@weekly"
    assert dag.start_date == begin
    assert {"statestore", factory, "orders", "gold"} == set(dag.tags)
    assert dag.max_consecutive_failed_dag_runs == 3
    assert {task.owner for task in dag.tasks} == {"team-a"}
    assert {task.retries for task in dag.tasks} == {7}
    assert {task.priority_weight for task in dag.tasks} == {5}
    assert {task.queue for task in dag.tasks} == {"big-machines"}
    pools = {task.task_id: (task.pool, task.pool_slots) for task in dag.tasks}
    assert {task for task, pool in pools.items() if pool == ("small", 3)} == WORK[factory]
    for task in dag.tasks:
        given = kwargs_of(task)
        source = given.get("source")
        if source is not None:
            assert source.conn_id == "kafka_prod"
            assert source.settings == {"commit.interval.ms": 500}
        elif "statestore_conn_id" in given:
            assert given["statestore_conn_id"] == "kafka_prod"
            assert given["settings"] == {"commit.interval.ms": 500}


@pytest.mark.parametrize("factory", FACTORIES)
def test_no_factory_needs_a_pool(factory: str, folder: Path) -> None:
    dag = made_by(factory, "orders", config=folder / "statestore.toml")
    assert {task.pool for task in dag.tasks} == {"default_pool"}


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_argument_that_no_factory_has_is_named_with_the_nearest(
    factory: str, folder: Path
) -> None:
    with pytest.raises(TypeError, match=r"no argument retrys=: did you mean retries=\?"):
        made_by(factory, "orders", config=folder / "statestore.toml", retrys=3)


def test_what_submits_to_spark_takes_connection_settings_and_arguments_of_its_operator(
    folder: Path,
) -> None:
    for factory, task_id in (("micro_batches", "process"), ("consistency_check", "audit")):
        dag = made_by(
            factory,
            "orders",
            config=folder / "statestore.toml",
            spark_connection="spark_prod",
            spark_conf={"spark.executor.memory": "4g"},
            operator={"env_vars": {"TZ": "UTC"}, "driver_memory": "2g"},
        )
        given = kwargs_of(dag.get_task(task_id))
        assert given.get("conn_id", given.get("_conn_id")) == "spark_prod"
        assert given["conf"]["spark.executor.memory"] == "4g"
        assert given["env_vars"] == {"TZ": "UTC"}


# Applications that no file describes.


def test_an_application_may_be_described_by_arguments_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STATESTORE_CONFIG", raising=False)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "nothing" / "dags"))
    text = "micro_batches('orders', pipeline='shop:orders', settings={'state.dir': '/mnt/state'})"
    bag = load(tmp_path, f"dag = {text}")
    assert bag.import_errors == {}
    process: Any = bag.dags["orders__micro_batches"].get_task("process")
    assert isinstance(process, StateStoreJobOperator)
    assert process.source.config is None
    assert process.source.folder({"dag": process.dag}) == tmp_path
    assert process.source.flags("orders", {}) == [
        "--application-id",
        "orders",
        "--set",
        "state.dir=/mnt/state",
    ]
    assert process.source.variables({}) == {"STATESTORE_PIPELINE": "shop:orders"}


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_factory_takes_an_application_without_a_file(factory: str) -> None:
    orders = Application(
        application_id="orders",
        pipeline="shop:orders",
        settings={"state.dir": "/mnt/state", "statestore.export.target": "s3://bucket/a"},
    )
    dag = made_by(factory, orders, connection="kafka_prod")
    assert dag.dag_id == f"orders__{factory}"


def test_an_unknown_application_is_named_with_the_ones_that_are_known(folder: Path) -> None:
    bag = load(folder, "dag = micro_batches('order')")
    (told,) = bag.import_errors.values()
    assert "there is no [applications.order]; the file has: orders, payments" in told
    assert "pipeline=" in told


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".hidden", "ü", "x" * 201])
def test_a_name_that_can_be_no_application_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not an application id"):
        made_by("micro_batches", name, pipeline="m:f", settings={"state.dir": "s"})


def test_a_secret_in_a_dag_file_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="put it into a connection") as refused:
        made_by("micro_batches", "orders", pipeline="m:f", settings={"sasl.password": "hunter2"})
    assert "hunter2" not in str(refused.value)
    allowed = {"sasl.password": "${KAFKA_PASSWORD}"}
    made_by("micro_batches", "orders", pipeline="m:f", settings=allowed)


def test_applications_of_several_sources_need_a_dag_each(folder: Path) -> None:
    alone = Application(application_id="alone", pipeline="m:f")
    with pytest.raises(ValueError, match="make a DAG for each"):
        made_by("watch", *provider.load_applications(folder / "statestore.toml"), alone)


# Ids.


def test_two_dags_of_one_id_in_one_file_are_refused(folder: Path) -> None:
    bag = load(folder, "a = micro_batches('orders')\nb = micro_batches('orders', retries=1)")
    (told,) = bag.import_errors.values()
    assert "two DAGs of the id 'orders__micro_batches'" in told
    assert "pass dag_id=" in told


def test_two_dags_of_one_id_in_two_files_are_refused_with_both_files(folder: Path) -> None:
    (folder / "a.py").write_text(
        "from statestore.airflow import watch\ndag = watch()\n", encoding="utf-8"
    )
    bag = load(folder, "dag = watch()")
    (told,) = bag.import_errors.values()
    assert "watch" in told
    assert "a.py" in told


def test_two_groups_of_applications_have_dags_beside_each_other(folder: Path) -> None:
    bag = load(folder, "a = watch()\nb = watch('orders')\nc = watch('orders', dag_id='night')")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"watch", "orders__watch", "night"}


def test_loading_a_file_twice_is_no_collision(folder: Path) -> None:
    for _ in range(2):
        assert load(folder, "dag = micro_batches('orders')").import_errors == {}


def test_a_dag_of_another_id_is_found_by_those_that_start_it(folder: Path) -> None:
    config = folder / "statestore.toml"
    waits: Any = made_by("when_input", "orders", config=config, processed_by="mine")
    assert waits.get_task("process").trigger_dag_id == "mine"
    for change in ("state_relocation", "partition_change"):
        made = made_by(change, "orders", config=config, processed_by="mine")
        assert (made.user_defined_macros or {})["micro_batches"] == {"orders": "mine"}
        with pytest.raises(ValueError, match="name that application"):
            made_by(change, config=config, processed_by="mine")


def test_the_file_beside_the_dag_file_comes_before_that_of_airflows_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "statestore.toml").write_text("[applications.others]\n", encoding="utf-8")
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(elsewhere))
    bag = load(folder, "dag = micro_batches('orders')")
    assert bag.import_errors == {}


def test_the_options_are_documented_one_by_one() -> None:
    said = inspect.getsource(DagOptions)
    for name in DagOptions.__annotations__:
        assert f"    {name}: " in said
    assert said.count('"""') == 2 * (len(DagOptions.__annotations__) + 1)
