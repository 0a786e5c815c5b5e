"""Reads changelog partitions back for a restore: committed records only, at full speed."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from time import monotonic

from statestore.errors import RecordFailed, TaskCorrupted, Unavailable
from statestore.kafka.source import KafkaSource
from statestore.kafka.topics import Admin
from statestore.model.batch import Batch, Column
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds, Replayed
from statestore.settings import Settings

# Large enough that a store writes in big batches, small enough that a killed restore loses little.
_STRETCH_RECORDS = 50_000
_WAIT_MS = 500

_NOTHING = Batch(keys=Column(raw=[]), values=Column(raw=[]), timestamps=[], offsets=[])


class KafkaChangelog:
    """`ports.Changelog` on a real cluster; each replay has a consumer of its own."""

    def __init__(self, settings: Settings, admin: Admin | None = None) -> None:
        """`admin`: another's, whose connection serves both."""
        self._settings = settings
        self._admin = admin or Admin(settings)

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start and last stable offset of each."""
        return self._admin.bounds(tps)

    def replay(self, tp: TopicPartition, start: int, end: int) -> Iterator[Replayed]:
        """All records in [start, end); the consumer goes with the generator, drained or not.

        `end` is at most the last stable offset. It is reached by position, as the offsets before
        it may belong to control records, aborted ones, or ones that compaction removed.
        """
        if start >= end:
            return
        with closing(KafkaSource(self._settings, group_id=self._settings.application_id)) as source:
            source.start({tp: start})
            at, moved_s = start, monotonic()
            while at < end:
                try:
                    batches = source.poll(_STRETCH_RECORDS, _WAIT_MS)
                except RecordFailed as gone:
                    raise TaskCorrupted(
                        f"changelog {tp} holds no offset {at}: it was purged, truncated or made "
                        "anew: the store must be restored from the log's start"
                    ) from gone
                if source.position(tp) > at:
                    at, moved_s = source.position(tp), monotonic()
                    batch = batches[0] if batches else _NOTHING
                    yield Replayed(_before(batch, end), min(at, end))
                elif not source.at_end(tp):
                    moved_s = monotonic()  # until there, `poll` sees to it that it gets on
                elif monotonic() - moved_s > self._settings.request_timeout_ms / 1000:
                    raise Unavailable(
                        f"changelog {tp} stays at offset {at} and does not reach {end}: "
                        "a transaction is open in it, or it was truncated"
                    )


def _before(batch: Batch, end: int) -> Batch:
    """The records below `end`; those after it came with the same fetch."""
    offsets = batch.offsets
    assert offsets is not None
    if not offsets or offsets[-1] < end:
        return batch
    return batch.slice(0, bisect_left(offsets, end))
