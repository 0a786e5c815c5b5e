"""Reads changelog partitions for a restore: committed records only, at full speed."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from time import monotonic

from statestore.errors import InputLost, MalformedRecords, TaskCorrupted, Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.source import KafkaSource
from statestore.model.batch import Batch, Column
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds, Replayed, Source
from statestore.settings import Settings

# Large enough that a store writes big batches, small enough that a killed restore loses little.
_CHUNK_RECORDS = 50_000
_WAIT_MS = 500

_NOTHING = Batch(keys=Column(raw=[]), values=Column(raw=[]), timestamps=[], offsets=[])


class KafkaChangelog:
    """`ports.Changelog` on a real cluster; each replay has a source of its own."""

    def __init__(
        self,
        settings: Settings,
        admin: Admin | None = None,
        source: Callable[[], Source] | None = None,
    ) -> None:
        """Use the connection of `admin`, and what `source` makes, if given; else librdkafka."""
        self._settings = settings
        self._admin = admin or Admin(settings)
        self._source = source or (lambda: KafkaSource(settings, group_id=settings.application_id))

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the log start and the last stable offset of each partition."""
        return self._admin.bounds(tps)

    def replay(self, tp: TopicPartition, start: int, end: int) -> Iterator[Replayed]:
        """Yield all records in [start, end); closing the generator closes its source.

        `end` is at most the last stable offset. The source's position decides whether it is
        reached, because the last offsets before it may belong to control records, to aborted
        records, or to records that compaction removed.
        """
        if start >= end:
            return
        with closing(self._source()) as source:
            source.start({tp: start})
            at, moved_s = start, monotonic()
            while at < end:
                try:
                    batches = source.poll(_CHUNK_RECORDS, _WAIT_MS)
                except MalformedRecords as damaged:
                    # The store on disk is as good as it was.
                    raise Unavailable(
                        f"changelog {tp}: what came from offset {source.position(tp)} on is "
                        "damaged, on the broker or on its way here: run again, and if it stays so, "
                        "check the disks of the brokers"
                    ) from damaged
                except InputLost as gone:
                    raise TaskCorrupted(
                        f"changelog {tp} does not have offset {at}: it was purged, truncated or "
                        "created again: the store must be restored from the log's start"
                    ) from gone
                if source.position(tp) > at:
                    at, moved_s = source.position(tp), monotonic()
                    batch = batches[0] if batches else _NOTHING
                    yield Replayed(_before(batch, end), min(at, end))
                elif not source.at_end(tp):
                    moved_s = monotonic()  # `poll` raises if there is no progress before the end
                elif monotonic() - moved_s > self._settings.request_timeout_ms / 1000:
                    raise Unavailable(
                        f"changelog {tp} ends at offset {at} and does not reach {end}: "
                        "a transaction is open in it, or it was truncated; run again, and if it "
                        "stays so, see `A transaction stays open` in the runbook"
                    )


def _before(batch: Batch, end: int) -> Batch:
    """Return the records below `end`, without those after it from the same fetch."""
    offsets = batch.offsets
    assert offsets is not None
    if not offsets or offsets[-1] < end:
        return batch
    return batch.slice(0, bisect_left(offsets, end))
