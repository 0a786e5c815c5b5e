# The one list of public names, for type checkers, for editors, and for __init__.py itself.

from statestore import agg as agg
from statestore import errors as errors
from statestore import serdes as serdes
from statestore.kafka.schema_registry import SchemaRegistry as SchemaRegistry
from statestore.model.ids import Position as Position
from statestore.model.ids import PositionBound as PositionBound
from statestore.model.ids import TaskId as TaskId
from statestore.model.ids import TopicPartition as TopicPartition
from statestore.model.modes import AutoOffsetReset as AutoOffsetReset
from statestore.model.modes import EmitStrategy as EmitStrategy
from statestore.model.modes import IsolationLevel as IsolationLevel
from statestore.model.modes import OnError as OnError
from statestore.model.modes import ProcessingGuarantee as ProcessingGuarantee
from statestore.model.modes import PunctuationType as PunctuationType
from statestore.model.modes import Span as Span
from statestore.model.modes import Time as Time
from statestore.model.records import KeyAtTime as KeyAtTime
from statestore.model.records import PutResult as PutResult
from statestore.model.records import Record as Record
from statestore.model.records import Schema as Schema
from statestore.model.records import Serde as Serde
from statestore.model.records import SerdeContext as SerdeContext
from statestore.model.records import Subscription as Subscription
from statestore.model.records import Timer as Timer
from statestore.model.records import VersionedRecord as VersionedRecord
from statestore.model.records import Windowed as Windowed
from statestore.operations.running.run import RunSummary as RunSummary
from statestore.runtime.public import open_snapshot as open_snapshot
from statestore.runtime.public import open_store as open_store
from statestore.runtime.public import run as run
from statestore.settings import Settings as Settings
from statestore.stores.contracts import KeyValueStore as KeyValueStore
from statestore.stores.contracts import ReadOnlyKeyValueStore as ReadOnlyKeyValueStore
from statestore.stores.contracts import ReadOnlySessionStore as ReadOnlySessionStore
from statestore.stores.contracts import (
    ReadOnlyVersionedKeyValueStore as ReadOnlyVersionedKeyValueStore,
)
from statestore.stores.contracts import ReadOnlyWindowStore as ReadOnlyWindowStore
from statestore.stores.contracts import SessionStore as SessionStore
from statestore.stores.contracts import StateStore as StateStore
from statestore.stores.contracts import StoreContext as StoreContext
from statestore.stores.contracts import VersionedKeyValueStore as VersionedKeyValueStore
from statestore.stores.contracts import WindowStore as WindowStore
from statestore.stores.migration import Migration as Migration
from statestore.stores.specs import KeyValueSpec as KeyValueSpec
from statestore.stores.specs import SessionSpec as SessionSpec
from statestore.stores.specs import StoreSupplier as StoreSupplier
from statestore.stores.specs import VersionedSpec as VersionedSpec
from statestore.stores.specs import WindowSpec as WindowSpec
from statestore.stores.specs import in_memory_key_value_store as in_memory_key_value_store
from statestore.stores.specs import (
    in_memory_versioned_key_value_store as in_memory_versioned_key_value_store,
)
from statestore.stores.specs import persistent_key_value_store as persistent_key_value_store
from statestore.stores.specs import (
    persistent_versioned_key_value_store as persistent_versioned_key_value_store,
)
from statestore.stores.specs_by_kind import key_value_store as key_value_store
from statestore.stores.specs_by_kind import session_store as session_store
from statestore.stores.specs_by_kind import versioned_key_value_store as versioned_key_value_store
from statestore.stores.specs_by_kind import window_store as window_store
from statestore.stores.timer_specs import TimerSpec as TimerSpec
from statestore.stores.timer_specs import timer_store as timer_store
from statestore.stores.window_specs import in_memory_session_store as in_memory_session_store
from statestore.stores.window_specs import in_memory_window_store as in_memory_window_store
from statestore.stores.window_specs import persistent_session_store as persistent_session_store
from statestore.stores.window_specs import persistent_window_store as persistent_window_store
from statestore.topology.dsl.builder import StreamsBuilder as StreamsBuilder
from statestore.topology.dsl.cogrouped_streams import CogroupedKStream as CogroupedKStream
from statestore.topology.dsl.cogrouped_streams import (
    SessionWindowedCogroupedKStream as SessionWindowedCogroupedKStream,
)
from statestore.topology.dsl.cogrouped_streams import (
    TimeWindowedCogroupedKStream as TimeWindowedCogroupedKStream,
)
from statestore.topology.dsl.grouped_streams import CountWindowedKStream as CountWindowedKStream
from statestore.topology.dsl.grouped_streams import KGroupedStream as KGroupedStream
from statestore.topology.dsl.grouped_streams import SessionWindowedKStream as SessionWindowedKStream
from statestore.topology.dsl.grouped_streams import TimeWindowedKStream as TimeWindowedKStream
from statestore.topology.dsl.ktables import KGroupedTable as KGroupedTable
from statestore.topology.dsl.ktables import KTable as KTable
from statestore.topology.dsl.streams import KStream as KStream
from statestore.topology.graph import Topology as Topology
from statestore.topology.joins.global_tables import GlobalKTable as GlobalKTable
from statestore.topology.joins.join_windows import JoinWindows as JoinWindows
from statestore.topology.materialized import Materialized as Materialized
from statestore.topology.processors.timers import Timers as Timers
from statestore.topology.processors.user_processors import BatchProcessor as BatchProcessor
from statestore.topology.processors.user_processors import Processor as Processor
from statestore.topology.processors.user_processors import ProcessorContext as ProcessorContext
from statestore.topology.tables.suppressed import Suppressed as Suppressed
from statestore.topology.windows.counts import CountWindows as CountWindows
from statestore.topology.windows.hopping import HoppingWindows as HoppingWindows
from statestore.topology.windows.hopping import TumblingWindows as TumblingWindows
from statestore.topology.windows.session_windows import SessionWindows as SessionWindows
from statestore.topology.windows.sliding import SlidingWindows as SlidingWindows

__version__: str
