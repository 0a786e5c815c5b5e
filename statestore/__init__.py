"""statestore: exactly-once, stateful stream processing for people who run Kafka, Spark and Airflow.

The public names (INTERFACE). Importing this module opens nothing and imports no client: each name
is loaded when first used (PEP 562).
"""

import importlib
from typing import Any

_HOMES = {
    "statestore.runtime.public": ("open_snapshot", "open_store", "run"),
    "statestore.model.ids": ("Position", "PositionBound", "TaskId", "TopicPartition"),
    "statestore.model.modes": (
        "EmitStrategy",
        "IsolationLevel",
        "OnError",
        "ProcessingGuarantee",
        "PunctuationType",
        "Span",
        "Time",
    ),
    "statestore.model.records": ("PutResult", "Record", "Serde", "VersionedRecord", "Windowed"),
    "statestore.operations.run": ("RunSummary",),
    "statestore.settings": ("Settings",),
    "statestore.stores.contracts": (
        "KeyValueStore",
        "ReadOnlyKeyValueStore",
        "ReadOnlyVersionedKeyValueStore",
        "StateStore",
        "StoreContext",
        "WindowStore",
        "VersionedKeyValueStore",
    ),
    "statestore.stores.specs": (
        "KeyValueSpec",
        "StoreSupplier",
        "VersionedSpec",
        "in_memory_key_value_store",
        "in_memory_versioned_key_value_store",
        "persistent_key_value_store",
        "persistent_versioned_key_value_store",
    ),
    "statestore.topology.builder": ("StreamsBuilder",),
    "statestore.topology.collector": ("Materialized",),
    "statestore.topology.graph": ("Topology",),
    "statestore.topology.operators": ("BatchProcessor", "Processor", "ProcessorContext"),
    "statestore.topology.grouped": ("KGroupedStream", "TimeWindowedKStream"),
    "statestore.topology.streams": ("KStream", "KTable"),
    "statestore.topology.windows": ("TumblingWindows",),
}
_MODULES = {"errors": "statestore.errors", "serdes": "statestore.stores.serdes"}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES])  # noqa: PLE0605  # computed from the table above


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'statestore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
