"""Prepares the place of a plain store for a versioned one (SEMANTICS V11).

    lock         the application's and every task's folder; Locked names an owner
    lag          the changelog's min.compaction.lag.ms, raised if it is lower   upgrade.lag-raised
    set aside    each plain store of that name to quarantine                    quarantine.renamed

The next start, with a pipeline that gives the store a history, restores it from its changelog,
whose records are the same for both kinds. Every step is done only once however often this is
called, so it is called again after a death.
"""

from pathlib import Path

import msgspec

from statestore.errors import Misuse, UnknownStore
from statestore.faults import CrashPoint, reach
from statestore.layout.activity_files import Progress, Unit
from statestore.model.ids import TaskId
from statestore.operations.activities import activities_in
from statestore.operations.deployed import read_deployed
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import existing_application
from statestore.operations.start.topics import compaction_lag_ms
from statestore.stores import keyvalue
from statestore.stores.versioned import layout as versioned_layout
from statestore.topology.logs import log_of


class UpgradeReport(msgspec.Struct, frozen=True):
    """What an upgrade did (`applied`) or would do; stream tasks by their ids."""

    store: str
    changelog: str
    compaction_lag_ms: int
    set_aside: list[str]
    versioned: list[str]
    """The stream tasks whose store is a versioned one already."""
    applied: bool = False
    compaction_lag_before_ms: int | None = None


def upgrade_to_versioned(
    environment: Environment,
    store: str,
    retention_ms: int,
    *,
    dry_run: bool,
    progress: Progress | None = None,
) -> UpgradeReport:
    """Set a plain store aside so that a versioned one can take its place (SEMANTICS V11).

    `dry_run`: nothing is touched and no broker is asked. Locked while the application runs.
    `progress` counts the stores that are set aside.
    """
    environment.settings.require("application.id", "state.dir")
    upgrade = Upgrade(environment, store, retention_ms)
    return upgrade.plan() if dry_run else upgrade.apply(progress)


class Upgrade:
    """The upgrade of one store of a stopped application."""

    def __init__(self, environment: Environment, store: str, retention_ms: int) -> None:
        """Misuse if there is no such application."""
        if retention_ms < 0:
            raise Misuse(f"history retention {retention_ms} ms is negative")
        self._environment = environment
        self._layout = existing_application(environment.layout)
        self._store = store
        self._lag_ms = compaction_lag_ms(retention_ms)

    def plan(self) -> UpgradeReport:
        """Tell what would be done; UnknownStore, or Misuse if the store is of a third kind."""
        kinds = {
            task: self._kind_of(self._layout.store_dir(task, self._store))
            for task in self._layout.tasks()
            if self._store in self._layout.stores(task)
        }
        if not kinds:
            known = {s for task in self._layout.tasks() for s in self._layout.stores(task)}
            raise UnknownStore(
                f"no store {self._store!r} in {self._layout.application_dir}; "
                f"it has: {', '.join(sorted(known)) or 'none'}"
            )
        source = read_deployed(self._layout).stores.get(self._store)
        if source is not None and source.source_topic is not None:
            raise Misuse(
                f"store {self._store!r} has topic {source.source_topic} as its log "
                "(topology.optimization), which a versioned table cannot have: give the versioned "
                "one another name"
            )
        for task, kind in kinds.items():
            if kind not in {keyvalue.KIND, versioned_layout.KIND, None}:
                raise Misuse(f"store {self._store!r} of task {task} is a {kind} one: leave it")
        return UpgradeReport(
            self._store,
            log_of(self._layout.application_id, self._store, {}),
            self._lag_ms,
            [str(task) for task, kind in kinds.items() if kind == keyvalue.KIND],
            [str(task) for task, kind in kinds.items() if kind == versioned_layout.KIND],
        )

    def apply(self, progress: Progress | None = None) -> UpgradeReport:
        """Do it. Locked while the application runs; nothing is touched then."""
        layout, clock = self._layout, self._environment.clock
        cluster = self._environment.cluster
        with layout.alone(wait_ms=0, clock=clock, locks=self._environment.settings.volume_locks):
            planned = self.plan()
            before = cluster.raise_compaction_lag(planned.changelog, self._lag_ms)
            if before is None:
                raise Misuse(
                    f"topic {planned.changelog} does not exist: without it the store's rows would "
                    "be lost; is this the application's cluster?"
                )
            reach(CrashPoint.UPGRADE_LAG_RAISED)
            with activities_in(self._environment).underway(
                "upgrade", Unit.STORES, progress
            ) as told:
                told.expect(len(planned.set_aside))
                for task_id in map(TaskId.parse, planned.set_aside):
                    path = layout.store_dir(task_id, self._store)
                    layout.quarantine(path, self._store, "upgraded", clock)
                    told.done(1)
        return msgspec.structs.replace(planned, applied=True, compaction_lag_before_ms=before)

    def _kind_of(self, path: Path) -> str | None:
        found = self._environment.databases.format_of(path)
        return None if found is None else found.kind
