"""The records of one partition that one poll returns, as columns.

Records are taken out of the client's messages chunk by chunk, while a chunk is in the processor's
cache. The messages are then freed, and those of the next chunk reuse their memory. No Python
function is called per record.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import cast

from confluent_kafka import Message

from statestore.model.batch import Batch, Column, LazyColumn
from statestore.model.ids import TopicPartition
from statestore.model.records import Header

# The offset is None only for messages that a program created itself.
offset_of = cast("Callable[[Message], int]", Message.offset)


class Arrivals:
    """Columns of one partition, to which `add` appends messages.

    Checking that a message has no headers is cheap, but reading headers costs more than everything
    else. Messages with headers are therefore kept until the headers are asked for.
    """

    __slots__ = ("_headers", "_keys", "_messages", "_offsets", "_times", "_values")

    def __init__(self, *, keep: bool) -> None:
        """Keep the messages from the start if earlier records of this partition had headers."""
        self._messages: list[Message] | None = [] if keep else None
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._times: list[int] = []
        self._offsets: list[Sequence[int]] = []
        self._headers: list[tuple[Header, ...]] = []

    def add(self, messages: list[Message]) -> None:
        """Append the next messages, in order."""
        if self._messages is not None:
            self._messages += messages
        else:
            self._add_headers(messages)
        self._keys += cast("map[bytes | None]", map(Message.key, messages))
        self._values += cast("map[bytes | None]", map(Message.value, messages))
        # This is twice as fast as itemgetter, because nothing is called per message.
        self._times += [time_ms for _, time_ms in map(Message.timestamp, messages)]
        self._add_offsets(messages)

    def have_headers(self) -> bool:
        """Return whether messages of this partition should be kept from now on."""
        return self._messages is not None or bool(self._headers)

    def batch(self, tp: TopicPartition) -> Batch:
        """Return everything as one batch."""
        offsets = self._offsets
        return Batch(
            keys=Column(raw=self._keys),
            values=Column(raw=self._values),
            timestamps=self._times,
            headers=self._all_headers(),
            topic=tp.topic,
            partition=tp.partition,
            offsets=offsets[0] if len(offsets) == 1 else list(chain.from_iterable(offsets)),
        )

    def _add_headers(self, messages: list[Message]) -> None:
        if any(map(Message.headers, messages)):
            self._headers += [()] * (len(self._keys) - len(self._headers))
            self._headers += map(_headers, messages)

    def _all_headers(self) -> Sequence[tuple[Header, ...]] | None:
        if self._messages is not None:
            return LazyColumn(self._messages, _headers)
        if not self._headers:
            return None
        return self._headers + [()] * (len(self._keys) - len(self._headers))

    def _add_offsets(self, messages: list[Message]) -> None:
        """Append offsets, as a range if none is missing.

        Transaction markers and compaction leave gaps.
        """
        first, last = offset_of(messages[0]), offset_of(messages[-1])
        if last - first + 1 != len(messages):
            self._offsets.append(list(map(offset_of, messages)))
            return
        before = self._offsets[-1] if self._offsets else None
        if isinstance(before, range) and before.stop == first:
            self._offsets[-1] = range(before.start, last + 1)
        else:
            self._offsets.append(range(first, last + 1))


def _headers(message: Message) -> tuple[Header, ...]:
    return tuple(cast("list[Header] | None", message.headers()) or ())
