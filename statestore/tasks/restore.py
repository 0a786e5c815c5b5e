"""Brings a task's stores up to the ends of their logs, from their own offsets (SEMANTICS E8).

Batches go straight into the engine together with the offset they reach, so a restore that is killed
continues where it stopped. Nothing is processed before all stores are restored. A store that
cannot continue from its offset is refused by name: its log does not have the offset, or may have
forgotten deletes after it (I29).

Keeps I2.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from statestore.errors import Misuse, TaskCorrupted
from statestore.faults import CrashPoint, reach
from statestore.layout.activity_files import RESTORE, Activities, Progress, Unit
from statestore.metrics import count_left_out
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.model.left_out import Cause, Counts, Fate
from statestore.ports import Bounds, Changelog, Clock, Cluster
from statestore.tasks.owned import OwnedStore

_log = logging.getLogger(__name__)
_REPORT_EVERY_S = 5.0
_TELL_AFTER_S = 1.0
"""Most restores take less, and shall not cost a file."""
_NO_LOG = Bounds(0, 0)
UNCLEAN = "unclean"
"""The reason if a store does not manage its offsets and was not closed."""


_NO_KEY: Final = "no_key_in_changelog"
_NO_ROW: Final = "no_row_in_changelog"
_SAID: Final = {_NO_KEY: "without a key", _NO_ROW: "that no store of its kind has written"}


@dataclass(frozen=True)
class Restored:
    """What a restore did; `left_out` counts records of others, which it passed over."""

    records: int
    seconds: float
    left_out: Counts = field(default_factory=dict)


class StoreCorrupted(TaskCorrupted):
    """One store of the task cannot be trusted; it goes to quarantine."""

    def __init__(self, store: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.store = store
        self.name = store
        self.reason = reason


@dataclass(frozen=True)
class Restorer:
    """Restores the stores of one stream task."""

    task: TaskId
    changelog: Changelog
    cluster: Cluster
    clock: Clock
    activities: Activities

    def restore(
        self,
        stores: Sequence[OwnedStore],
        committed: Mapping[TopicPartition, int],
        position: Position,
    ) -> Restored:
        """Restore all stores; StoreCorrupted names one that cannot continue from its offset.

        `committed`: the offset NEXT to process of each input. `position`: what the group has
        committed, which the restored stores contain.
        """
        started = self.clock.monotonic()
        logs = dict.fromkeys(opened.log.tp for opened in stores if opened.log.exists)
        bounds = self.changelog.bounds(list(logs)) if logs else {}
        records, left_out = 0, Counter[str]()
        with self.activities.underway(
            RESTORE, Unit.OFFSETS, stream_task=str(self.task), after_s=_TELL_AFTER_S
        ) as told:
            for opened in stores:
                known = bounds.get(opened.log.tp, _NO_LOG)
                with suppress(TaskCorrupted):  # it is raised again where the store is restored
                    end = opened.log.end(known, committed)
                    told.expect(max(0, end - max(opened.offset() or 0, known.start)))
            for opened in stores:
                known = bounds.get(opened.log.tp, _NO_LOG)
                try:
                    done = self._restore(opened, known, opened.log.end(known, committed), told)
                    opened.caught_up(position)
                except StoreCorrupted:
                    raise
                except TaskCorrupted as error:
                    reason = "unreadable" if error.store else "offset-out-of-range"
                    raise StoreCorrupted(opened.name, reason, str(error)) from error
                records += done.records
                left_out.update(done.left_out)
        reach(CrashPoint.RESTORE_DONE)
        return Restored(records, self.clock.monotonic() - started, left_out)

    def _restore(self, opened: OwnedStore, bounds: Bounds, end: int, told: Progress) -> Restored:
        log, clock = opened.log, self.clock
        start = _start(opened, bounds)
        if opened.offset() is not None and (why := self._why_too_old(opened, start, end)):
            raise StoreCorrupted(opened.name, "tail-too-old", f"{opened.where} {why}")
        if not opened.manages_offsets():
            opened.adopt(start, Position())
        if start >= end:
            return Restored(0, 0.0)
        began = last_report = clock.monotonic()
        records = 0
        dropped = Counter[str]()
        at = start
        for stretch in self.changelog.replay(log.tp, start, end):
            rows = log.rows(stretch.batch)
            strange = opened.restore(rows.batch, stretch.offset_next)
            reach(CrashPoint.RESTORE_BATCH_WRITTEN)
            told.done(stretch.offset_next - at)
            at = stretch.offset_next
            records += len(stretch.batch) - rows.foreign - strange
            dropped[_NO_KEY] += rows.foreign
            dropped[_NO_ROW] += strange
            now = clock.monotonic()
            if now - last_report >= _REPORT_EVERY_S:
                last_report = now
                done = (stretch.offset_next - start) / (end - start)
                _log.info(
                    "task %s restores %s: %d records, %.0f/s, %.0f s left",
                    self.task,
                    opened.name,
                    records,
                    records / (now - began),
                    (now - began) * (1 - done) / max(done, 1e-9),
                )
        why = "new here" if start == bounds.start else f"from offset {start}"
        _log.info("task %s restored %s: %d records, %s", self.task, opened.name, records, why)
        left_out = self._tell_of_dropped(opened, +dropped)
        return Restored(records, clock.monotonic() - began, left_out)

    def _tell_of_dropped(self, opened: OwnedStore, dropped: Mapping[str, int]) -> dict[str, int]:
        left_out = {
            str(Cause(Fate.DROPPED, opened.name, reason)): count
            for reason, count in dropped.items()
        }
        count_left_out(str(self.task), left_out)
        for reason, count in dropped.items():
            _log.warning(
                "task %s: the restore of %s passed over %d records of %s %s: they belong to no row "
                "and come from another producer: find out who writes to that topic",
                self.task,
                opened.name,
                count,
                opened.log.tp,
                _SAID[reason],
            )
        return left_out

    def _why_too_old(self, opened: OwnedStore, start: int, end: int) -> str | None:
        """Return why the log from `start` to `end` may lack deletes; None: it has them all (I29).

        A changelog forgets a delete `delete.retention.ms` after a cleaner first met it. A store
        that is before such a delete and has the row would keep the row for good. This happens after
        a crash if the restart is too late, or with an old copy of a volume. A store records when it
        last had all that its log held, so every delete that it lacks was logged after that.
        """
        if opened.log.is_complete(start, end):
            return None
        complete_ms = opened.complete_ms()
        if complete_ms is None:
            return None
        retention_ms = self._delete_retention_ms(opened.log.tp.topic)
        age_ms = self.clock.now_ms() - complete_ms
        if retention_ms is None or age_ms < retention_ms:
            return None
        return (
            f"stands at {start} of {opened.log.tp}, as it was {age_ms // 1000} s ago; the log "
            f"keeps deletes for {retention_ms // 1000} s (delete.retention.ms), so deleted keys "
            "could come back"
        )

    def _delete_retention_ms(self, topic: str) -> int | None:
        """Return None if the topic is not compacted, or if its settings are not known."""
        try:
            told = self.cluster.topic_settings([topic]).get(topic, {})
        except Misuse as error:
            _log.warning("how long %s keeps deletes is not known: %s", topic, error)
            return None
        if "compact" not in told.get("cleanup.policy", ""):
            return None
        return int(told.get("delete.retention.ms", 86_400_000))


def _start(opened: OwnedStore, bounds: Bounds) -> int:
    name, tp, where = opened.name, opened.log.tp, opened.where
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
            "the topic was truncated or created again",
        )
    if offset < bounds.start:
        raise StoreCorrupted(
            name,
            "offset-out-of-range",
            f"{where} stands at {offset} of {tp}, whose log begins at {bounds.start}",
        )
    return offset
