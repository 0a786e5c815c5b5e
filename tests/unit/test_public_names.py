"""The public face: its names are pinned, and importing it opens and imports nothing heavy."""

import importlib
import json
import types

import pytest

import statestore as ss
from tests.builders import DEADLINE_S, child

PINNED = """
    AutoOffsetReset BatchProcessor CogroupedKStream CountWindowedKStream CountWindows
    EmitStrategy GlobalKTable HoppingWindows
    IsolationLevel JoinWindows SessionWindowedCogroupedKStream TimeWindowedCogroupedKStream
    KGroupedStream KGroupedTable KStream KTable KeyAtTime KeyValueSpec KeyValueStore
    Materialized Migration OnError Position PositionBound ProcessingGuarantee Processor
    ProcessorContext PunctuationType PutResult ReadOnlyKeyValueStore
    ReadOnlySessionStore ReadOnlyVersionedKeyValueStore ReadOnlyWindowStore
    Record RunSummary Schema SchemaRegistry Serde SerdeContext SessionSpec SessionStore
    SessionWindowedKStream SessionWindows Settings SlidingWindows Span StateStore StoreContext
    StoreSupplier StreamsBuilder Subscription Suppressed TaskId Time TimeWindowedKStream
    Timer TimerSpec Timers TopicPartition Topology TumblingWindows VersionedKeyValueStore
    VersionedRecord VersionedSpec WindowSpec WindowStore Windowed agg errors
    in_memory_key_value_store in_memory_session_store
    in_memory_versioned_key_value_store in_memory_window_store
    key_value_store session_store versioned_key_value_store window_store
    open_snapshot open_store persistent_key_value_store persistent_session_store
    persistent_versioned_key_value_store persistent_window_store run serdes
    timer_store
"""
HEAVY = ("rocksdict", "confluent_kafka", "pyspark", "airflow", "great_expectations", "pandas")


def test_the_public_names_are_those_pinned_here() -> None:
    assert vars(ss)["__all__"] == sorted(PINNED.split()) == dir(ss)


@pytest.mark.parametrize("name", dir(ss))
def test_every_public_name_resolves_to_a_thing_of_that_name_with_a_docstring(name: str) -> None:
    thing = getattr(ss, name)
    assert thing.__doc__ or not callable(thing)
    if not isinstance(thing, types.ModuleType) and hasattr(thing, "__name__"):
        assert thing.__name__ == name
        assert getattr(importlib.import_module(thing.__module__), name) is thing


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'StateStor'"):
        ss.StateStor  # type: ignore[attr-defined]  # noqa: B018  # the look-up is the point


IMPORTING = """
import json, sys
import statestore
from statestore import errors, serdes
before = set(sys.modules)
statestore.StreamsBuilder, statestore.Settings, statestore.Record
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_importing_it_and_writing_a_topology_imports_no_client_and_no_database() -> None:
    with child(IMPORTING) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert errors == ""
    assert [name for name in HEAVY if name in json.loads(output)] == []
