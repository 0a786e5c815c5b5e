"""Bring a task's stores up to their changelogs: from their own offset to the last stable one (E8).

Batches go straight into the engine with the offset they reach, so a killed restore goes on where it
stopped. Nothing is processed before it ends.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from statestore.errors import TaskCorrupted
from statestore.faults import CrashPoint, reach
from statestore.model import TaskId
from statestore.ports import Bounds, Changelog, Clock
from statestore.tasks.context import OpenStore

_log = logging.getLogger(__name__)
_REPORT_EVERY_S = 5.0


@dataclass(frozen=True)
class Restored:
    """What a restore did."""

    records: int
    seconds: float


class StoreCorrupted(TaskCorrupted):
    """One store of the task cannot be trusted: quarantine that one."""

    def __init__(self, store: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.store = store
        self.reason = reason


def restore(
    task: TaskId, stores: Sequence[OpenStore], changelog: Changelog, clock: Clock
) -> Restored:
    """Restore all stores; StoreCorrupted names one whose offset the log cannot go on from."""
    started = clock.monotonic()
    bounds = changelog.bounds([opened.changelog for opened in stores]) if stores else {}
    records = sum(
        _restore_store(task, opened, bounds[opened.changelog], changelog, clock)
        for opened in stores
    )
    reach(CrashPoint.RESTORE_DONE)
    return Restored(records, clock.monotonic() - started)


def _restore_store(
    task: TaskId, opened: OpenStore, bounds: Bounds, changelog: Changelog, clock: Clock
) -> int:
    staged, tp = opened.store.staged, opened.changelog
    start = _start(opened, bounds)
    if start >= bounds.end:
        return 0
    began = last_report = clock.monotonic()
    records = 0
    for stretch in changelog.replay(tp, start, bounds.end):
        batch = stretch.batch
        keys, values = batch.keys.objects, batch.values.objects
        staged.restore("data", dict(zip(keys, values, strict=True)), {tp: stretch.offset_next})
        reach(CrashPoint.RESTORE_BATCH_WRITTEN)
        records += len(batch)
        now = clock.monotonic()
        if now - last_report >= _REPORT_EVERY_S:
            last_report = now
            done = (stretch.offset_next - start) / (bounds.end - start)
            _log.info(
                "task %s restores %s: %d records, %.0f/s, %.0f s left",
                task,
                staged.name,
                records,
                records / (now - began),
                (now - began) * (1 - done) / max(done, 1e-9),
            )
    why = "new here" if start == bounds.start else f"from offset {start}"
    _log.info("task %s restored %s: %d records, %s", task, staged.name, records, why)
    return records


def _start(opened: OpenStore, bounds: Bounds) -> int:
    staged = opened.store.staged
    offset = staged.committed_offsets().get(opened.changelog)
    name, tp = staged.name, opened.changelog
    if offset is None:
        if staged.persistent() and not staged.empty():
            raise StoreCorrupted(
                name,
                "no-offset",
                f"{staged.where} has rows but no offset of {tp}: not a whole store",
            )
        return bounds.start
    if offset > bounds.end:
        raise StoreCorrupted(
            name,
            "offset-beyond-log",
            f"{staged.where} stands at {offset} of {tp}, whose log ends at {bounds.end}: "
            "the topic was truncated or made anew",
        )
    if offset < bounds.start:
        raise StoreCorrupted(
            name,
            "offset-out-of-range",
            f"{staged.where} stands at {offset} of {tp}, whose log begins at {bounds.start}",
        )
    return offset
