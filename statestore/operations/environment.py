"""What an operation needs of the world: an `Environment`, which tests make in memory.

Production uses `statestore.runtime.Runtime`. Nothing is opened before an operation asks for it, and
the maker of the environment closes it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from statestore.layout.folders import StateLayout
from statestore.layout.snapshots import StoreOffsets
from statestore.ports import (
    AuditLogReader,
    Changelog,
    Clock,
    Cluster,
    Engine,
    MonitoringClient,
    Outbox,
    ReadFile,
    Target,
)
from statestore.settings import Settings
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.offsets import Format
from statestore.stores.specs import StoreSpec
from statestore.tasks.plan import TaskEdges, TaskPlan

Partitioner = Callable[[Sequence[bytes], int], list[int]]
"""Tells the partition of each key, given the number of partitions."""


class Databases(Protocol):
    """Opens the folders of built-in stores; no owner may have the folder open meanwhile."""

    def read(self, path: Path) -> Engine:
        """Open the database read-only. TaskCorrupted if it is not a whole store."""

    def read_uncached(self, path: Path) -> Engine:
        """Open it read-only with an empty cache, so that every block's checksum is checked."""

    def rewrite(self, path: Path) -> Engine:
        """Open it for writing, to change rows without the store that owns them."""

    def format_of(self, path: Path) -> Format | None:
        """What kind of store the folder holds; None if it holds none of the built-in kinds."""

    def offsets_of(self, path: Path) -> StoreOffsets | None:
        """The offsets at which the store stands; None if the folder holds no built-in store."""

    def is_empty(self, path: Path) -> bool:
        """Whether the folder holds neither a row nor an offset.

        A folder with files that are no database belongs to a store of a user's own class and is
        never empty.
        """

    def link(self, source: Path, target: Path, owner_is_dead: bool, /) -> None:  # noqa: FBT001  # a port
        """Make `target` a copy of the store in `source`: see `ports.LinkStore`."""


class Environment(Protocol):
    """The settings of one application and the ports made from them."""

    @property
    def settings(self) -> Settings: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def databases(self) -> Databases: ...

    @property
    def partitioners(self) -> Mapping[str, Partitioner]:
        """The known ways to place a key, by name."""

    @property
    def layout(self) -> StateLayout:
        """The folder of the application; Misuse if the state directory cannot be a folder."""

    @property
    def target(self) -> Target:
        """Where exports lie; InvalidSetting if `statestore.export.target` is not set."""

    @property
    def read_file(self) -> ReadFile:
        """Reads the files of lookups."""

    @property
    def cluster(self) -> Cluster:
        """The brokers, which were asked once whether they are fit: Unavailable, BrokerTooOld."""

    @property
    def changelog(self) -> Changelog: ...

    @property
    def outbox(self) -> Outbox:
        """An outbox without transactions, in the name of the application's group; open it first."""

    @property
    def audit_log_reader(self) -> AuditLogReader: ...

    @property
    def monitoring_client(self) -> MonitoringClient: ...

    def task_edges(self, plan: TaskPlan, batch_bytes: int | None) -> TaskEdges:
        """What one stream task reads and writes by, which it closes itself; all share the rest.

        `batch_bytes`: the largest batch that every topic the task writes accepts, if known.
        """

    def open_store(self, spec: StoreSpec, path: Path) -> BuiltIn:
        """Open a store that belongs to no stream task, without a write-ahead log."""

    def check_settings(self) -> None:
        """InvalidSetting if the Kafka clients or RocksDB would refuse the settings later."""

    def with_settings(self, settings: Settings) -> "Environment":
        """The same world under other settings; it is closed together with this one."""
