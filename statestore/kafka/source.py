"""Reads the input partitions of a stream task: committed records only, assigned, not subscribed.

The client fetches in the background; `poll` returns what has arrived. It calls no Python function
per record. Messages are read chunk by chunk, while a chunk is in the processor's cache, and then
freed, so the next chunk reuses their memory. A source is used by one thread.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from time import monotonic
from typing import Any, cast

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.errors import InputLost
from statestore.kafka.clients import Trouble, consumer
from statestore.kafka.error_codes import error_for, translated
from statestore.model.batch import Batch, Column
from statestore.model.decoders import json_decoder
from statestore.model.ids import TopicPartition
from statestore.model.lazy_columns import LazyColumn
from statestore.model.records import Header
from statestore.settings import Settings

# The messages of one call to the client: enough to make it cheap, few enough to stay in the cache.
_CHUNK = 1000
# About how many bytes of values one poll returns, estimated from every sixteenth value.
_BATCH_BYTES = 64 << 20
_SAMPLED = 16
_SILENCE_S = 2.0
# The offset is None only for messages that a program created itself.
_offset_of = cast("Callable[[Message], int]", Message.offset)


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
        first, last = _offset_of(messages[0]), _offset_of(messages[-1])
        if last - first + 1 != len(messages):
            self._offsets.append(list(map(_offset_of, messages)))
            return
        before = self._offsets[-1] if self._offsets else None
        if isinstance(before, range) and before.stop == first:
            self._offsets[-1] = range(before.start, last + 1)
        else:
            self._offsets.append(range(first, last + 1))


def _headers(message: Message) -> tuple[Header, ...]:
    return tuple(cast("list[Header] | None", message.headers()) or ())


class KafkaSource:
    """`ports.Source` on a real broker.

    If the log no longer has an offset, the next `poll` raises InputLost: input was lost, and
    continuing would hide that.
    """

    def __init__(self, settings: Settings, *, group_id: str) -> None:
        self._settings = settings
        self._group_id = group_id
        self._trouble = Trouble()
        self._fetching = Fetching()
        self._consumer: Consumer | None = None
        self._assigned = True
        self._positions: dict[TopicPartition, int] = {}
        self._log_ends: dict[TopicPartition, int] = {}
        self._paused_wanted: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._named: dict[Any, TopicPartition] = {}
        self._name_of: Callable[[Message], Any] = Message.topic
        self._with_headers: set[TopicPartition] = set()
        self._heard_s = self._asked_s = 0.0

    def start(self, positions: Mapping[TopicPartition, int]) -> None:
        """Start reading from these offsets; a second call drops what was fetched before.

        The first poll asks the brokers: who never polls costs no connection.
        """
        self._paused_wanted.clear()
        self._positions = dict(positions)
        self._log_ends.clear()
        self._fetching.restarted()
        self._name_partitions()
        self._assigned = False

    def poll(self, max_records: int, timeout_ms: int, *, soon: bool = False) -> list[Batch]:
        """Return what has arrived; wait only for the first record or event, not for `max_records`.

        See `ports.Source`.
        """
        client = self._client()
        self._apply_pauses(client)
        deadline = monotonic() + timeout_ms / 1000
        arrived: dict[TopicPartition, Arrivals] = {}
        room, news, size_bytes = max_records, False, 0
        while room > 0 and size_bytes < _BATCH_BYTES:
            messages = client.consume(min(room, _CHUNK), 0)
            if not messages:
                left_s = deadline - monotonic()
                if left_s <= 0 or (news and self._is_enough(client, soon=soon)):
                    break
                messages = client.consume(1, left_s)
                if not messages:
                    break
            news = True
            messages = self._records_of(messages)
            if messages:
                room -= len(messages)
                size_bytes += _SAMPLED * sum(map(len, messages[::_SAMPLED]))
                self._sort(messages, arrived)
        self._check_alive(client, news=news)
        self._with_headers.update(tp for tp, found in arrived.items() if found.have_headers())
        return [found.batch(tp) for tp, found in arrived.items()]

    def arrival(self) -> None:
        """Return None: librdkafka has no sockets to wait for from Python."""

    def position(self, tp: TopicPartition) -> int:
        """Return the offset after the last record returned for `tp` and any control records."""
        return self._positions[tp]

    def at_end(self, tp: TopicPartition) -> bool:
        """Return whether the position was at the end of the log of `tp` when last reported."""
        end = self._log_ends.get(tp, -1)
        # The log may have grown by aborted records, which are skipped silently.
        return end >= self._positions[tp] and end >= self._fetching.next_offset(tp)

    def log_end(self, tp: TopicPartition) -> int | None:
        """Return the last reported stable offset of `tp`, None if none was reported."""
        heard = max(self._log_ends.get(tp, -1), self._fetching.log_end(tp))
        return None if heard < 0 else heard

    def pause(self, tps: Sequence[TopicPartition]) -> None:
        """Leave these partitions out of polls until resumed; then fetch their records again."""
        self._paused_wanted.update(tps)

    def resume(self, tps: Sequence[TopicPartition]) -> None:
        """Include these partitions in polls again; pausing them before the next poll is free."""
        self._paused_wanted.difference_update(tps)

    def close(self) -> None:
        """Stop fetching. Closing twice is harmless."""
        client, self._consumer = self._consumer, None
        if client is not None:
            client.close()

    def _client(self) -> Consumer:
        """Return the client, which is made and told where to read when it is first asked for."""
        client = self._consumer
        if client is None:
            assert not self._assigned, "start comes before poll"
            client = self._consumer = consumer(
                self._settings, self._group_id, self._trouble, on_statistics=self._fetching
            )
        if not self._assigned:
            wanted, self._paused_wanted = self._paused_wanted, set()
            self._apply_pauses(client)  # the client keeps a partition paused over an assignment
            self._paused_wanted = wanted
            self._heard_s = self._asked_s = monotonic()
            try:
                client.assign([KafkaPartition(*tp, at) for tp, at in self._positions.items()])
            except KafkaException as failure:
                raise translated(failure, f"read {_names(self._positions)}") from failure
            self._assigned = True
        return client

    def _name_partitions(self) -> None:
        """Choose the cheapest property of a message that identifies its partition."""
        tps = list(self._positions)
        if len({tp.topic for tp in tps}) == len(tps):
            self._name_of, self._named = Message.topic, {tp.topic: tp for tp in tps}
        elif len({tp.partition for tp in tps}) == len(tps):
            self._name_of, self._named = Message.partition, {tp.partition: tp for tp in tps}
        else:
            self._name_of, self._named = _full_name, {tuple(tp): tp for tp in tps}

    def _apply_pauses(self, client: Consumer) -> None:
        # The client drops what it fetched of a paused partition, so each is paused only once.
        pause, resume = self._paused_wanted - self._paused, self._paused - self._paused_wanted
        if pause:
            client.pause([KafkaPartition(*tp) for tp in pause])
        if resume:
            client.resume([KafkaPartition(*tp) for tp in resume])
        self._paused = set(self._paused_wanted)

    def _records_of(self, messages: list[Message]) -> list[Message]:
        """Return the records among the client's messages; handle or raise its events."""
        if not any(map(Message.error, messages)):
            return messages
        errors = list(map(Message.error, messages))
        for message, error in zip(messages, errors, strict=True):
            if error is not None:
                self._take_in(message, error)
        return [message for message, error in zip(messages, errors, strict=True) if error is None]

    def _take_in(self, event: Message, error: KafkaError) -> None:
        topic, partition = event.topic(), event.partition()
        if topic is None or partition is None:
            if error.fatal():
                raise error_for(error, f"read {_names(self._positions)}")
            return
        tp = TopicPartition(topic, partition)
        match error.code():
            case KafkaError._PARTITION_EOF:
                end = self._log_ends[tp] = _offset_of(event)
                self._positions[tp] = max(end, self._positions[tp])
            case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE:
                raise InputLost(
                    f"input {tp} does not have offset {self._positions[tp]}, where the last commit "
                    f"ended ({error.str()}): the topic was purged, truncated or created again, so "
                    "input is lost: reset the group's offsets to continue without it"
                )
            case _:
                raise error_for(error, f"read {tp} from offset {self._positions[tp]}")

    def _sort(self, messages: list[Message], arrived: dict[TopicPartition, Arrivals]) -> None:
        """Add a chunk to the arrivals of its partitions; most chunks have a single partition."""
        name_of, named = self._name_of, self._named
        if len(named) == 1:
            runs = [(next(iter(named)), messages)]
        else:
            names = list(map(name_of, messages))
            if names.count(names[0]) == len(names):
                runs = [(names[0], messages)]
            else:
                runs = [(name, list(run)) for name, run in groupby(messages, name_of)]
        for name, run in runs:
            tp = named[name]
            if tp not in arrived:
                arrived[tp] = Arrivals(keep=tp in self._with_headers)
            arrived[tp].add(run)
            self._positions[tp] = max(_offset_of(run[-1]) + 1, self._positions[tp])

    def _at_log_ends(self) -> bool:
        """Return whether every partition that is not paused has reached the end of its log."""
        return all(self.at_end(tp) for tp in self._positions if tp not in self._paused)

    def _is_enough(self, client: Consumer, *, soon: bool) -> bool:
        """Return whether a poll that has news may end while nothing more is queued."""
        return self._at_log_ends() or (soon and not self._is_far_behind(client))

    def _is_far_behind(self, client: Consumer) -> bool:
        """Return whether much more of the log is there to be fetched, as the last fetches say."""
        for tp, position in self._positions.items():
            if tp in self._paused or self.at_end(tp):
                continue
            _, end = client.get_watermark_offsets(KafkaPartition(*tp), cached=True)
            if end - position > _CHUNK:
                return True
        return False

    def _check_alive(self, client: Consumer, *, news: bool) -> None:
        now_s = monotonic()
        if self._fetching.has_moved() or news or self._at_log_ends():
            self._heard_s = self._asked_s = now_s
            return
        if now_s - self._asked_s > _SILENCE_S:
            self._asked_s = now_s
            self._check_topics(client)
        if (silent_s := now_s - self._heard_s) > self._settings.request_timeout_ms / 1000:
            names = _names(self._positions)
            raise self._trouble.failure(
                f"read {names}",
                f"{self._settings.bootstrap_servers} sent nothing about {names} "
                f"for {round(silent_s, 1):g} s",
            )

    def _check_topics(self, client: Consumer) -> None:
        """Raise TopicMissing for topics that do not exist; an assigned consumer does not."""
        for tp in self._positions:
            try:
                known = client.list_topics(tp.topic, timeout=_SILENCE_S).topics[tp.topic]
            except KafkaException:
                return  # no answer: the deadline decides
            if tp.partition not in known.partitions and known.error is not None:
                raise error_for(known.error, f"read {tp}")


def _full_name(message: Message) -> tuple[str | None, int | None]:
    return message.topic(), message.partition()


def _names(tps: Mapping[TopicPartition, int]) -> str:
    return ", ".join(map(str, tps))


class _Partition(msgspec.Struct):
    next_offset: int = -1
    ls_offset: int = -1


class _Topic(msgspec.Struct):
    partitions: dict[str, _Partition] = {}


class _Statistics(msgspec.Struct):
    topics: dict[str, _Topic] = {}


_decode = json_decoder(_Statistics).decode


class Fetching:
    """The next offset that a client will fetch per partition; a statistics callback for clients.

    A consumer of committed records skips aborted ones silently: it returns neither a record nor an
    event until they end. Only its statistics show that it makes progress.
    """

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._moved = False

    def __call__(self, statistics: str) -> None:
        """Take in the client's statistics."""
        found = _decode(statistics)
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
