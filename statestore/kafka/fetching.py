"""How far a consumer has fetched, and where logs end, according to its statistics.

A consumer of committed records skips aborted ones silently: it returns neither a record nor an
event until they end. Only its statistics show that it makes progress.
"""

import msgspec

from statestore.model.ids import TopicPartition


class _Partition(msgspec.Struct):
    next_offset: int = -1
    ls_offset: int = -1


class _Topic(msgspec.Struct):
    partitions: dict[str, _Partition] = {}


class _Statistics(msgspec.Struct):
    topics: dict[str, _Topic] = {}


_DECODER = msgspec.json.Decoder(_Statistics)


class Fetching:
    """The next offset that a client will fetch per partition; a statistics callback for clients."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._moved = False

    def __call__(self, statistics: str) -> None:
        """Take in the client's statistics."""
        found = _DECODER.decode(statistics)
        for topic, described in found.topics.items():
            for partition, at in described.partitions.items():
                tp = TopicPartition(topic, int(partition))
                self._ends[tp] = at.ls_offset
                # Offsets may go back: statistics from before a restart may arrive after it.
                if at.next_offset >= 0 and at.next_offset != self._next.get(tp):
                    self._next[tp] = at.next_offset
                    self._moved = True

    def restarted(self) -> None:
        """Forget all offsets, because the client starts again, perhaps at lower ones."""
        self._next.clear()
        self._ends.clear()
        self._moved = False

    def next_offset(self, tp: TopicPartition) -> int:
        """Return the last reported next offset to fetch; 0 if none was reported."""
        return self._next.get(tp, 0)

    def log_end(self, tp: TopicPartition) -> int:
        """Return the last reported last stable offset; negative if none was reported."""
        return self._ends.get(tp, -1)

    def has_moved(self) -> bool:
        """Return whether any partition made progress since the last call."""
        moved, self._moved = self._moved, False
        return moved
