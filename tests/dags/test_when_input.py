"""The DAG when_input: its shape and limits, and a trigger that fires by what waits on a broker."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization
from confluent_kafka import Producer

import statestore as ss
import statestore.airflow
from statestore import serdes
from statestore.airflow import KafkaLagSensor, KafkaLagTrigger, load_applications, when_input
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.dags.project_rig import loaded

pytestmark = pytest.mark.airflow

TWO = """
[applications.orders]
pipeline = "shop:orders"
[applications.orders.input]
records = 1000
age = "5m"
rest = "1h"
[applications.silent]
"""
GLANCE_S = 1  # for what must not happen
ORDER = ["wait_for_input", "wait_until_switched_on", "process", "rest_after_failure"]


@pytest.fixture
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DAG:
    return loaded(tmp_path, TWO, monkeypatch).dags["orders__when_input"]


# Its shape.


def test_only_an_application_with_limits_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {name for name in loaded(tmp_path, TWO, monkeypatch).dags if "when_input" in name}
    assert made == {"orders__when_input"}


def test_it_waits_then_processes_and_begins_again(dag: DAG) -> None:
    for before, after in pairwise(ORDER):
        assert dag.get_task(before).downstream_task_ids == {after}
    assert dag.max_active_runs == 1
    process: Any = dag.get_task("process")
    assert process.trigger_dag_id == "orders__micro_batches"
    assert process.deferrable
    assert dag.get_task("rest_after_failure").trigger_rule == "one_failed"
    DagSerialization.to_dict(dag)


def test_its_limits_are_those_of_the_file_unless_it_is_given_others(
    dag: DAG, tmp_path: Path
) -> None:
    waits: Any = dag.get_task("wait_for_input")
    assert (waits.records, waits.age) == (1000, timedelta(minutes=5))
    application = load_applications(waits.source.config)[0]
    given: Any = when_input(application, records=3, poll=timedelta(seconds=1))
    waits = given.get_task("wait_for_input")
    assert (waits.records, waits.age, waits.poll) == (3, timedelta(minutes=5), timedelta(seconds=1))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("records = -1", "whole number, 0 or more"),
        ("records = true", "whole number, 0 or more"),
        ("age = 5", "time span such as '30s', not 5"),
        ("wait = '5s'", "has 'wait'; it takes records, age, poll and rest"),
    ],
)
def test_wrong_limits_are_refused_with_their_place(tmp_path: Path, line: str, message: str) -> None:
    config = tmp_path / "statestore.toml"
    config.write_text(f"[applications.orders]\n[applications.orders.input]\n{line}\n")
    with pytest.raises(ValueError, match=message) as refused:
        when_input("orders", config=config)
    assert f"{config}: [applications.orders.input]" in str(refused.value)


# Its trigger.


def test_the_trigger_comes_back_from_airflows_database_as_it_was(dag: DAG) -> None:
    sensor = dag.get_task("wait_for_input")
    assert isinstance(sensor, KafkaLagSensor)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(Context())
    trigger = deferred.value.trigger
    path, arguments = trigger.serialize()
    assert path == "statestore.airflow.input_trigger.KafkaLagTrigger"
    assert KafkaLagTrigger(**arguments).serialize() == (path, arguments)
    assert arguments["records"] == 1000
    assert arguments["age_s"] == 300


def test_an_error_that_does_not_pass_fails_the_task_for_good(dag: DAG) -> None:
    sensor = dag.get_task("wait_for_input")
    assert isinstance(sensor, KafkaLagSensor)
    with pytest.raises(AirflowFailException, match="orders: InvalidSetting: no such key"):
        sensor.resume(Context(), {"error": "InvalidSetting: no such key"})
    assert sensor.resume(Context(), {"records": 3}) == {"records": 3}


def topology() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("triggering-in").group_by_key().count("counts")
    return b.build()


@pytest.fixture
def config(kafka: LocalKafka, tmp_path: Path) -> Path:
    kafka.create_topic("triggering-in", partitions=2, config={"retention.ms": "-1"})
    path = tmp_path / "statestore.toml"
    path.write_text(
        "[applications.triggering]\n"
        f'bootstrap_servers = "{kafka.bootstrap_servers}"\n'
        'state_dir = "state"\nprocessing_guarantee = "exactly_once"\n',
        encoding="utf-8",
    )
    return path


def settings_of(kafka: LocalKafka, config: Path) -> dict[str, object]:
    return {
        "application.id": "triggering",
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(config.parent / "state"),
        "processing.guarantee": "exactly_once",
    }


def produce(kafka: LocalKafka, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(count):
        producer.produce("triggering-in", "v", "k", timestamp=1000)
    assert producer.flush(DEADLINE_S) == 0


async def first_event(trigger: KafkaLagTrigger) -> dict[str, Any]:
    async with aclosing(trigger.run()) as events:  # type: ignore[type-var]
        async for event in events:
            return dict(event.payload)
    raise AssertionError("a trigger ended without an event")


@pytest.mark.kafka
def test_the_trigger_fires_when_more_waits_than_it_was_told(
    kafka: LocalKafka, config: Path
) -> None:
    def trigger(**limits: Any) -> KafkaLagTrigger:
        return KafkaLagTrigger(
            application_id="triggering", config=str(config), poll_s=0.05, **limits
        )

    async def fires(**limits: Any) -> dict[str, Any]:
        return await asyncio.wait_for(first_event(trigger(**limits)), DEADLINE_S)

    async def waits_until_produced() -> dict[str, Any]:
        waiting = asyncio.create_task(first_event(trigger(records=4)))
        await asyncio.to_thread(produce, kafka, 4)
        done, _ = await asyncio.wait([waiting], timeout=GLANCE_S)
        assert not done, "four are not more than four"
        await asyncio.to_thread(produce, kafka, 1)
        return await asyncio.wait_for(waiting, DEADLINE_S)

    assert asyncio.run(fires())["is_first_run"]
    ss.run(topology(), settings_of(kafka, config))
    found = asyncio.run(waits_until_produced())
    assert found == {"records": 5, "oldest_ms": 1000, "is_first_run": False}
    assert asyncio.run(fires(records=100, age_s=60))["records"] == 5  # they are old
    ss.run(topology(), settings_of(kafka, config))
    unknown = KafkaLagTrigger(application_id="nobody", config=str(config))
    assert "nobody" in asyncio.run(first_event(unknown))["error"]


def test_a_dag_file_that_has_the_old_names_still_loads_and_is_told_the_new_ones() -> None:
    with pytest.warns(DeprecationWarning, match="InputSensor is called KafkaLagSensor now"):
        old = statestore.airflow.InputSensor
    assert old is KafkaLagSensor
