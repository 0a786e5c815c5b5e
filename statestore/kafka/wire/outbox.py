"""`ports.Outbox` with KIP-890's transactions: an epoch for each, without a new client.

A stream task has two transactional ids here too, and uses them in turn. One would do, as a late
request of an earlier transaction is refused by its epoch. But librdkafka's outbox needs two
(`kafka/epochs.py`), and an owner that was replaced without noticing may run it: as transaction n is
of id n mod 2 with both clients, only one of the two can commit it.

An outbox is used by one thread.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import KafkaError
from kafka.protocol.admin import DescribeTransactionsRequest, DescribeTransactionsResponse
from kafka.protocol.producer import TxnOffsetCommitRequest, TxnOffsetCommitResponse

from statestore.errors import CommitUnknown, Fenced, StateStoreError, Unavailable
from statestore.kafka.error_codes import error_for
from statestore.kafka.groups import Groups, metadata_of
from statestore.kafka.outbox import NumberOf, Waits, no_number
from statestore.kafka.wire.appends import AppendOptions, Appends
from statestore.kafka.wire.cluster import ClusterMap, Links, Retries
from statestore.kafka.wire.connection import Connection, Disconnected
from statestore.kafka.wire.coordinators import Coordinator, TransactionalId, refusal
from statestore.model.ids import TopicPartition
from statestore.ports import CommitWaits, Records
from statestore.settings import Settings

_log = logging.getLogger(__name__)
_OFFSETS_VERSION = 5
_CLOSE_S = 5.0
# An idle broker tells the partitions within so much.
_ENDED_S = 0.002
_UNFINISHED = frozenset({"PrepareCommit", "PrepareAbort"})


class _Offsets(NamedTuple):
    """Input offsets that were sent, the connection on which, and the request for asking again."""

    link: Connection | None
    offsets: Mapping[TopicPartition, int]
    metadata: str


class WireOutbox:
    """See the module and `ports.Outbox`.

    After Fenced call `open`; after CommitUnknown call `commit` again; after any other error call
    `abort`.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterMap,
        *,
        transactional_ids: Sequence[str],
        group_id: str | None,
        inputs: Sequence[TopicPartition] = (),
        number_of: NumberOf = no_number,
        batch_bytes: int | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Create an outbox that is not open yet; the arguments are `TransactionalOutbox`'s.

        `cluster` is shared by all clients of the process.
        """
        self._cluster = cluster
        self._group_id = group_id
        self._inputs = sorted(inputs)
        self._number_of = number_of
        self._groups = groups if groups is not None else Groups(settings)
        self._owns_groups = groups is None
        self._waits = Waits()
        # Answers come in order, so a commit does not wait behind records.
        self._asking, self._appending, self._sending = (Links(cluster) for _ in range(3))
        self._ids = [
            TransactionalId(cluster, self._asking, name, settings.transaction_timeout_ms)
            for name in transactional_ids
        ]
        self._group = Coordinator(cluster, self._sending, "group", group_id or "")
        options = AppendOptions.of(settings, batch_bytes)
        self._appends = Appends(cluster, self._appending, options)
        self._stale: set[int] = set()
        self._current: int | None = None
        self._number = 0
        self._offsets: _Offsets | None = None
        self._has_offsets = False
        self._is_ending = False
        self._asked: Connection | None = None
        self._fenced: Fenced | None = None

    def open(self) -> None:
        """Fence the last owner of these ids and abort its open transaction."""
        self._discard()
        self._fenced = None
        self._stale.clear()
        deadline_s = self._deadline_s()
        for one in self._ids:
            one.open(deadline_s)

    def begin(self, number: int | None = None) -> None:
        """Begin a transaction; the broker is informed with the first record or offset."""
        self._require_owner()
        assert self._current is None, "one transaction at a time"
        number = self._number if number is None else number
        index = number % len(self._ids)
        if index in self._stale:
            self._open_again(index, number)
        self._current, self._number = index, number
        self._offsets, self._has_offsets = None, False
        self._appends.begin(self._ids[index])

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """Append records in order; see `ports.Outbox`."""
        self._ready()
        with self._noting():
            self._appends.add(records, tracked=tracked)

    def push(self) -> None:
        """Send the records that wait for a full batch."""
        self._ready()
        with self._noting():
            self._appends.push()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Add the group's input offsets; the answer is awaited by `flush` and `commit`.

        Before that all records are acknowledged: while brokers add partitions to a transaction,
        they cannot add offsets to it, and try again after 20 ms
        (`add.partitions.to.txn.retry.backoff.ms`).
        """
        self._ready()
        assert self._group_id is not None, "an outbox without a group has no inputs"
        self.flush()
        self._has_offsets = True
        link: Connection | None = None
        with self._waits.of("offsets"), suppress(Disconnected):
            link = self._group.send(
                lambda link: self._offsets_request(link, offsets, metadata),
                TxnOffsetCommitResponse,
                self._deadline_s(),
            )
        self._offsets = _Offsets(link, offsets, metadata)

    def flush(self) -> None:
        """Wait until every record sent is acknowledged; raise the first failure seen so far."""
        self._ready()
        deadline_s = self._deadline_s()
        with self._noting():
            with self._waits.of("flush"):
                self._appends.finish(deadline_s)
            with self._waits.of("offsets"):
                self._settle_offsets(deadline_s)

    def ask_commit(self) -> None:
        """See `ports.Outbox`: the end of the transaction is told, and its answer not awaited."""
        owner = self._ready()
        self.flush()
        if not self._has_sent():
            return
        # From now on the broker may have been told.
        self._is_ending = True
        with self._waits.of("end"), suppress(Disconnected, Unavailable):
            self._asked = owner.ask_commit(self._deadline_s())

    def commit(self) -> None:
        """Commit everything or nothing.

        CommitUnknown if there was no answer in time: call again to continue waiting.
        """
        owner = self._ready()
        if not self._is_ending:
            self.flush()
        if self._has_sent():
            self._is_ending = True
            asked, self._asked = self._asked, None
            with self._noting(), self._waits.of("end"):
                try:
                    owner.end(commit=True, deadline_s=self._deadline_s(), asked=asked)
                except Unavailable as failure:
                    raise CommitUnknown(
                        f"the commit of {owner.name} was not answered: {failure}: it may or may "
                        "not have happened: commit again to learn which"
                    ) from failure
        self._current = None
        self._is_ending = False
        self._number += 1

    def abort(self) -> None:
        """Drop everything sent since `begin`; do nothing without an open transaction."""
        self._require_owner()
        if self._current is None:
            return
        index, has_sent, is_ending = self._current, self._has_sent(), self._is_ending
        self._discard()
        if is_ending:
            # It may be committed already; opening the id again ends it if it is not.
            self._stale.add(index)
        elif has_sent:
            with self._noting():
                try:
                    self._ids[index].end(commit=False, deadline_s=self._deadline_s())
                except Unavailable:
                    self._stale.add(index)

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each tracked partition since `begin`."""
        return dict(self._appends.ends)

    def waited(self) -> CommitWaits:
        """Return how long it has waited for brokers so far."""
        return self._waits.so_far

    def close(self) -> None:
        """Abort an open transaction, wait until readers see the last one ended, and close.

        If the broker does not answer soon, this is left to the next owner.
        """
        current, has_sent = self._current, self._has_sent() and not self._is_ending
        self._discard()
        deadline_s = monotonic() + _CLOSE_S
        if self._fenced is None:
            try:
                if current is not None and has_sent:
                    self._ids[current].end(commit=False, deadline_s=deadline_s)
                for one in self._ids:
                    if one.is_open:
                        self._wait_ended(one, deadline_s)
            except StateStoreError as failure:
                _log.info(
                    "the last transaction of %s is left for its next owner: %s",
                    self._ids[0].name,
                    failure,
                )
        for links in (self._asking, self._appending, self._sending):
            links.close()
        if self._owns_groups:
            self._groups.close()

    def _open_again(self, index: int, number: int) -> None:
        """Open an id whose last transaction may not have ended, if nobody else has gone on."""
        self._ids[index].open(self._deadline_s())
        if self._inputs:
            found = self._groups.client(stable=False).committed(self._inputs)
            latest = max((self._number_of(metadata_of(at)) for at in found), default=0)
            if latest >= number:
                self._fenced = Fenced(
                    f"{self._ids[index].name}: commit {latest} of this stream task is not this "
                    "owner's: a newer owner took over"
                )
                raise self._fenced
        self._stale.discard(index)

    def _settle_offsets(self, deadline_s: float) -> None:
        """Wait until the input offsets that were sent are part of the transaction."""
        sent, self._offsets = self._offsets, None
        if sent is None:
            return
        doing = f"send input offsets to group {self._group_id} ({self._owner().name})"
        answer = self._group.ask(
            lambda link: self._offsets_request(link, sent.offsets, sent.metadata),
            TxnOffsetCommitResponse,
            _first_code,
            doing,
            deadline_s,
            first=sent.link,
        )
        if code := _first_code(answer):
            raise refusal(code, doing)

    def _offsets_request(
        self, link: Connection, offsets: Mapping[TopicPartition, int], metadata: str
    ) -> Any:
        owner = self._owner()
        topic_of = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        topics: dict[str, list[Any]] = {}
        for tp, offset in offsets.items():
            topics.setdefault(tp.topic, []).append(
                topic_of.TxnOffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=metadata,
                )
            )
        return TxnOffsetCommitRequest(
            version=link.version(TxnOffsetCommitRequest, _OFFSETS_VERSION),
            transactional_id=owner.name,
            group_id=self._group_id,
            producer_id=owner.producer_id,
            producer_epoch=owner.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic_of(name=name, partitions=some) for name, some in topics.items()],
        )

    def _wait_ended(self, owner: TransactionalId, deadline_s: float) -> None:
        """Wait until the broker has told the end of the id's transaction to all partitions.

        It answers a commit before that, and readers wait for it.
        """
        retries = Retries(deadline_s, _ENDED_S)
        doing = f"wait for the end of the transaction of {owner.name}"
        while True:
            answer = owner.coordinator.ask(
                lambda link: DescribeTransactionsRequest(
                    version=link.version(DescribeTransactionsRequest, 0),
                    transactional_ids=[owner.name],
                ),
                DescribeTransactionsResponse,
                lambda answer: int(answer.transaction_states[0].error_code),
                doing,
                deadline_s,
            )
            (state,) = answer.transaction_states
            if state.error_code:
                raise error_for(KafkaError(state.error_code), doing)
            if state.transaction_state not in _UNFINISHED or not retries.wait():
                return

    def _deadline_s(self) -> float:
        return monotonic() + self._cluster.timeout_s

    def _owner(self) -> TransactionalId:
        assert self._current is not None, "begin comes first"
        return self._ids[self._current]

    def _has_sent(self) -> bool:
        """Return whether a broker may know of the current transaction."""
        return self._appends.has_sent or self._has_offsets

    def _ready(self) -> TransactionalId:
        self._require_owner()
        return self._owner()

    def _require_owner(self) -> None:
        if self._fenced is not None:
            raise Fenced(str(self._fenced))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note that nothing goes on before the next `open`, if what is done inside says so."""
        try:
            yield
        except Fenced as fenced:
            self._fenced = fenced
            raise

    def _discard(self) -> None:
        """Drop what has no answer; the connections of what was asked are closed."""
        self._current = None
        self._appends.drop()
        if self._is_ending:
            self._asking.close()
            self._is_ending, self._asked = False, None
        if self._offsets is not None:
            self._sending.close()
            self._offsets = None


def _first_code(answer: Any) -> int:
    codes = (one.error_code for topic in answer.topics for one in topic.partitions)
    return next((int(code) for code in codes if code), 0)
