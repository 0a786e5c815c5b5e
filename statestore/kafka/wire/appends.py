"""Appends records to partitions in order, each exactly once, over any change of leader.

Rows are kept by partition until a batch is full or `finish` asks for what is there. A request has
at most one batch of each partition, and up to five requests to a broker have no answer yet, which
is as many as the broker can tell repeated batches of.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from operator import itemgetter
from random import randrange
from time import monotonic
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from confluent_kafka import KafkaError
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from statestore.errors import InvalidSetting, RecordFailed, StateStoreError
from statestore.kafka.wire import codec
from statestore.kafka.wire.cluster import ClusterMap, Links, Retries, has_moved, is_passing, said
from statestore.kafka.wire.connection import Connection, Disconnected
from statestore.kafka.wire.coordinators import ProducerId, refusal
from statestore.model.ids import TopicPartition
from statestore.model.records import Header
from statestore.ports import Records
from statestore.settings import SECURITY_PREFIXES, Settings

# From this version on a partition joins the transaction with its first batch (KIP-890).
_PRODUCE_VERSION = 12
_IN_FLIGHT = 5
_SAMPLED = 16
_ROW_BYTES = 24
# What a batch adds to one record: its header and the record's own numbers.
_OVERHEAD_BYTES = 128
_HASHES: dict[str, codec.KeyHash] = {
    "murmur2": "murmur2",
    "murmur2_random": "murmur2",
    "consistent": "crc32",
    "consistent_random": "crc32",
}
_TAKEN = frozenset({"compression.type", "compression.codec", "batch.size", "message.max.bytes"})
# They tune what this client does otherwise or at once, and change no result.
_WITHOUT_MEANING = frozenset(
    {
        "acks",
        "client.id",
        "debug",
        "enable.idempotence",
        "linger.ms",
        "log_level",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.required.acks",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "socket.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "statistics.interval.ms",
        "topic.metadata.propagation.max.ms",
        "bootstrap.servers",
    }
)


class AppendOptions(NamedTuple):
    """What settings say about writing."""

    compression: codec.Compression
    batch_bytes: int
    record_bytes: int
    hashed: codec.KeyHash
    spreads: frozenset[bytes | None]
    """The keys whose records go anywhere; all others go where their hash says."""

    @classmethod
    def of(cls, settings: Settings, batch_bytes: int | None) -> "AppendOptions":
        """`batch_bytes` is the largest batch that all topics to write to accept."""
        config = settings.client_config("producer")
        record_bytes = _number(config, "message.max.bytes", 1_000_000)
        size = _number(config, "batch.size", 1_000_000)
        name = config.get("compression.type", config.get("compression.codec", "lz4"))
        known = get_args(codec.Compression)
        if name not in known:
            raise InvalidSetting(
                f"producer.compression.type {name!r}: use one of {', '.join(known)}"
            )
        spreads: set[bytes | None] = {None} if settings.partitioner.endswith("_random") else set()
        if settings.partitioner == "consistent_random":
            spreads.add(b"")
        return cls(
            cast("codec.Compression", name),
            min(size, record_bytes, batch_bytes or size),
            record_bytes,
            _HASHES[settings.partitioner],
            frozenset(spreads),
        )

    @staticmethod
    def not_taken(settings: Settings) -> list[str]:
        """Return the settings of producers that only librdkafka knows."""
        config = settings.client_config("producer")
        own = {key for key in config if f"producer.{key}" in settings.clients}
        own = {key for key in own if not key.startswith(SECURITY_PREFIXES)}
        found = [f"producer.{key}" for key in own - _TAKEN - _WITHOUT_MEANING]
        if settings.partitioner not in _HASHES:
            found.append(f"partitioner={settings.partitioner}")
        return sorted(found)


def _number(config: dict[str, str], key: str, default: int) -> int:
    try:
        return int(config.get(key, default))
    except ValueError:
        raise InvalidSetting(f"producer.{key} = {config[key]!r} is not a number") from None


class _Sent(NamedTuple):
    """A batch of one partition, its first sequence number and how many records it has."""

    data: bytes
    sequence: int
    rows: int


class _Log:
    """What is to be appended to one partition, in order: rows, then batches, then those sent."""

    __slots__ = (
        "flying",
        "headers",
        "is_put_back",
        "is_tracked",
        "keys",
        "node",
        "queue",
        "sequence",
        "size",
        "times",
        "tp",
        "values",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.times: list[int] = []
        self.headers: list[tuple[Header, ...]] | None = None
        self.size = 0
        self.sequence = 0
        self.is_tracked = False
        self.queue: deque[_Sent] = deque()
        self.flying: deque[_Sent] = deque()
        self.node = -1
        self.is_put_back = False

    def add(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        times: Sequence[int],
        headers: Sequence[tuple[Header, ...]] | None,
    ) -> None:
        """Append rows behind those that are there."""
        if headers is not None and self.headers is None:
            self.headers = [()] * len(self.keys)
        self.keys += keys
        self.values += values
        self.times += times
        if self.headers is not None:
            self.headers += [()] * len(keys) if headers is None else headers
        sampled = sum(len(value or b"") for value in values[::_SAMPLED])
        self.size += _SAMPLED * sampled + _ROW_BYTES * len(keys)


class Appends:
    """The records of one transaction at a time; see the module. It is used by one thread."""

    def __init__(self, cluster: ClusterMap, links: Links, options: AppendOptions) -> None:
        """`links` are used for nothing else."""
        self._cluster = cluster
        self._links = links
        self._options = options
        self._owner: ProducerId | None = None
        self._logs: dict[TopicPartition, _Log] = {}
        self._flights: dict[int, deque[list[tuple[_Log, _Sent]]]] = {}
        self._failure: StateStoreError | None = None
        self._retries: Retries | None = None
        self._why = ""
        self._anywhere: dict[str, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.has_sent = False
        """Whether a broker may have got a record since `begin`."""

    def begin(self, owner: ProducerId) -> None:
        """Forget what was there; records carry the id and epoch of `owner` from now on."""
        self.drop()
        self._owner = owner
        self.ends = {}
        self.has_sent = False

    def add(self, records: Records, *, tracked: bool) -> None:
        """Append records in order; send what makes a full batch.

        RecordFailed if one is larger than allowed; the records before it may be on their way.
        """
        self._check_sizes(records)
        for partition, rows in self._by_partition(records):
            log = self._log(TopicPartition(records.topic, partition))
            log.is_tracked = log.is_tracked or tracked
            log.add(*rows)
            if log.size >= self._options.batch_bytes:
                self._cut(log, whole=False)
        deadline_s = monotonic() + self._cluster.timeout_s
        self._advance(deadline_s, wait=False)

    def push(self) -> None:
        """Send all that is there, and wait for nothing."""
        for log in self._logs.values():
            if log.keys:
                self._cut(log, whole=True)
        self._advance(monotonic() + self._cluster.timeout_s, wait=False)

    def finish(self, deadline_s: float) -> None:
        """Wait until every record is acknowledged; raise the error of the first that was refused.

        Unavailable if some have no answer by the deadline.
        """
        since_s = monotonic()
        self.push()
        while self._advance(deadline_s, wait=True) and self._failure is None:
            if monotonic() >= deadline_s:
                left = sum(
                    one.rows for log in self._logs.values() for one in (*log.flying, *log.queue)
                )
                raise self._cluster.unanswered(
                    f"have {left} records acknowledged", since_s, self._why
                )
        if self._failure is not None:
            raise self._failure

    def drop(self) -> None:
        """Drop everything that is not acknowledged; what is on its way may still arrive."""
        for node, flights in self._flights.items():
            if flights:
                self._links.drop(node)
        self._flights.clear()
        self._logs.clear()
        self._failure = self._retries = None
        self._why = ""

    def _check_sizes(self, records: Records) -> None:
        limit = self._options.record_bytes - _OVERHEAD_BYTES
        keys, values = list(records.keys), list(records.values)
        at = codec.first_larger(keys, values, limit)
        if at is None:
            return
        refused = RecordFailed(
            f"a record for {records.topic}, key {(keys[at] or b'')[:40]!r}, has "
            f"{len(values[at] or b'')} bytes, more than producer.message.max.bytes (1 000 000 "
            "unless set): raise it and the topic's max.message.bytes, then start again"
        )
        refused.at = at
        raise refused

    def _by_partition(self, records: Records) -> Iterable[tuple[int, tuple[Any, ...]]]:
        """Return the rows of each partition, in order."""
        rows = records.keys, records.values, records.timestamps, records.headers
        count = len(records.keys)
        assert count == len(records.values) == len(records.timestamps), "columns differ in length"
        if not count:
            return
        if records.partition is not None:
            yield records.partition, rows
            return
        places = np.array(self._places(records))
        found = np.unique(places)
        for place in found.tolist():
            if len(found) == 1:
                yield place, rows
                continue
            picked = np.flatnonzero(places == place).tolist()
            pick: Any = itemgetter(*picked) if len(picked) > 1 else _one(picked[0])
            yield place, tuple(None if column is None else pick(column) for column in rows)

    def _places(self, records: Records) -> list[int]:
        count = self._cluster.partitions(records.topic)
        options = self._options
        keys = list(records.keys)
        if options.spreads - {None} and any(key in options.spreads for key in keys):
            keys = [None if key in options.spreads else key for key in keys]
        if None not in options.spreads and None in keys:
            keys = [b"" if key is None else key for key in keys]
        found = codec.partitions_of(keys, count, options.hashed)
        if records.placing is not None:
            placed = codec.partitions_of(list(records.placing), count, options.hashed)
            found = [
                place if there < 0 else there for place, there in zip(found, placed, strict=True)
            ]
        if records.choose is not None:
            chosen = records.choose(count)
            found = [n if m is None else m for m, n in zip(chosen, found, strict=True)]
        if -1 in found:
            anywhere = self._anywhere[records.topic] = randrange(count)
            found = [anywhere if place < 0 else place for place in found]
        return found

    def _log(self, tp: TopicPartition) -> _Log:
        log = self._logs.get(tp)
        if log is None:
            log = self._logs[tp] = _Log(tp)
        return log

    def _cut(self, log: _Log, *, whole: bool) -> None:
        """Make batches of the rows; unless `whole`, keep the rows that fill none."""
        cuts = codec.sized_rows(log.keys, log.values, log.headers, self._options.batch_bytes)
        if not whole:
            del cuts[-1:]
        begin = 0
        for end in cuts:
            self._encode(log, begin, end)
            begin = end
        del log.keys[:begin], log.values[:begin], log.times[:begin]
        if log.headers is not None:
            del log.headers[:begin]
        # What is left is less than a batch.
        log.size = 0 if not log.keys else min(log.size, self._options.batch_bytes) // 2

    def _encode(self, log: _Log, begin: int, end: int) -> None:
        assert self._owner is not None, "begin comes first"
        is_all = begin == 0 and end == len(log.keys)
        data = codec.encode(
            log.keys if is_all else log.keys[begin:end],
            log.values if is_all else log.values[begin:end],
            log.times if is_all else log.times[begin:end],
            None if log.headers is None else log.headers[begin:end],
            producer_id=self._owner.producer_id,
            producer_epoch=self._owner.epoch,
            base_sequence=log.sequence,
            transactional=self._owner.name is not None,
            compression=self._options.compression,
        )
        log.queue.append(_Sent(data, log.sequence, end - begin))
        log.sequence += end - begin

    def _advance(self, deadline_s: float, *, wait: bool) -> bool:
        """Send what can be sent and read what has come; return whether something is left to do.

        With `wait` False it waits for an answer only where a broker owes as many as are allowed.
        """
        if self._failure is not None:
            return False
        waiting = [log for log in self._logs.values() if log.queue]
        if waiting:
            self._send(waiting, deadline_s)
        for node in list(self._flights):
            self._read(node, deadline_s, wait=wait)
        return any(log.queue or log.flying for log in self._logs.values())

    def _send(self, logs: list[_Log], deadline_s: float) -> None:
        """Send one batch of each partition that is ready, to each broker that takes another."""
        if any(log.is_put_back for log in logs):
            self._pause()
        by_node: dict[int, list[_Log]] = {}
        leaders = self._cluster.leaders([log.tp for log in logs])
        for log in logs:
            node = leaders[log.tp].node
            # Batches on their way to the last leader are answered first, as order matters.
            if not log.flying or log.node == node:
                by_node.setdefault(node, []).append(log)
        for node, ready in by_node.items():
            while any(log.queue for log in ready):
                flights = self._flights.setdefault(node, deque())
                if len(flights) >= _IN_FLIGHT:
                    self._read(node, deadline_s, wait=True)
                    if self._failure is not None or len(flights) >= _IN_FLIGHT:
                        return
                    if self._flights.get(node) is not flights:
                        break
                if not self._send_one(node, [log for log in ready if log.queue], deadline_s):
                    break

    def _send_one(self, node: int, logs: list[_Log], deadline_s: float) -> bool:
        """Send one batch of each of these partitions; False, and all put back, if it cannot be."""
        self.has_sent = True
        flight = [(log, log.queue.popleft()) for log in logs]
        for log, one in flight:
            log.flying.append(one)
            log.node = node
        self._flights.setdefault(node, deque()).append(flight)
        try:
            link = self._links.to(node, deadline_s)
            link.send(self._request(link, flight), ProduceResponse, deadline_s=deadline_s)
        except Disconnected as failure:
            self._lost(node, failure)
            return False
        return True

    def _request(self, link: Connection, flight: list[tuple[_Log, _Sent]]) -> Any:
        assert self._owner is not None
        kind = ProduceRequest.TopicProduceData
        topics: dict[str, list[Any]] = {}
        for log, one in flight:
            topics.setdefault(log.tp.topic, []).append(
                kind.PartitionProduceData(index=log.tp.partition, records=one.data)
            )
        return ProduceRequest(
            version=link.version(ProduceRequest, _PRODUCE_VERSION),
            transactional_id=self._owner.name,
            acks=-1,
            timeout_ms=int(self._cluster.timeout_s * 1000),
            topic_data=[kind(name=name, partition_data=some) for name, some in topics.items()],
        )

    def _read(self, node: int, deadline_s: float, *, wait: bool) -> None:
        """Take in the answers of a broker that have come; with `wait`, wait for one of them."""
        flights = self._flights.get(node)
        while flights:
            try:
                link = self._links.to(node, deadline_s)
                if not link.waiting:
                    raise Disconnected("the connection was made anew")
                until_s = min(deadline_s, monotonic() + self._cluster.answer_s)
                answer = link.read(deadline_s=until_s if wait else 0.0)
            except Disconnected as failure:
                self._lost(node, failure)
                return
            if answer is None:
                if wait:
                    self._lost(node, Disconnected(f"broker {node} does not answer"))
                return
            wait = False
            self._take_in(flights.popleft(), answer)

    def _take_in(self, flight: list[tuple[_Log, _Sent]], answer: Any) -> None:
        told = {
            (topic.name, one.index): one
            for topic in answer.responses
            for one in topic.partition_responses
        }
        for log, sent in flight:
            one = told.get((log.tp.topic, log.tp.partition))
            code = KafkaError.REQUEST_TIMED_OUT if one is None else one.error_code
            if not log.flying or log.flying[0] is not sent:
                # An earlier batch was refused, so this one has to come again, whatever is said.
                continue
            if code in {0, KafkaError.DUPLICATE_SEQUENCE_NUMBER}:
                log.flying.popleft()
                self._retries = None
                if log.is_tracked and one is not None and one.base_offset >= 0:
                    self.ends[log.tp] = one.base_offset + sent.rows
            elif is_passing(code):
                self._again(log, code)
            elif self._failure is None:
                self._failure = _refused(log.tp, code, one.error_message if one else None)

    def _again(self, log: _Log, code: int) -> None:
        """Put back what is on its way to a partition, in order, to be sent again."""
        log.queue.extendleft(reversed(log.flying))
        log.flying.clear()
        log.is_put_back = True
        self._why = f"{log.tp}: {said(code)}"
        if has_moved(code):
            self._cluster.moved([log.tp])

    def _lost(self, node: int, failure: Disconnected) -> None:
        """Put back what a broker has not answered: it tells by the numbers what it has already."""
        self._why = str(failure)
        self._links.drop(node)
        for flight in self._flights.pop(node, ()):
            for log, _ in flight:
                if log.flying:
                    log.queue.extendleft(reversed(log.flying))
                    log.flying.clear()
                log.is_put_back = True
                self._cluster.moved([log.tp])

    def _pause(self) -> None:
        """Wait before another attempt, longer each time."""
        if self._retries is None:
            self._retries = Retries(inf)
        self._retries.wait()
        for log in self._logs.values():
            log.is_put_back = False


def _one(place: int) -> Any:
    return lambda column: (column[place],)


def _refused(tp: TopicPartition, code: int, message: str | None) -> StateStoreError:
    return refusal(code, f"write to {tp}{f' ({message})' if message else ''}")
