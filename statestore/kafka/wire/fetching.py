"""Asks brokers for the records of partitions (KIP-320, KIP-516), one fetch at a time each.

A fetch names topics by id and tells the leader epochs of the partition and of the last record that
was fetched. So neither a topic that was created again nor a log that was truncated is mistaken for
the one that was read before. Every fetch is a full one, without a session (KIP-227): a source reads
few partitions, and brokers keep few sessions.
"""

import selectors
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import KafkaError
from kafka.protocol.consumer import FetchRequest, FetchResponse

from statestore.errors import BrokerTooOld, InputLost, MalformedRecords, StateStoreError
from statestore.kafka.error_codes import error_for
from statestore.kafka.wire.cluster import ClusterMap, Leader, Links, is_passing, said
from statestore.kafka.wire.connection import Connection, Disconnected
from statestore.kafka.wire.fetched import Fetched, Taken, extent
from statestore.model.ids import TopicPartition
from statestore.ports import Arrival

_TOPIC_IDS_VERSION = 13
_VERSION = 17
_READ_COMMITTED = 1
# A fetch that leaves out partitions is answered soon, for they may be wanted with the next one.
_PART_WAIT_MS = 10
_DOUBLED_MAX = 10
_AGAIN_S = 0.02
_AGAIN_MAX_S = 1.0
# How long making a connection or asking a question may hold up a poll, at first and later.
_CONNECT_S = 1.0
_CONNECT_MAX_S = 5.0
# How long the rest of an answer may hold up the answers of other brokers.
_REST_S = 0.05
# How long an unknown topic may still appear.
_APPEARS_S = 3.0

_Topic = FetchRequest.FetchTopic
_Asked = _Topic.FetchPartition


class FetchLimits(NamedTuple):
    """What one fetch may bring and how long a broker waits for it, as Kafka's consumers have it.

    `rest_ms`: how long at most, where nothing came for a while. Records are sent at once all the
    same.
    """

    bytes_max: int
    partition_bytes_max: int
    bytes_min: int
    wait_ms: int
    rest_ms: int
    check_crc: bool

    def patience_ms(self, empty: int) -> int:
        """Return how long a broker waits that had nothing so many times before."""
        return max(self.wait_ms, min(self.wait_ms << min(empty, _DOUBLED_MAX), self.rest_ms))


class Again:
    """When to try something again: later each time, until it succeeds."""

    __slots__ = ("_next_s", "at_s", "failures")

    def __init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        """Try again at once from now on."""
        self.at_s = 0.0
        self.failures = 0
        self._next_s = _AGAIN_S

    def failed(self, now_s: float) -> None:
        """Wait before the next attempt."""
        self.at_s = now_s + self._next_s
        self.failures += 1
        self._next_s = min(self._next_s * 2, _AGAIN_MAX_S)

    def patience_s(self) -> float:
        """Return how long the next attempt may take."""
        return min(_CONNECT_S * (1 + self.failures), _CONNECT_MAX_S)


class PartitionLog:
    """One partition that is read: how far it was returned and fetched, and by whom it is led."""

    __slots__ = (
        "again",
        "epoch",
        "failure",
        "fetched",
        "heard_s",
        "is_asked",
        "is_paused",
        "leader",
        "log_end",
        "offset_next",
        "position",
        "served",
        "tp",
        "unknown_s",
    )

    def __init__(self, tp: TopicPartition, position: int, *, check_crc: bool) -> None:
        self.tp = tp
        self.position = position
        """The offset after what was returned."""
        self.offset_next = position
        """The offset after what was fetched."""
        self.epoch = -1
        """The leader epoch of the last batch that was fetched; -1 if there is none."""
        self.log_end = -1
        self.leader: Leader | None = None
        self.fetched = Fetched(check_crc=check_crc)
        self.failure: StateStoreError | None = None
        """Why nothing more can be fetched."""
        self.is_paused = False
        self.is_asked = False
        self.again = Again()
        self.served = 0
        self.heard_s = monotonic()
        self.unknown_s = inf

    def at_end(self) -> bool:
        """Return whether the position was at the last stable offset when last reported."""
        return 0 <= self.log_end <= self.position

    def take(self, rows_max: int, bytes_max: int) -> Taken | None:
        """Return records and move the position behind them; None if they are damaged."""
        try:
            taken = self.fetched.take(self.position, rows_max, bytes_max)
        except MalformedRecords as damaged:
            self.fail_malformed(damaged)
            return None
        self.position = max(self.position, taken.offset_next)
        return taken

    def fail_malformed(self, why: object) -> None:
        """Note that what a broker sent of this partition cannot be read."""
        self.fetched.clear()
        self.failure = MalformedRecords(
            f"input {self.tp} cannot be read from offset {self.position}: {why}: the log is "
            "damaged on the broker, or on its way here: reset the group's offsets to continue "
            "behind it"
        )

    def fail_lost(self, why: str) -> None:
        """Note that the log does not go on where it was read up to."""
        self.failure = InputLost(
            f"input {self.tp} does not have offset {self.offset_next}, where the last commit "
            f"ended ({why}): the topic was purged, truncated or created again, so "
            "input is lost: reset the group's offsets to continue without it"
        )


class _Broker:
    """One broker: what it was asked and has not answered, and when it may be asked again."""

    __slots__ = ("again", "asked", "due_s", "empty", "link", "quiet_s")

    def __init__(self) -> None:
        self.link: Connection | None = None
        self.asked: dict[tuple[Any, int], PartitionLog] = {}
        self.due_s = inf
        self.quiet_s = 0.0
        self.empty = 0
        """How many answers in a row told nothing."""
        self.again = Again()

    def answered(self) -> None:
        """Have nothing left to answer."""
        for log in self.asked.values():
            log.is_asked = False
        self.asked = {}
        self.due_s = inf

    def free_s(self) -> float:
        """Return when it may be asked again, inf if it has to answer first."""
        return inf if self.asked else max(self.quiet_s, self.again.at_s)


class Fetcher:
    """The fetches of one source: `send` asks, `receive` takes in what was answered.

    The logs are the caller's, and have what came and went wrong.
    """

    def __init__(self, cluster: ClusterMap, limits: FetchLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._links = Links(cluster)
        self._brokers: dict[int, _Broker] = {}
        self._topic_ids: dict[str, Any] = {}
        self._looking = Again()
        self._never = threading.Event()
        self._turn = 0
        self.trouble = ""
        """The last reason why a broker could not be asked, for a message."""

    def restart(self) -> None:
        """Forget what was asked; its answers are not wanted."""
        for node, broker in self._brokers.items():
            if broker.asked:
                broker.answered()
                self._links.drop(node)

    def close(self) -> None:
        """Close all connections. Closing twice is harmless."""
        self.restart()
        self._links.close()

    def send(self, logs: Collection[PartitionLog]) -> float:
        """Ask every broker that has nothing to answer for what its logs need.

        Return when that is worth another try though nothing has come, inf if it is not.
        """
        now_s = monotonic()
        wanted = [log for log in logs if self._is_wanted(log)]
        homeless = [log for log in wanted if log.leader is None and log.again.at_s <= now_s]
        if homeless and self._looking.at_s <= now_s:
            self._find_leaders(homeless)
        at_nodes: dict[int, list[PartitionLog]] = {}
        for log in sorted(wanted, key=_served):
            if log.leader is not None and not log.is_asked:
                at_nodes.setdefault(log.leader.node, []).append(log)
        now_s = monotonic()
        for node, found in at_nodes.items():
            broker = self._brokers.setdefault(node, _Broker())
            if broker.free_s() <= now_s:
                ready = [log for log in found if log.again.at_s <= now_s]
                if ready:
                    self._ask(node, broker, ready, self._wait_ms(node, broker, ready, logs))
        return self._next_try_s(wanted)

    def receive(self, until_s: float) -> bool:
        """Wait for answers until some come or it is `until_s`; return whether they told anything.

        Anything: records, markers, a log end that was not known.
        """
        waiting = {node: broker for node, broker in self._brokers.items() if broker.asked}
        until_s = min([until_s, *(broker.due_s for broker in waiting.values())])
        news = False
        if not waiting:
            self._never.wait(max(until_s - monotonic(), 0))
        elif len(waiting) == 1:
            ((node, broker),) = waiting.items()
            news = self._read(node, broker, until_s)
        else:
            for node in _readable(waiting, until_s):
                news |= self._read(node, waiting[node], monotonic() + _REST_S)
        # What came while nobody looked was read first.
        now_s = monotonic()
        for node, broker in waiting.items():
            if broker.due_s <= now_s:
                self._lost_connection(node, "a fetch was not answered")
        return news

    def arrival(self, next_try_s: float) -> Arrival:
        """Return when `receive` may have something to take in, or `send` something to ask."""
        links = [broker.link for broker in self._brokers.values() if broker.asked]
        due_s = min([next_try_s, *(broker.due_s for broker in self._brokers.values())])
        if any(link is not None and link.has_more() for link in links):
            due_s = 0.0
        sockets = [link.fileno() for link in links if link is not None]
        return Arrival(sockets, max(due_s - monotonic(), 0.0))

    def leave_out(self, absence_s: float) -> None:
        """Do not count that time, when nobody asked for answers."""
        for broker in self._brokers.values():
            broker.due_s += absence_s

    def _is_wanted(self, log: PartitionLog) -> bool:
        # One answer waits while the next one comes, so that nobody waits for the other.
        return (
            not log.is_paused
            and log.failure is None
            and not log.is_asked
            and log.fetched.size_bytes <= self._limits.partition_bytes_max
        )

    def _next_try_s(self, wanted: Sequence[PartitionLog]) -> float:
        tries = [inf]
        for log in wanted:
            if log.is_asked or log.failure is not None:
                continue
            at_s = log.again.at_s
            if log.leader is None:
                tries.append(max(at_s, self._looking.at_s))
            elif (broker := self._brokers.get(log.leader.node)) is not None:
                tries.append(max(at_s, broker.free_s()))
        return min(tries)

    # Where the partitions are.

    def _find_leaders(self, logs: Sequence[PartitionLog]) -> None:
        now_s = monotonic()
        patience_s = min(self._looking.patience_s(), self._cluster.timeout_s)
        try:
            found = self._cluster.look_up([log.tp for log in logs], now_s + patience_s)
        except Disconnected as failure:
            self.trouble = str(failure)
            self._looking.failed(monotonic())
            return
        self._looking.succeeded()
        now_s = monotonic()
        for log in logs:
            told = found[log.tp]
            if isinstance(told, Leader):
                self._found(log, told)
            else:
                self._not_found(log, told, now_s)

    def _found(self, log: PartitionLog, leader: Leader) -> None:
        log.unknown_s = inf
        if self._topic_ids.get(log.tp.topic, leader.topic_id) != leader.topic_id:
            log.fail_lost("the topic has another id than before")
        else:
            log.leader = leader

    def _not_found(self, log: PartitionLog, code: int, now_s: float) -> None:
        self._cluster.moved([log.tp])
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            log.unknown_s = min(log.unknown_s, now_s)
            is_passed = now_s - log.unknown_s < min(_APPEARS_S, self._cluster.timeout_s / 2)
        else:
            is_passed = is_passing(code)
        if is_passed:
            self.trouble = f"{log.tp}: {said(code)}"
            log.again.failed(now_s)
        else:
            log.failure = _refused(log, code)

    # Fetches and their answers.

    def _wait_ms(
        self,
        node: int,
        broker: _Broker,
        ready: Collection[PartitionLog],
        logs: Collection[PartitionLog],
    ) -> int:
        """Return how long a broker may wait that is asked for those of the logs that are ready."""
        limits = self._limits
        if any(log.log_end < 0 for log in ready):
            return 0  # the answer tells the log's end, even if there is nothing more
        if len(ready) == len(logs):
            return limits.patience_ms(broker.empty)
        # A log that comes to be led there has to wait as long.
        led = sum(log.leader is None or log.leader.node == node for log in logs)
        return limits.wait_ms if led == len(ready) else min(limits.wait_ms, _PART_WAIT_MS)

    def _ask(self, node: int, broker: _Broker, logs: list[PartitionLog], wait_ms: int) -> None:
        limits = self._limits
        began_s = monotonic()
        deadline_s = began_s + min(broker.again.patience_s(), self._cluster.timeout_s)
        try:
            link = broker.link = self._links.to(node, deadline_s)
            request, asked = _request(link, logs, limits, wait_ms)
            link.send(request, FetchResponse, deadline_s=deadline_s)
        except Disconnected as failure:
            self._lost_connection(node, str(failure), logs)
            return
        broker.asked = asked
        for log in logs:
            log.is_asked = True
        broker.due_s = monotonic() + wait_ms / 1000 + self._cluster.answer_s

    def _lost_connection(
        self, node: int, why: str, logs: Iterable[PartitionLog] | None = None
    ) -> None:
        broker = self._brokers[node]
        self._links.drop(node)
        concerned = list(broker.asked.values() if logs is None else logs)
        broker.answered()
        broker.again.failed(monotonic())
        self.trouble = why
        self._moved(concerned)

    def _moved(self, logs: Sequence[PartitionLog]) -> None:
        self._cluster.moved([log.tp for log in logs])
        for log in logs:
            log.leader = None

    def _read(self, node: int, broker: _Broker, until_s: float) -> bool:
        assert broker.link is not None
        try:
            answer = broker.link.read(deadline_s=until_s)
        except Disconnected as failure:
            self._lost_connection(node, str(failure))
            return False
        if answer is None:
            return False
        asked, now_s = broker.asked, monotonic()
        broker.answered()
        broker.again.succeeded()
        broker.quiet_s = now_s + answer.throttle_time_ms / 1000
        news = False
        if answer.error_code:
            for log in asked.values():
                news |= self._fail(log, answer.error_code, now_s)
            return news
        for topic in answer.responses:
            for found in topic.partitions:
                key = topic.topic_id, found.partition_index
                if key in asked:
                    news |= self._take_in(asked[key], topic.topic_id, found, now_s)
        broker.empty = 0 if news else broker.empty + 1
        return news

    def _take_in(self, log: PartitionLog, topic_id: Any, found: Any, now_s: float) -> bool:
        if found.error_code:
            return self._fail(log, found.error_code, now_s)
        # No record was returned before that was not of this topic.
        if self._topic_ids.setdefault(log.tp.topic, topic_id) != topic_id:
            log.fail_lost("the topic has another id than before")
            return True
        diverging = found.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            log.fail_lost(
                f"the leader's log of epoch {diverging.epoch} ends at {diverging.end_offset}"
            )
            return True
        log.again.succeeded()
        log.heard_s = now_s
        before, log.log_end = log.log_end, int(found.last_stable_offset)
        if data := found.records:
            self._turn += 1
            log.served = self._turn
            self._add(log, data, found.aborted_transactions or ())
            return True
        return log.log_end != before

    def _add(self, log: PartitionLog, data: bytes, aborted: Iterable[Any]) -> None:
        found = extent(data)
        if found is None:
            log.fail_malformed(f"{len(data)} bytes have no whole batch")
            return
        log.fetched.add(data, found, [(one.producer_id, one.first_offset) for one in aborted])
        log.offset_next = max(log.offset_next, found.offset_next)
        log.epoch = found.epoch

    def _fail(self, log: PartitionLog, code: int, now_s: float) -> bool:
        """Ask again later, or never; return whether it is never."""
        if code == KafkaError.OFFSET_OUT_OF_RANGE:
            log.fail_lost(said(code))
        elif is_passing(code):
            self.trouble = f"{log.tp}: {said(code)}"
            self._moved([log])
            log.again.failed(now_s)
            return False
        else:
            log.failure = _refused(log, code)
        return True


def _readable(brokers: Mapping[int, _Broker], until_s: float) -> list[int]:
    """Return the brokers that have sent something."""
    with selectors.PollSelector() as selector:
        for node, broker in brokers.items():
            assert broker.link is not None
            selector.register(broker.link, selectors.EVENT_READ, node)
        return [key.data for key, _ in selector.select(max(until_s - monotonic(), 0))]


def _served(log: PartitionLog) -> int:
    """Return when a partition had records: one that waits for longest comes first in a fetch."""
    return log.served


def _refused(log: PartitionLog, code: int) -> StateStoreError:
    return error_for(KafkaError(code), f"read {log.tp} from offset {log.offset_next}")


def _request(
    link: Connection, logs: Sequence[PartitionLog], limits: FetchLimits, wait_ms: int
) -> tuple[Any, dict[tuple[Any, int], PartitionLog]]:
    """Return a fetch, and whom its answer is for."""
    version = link.version(FetchRequest, _VERSION)
    if version < _TOPIC_IDS_VERSION:
        raise BrokerTooOld(
            f"{link.address} does not know topic ids: upgrade the brokers to Kafka 4.0 or newer"
        )
    topics: dict[Any, Any] = {}
    asked: dict[tuple[Any, int], PartitionLog] = {}
    for log in logs:
        leader = log.leader
        assert leader is not None
        topic = topics.get(leader.topic_id)
        if topic is None:
            topic = topics[leader.topic_id] = _Topic(
                version=version, topic_id=leader.topic_id, partitions=[]
            )
        topic.partitions.append(
            _Asked(
                version=version,
                partition=log.tp.partition,
                current_leader_epoch=leader.epoch,
                fetch_offset=log.offset_next,
                last_fetched_epoch=log.epoch,
                partition_max_bytes=limits.partition_bytes_max,
            )
        )
        asked[leader.topic_id, log.tp.partition] = log
    request = FetchRequest(
        version=version,
        max_wait_ms=wait_ms,
        min_bytes=limits.bytes_min,
        max_bytes=limits.bytes_max,
        isolation_level=_READ_COMMITTED,
        session_id=0,
        session_epoch=-1,
        topics=list(topics.values()),
        forgotten_topics_data=[],
        rack_id="",
    )
    return request, asked
