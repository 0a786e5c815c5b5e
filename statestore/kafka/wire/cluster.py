"""Where partitions and coordinators are, and the connections of one client to them.

`ClusterMap` is shared by all clients of a process and used by several threads: it keeps what the
brokers told, and asks again when a client says that something has moved. `Links` are the
connections of one client, used by one thread.
"""

import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeVar

from confluent_kafka import KafkaError
from kafka.errors import for_code
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from statestore.errors import InvalidSetting, StateStoreError, Unavailable
from statestore.kafka.error_codes import error_for
from statestore.kafka.wire.connection import Connection, Disconnected
from statestore.kafka.wire.security import Security
from statestore.model.broker_addresses import BrokerAddress, addresses_of
from statestore.model.ids import TopicPartition
from statestore.settings import Settings

_T = TypeVar("_T")
_METADATA_VERSION = 12
_COORDINATOR_VERSION = 4
_AGAIN_S = 0.02
_AGAIN_MAX_S = 1.0
# How long an unknown topic may still appear.
_APPEARS_S = 3.0

Role = Literal["consumer", "producer"]
Kind = Literal["group", "transaction"]
_KINDS: dict[Kind, int] = {"group": 0, "transaction": 1}


class Leader(NamedTuple):
    """The broker that leads a partition, since which epoch, and the id of its topic."""

    node: int
    epoch: int
    topic_id: Any


def is_passing(code: int) -> bool:
    """Return whether a request that a broker answered with this error may succeed soon."""
    return bool(for_code(code).retriable)


def has_moved(code: int) -> bool:
    """Return whether this error says that somebody else leads the partition, or nobody."""
    return bool(for_code(code).invalid_metadata)


def said(code: int) -> str:
    """Return what an error of a broker means, for a message."""
    return f"{KafkaError(code).str()} ({KafkaError(code).name()})"


class Moving(Exception):
    """A broker is not there, or not yet responsible: ask again soon. It says why."""


class Retries:
    """Waits between attempts, longer each time, up to a deadline."""

    def __init__(self, deadline_s: float, first_s: float = _AGAIN_S) -> None:
        self._deadline_s = deadline_s
        self._next_s = first_s
        self._never = threading.Event()

    def wait(self) -> bool:
        """Wait before the next attempt; False, at once, if no time is left for its answer."""
        left_s = self._deadline_s - monotonic()
        if left_s <= _AGAIN_S:
            return False
        self._never.wait(min(self._next_s * random.uniform(0.8, 1.2), left_s / 2))
        self._next_s = min(self._next_s * 2, _AGAIN_MAX_S)
        return True


class ClusterMap:
    """See the module. Its methods raise the errors of `ports`: Unavailable if nobody answers."""

    def __init__(self, settings: Settings, role: Role) -> None:
        """Read the settings; the first question connects."""
        settings.require("bootstrap.servers")
        config = settings.client_config(role)
        self._servers = config["bootstrap.servers"]
        self._bootstrap = addresses_of(self._servers)
        self._security = Security.of(config)
        self._client_id = config.get("client.id", settings.application_id or "statestore")
        self._timeout_s = settings.request_timeout_ms / 1000
        self._answer_s = min(_milliseconds(config, "socket.timeout.ms", 30_000), self._timeout_s)
        self._lock = threading.Lock()
        self._link: Connection | None = None
        self._nodes: dict[int, BrokerAddress] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._counts: dict[str, int] = {}
        self._topics: dict[Any, str] = {}
        self._coordinators: dict[tuple[Kind, str], int] = {}

    @property
    def timeout_s(self) -> float:
        """How long to wait for an answer of a broker."""
        return self._timeout_s

    @property
    def answer_s(self) -> float:
        """How long to wait for one answer before a connection is given up and another is made."""
        return self._answer_s

    def connect(self, node: int, deadline_s: float) -> Connection:
        """Return a new connection to a broker; Disconnected if there is none."""
        address = self._nodes.get(node)
        if address is None:
            raise Disconnected(f"broker {node} is not known")
        return self._connect(address, deadline_s)

    def has_transactions(self) -> bool:
        """Return whether the cluster has KIP-890's transactions switched on."""
        with self._turn(doing := "ask for features") as deadline_s:
            return self._asked(lambda link, _: link.has_transactions, doing, deadline_s)

    def leaders(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        """Return who leads each of these partitions, as last told; it asks for those not known.

        TopicMissing if a topic or partition does not exist; Unavailable if one has no leader.
        """
        wanted = list(tps)
        while True:
            found = {tp: leader for tp in wanted if (leader := self._leaders.get(tp)) is not None}
            if len(found) == len(wanted):
                return found
            missing = sorted({tp.topic for tp in wanted if tp not in found})
            with self._turn(f"find the partitions of {', '.join(missing)}") as deadline_s:
                self._refresh(missing, wanted, deadline_s)

    def look_up(
        self, tps: Iterable[TopicPartition], deadline_s: float
    ) -> dict[TopicPartition, Leader | int]:
        """Return who leads each of these partitions, or Kafka's code that says why nobody does.

        It asks at most once. Disconnected if nobody answers by `deadline_s`.
        """
        wanted = list(tps)
        if not self._lock.acquire(timeout=max(deadline_s - monotonic(), 0)):
            raise Disconnected(f"{self._servers} did not answer another question in time")
        try:
            missing = sorted({tp.topic for tp in wanted if tp not in self._leaders})
            codes = self._codes(missing, deadline_s) if missing else {}
            return {tp: self._leaders.get(tp) or self._absence(tp, codes) for tp in wanted}
        finally:
            self._lock.release()

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; TopicMissing if there is none of that name."""
        if topic not in self._counts:
            with self._turn(f"find the partitions of {topic}") as deadline_s:
                self._refresh([topic], [], deadline_s)
        return self._counts[topic]

    def topic_of(self, topic_id: Any) -> str | None:
        """Return the name of a topic with that id, None if it is not known."""
        return self._topics.get(topic_id)

    def moved(self, tps: Collection[TopicPartition]) -> None:
        """Forget the leaders of these partitions: a broker said that it is not theirs."""
        for tp in tps:
            self._leaders.pop(tp, None)

    def forget_topics(self) -> None:
        """Forget what was told about topics: they may be others by now."""
        with self._lock:
            self._leaders.clear()
            self._counts.clear()

    def coordinator(self, kind: Kind, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id."""
        found = self._coordinators.get((kind, key))
        if found is not None:
            return found
        with self._turn(doing := f"find the coordinator of {kind} {key}") as deadline_s:
            found = self._asked(
                lambda link, until_s: self._look_up(link, kind, key, until_s), doing, deadline_s
            )
            self._coordinators[kind, key] = found
            return found

    def coordinator_moved(self, kind: Kind, key: str) -> None:
        """Forget the coordinator: it said that it is not, or did not answer."""
        self._coordinators.pop((kind, key), None)

    def ask_any(
        self,
        make: Callable[[Connection], Any],
        response: Any,
        code_of: Callable[[Any], int],
        doing: str,
    ) -> Any:
        """Return the answer of any broker, asked again as long as its code says so."""

        def ask(link: Connection, until_s: float) -> Any:
            answer = link.ask(make(link), response, deadline_s=until_s)
            code = code_of(answer)
            if code and is_passing(code):
                raise Moving(said(code))
            if code:
                raise error_for(KafkaError(code), doing)
            return answer

        with self._turn(doing) as deadline_s:
            return self._asked(ask, doing, deadline_s)

    def unanswered(self, doing: str, since_s: float, why: object = "") -> StateStoreError:
        """Return the error for a call that began at `since_s` and got no answer."""
        login = self._security.login
        if login is not None and login.tokens is not None and (no_token := login.tokens.trouble()):
            return Unavailable(f"could not {doing}: {no_token}")
        told = f" ({why})" if why else ""
        return Unavailable(
            f"could not {doing}: {self._servers} did not answer for "
            f"{round(monotonic() - since_s, 1):g} s{told}: are the brokers up and reachable?"
        )

    def close(self) -> None:
        """Close the connection of the questions; the next question makes one."""
        with self._lock:
            self._hang_up()

    @contextmanager
    def _turn(self, doing: str) -> Iterator[float]:
        """Ask alone, until the deadline that it gives; Unavailable if others take that long.

        What is known is read without a turn.
        """
        since_s = monotonic()
        if not self._lock.acquire(timeout=self._timeout_s):
            raise self.unanswered(doing, since_s, "another question has no answer yet")
        try:
            yield since_s + self._timeout_s
        finally:
            self._lock.release()

    def _connect(self, address: BrokerAddress, deadline_s: float) -> Connection:
        return Connection(address, self._security, client_id=self._client_id, deadline_s=deadline_s)

    def _asked(self, ask: Callable[[Connection, float], _T], doing: str, deadline_s: float) -> _T:
        """Ask any broker, and others until the deadline if it does not answer."""
        since_s, retries, why = monotonic(), Retries(deadline_s), ""
        while True:
            try:
                link = self._asking(deadline_s)
                return ask(link, min(deadline_s, monotonic() + self._answer_s))
            except (Disconnected, Moving) as failure:
                why = str(failure)
                if isinstance(failure, Disconnected):
                    self._hang_up()
            if not retries.wait():
                raise self.unanswered(doing, since_s, why)

    def _asking(self, deadline_s: float) -> Connection:
        if self._link is not None and self._link.is_expired:
            self._hang_up()
        if self._link is None:
            self._link = self._any_link(deadline_s)
        return self._link

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _any_link(self, deadline_s: float) -> Connection:
        places = [*self._nodes.values(), *self._bootstrap]
        places = list(dict.fromkeys(random.sample(places, len(places))))
        failure: Disconnected | None = None
        for at, place in enumerate(places):
            # One that does not answer leaves time for the others.
            share_s = (deadline_s - monotonic()) / (len(places) - at)
            try:
                return self._connect(place, monotonic() + share_s)
            except Disconnected as refused:
                failure = refused
        raise failure or Disconnected("no broker is known")

    def _refresh(self, topics: list[str], wanted: list[TopicPartition], deadline_s: float) -> None:
        """Ask for these topics until each of the partitions has a leader."""
        # Half of the time that is left: a topic that does not exist is said to be missing, not
        # that nobody answered.
        now_s = monotonic()
        appears_s = now_s + min(_APPEARS_S, (deadline_s - now_s) / 2)

        def ask(link: Connection, deadline_s: float) -> None:
            found = self._metadata(link, topics, deadline_s)
            for topic in found.topics:
                if topic.error_code:
                    is_unknown = topic.error_code == KafkaError.UNKNOWN_TOPIC_OR_PART
                    if monotonic() < appears_s if is_unknown else is_passing(topic.error_code):
                        raise Moving(f"topic {topic.name}: {said(topic.error_code)}")
                    doing = f"find the partitions of {topic.name}"
                    raise error_for(KafkaError(topic.error_code), doing)
            for tp in wanted:
                if tp in self._leaders or tp.topic not in topics:
                    continue
                if self._counts[tp.topic] <= tp.partition and monotonic() >= appears_s:
                    raise error_for(
                        KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), f"find partition {tp}"
                    )
                raise Moving(f"{tp} has no leader")

        self._asked(ask, f"find the partitions of {', '.join(topics)}", deadline_s)

    def _codes(self, topics: list[str], deadline_s: float) -> dict[str, int]:
        """Ask once for these topics; return Kafka's code for each of them, 0 if it exists."""
        try:
            found = self._metadata(self._asking(deadline_s), topics, deadline_s)
        except Disconnected:
            self._hang_up()
            raise
        return {topic.name: topic.error_code for topic in found.topics}

    def _absence(self, tp: TopicPartition, codes: Mapping[str, int]) -> int:
        if code := codes.get(tp.topic, 0):
            return code
        is_there = tp.partition < self._counts.get(tp.topic, 0)
        return int(
            KafkaError.LEADER_NOT_AVAILABLE if is_there else KafkaError.UNKNOWN_TOPIC_OR_PART
        )

    def _metadata(self, link: Connection, topics: list[str], deadline_s: float) -> Any:
        kind = MetadataRequest.MetadataRequestTopic
        asked = MetadataRequest(
            version=link.version(MetadataRequest, _METADATA_VERSION),
            topics=[kind(name=topic) for topic in topics],
            allow_auto_topic_creation=False,
        )
        found = link.ask(asked, MetadataResponse, deadline_s=deadline_s)
        self._nodes = {one.node_id: BrokerAddress(one.host, one.port) for one in found.brokers}
        for topic in found.topics:
            if topic.error_code:
                continue
            self._topics[topic.topic_id] = topic.name
            self._counts[topic.name] = len(topic.partitions)
            for one in topic.partitions:
                if one.leader_id >= 0:
                    tp = TopicPartition(topic.name, one.partition_index)
                    self._leaders[tp] = Leader(one.leader_id, one.leader_epoch, topic.topic_id)
        return found

    def _look_up(self, link: Connection, kind: Kind, key: str, deadline_s: float) -> int:
        asked = FindCoordinatorRequest(
            version=link.version(FindCoordinatorRequest, _COORDINATOR_VERSION),
            key_type=_KINDS[kind],
            coordinator_keys=[key],
        )
        (found,) = link.ask(asked, FindCoordinatorResponse, deadline_s=deadline_s).coordinators
        if found.error_code:
            if is_passing(found.error_code):
                raise Moving(f"coordinator of {key}: {said(found.error_code)}")
            doing = f"find the coordinator of {kind} {key}"
            raise error_for(KafkaError(found.error_code), doing)
        self._nodes[found.node_id] = BrokerAddress(found.host, found.port)
        return int(found.node_id)


def _milliseconds(config: Mapping[str, str], key: str, default: int) -> float:
    try:
        return int(config.get(key, default)) / 1000
    except ValueError:
        raise InvalidSetting(f"{key} = {config[key]!r} is not a number of milliseconds") from None


class Links:
    """The connections of one client, one to each broker that it needs; see the module."""

    def __init__(self, cluster: ClusterMap) -> None:
        self._cluster = cluster
        self._open: dict[int, Connection] = {}

    def to(self, node: int, deadline_s: float) -> Connection:
        """Return the connection to a broker, which is made if there is none; or Disconnected."""
        link = self._open.get(node)
        if link is not None and link.is_expired:
            link.close()
        if link is None or link.fileno() < 0:
            link = self._open[node] = self._cluster.connect(node, deadline_s)
        return link

    def drop(self, node: int) -> None:
        """Close the connection to a broker; what was asked on it has no answer."""
        link = self._open.pop(node, None)
        if link is not None:
            link.close()

    def close(self) -> None:
        """Close all connections."""
        for node in list(self._open):
            self.drop(node)
