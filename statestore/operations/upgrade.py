"""Makes way for a versioned store where a plain one was (SEMANTICS V11).

    lock         the application's and every task's folder; Locked names an owner
    lag          the changelog's min.compaction.lag.ms, raised if it is lower   upgrade.lag-raised
    set aside    each plain store of that name to quarantine                    quarantine.renamed

The next start, with a pipeline that gives the store a history, restores it from its changelog,
whose records are the same for both kinds. Every step is done once however often this is called, so
after a death it is called again.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from statestore.errors import Misuse, UnknownStore
from statestore.faults import CrashPoint, reach
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId
from statestore.operations.deployed import read_deployed
from statestore.operations.topics import compaction_lag_ms
from statestore.ports import Clock
from statestore.stores import keyvalue, versioned_layout
from statestore.topology.logs import log_of

RaiseLag = Callable[[str, int], int | None]
"""A topic's min.compaction.lag.ms becomes at least that; what it was, None: no such topic."""


class UpgradeReport(msgspec.Struct, frozen=True):
    """What an upgrade did (`applied`) or would do; stream tasks by their ids."""

    store: str
    changelog: str
    compaction_lag_ms: int
    set_aside: list[str]
    versioned: list[str]
    """Those whose store is a versioned one already."""
    applied: bool = False
    compaction_lag_before_ms: int | None = None


class Upgrade:
    """The upgrade of one store of a stopped application."""

    def __init__(
        self,
        layout: StateLayout,
        store: str,
        retention_ms: int,
        *,
        kind_of: Callable[[Path], str | None],
        clock: Clock,
        locks: bool = True,
    ) -> None:
        """`kind_of`: what kind of store lies in a folder, None if none does.

        `locks`: `statestore.volume.locks`.
        """
        if retention_ms < 0:
            raise Misuse(f"history retention {retention_ms} ms is negative")
        self._layout = layout
        self._store = store
        self._lag_ms = compaction_lag_ms(retention_ms)
        self._kind_of = kind_of
        self._clock = clock
        self._locks = locks

    def plan(self) -> UpgradeReport:
        """What would be done. UnknownStore, or Misuse if the store is of a third kind."""
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

    def apply(self, raise_lag: RaiseLag) -> UpgradeReport:
        """Do it. Locked while the application runs; nothing is touched then."""
        layout = self._layout
        with layout.alone(wait_ms=0, clock=self._clock, locks=self._locks):
            planned = self.plan()
            before = raise_lag(planned.changelog, self._lag_ms)
            if before is None:
                raise Misuse(
                    f"topic {planned.changelog} does not exist: without it the store's rows would "
                    "be lost; is this the application's cluster?"
                )
            reach(CrashPoint.UPGRADE_LAG_RAISED)
            for task_id in map(TaskId.parse, planned.set_aside):
                path = layout.store_dir(task_id, self._store)
                layout.quarantine(path, self._store, "upgraded", self._clock)
        return msgspec.structs.replace(planned, applied=True, compaction_lag_before_ms=before)
