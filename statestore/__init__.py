"""statestore: exactly-once, stateful stream processing for people who run Kafka, Spark and Airflow.

The public names (INTERFACE). Importing this module opens nothing and imports no client: each name
is loaded when it is first used (PEP 562). Type checkers and editors read the imports below instead,
and a test compares both.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from statestore import errors, serdes
    from statestore.kafka.schema_registry import SchemaRegistry
    from statestore.model.ids import Position, PositionBound, TaskId, TopicPartition
    from statestore.model.modes import (
        AutoOffsetReset,
        EmitStrategy,
        IsolationLevel,
        OnError,
        ProcessingGuarantee,
        PunctuationType,
        Span,
        Time,
    )
    from statestore.model.records import (
        KeyAtTime,
        PutResult,
        Record,
        Schema,
        Serde,
        SerdeContext,
        Subscription,
        Timer,
        VersionedRecord,
        Windowed,
    )
    from statestore.operations.running.run import RunSummary
    from statestore.runtime.public import open_snapshot, open_store, run
    from statestore.settings import Settings
    from statestore.stores.contracts import (
        KeyValueStore,
        ReadOnlyKeyValueStore,
        ReadOnlySessionStore,
        ReadOnlyVersionedKeyValueStore,
        ReadOnlyWindowStore,
        SessionStore,
        StateStore,
        StoreContext,
        VersionedKeyValueStore,
        WindowStore,
    )
    from statestore.stores.migration import Migration
    from statestore.stores.specs import (
        KeyValueSpec,
        SessionSpec,
        StoreSupplier,
        VersionedSpec,
        WindowSpec,
        in_memory_key_value_store,
        in_memory_versioned_key_value_store,
        persistent_key_value_store,
        persistent_versioned_key_value_store,
    )
    from statestore.stores.timer_specs import TimerSpec, timer_store
    from statestore.stores.window_specs import (
        in_memory_session_store,
        in_memory_window_store,
        persistent_session_store,
        persistent_window_store,
    )
    from statestore.topology.dsl.builder import StreamsBuilder
    from statestore.topology.dsl.cogrouped_streams import (
        CogroupedKStream,
        SessionWindowedCogroupedKStream,
        TimeWindowedCogroupedKStream,
    )
    from statestore.topology.dsl.grouped_streams import (
        CountWindowedKStream,
        KGroupedStream,
        SessionWindowedKStream,
        TimeWindowedKStream,
    )
    from statestore.topology.dsl.ktables import KGroupedTable, KTable
    from statestore.topology.dsl.streams import KStream
    from statestore.topology.graph import Topology
    from statestore.topology.joins.global_tables import GlobalKTable
    from statestore.topology.joins.windows import JoinWindows
    from statestore.topology.materialized import Materialized
    from statestore.topology.processors.process import BatchProcessor, Processor, ProcessorContext
    from statestore.topology.processors.timers import Timers
    from statestore.topology.tables.suppressed import Suppressed
    from statestore.topology.windows.counts import CountWindows
    from statestore.topology.windows.hopping import HoppingWindows, TumblingWindows
    from statestore.topology.windows.sessions import SessionWindows
    from statestore.topology.windows.sliding import SlidingWindows
else:
    import importlib

    _HOMES = {
        "statestore.runtime.public": ("open_snapshot", "open_store", "run"),
        "statestore.kafka.schema_registry": ("SchemaRegistry",),
        "statestore.model.ids": ("Position", "PositionBound", "TaskId", "TopicPartition"),
        "statestore.model.modes": (
            "AutoOffsetReset",
            "EmitStrategy",
            "IsolationLevel",
            "OnError",
            "ProcessingGuarantee",
            "PunctuationType",
            "Span",
            "Time",
        ),
        "statestore.model.records": (
            "KeyAtTime",
            "PutResult",
            "Record",
            "Schema",
            "Serde",
            "SerdeContext",
            "Subscription",
            "Timer",
            "VersionedRecord",
            "Windowed",
        ),
        "statestore.operations.running.run": ("RunSummary",),
        "statestore.settings": ("Settings",),
        "statestore.stores.contracts": (
            "KeyValueStore",
            "ReadOnlyKeyValueStore",
            "ReadOnlySessionStore",
            "ReadOnlyVersionedKeyValueStore",
            "ReadOnlyWindowStore",
            "StateStore",
            "StoreContext",
            "VersionedKeyValueStore",
            "SessionStore",
            "WindowStore",
        ),
        "statestore.stores.specs": (
            "KeyValueSpec",
            "SessionSpec",
            "StoreSupplier",
            "VersionedSpec",
            "WindowSpec",
            "in_memory_key_value_store",
            "in_memory_versioned_key_value_store",
            "persistent_key_value_store",
            "persistent_versioned_key_value_store",
        ),
        "statestore.stores.timer_specs": ("TimerSpec", "timer_store"),
        "statestore.stores.window_specs": (
            "in_memory_session_store",
            "in_memory_window_store",
            "persistent_session_store",
            "persistent_window_store",
        ),
        "statestore.topology.dsl.builder": ("StreamsBuilder",),
        "statestore.topology.dsl.cogrouped_streams": (
            "CogroupedKStream",
            "SessionWindowedCogroupedKStream",
            "TimeWindowedCogroupedKStream",
        ),
        "statestore.topology.graph": ("Topology",),
        "statestore.topology.windows.counts": ("CountWindows",),
        "statestore.topology.dsl.grouped_streams": (
            "CountWindowedKStream",
            "KGroupedStream",
            "SessionWindowedKStream",
            "TimeWindowedKStream",
        ),
        "statestore.topology.joins.global_tables": ("GlobalKTable",),
        "statestore.topology.joins.windows": ("JoinWindows",),
        "statestore.topology.dsl.ktables": ("KGroupedTable", "KTable"),
        "statestore.stores.migration": ("Migration",),
        "statestore.topology.materialized": ("Materialized",),
        "statestore.topology.processors.process": (
            "BatchProcessor",
            "Processor",
            "ProcessorContext",
        ),
        "statestore.topology.dsl.streams": ("KStream",),
        "statestore.topology.windows.sessions": ("SessionWindows",),
        "statestore.topology.windows.sliding": ("SlidingWindows",),
        "statestore.topology.tables.suppressed": ("Suppressed",),
        "statestore.topology.processors.timers": ("Timers",),
        "statestore.topology.windows.hopping": ("HoppingWindows", "TumblingWindows"),
    }
    _MODULES = {"errors": "statestore.errors", "serdes": "statestore.serdes"}
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        said = f"module 'statestore' has no attribute {name!r}"
        if not name.startswith("_"):
            missing = importlib.import_module("statestore.topology.missing_methods")
            instead = missing.OF_PACKAGE.get(name)
            said += "" if instead is None else f": {instead}"
        raise AttributeError(said)

    def __dir__() -> list[str]:
        return __all__


__all__ = [
    "AutoOffsetReset",
    "BatchProcessor",
    "CogroupedKStream",
    "CountWindowedKStream",
    "CountWindows",
    "EmitStrategy",
    "GlobalKTable",
    "HoppingWindows",
    "IsolationLevel",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KeyAtTime",
    "KeyValueSpec",
    "KeyValueStore",
    "Materialized",
    "Migration",
    "OnError",
    "Position",
    "PositionBound",
    "ProcessingGuarantee",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
    "PutResult",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedKeyValueStore",
    "ReadOnlyWindowStore",
    "Record",
    "RunSummary",
    "Schema",
    "SchemaRegistry",
    "Serde",
    "SerdeContext",
    "SessionSpec",
    "SessionStore",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "Settings",
    "SlidingWindows",
    "Span",
    "StateStore",
    "StoreContext",
    "StoreSupplier",
    "StreamsBuilder",
    "Subscription",
    "Suppressed",
    "TaskId",
    "Time",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "Timer",
    "TimerSpec",
    "Timers",
    "TopicPartition",
    "Topology",
    "TumblingWindows",
    "VersionedKeyValueStore",
    "VersionedRecord",
    "VersionedSpec",
    "WindowSpec",
    "WindowStore",
    "Windowed",
    "errors",
    "in_memory_key_value_store",
    "in_memory_session_store",
    "in_memory_versioned_key_value_store",
    "in_memory_window_store",
    "open_snapshot",
    "open_store",
    "persistent_key_value_store",
    "persistent_session_store",
    "persistent_versioned_key_value_store",
    "persistent_window_store",
    "run",
    "serdes",
    "timer_store",
]
