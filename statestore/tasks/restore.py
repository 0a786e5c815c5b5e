"""Bring a task's stores up to their logs: from their own offset to the last stable one (E8).

A table whose log is its source topic goes up to the input offset committed and never beyond: what
follows is processed again. Batches go straight into the engine with the offset they reach, so a
killed restore goes on where it stopped. Nothing is processed before it ends.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statestore.errors import TaskCorrupted
from statestore.faults import CrashPoint, reach
from statestore.metrics import count_dropped
from statestore.model.batch import Batch
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.ports import Bounds, Changelog, Clock
from statestore.tasks.old_tails import TailGuard
from statestore.tasks.owned import OwnedStore

_log = logging.getLogger(__name__)
_REPORT_EVERY_S = 5.0
_NO_LOG = Bounds(0, 0)
UNCLEAN = "unclean"
"""The reason of a store that does not manage its offsets and was not closed."""


@dataclass(frozen=True)
class Restored:
    """What a restore did; `dropped`: records it passed over, as they have no key."""

    records: int
    seconds: float
    dropped: int = 0


class StoreCorrupted(TaskCorrupted):
    """One store of the task cannot be trusted: quarantine that one."""

    def __init__(self, store: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.store = store
        self.name = store
        self.reason = reason


def restore(
    task: TaskId,
    stores: Sequence[OwnedStore],
    changelog: Changelog,
    clock: Clock,
    committed: Mapping[TopicPartition, int],
    *,
    position: Position,
    guard: TailGuard,
) -> Restored:
    """Restore all stores; StoreCorrupted names one whose offset the log cannot go on from.

    `committed`: of each input of the task, the offset NEXT to process. `position`: what the group
    has committed, which is what the restored stores have seen the effect of.
    """
    started = clock.monotonic()
    # Of a source topic with fewer partitions than another input, this task may have none.
    logs = [one.changelog for one in stores if one.source is None or one.changelog in committed]
    bounds = changelog.bounds(list(dict.fromkeys(logs))) if logs else {}
    records = dropped = 0
    for opened in stores:
        tp = opened.changelog
        known = bounds.get(tp, _NO_LOG)
        until = known.end if opened.source is None else min(known.end, committed.get(tp, 0))
        try:
            done = _restore_store(task, opened, known, until, changelog, clock, guard=guard)
            opened.caught_up(position)
        except StoreCorrupted:
            raise
        except TaskCorrupted as error:
            reason = "unreadable" if error.store else "offset-out-of-range"
            raise StoreCorrupted(opened.name, reason, str(error)) from error
        records += done.records
        dropped += done.dropped
    reach(CrashPoint.RESTORE_DONE)
    return Restored(records, clock.monotonic() - started, dropped)


def _restore_store(
    task: TaskId,
    opened: OwnedStore,
    bounds: Bounds,
    until: int,
    changelog: Changelog,
    clock: Clock,
    *,
    guard: TailGuard,
) -> Restored:
    tp = opened.changelog
    start = _start(opened, bounds)
    if opened.offset() is not None and (why := guard.why_too_old(opened, start, until)):
        raise StoreCorrupted(opened.name, "tail-too-old", f"{opened.where} {why}")
    if not opened.manages_offsets():
        opened.adopt(start, Position())
    if start >= until:
        return Restored(0, 0.0)
    began = last_report = clock.monotonic()
    records = dropped = 0
    for stretch in changelog.replay(tp, start, until):
        batch = stretch.batch if opened.source is not None else _with_keys(stretch.batch)
        opened.restore(batch, stretch.offset_next)
        reach(CrashPoint.RESTORE_BATCH_WRITTEN)
        records += len(batch)
        if opened.source is None:
            dropped += len(stretch.batch) - len(batch)
        now = clock.monotonic()
        if now - last_report >= _REPORT_EVERY_S:
            last_report = now
            done = (stretch.offset_next - start) / (until - start)
            _log.info(
                "task %s restores %s: %d records, %.0f/s, %.0f s left",
                task,
                opened.name,
                records,
                records / (now - began),
                (now - began) * (1 - done) / max(done, 1e-9),
            )
    why = "new here" if start == bounds.start else f"from offset {start}"
    _log.info("task %s restored %s: %d records, %s", task, opened.name, records, why)
    if dropped:
        count_dropped(str(task), "no key in the changelog", dropped)
        _log.warning(
            "task %s: the restore of %s passed over %d records of %s without a key: they are of "
            "no row, and of another producer: see who writes to that topic",
            task,
            opened.name,
            dropped,
            tp,
        )
    return Restored(records, clock.monotonic() - began, dropped)


def _with_keys(batch: Batch) -> Batch:
    """What of a changelog's records can be of a store: only another producer leaves out the key."""
    gone = set(batch.keys.nulls())
    return batch.take([i for i in range(len(batch)) if i not in gone]) if gone else batch


def _start(opened: OwnedStore, bounds: Bounds) -> int:
    name, tp, where = opened.name, opened.changelog, opened.where
    offset = opened.offset()
    if offset is None:
        if opened.persistent() and opened.occupied():
            if opened.manages_offsets():
                reason, what = "no-offset", f"has rows but no offset of {tp}: not a whole store"
            else:
                reason, what = UNCLEAN, f"was not closed by its last owner and knows no {tp} offset"
            raise StoreCorrupted(name, reason, f"{where} {what}")
        return bounds.start
    if offset > bounds.end:
        raise StoreCorrupted(
            name,
            "offset-beyond-log",
            f"{where} stands at {offset} of {tp}, whose log ends at {bounds.end}: "
            "the topic was truncated or made anew",
        )
    if offset < bounds.start:
        raise StoreCorrupted(
            name,
            "offset-out-of-range",
            f"{where} stands at {offset} of {tp}, whose log begins at {bounds.start}",
        )
    return offset
