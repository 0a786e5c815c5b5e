"""Rows of serdes of a schema registry as columns, with a real registry."""

from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import (
    Deployed,
    DeployedSchema,
    DeployedStore,
    DeployedWriter,
    publish_deployed,
)
from statestore.spark.reading.read_options import plan_of
from statestore.spark.reading.store_reader import StoreReader
from tests.schema_registry_rig import Registry, started_registry

pytestmark = pytest.mark.kafka
ORDER_1 = (
    '{"type":"record","name":"Order","namespace":"shop","fields":'
    '[{"name":"customer","type":"string"},{"name":"cents","type":"long"}]}'
)
ORDER_2 = ORDER_1.replace("]}", ',{"name":"coupon","type":["null","string"],"default":null}]}')
JSON_ORDER = (
    '{"title":"Order","type":"object","properties":{"cents":{"type":"integer"}},'
    '"required":["cents"]}'
)


running = pytest.fixture(scope="module")(started_registry)


def kept(folder: Path, store: str, writers: list[tuple[ss.Serde[Any], Any]]) -> None:
    """Make a store with a row by each of the writers; the last one is deployed."""
    layout = StateLayout(folder, "shop")
    spec = ss.persistent_key_value_store(store, key_serde=serdes.STRING, value_serde=serdes.BYTES)
    with ss.open_store(spec, layout.task_dir(TaskId(0, 0)) / "rocksdb") as rows:
        for n, (serde, value) in enumerate(writers):
            written = serde.in_store(store, "value", "shop").serialize(value)
            rows.put(f"k{n}", written)
        rows.commit({TopicPartition(f"shop-{store}-changelog", 0): 1})
    last = writers[-1][0]
    described = DeployedStore(
        0,
        serdes.STRING.name,
        last.name,
        persistent=True,
        kind=spec.kind,
        value_writers=[DeployedWriter(0, last.name, DeployedSchema.of(last.schema))],
    )
    publish_deployed(layout, Deployed(stores={store: described}))


def rows(folder: Path, store: str, **options: str) -> list[Any]:
    named = {"state_dir": str(folder), "application_id": "shop", "store": store}
    reader = StoreReader(plan_of({**named, **options}))
    (part,) = reader.partitions()
    return [row["value"] for batch in reader.read(part) for row in batch.to_pylist()]


def test_rows_of_a_registry_are_structs_by_the_schema_that_was_deployed(
    running: Registry, tmp_path: Path
) -> None:
    registry = ss.SchemaRegistry(running.url, auto_register=True)
    first, second = (serdes.avro(text, registry=registry) for text in (ORDER_1, ORDER_2))
    older, newer = {"customer": "ann", "cents": 5}, {"customer": "bob", "cents": 7, "coupon": "x"}
    kept(tmp_path, "orders", [(first, older), (second, newer)])
    found = rows(tmp_path, "orders", schema_registry=running.url)
    assert found == [{**older, "coupon": None}, newer]
    assert isinstance(rows(tmp_path, "orders", schema_registry=running.url, typed="false")[0], str)
    assert rows(tmp_path, "orders", raw="true")[0][:1] == b"\0"


def test_rows_of_json_schema_are_structs(running: Registry, tmp_path: Path) -> None:
    registry = ss.SchemaRegistry(running.url, auto_register=True)
    kept(tmp_path, "sums", [(serdes.json_schema(JSON_ORDER, registry=registry), {"cents": 5})])
    assert rows(tmp_path, "sums", schema_registry=running.url) == [{"cents": 5}]


def test_without_the_registry_the_error_names_the_option(running: Registry, tmp_path: Path) -> None:
    registry = ss.SchemaRegistry(running.url, auto_register=True)
    serde = serdes.avro(ORDER_1, registry=registry)
    kept(tmp_path, "orders", [(serde, {"customer": "ann", "cents": 5})])
    with pytest.raises(Misuse, match=r"CONFLUENT_AVRO.*schema_registry"):
        rows(tmp_path, "orders")
    for secret in ("http://me:abc@host", "http://me@host", "http://${ME}:abc@host"):
        with pytest.raises(Misuse, match=r"schema_registry would be sent.*\$\{USER\}"):
            rows(tmp_path, "orders", schema_registry=secret)
