"""Claims, checks and releases the ownership of one stream task (SEMANTICS E10).

A fenced task is one whose folder a newer owner has claimed. `check` tells it so, by the epoch in
the folder: before it opens its producer, after each failure, about once a second, and under
at_least_once before each commit. The task then raises Fenced, closes without writing anything, and
must not start again.
"""

import logging
from pathlib import Path

from statestore.errors import Fenced, HostFailure, StateStoreError
from statestore.faults import CrashPoint, reach
from statestore.layout import owners, takeover
from statestore.layout.folders import StateLayout
from statestore.layout.owners import Claim
from statestore.settings import Settings
from statestore.stores.kinds.registry import kind_of
from statestore.tasks.plan import TaskEdges, TaskPlan

_log = logging.getLogger(__name__)
_GLANCE_EVERY_S = 1.0


class Ownership:
    """The claim of one task. Files of another owner, which may be alive, are left alone."""

    def __init__(
        self, plan: TaskPlan, edges: TaskEdges, settings: Settings, layout: StateLayout
    ) -> None:
        self.claim: Claim | None = None
        self._plan = plan
        self._edges = edges
        self._settings = settings
        self._layout = layout
        self._glance_s = 0.0

    def take(self) -> Path:
        """Claim the task and return the folder to open its stores in.

        That is the last owner's folder if the last owner is known to be gone, else a new folder.
        """
        plan, edges, settings = self._plan, self._edges, self._settings
        folder = self._layout.task_dir(plan.task_id)
        self._layout.create(folder)
        self.claim = owners.claim(
            folder,
            what=f"task {plan.task_id}",
            wait_ms=settings.lock_wait_ms,
            clock=edges.clock,
            locks=settings.volume_locks,
        )
        if self.claim.owner.in_place:
            return self._layout.stores_dir(plan.task_id)
        own = [name for name in plan.part.stores if not kind_of(plan.specs[name]).is_readable]
        try:
            return takeover.take_over(
                self._layout, plan.task_id, self.claim, edges.link_store, own=own, clock=edges.clock
            )
        except HostFailure as error:
            self.check(error)  # a newer owner removes what this one did not finish
            raise

    def check(self, cause: StateStoreError | None = None) -> None:
        """Raise Fenced if a newer owner has claimed the folder; its epoch shows that (E5)."""
        if not self.holds():
            raise Fenced(
                f"task {self._plan.task_id}: a newer owner took over; what was not committed is "
                "dropped, and this one must not start again"
            ) from cause

    def glance(self) -> None:
        """Check once a second, because Kafka does not fence an owner that commits nothing."""
        now_s = self._edges.clock.monotonic()
        if now_s >= self._glance_s:
            self._glance_s = now_s + _GLANCE_EVERY_S
            self.check()

    def holds(self) -> bool:
        """Return whether this owner still has the task."""
        return self.claim is not None and self.claim.still_ours()

    def was_released(self) -> bool:
        """Return whether the last owner let go of the task itself, having ended all it had open."""
        return (
            self.claim is not None
            and self.claim.previous is not None
            and self.claim.previous.released
        )

    def sweep(self) -> None:
        """Remove what former owners left behind; call it once the stores are up to their logs."""
        retention_ms = self._settings.quarantine_retention_ms
        task = self._plan.task_id
        try:
            takeover.sweep_left_behind(self._layout, task, retention_ms, self._edges.clock)
        except HostFailure as error:
            _log.warning("task %s: %s; the next start tries again", task, error)

    def release(self) -> None:
        """Release the claim, if there is one. Crash points: close.stores-closed, close.released."""
        if self.claim is not None:
            reach(CrashPoint.CLOSE_STORES_CLOSED)
            self.claim.release()
            reach(CrashPoint.CLOSE_RELEASED)
        self.claim = None

    def abandon(self) -> None:
        """Let go of the claim as a dead process would."""
        if self.claim is not None:
            self.claim.abandon()
            self.claim = None
