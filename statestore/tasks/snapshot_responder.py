"""Answers, in the owner of a stream task, requests in files for snapshots of its stores.

answer()  the stores as of the last commit     snapshot.linked
          published by rename                  snapshot.published
          the request taken off the list
"""

import logging
from collections.abc import Mapping

from statestore.errors import HostFailure
from statestore.faults import CrashPoint, reach
from statestore.layout.folders import StateLayout
from statestore.layout.snapshots import Manifest, Request, StoreOffsets, TaskSnapshots
from statestore.model.ids import TaskId
from statestore.ports import Clock
from statestore.tasks.owned import OwnedStore
from statestore.tasks.plan import TaskReport

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 0.1
_SWEEP_EVERY_S = 60


class SnapshotResponder:
    """Answers the requests in one task's folder, in the process that owns the task."""

    def __init__(
        self, task_id: TaskId, layout: StateLayout, clock: Clock, report: TaskReport
    ) -> None:
        self._task_id = task_id
        self._snapshots = TaskSnapshots(layout.task_dir(task_id))
        self._clock = clock
        self._report = report
        self._look_s = self._sweep_s = 0.0

    def serve(self, stores: Mapping[str, OwnedStore], commit_number: int) -> None:
        """Answer requests and remove what has expired, if it is time to look.

        Call it at any moment outside of commits, because pending writes are not in the files.
        """
        now_s = self._clock.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + _LOOK_EVERY_S
            for snapshot_id in self._snapshots.requests():
                self._answer(snapshot_id, stores, commit_number)
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + _SWEEP_EVERY_S
            for snapshot_id in self._snapshots.sweep(self._clock.now_ms()):
                _log.info("task %s: snapshot %s has expired", self._task_id, snapshot_id)

    def _answer(
        self, snapshot_id: str, stores: Mapping[str, OwnedStore], commit_number: int
    ) -> None:
        started_s = self._clock.monotonic()
        request = self._snapshots.request(snapshot_id)
        if request is not None and request.expires_ms > self._clock.now_ms():
            try:
                self._take(snapshot_id, request, stores, commit_number)
            except HostFailure as error:
                # The requester sees that the request is gone; the task fails at its next flush.
                _log.warning("task %s: no snapshot: %s", self._task_id, error)
                self._snapshots.drop(snapshot_id)
        self._snapshots.withdraw(snapshot_id)
        self._report.snapshot_seconds += self._clock.monotonic() - started_s

    def _take(
        self,
        snapshot_id: str,
        request: Request,
        stores: Mapping[str, OwnedStore],
        commit_number: int,
    ) -> None:
        snapshots, now_ms = self._snapshots, self._clock.now_ms()
        if snapshots.manifest(snapshot_id) is not None:
            return  # published by an owner that died before it withdrew the request
        making = snapshots.begin(snapshot_id, now_ms + request.lease_ms)
        taken: dict[str, StoreOffsets] = {}
        left_out: dict[str, str] = {}
        for opened in stores.values():
            offsets = opened.checkpoint(making / opened.name)
            if offsets is None:
                left_out[opened.name] = opened.why_no_snapshot
            else:
                taken[opened.name] = offsets
        reach(CrashPoint.SNAPSHOT_LINKED)
        snapshots.publish(
            snapshot_id, Manifest(str(self._task_id), now_ms, commit_number, taken, left_out)
        )
        reach(CrashPoint.SNAPSHOT_PUBLISHED)
        self._report.snapshots += 1
