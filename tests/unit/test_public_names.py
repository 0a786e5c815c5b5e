"""The public names are a contract: adding one is a decision, losing one breaks somebody."""

import subprocess
import sys

import pytest

import statestore

PUBLIC = (
    "BatchProcessor",
    "EmitStrategy",
    "IsolationLevel",
    "KGroupedStream",
    "KStream",
    "KTable",
    "KeyValueSpec",
    "KeyValueStore",
    "Materialized",
    "OnError",
    "Position",
    "PositionBound",
    "ProcessingGuarantee",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
    "PutResult",
    "ReadOnlyKeyValueStore",
    "Record",
    "RunSummary",
    "Serde",
    "Settings",
    "StateStore",
    "StreamsBuilder",
    "TaskId",
    "TopicPartition",
    "Topology",
    "VersionedRecord",
    "Windowed",
    "errors",
    "in_memory_key_value_store",
    "open_store",
    "persistent_key_value_store",
    "run",
    "serdes",
)


def test_the_public_names_are_these() -> None:
    assert tuple(statestore.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(statestore, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Kafka'"):
        statestore.Kafka  # noqa: B018 - asking is the test


def test_importing_statestore_imports_no_client() -> None:
    heavy = "{'rocksdict', 'confluent_kafka', 'pyspark', 'airflow', 'great_expectations'}"
    code = f"import sys, statestore; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
