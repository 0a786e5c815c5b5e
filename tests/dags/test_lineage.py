"""What OpenLineage hears: topics in and out, stores, exports, and figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from statestore.airflow.lineage import lineage_of
from statestore.testing.local_kafka import LocalKafka
from tests.dags.foreign_rig import ORDERS, PIPELINE, ForeignAirflow, produce

pytestmark = pytest.mark.airflow

RUN = {
    "application_id": "orders",
    "records_in": 10,
    "records_out": 4,
    "commits": 2,
    "caught_up": True,
    "lineage": {
        "brokers": "kafka-1:9092,kafka-2:9092",
        "inputs": ["orders", "prices"],
        "outputs": ["totals"],
        "stores": ["spent"],
    },
    "error": None,
}


def names(datasets: Any) -> list[tuple[str, str]]:
    return [(one.namespace, one.name) for one in datasets]


def test_a_run_reads_topics_and_writes_topics_and_stores() -> None:
    told = lineage_of(RUN)
    assert names(told.inputs) == [
        ("kafka://kafka-1:9092", "orders"),
        ("kafka://kafka-1:9092", "prices"),
    ]
    assert names(told.outputs) == [
        ("kafka://kafka-1:9092", "totals"),
        ("statestore://orders", "spent"),
    ]
    topic: Any = told.outputs[0]
    assert topic.outputFacets["outputStatistics"].rowCount == 4
    assert told.run_facets["statestore"].figures == {
        "records_in": 10,
        "records_out": 4,
        "commits": 2,
        "caught_up": True,
    }


@pytest.mark.parametrize(
    ("target", "namespace", "name"),
    [
        ("s3://bucket/a/b", "s3://bucket", "a/b/orders/17-x"),
        ("s3://bucket", "s3://bucket", "orders/17-x"),
        ("/mnt/exports", "file", "/mnt/exports/orders/17-x"),
        ("file:///mnt/exports/", "file", "/mnt/exports/orders/17-x"),
    ],
)
def test_an_export_is_a_dataset_where_it_lies(target: str, namespace: str, name: str) -> None:
    told = lineage_of(
        {"application_id": "orders", "export_id": "17-x", "target": target, "bytes": 9}
    )
    assert names(told.outputs) == [(namespace, name)]
    assert names(told.inputs) == [("statestore://orders", "*")]


def test_an_audit_reads_the_stores_that_it_compared() -> None:
    stores = [{"store": "spent"}, {"store": "counts"}, {"store": "spent"}]
    told = lineage_of({"application_id": "orders", "verdict": "right", "stores": stores})
    assert names(told.inputs) == [("statestore://orders", one) for one in ("counts", "spent")]
    assert told.outputs == []


@pytest.mark.parametrize(
    "result", [None, {}, {"application_id": "a", "error": {"class": "Locked"}}]
)
def test_a_failure_has_no_lineage(result: dict[str, Any] | None) -> None:
    told = lineage_of(result)
    assert (told.inputs, told.outputs, told.run_facets) == ([], [], {})


@pytest.mark.slow
@pytest.mark.kafka
def test_airflow_writes_the_lineage_of_a_run_and_an_export_to_a_file(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    for topic in ("orders", "orders-counted"):
        kafka.create_topic(topic, partitions=1)
    produce(servers, "orders", "aab")
    exports = tmp_path / "exports"
    config = ORDERS.format(servers=servers)
    config += f'[applications.orders.settings]\n"statestore.export.target" = "{exports}"\n'
    dags = "micro_batches('orders'), checkpoint_export('orders')"
    airflow = ForeignAirflow.made(
        tmp_path,
        {
            "mine.py": f"from statestore.airflow import *\ndags = [{dags}]\n",
            "shop.py": PIPELINE,
            "statestore.toml": config,
            ".airflowignore": "shop.py",
        },
    )
    events = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    airflow.variables["AIRFLOW__OPENLINEAGE__TRANSPORT"] = json.dumps(transport)
    airflow.airflow("db", "migrate")
    airflow.airflow("dags", "test", "orders__micro_batches")
    airflow.airflow("dags", "test", "orders__checkpoint_export")
    said = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    ended = {one["job"]["name"]: one for one in said if one["eventType"] == "COMPLETE"}

    run = ended["orders__micro_batches.process"]
    kafka_at = f"kafka://{servers.split(',')[0]}"
    read = [(one["namespace"], one["name"]) for one in run["inputs"]]
    written = [(one["namespace"], one["name"]) for one in run["outputs"]]
    assert read == [(kafka_at, "orders")]
    assert written == [(kafka_at, "orders-counted"), ("statestore://orders", "orders-counts")]
    assert run["run"]["facets"]["statestore"]["figures"]["records_in"] == 3

    export = ended["orders__checkpoint_export.exported.export"]
    (made,) = export["outputs"]
    assert made["namespace"] == "file"
    assert made["name"].startswith(f"{exports}/orders/")
