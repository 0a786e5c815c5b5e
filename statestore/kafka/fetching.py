"""How far a consumer has fetched, and where logs end, as its statistics tell.

A consumer that reads committed records passes over aborted ones in silence: it hands on neither a
record nor an event before the stretch ends. Its own statistics alone show that it gets on.
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
    """Per partition the next offset the client will fetch; the client calls it with statistics."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._moved = False

    def __call__(self, statistics: str) -> None:
        """Take in what the client says of itself."""
        found = _DECODER.decode(statistics)
        for topic, told in found.topics.items():
            for partition, at in told.partitions.items():
                tp = TopicPartition(topic, int(partition))
                self._ends[tp] = at.ls_offset
                # Back as well: what is told of the time before a restart may come after it.
                if at.next_offset >= 0 and at.next_offset != self._next.get(tp):
                    self._next[tp] = at.next_offset
                    self._moved = True

    def restarted(self) -> None:
        """The client begins anew, perhaps at lower offsets."""
        self._next.clear()
        self._ends.clear()
        self._moved = False

    def next_offset(self, tp: TopicPartition) -> int:
        """The next offset to be fetched, as last told; 0 if nothing was told."""
        return self._next.get(tp, 0)

    def log_end(self, tp: TopicPartition) -> int:
        """The last stable offset, as last told; negative if nothing was told."""
        return self._ends.get(tp, -1)

    def has_moved(self) -> bool:
        """Whether any partition got on since this was last asked."""
        moved, self._moved = self._moved, False
        return moved
