"""The runtime: settings in, everything that an operation needs of the world out.

This is the only package that names concrete edges: RocksDB, Kafka and fsspec. A `Runtime` makes
each part when it is first asked for and closes what it made; the operations know it as an
`operations.environment.Environment`. Tests pass other parts, in memory.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, Self

from statestore.errors import Misuse
from statestore.kafka.partitioner import crc32_partitions, murmur2_partitions
from statestore.layout.folders import StateLayout
from statestore.operations.environment import Databases, Partitioner
from statestore.ports import (
    AuditLogReader,
    Changelog,
    Clock,
    Cluster,
    MonitoringClient,
    Outbox,
    ReadFile,
    Source,
    Target,
)
from statestore.runtime.brokers import KafkaBrokers
from statestore.runtime.databases import RocksDatabases, open_built_in, options_hook
from statestore.settings import Settings, expand
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.specs import StoreSpec
from statestore.targets import Address, FsspecTarget, fixed, read_file
from statestore.tasks.plan import TaskEdges, TaskPlan

PARTITIONERS: Mapping[str, Partitioner] = {
    "murmur2": murmur2_partitions,
    "crc32": crc32_partitions,
}


class SystemClock:
    """The clocks of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class Brokers(Protocol):
    """Makes the clients of one application; `KafkaBrokers` in production."""

    def cluster(self) -> Cluster: ...
    def changelog(self) -> Changelog: ...
    def source(self) -> Source: ...
    def outbox(self) -> Outbox: ...
    def task_outbox(self, plan: TaskPlan, batch_bytes: int | None) -> Outbox: ...
    def audit_log_reader(self) -> AuditLogReader: ...
    def monitoring_client(self) -> MonitoringClient: ...
    def check_settings(self) -> None: ...
    def close(self) -> None: ...


class Runtime:
    """Everything an operation on one application needs. Use `with`, or call `close`."""

    def __init__(
        self,
        settings: Settings | Mapping[str, object] | None = None,
        *,
        clock: Clock | None = None,
        brokers: Callable[[Settings], Brokers] = KafkaBrokers,
        databases: Databases | None = None,
        open_target: Callable[[str], Target] | None = None,
    ) -> None:
        self.settings = Settings.of(settings)
        self.clock = clock or SystemClock()
        self.databases = databases or RocksDatabases()
        self.partitioners = PARTITIONERS
        self._brokers_of = brokers
        self._open_target = open_target or lasting_target
        self._closes = ExitStack()

    @cached_property
    def layout(self) -> StateLayout:
        """The folder of the application; Misuse if the state directory cannot be a folder."""
        self.settings.require("application.id", "state.dir")
        folder = Path(expand(self.settings.state_dir, "state.dir"))
        try:
            folder.exists()
        except PermissionError:
            pass  # The next write there reports it.
        except (OSError, ValueError) as error:
            raise Misuse(f"state.dir {str(folder)[:80]!r}: {error}: name another folder") from error
        return StateLayout(folder, self.settings.application_id)

    @cached_property
    def target(self) -> Target:
        """Where exports lie; InvalidSetting if `statestore.export.target` is not set."""
        self.settings.require("application.id", "statestore.export.target")
        return self._open_target(expand(self.settings.export_target, "statestore.export.target"))

    @property
    def read_file(self) -> ReadFile:
        """Reads the files of lookups."""
        return read_file

    @cached_property
    def cluster(self) -> Cluster:
        """The brokers, which were asked once whether they are fit: Unavailable, BrokerTooOld."""
        cluster = self._brokers.cluster()
        cluster.check()
        return cluster

    @cached_property
    def changelog(self) -> Changelog:
        """Reads the changelogs of the application."""
        return self._brokers.changelog()

    @cached_property
    def outbox(self) -> Outbox:
        """An outbox without transactions, in the name of the application's group; open it first."""
        outbox = self._brokers.outbox()
        self._closes.callback(outbox.close)
        return outbox

    @cached_property
    def audit_log_reader(self) -> AuditLogReader:
        """Reads changelogs for audits."""
        reader = self._brokers.audit_log_reader()
        self._closes.callback(reader.close)
        return reader

    @cached_property
    def monitoring_client(self) -> MonitoringClient:
        """Watches the application without disturbing it."""
        client = self._brokers.monitoring_client()
        self._closes.callback(client.close)
        return client

    def task_edges(self, plan: TaskPlan, batch_bytes: int | None) -> TaskEdges:
        """What one stream task reads and writes by, which it closes itself; all share the rest."""
        brokers = self._brokers
        return TaskEdges(
            brokers.source(),
            brokers.task_outbox(plan, batch_bytes),
            brokers.changelog(),
            brokers.cluster(),
            self.clock,
            partial(self._open_task_store, plan),
            self.databases.link,
        )

    def open_store(self, spec: StoreSpec, path: Path) -> BuiltIn:
        """Open a store that belongs to no stream task, without a write-ahead log."""
        level = self.settings.effective_isolation_level
        return open_built_in(spec, path, self.settings, self.clock, wal=False, level=level)

    def check_settings(self) -> None:
        """InvalidSetting if the Kafka clients or RocksDB would refuse the settings later."""
        self._brokers.check_settings()
        options_hook(self.settings, "")

    def with_settings(self, settings: Settings) -> "Runtime":
        """The same world under other settings; it is closed together with this one."""
        made = Runtime(
            settings,
            clock=self.clock,
            brokers=self._brokers_of,
            databases=self.databases,
            open_target=self._open_target,
        )
        return self._closes.enter_context(made)

    def close(self) -> None:
        """Close whatever was made. Calling it twice does no harm."""
        self._closes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @cached_property
    def _brokers(self) -> Brokers:
        self.settings.require("bootstrap.servers")
        brokers = self._brokers_of(self.settings)
        self._closes.callback(brokers.close)
        return brokers

    def _open_task_store(self, plan: TaskPlan, spec: StoreSpec, path: Path) -> BuiltIn:
        return open_built_in(
            spec,
            path,
            self.settings,
            self.clock,
            slots=plan.slots,
            wal=self.settings.write_ahead_log is True,
            level=self.settings.effective_isolation_level,
            task=str(plan.task_id),
        )


def lasting_target(url: str) -> FsspecTarget:
    """The target at a URL; Misuse if what is stored there would end with this process."""
    target = FsspecTarget(url)
    if not target.lasting:
        raise Misuse(
            f"{target.url} ends with this process, and every export there with it: name a folder "
            "or an object store"
        )
    return target


def portable_target(settings: Settings) -> str | None:
    """`statestore.export.target` in a form that means the same on any machine.

    It is absolute and its variables are replaced. None if there is no target, or if it holds a
    secret: then it stays as it was given, because the names of variables may travel and what they
    hold may not.
    """
    target = expand(settings.export_target, "statestore.export.target")
    return fixed(target) if target and not Address.of(target).secrets else None
