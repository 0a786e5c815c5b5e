"""Answers, in the owner of a stream task, requests in files for snapshots of its stores.

answer()  the stores as of the last commit     snapshot.linked
          published by rename                  snapshot.published
          the request taken off the list
publish() the commits since then, to those who follow (commit_feed.py)
"""

import logging
from collections.abc import Mapping

from statestore.errors import HostFailure
from statestore.faults import CrashPoint, reach
from statestore.layout.commit_feeds import FeedWriter
from statestore.layout.folders import StateLayout
from statestore.layout.snapshots import Manifest, Request, StoreOffsets, TaskSnapshots
from statestore.model.ids import TaskId
from statestore.ports import Clock
from statestore.tasks.commit_feed import CommitFeed
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
        self._feed = CommitFeed()
        self._look_s = self._sweep_s = 0.0

    def publish(self, stores: Mapping[str, OwnedStore], commit_number: int) -> None:
        """Send what was committed since the last call to those who follow the task.

        Call it only when all stores are as of the last commit, pending writes apart.
        """
        self._feed.publish(stores, commit_number, self._report.last_commit_ms)

    def finish(self, stores: Mapping[str, OwnedStore], commit_number: int) -> None:
        """Send the last commit of a clean end, and tell those who follow that it is the last."""
        self.publish(stores, commit_number)
        self._feed.end(complete=True)

    def end(self) -> None:
        """Tell those who still follow that no commit comes any more."""
        self._feed.end()

    def serve(self, stores: Mapping[str, OwnedStore], commit_number: int) -> None:
        """Answer requests and remove what has expired, if it is time to look.

        Call it at any moment outside of commits, because pending writes are not in the files.
        """
        now_s = self._clock.monotonic()
        self.publish(stores, commit_number)
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
        feed = FeedWriter(making) if request.follow else None
        if feed is not None:
            feed.begin()
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
            snapshot_id,
            Manifest(
                str(self._task_id),
                now_ms,
                commit_number,
                taken,
                left_out,
                committed_ms=self._report.last_commit_ms,
            ),
        )
        if feed is not None:
            feed.published_in(snapshots.path(snapshot_id))
            self._feed.follow(feed, stores)
        reach(CrashPoint.SNAPSHOT_PUBLISHED)
        self._report.snapshots += 1
