"""Asks the coordinator of a group or of a transactional id, wherever it is and moves to."""

from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError
from kafka.protocol.producer import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from statestore.errors import Fenced, StateStoreError
from statestore.kafka.error_codes import error_for
from statestore.kafka.wire.cluster import ClusterMap, Kind, Links, Moving, Retries, is_passing, said
from statestore.kafka.wire.connection import Connection, Disconnected

_OPEN_VERSION = 5
_NO_TIMEOUT = 2**31 - 1
# From this version on the answer carries the epoch of the next transaction (KIP-890).
END_VERSION = 5
_ELSEWHERE = frozenset({KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR})
_TAKEN_OVER = frozenset({KafkaError.INVALID_TXN_STATE, KafkaError.INVALID_PRODUCER_ID_MAPPING})

Make = Callable[[Connection], Any]
"""Makes a request of a version that the connection's broker knows."""


class Coordinator:
    """The coordinator of one group or transactional id, which may move at any time."""

    def __init__(self, cluster: ClusterMap, links: Links, kind: Kind, key: str) -> None:
        """`links` are the caller's: nothing else is asked on them at the same time."""
        self._cluster = cluster
        self._links = links
        self._kind: Kind = kind
        self._key = key

    def send(self, make: Make, response: Any, deadline_s: float) -> Connection:
        """Send a request, whose answer the caller reads; Disconnected if it cannot be sent."""
        node = self._cluster.coordinator(self._kind, self._key)
        link = self._links.to(node, deadline_s)
        link.send(make(link), response, deadline_s=deadline_s)
        return link

    def ask(
        self,
        make: Make,
        response: Any,
        code_of: Callable[[Any], int],
        doing: str,
        deadline_s: float,
        first: Connection | None = None,
    ) -> Any:
        """Return the answer; ask again as long as its code says so, until the deadline.

        `first` is a connection on which `send` has asked already. Unavailable if there is no
        answer; the request may have been carried out.
        """
        since_s, retries, why = monotonic(), Retries(deadline_s), ""
        while True:
            try:
                link = self.send(make, response, deadline_s) if first is None else first
                first = None
                until_s = min(deadline_s, monotonic() + self._cluster.answer_s)
                answer = link.read(deadline_s=until_s)
                if answer is None:
                    link.close()
                    raise Disconnected(f"{link.address}: no answer to {response.name}")
                code = code_of(answer)
                if not code or not is_passing(code):
                    return answer
                if code in _ELSEWHERE:
                    self._cluster.coordinator_moved(self._kind, self._key)
                raise Moving(said(code))
            except Disconnected as failure:
                self._cluster.coordinator_moved(self._kind, self._key)
                why = str(failure)
            except Moving as moving:
                why = str(moving)
            if not retries.wait():
                raise self._cluster.unanswered(doing, since_s, why)


class ProducerId(Protocol):
    """Whose records brokers tell apart by number. Without a name there are no transactions."""

    @property
    def name(self) -> str | None: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...


class PlainId(NamedTuple):
    """A producer id without transactions."""

    producer_id: int
    epoch: int
    name: None = None

    @classmethod
    def of(cls, cluster: ClusterMap) -> "PlainId":
        """Ask any broker for a new one."""
        doing = "ask for a producer id"
        found = cluster.ask_any(
            _opening(None, _NO_TIMEOUT),
            InitProducerIdResponse,
            lambda answer: int(answer.error_code),
            doing,
        )
        return cls(found.producer_id, found.producer_epoch)


class TransactionalId:
    """A transactional id that this owner has opened, and its epoch, which each transaction raises.

    A late request of an earlier transaction has an older epoch, so the broker refuses it (KIP-890).
    """

    def __init__(self, cluster: ClusterMap, links: Links, name: str, timeout_ms: int) -> None:
        """`timeout_ms`: after this time the broker aborts a transaction that is open."""
        self.name = name
        self.producer_id = self.epoch = -1
        self.coordinator = Coordinator(cluster, links, "transaction", name)
        self._timeout_ms = timeout_ms

    @property
    def is_open(self) -> bool:
        """Whether this owner has opened it: an idle stream task never does (docs/adr/0046)."""
        return self.producer_id >= 0

    def open(self, deadline_s: float) -> None:
        """Fence the last owner, and abort its open transaction."""
        self.producer_id = self.epoch = -1
        doing = f"open the transactional id {self.name}"
        answer = self.coordinator.ask(
            _opening(self.name, self._timeout_ms),
            InitProducerIdResponse,
            lambda answer: int(answer.error_code),
            doing,
            deadline_s,
        )
        if answer.error_code:
            raise error_for(KafkaError(answer.error_code), doing)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def ask_commit(self, deadline_s: float) -> Connection:
        """Ask to commit the open transaction; `end` reads the answer. Disconnected or Unavailable.

        Whatever it raises, the broker may have been asked.
        """
        return self.coordinator.send(self._ending(commit=True), EndTxnResponse, deadline_s)

    def end(self, *, commit: bool, deadline_s: float, asked: Connection | None = None) -> None:
        """Commit or abort the open transaction; afterwards the next one has its epoch.

        `asked` is what `ask_commit` returned. Unavailable if the broker does not answer: call
        again, with the same `commit`, to learn what happened. Fenced if another owner opened the
        id, or the transaction has expired.
        """
        doing = f"{'commit' if commit else 'abort'} the transaction of {self.name}"
        answer = self.coordinator.ask(
            self._ending(commit=commit),
            EndTxnResponse,
            lambda answer: int(answer.error_code),
            doing,
            deadline_s,
            first=asked,
        )
        if answer.error_code:
            raise refusal(answer.error_code, doing)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def _ending(self, *, commit: bool) -> Make:
        return lambda link: EndTxnRequest(
            version=link.version(EndTxnRequest, END_VERSION),
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )


def _opening(name: str | None, timeout_ms: int) -> Make:
    """Make the request for a producer id: a new one, or that of a transactional id."""
    return lambda link: InitProducerIdRequest(
        version=link.version(InitProducerIdRequest, _OPEN_VERSION),
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )


def refusal(code: int, doing: str) -> StateStoreError:
    """Return the error for a refused request of a transaction."""
    found = error_for(KafkaError(code), doing)
    if code in _TAKEN_OVER and not isinstance(found, Fenced):
        return Fenced(f"{found}; the transaction is no longer this producer's: open the id again")
    return found
