"""The connection on which requests about topics, offsets and logs go to a cluster."""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import tenacity
from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._topic import TopicDescription

from statestore.errors import (
    StateStoreError,
    TopicMissing,
    Unavailable,
)
from statestore.kafka.clients import Trouble, admin_client, connect, unanswered
from statestore.kafka.error_codes import is_transient, is_unanswered, kafka_error, translated
from statestore.kafka.groups import last_result
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds
from statestore.settings import Settings

K = TypeVar("K")
T = TypeVar("T")
Answers = dict[K, "Future[Any]"]

PAUSE_S = 0.03
# How long the markers of a transaction that has ended may be under way.
_MARKERS_S = 2.0
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # library gap
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # library gap


class Admin:
    """An admin client that connects on first use; requests wait and raise StateStoreErrors."""

    def __init__(self, settings: Settings, *, timeout_ms: int | None = None) -> None:
        self._settings = settings
        self._trouble = Trouble()
        self._client: AdminClient | None = None
        self.timeout_s = (timeout_ms or settings.request_timeout_ms) / 1000

    @property
    def client(self) -> AdminClient:
        """The client, created and connected on first use."""
        if self._client is None:
            made = admin_client(self._settings, self._trouble)
            self._client = made
            self.connect()
        return self._client

    def connect(self) -> list[int]:
        """Wait for a connection and for metadata of the cluster; return its brokers' ids."""
        since_s = monotonic()
        try:
            return connect(self.client, self.timeout_s, self._trouble)
        except KafkaException as failure:
            raise self._error(failure, "reach the cluster", since_s) from failure

    def answer(self, pending: "Future[T]", doing: str, *, since_s: float) -> T:
        """Return the result of a request made at `since_s`, or raise its StateStoreError."""
        try:
            return pending.result()
        except (KafkaException, ValueError) as failure:
            raise self._error(failure, doing, since_s) from failure

    def offsets(
        self,
        tps: Sequence[TopicPartition],
        spec: OffsetSpec,
        doing: str,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """Return the offset that `spec` describes among the records that `isolation` sees.

        It is -1 if there is none.
        """
        if not tps:
            return {}
        asked, since_s = {KafkaPartition(*tp): spec for tp in tps}, monotonic()

        def request() -> Answers[KafkaPartition]:
            return self.client.list_offsets(
                asked,
                isolation_level=isolation,
                request_timeout=self.timeout_s,
            )

        def should_retry(pending: Answers[KafkaPartition]) -> bool:
            return any(map(_is_lost, pending.values()))

        found: dict[TopicPartition, int] = {}
        for tp, future in self.of_leaders(request, should_retry).items():
            if failed_with(future, KafkaError._NOENT):
                raise self._leaderless(tps, doing)
            answer = self.answer(future, f"{doing} of {tp.topic}-{tp.partition}", since_s=since_s)
            if _is_lost(future):
                raise unanswered(self._settings, self._trouble, doing, since_s=since_s)
            found[TopicPartition(tp.topic, tp.partition)] = answer.offset
        return found

    def topics(self) -> list[str]:
        """Return the names of all topics that may be described."""
        doing, since_s = "list the topics", monotonic()
        try:
            listed = self.client.list_topics(timeout=self.timeout_s).topics
        except KafkaException as failure:
            raise self._error(failure, doing, since_s) from failure
        return sorted(listed)

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the partition counts of the topics that exist."""
        return {name: len(found.partitions) for name, found in self.described(topics).items()}

    def described(self, topics: Sequence[str]) -> dict[str, TopicDescription]:
        """Return the descriptions of the topics that exist."""
        if not topics:
            return {}
        since_s = monotonic()
        pending = self.client.describe_topics(
            TopicCollection(list(topics)), request_timeout=self.timeout_s
        )
        found = {}
        for name, future in pending.items():
            if not failed_with(future, KafkaError.UNKNOWN_TOPIC_OR_PART):
                found[name] = self.answer(future, f"describe topic {name}", since_s=since_s)
        return found

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the log start and the last stable offset of each partition, in two requests."""
        starts = self.offsets(tps, _EARLIEST, "read the log start")
        ends = self.offsets(tps, LATEST, "read the last stable offset")
        return {tp: Bounds(starts[tp], ends[tp]) for tp in tps}

    def undecided(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions whose last stable offset is below their ends, also a moment later.

        The broker answers a commit before it writes the markers.
        """

        def ask() -> list[TopicPartition]:
            # In this order, as more is written meanwhile.
            doing = "read the log end"
            ends = self.offsets(tps, LATEST, doing, IsolationLevel.READ_UNCOMMITTED)
            stable = self.offsets(tps, LATEST, "read the last stable offset")
            return [tp for tp in tps if stable[tp] < ends[tp]]

        return tenacity.Retrying(
            stop=tenacity.stop_after_delay(min(_MARKERS_S, self.timeout_s)),
            wait=tenacity.wait_fixed(PAUSE_S),
            retry=tenacity.retry_if_result(bool),
            retry_error_callback=last_result,
        )(ask)

    def settled(
        self,
        request: Callable[[], Answers[K]],
        should_retry: Callable[[Answers[K]], bool],
    ) -> Answers[K]:
        """Return the answers; repeat the request while some have failed temporarily."""
        return tenacity.Retrying(
            stop=tenacity.stop_after_delay(self.timeout_s),
            wait=tenacity.wait_fixed(PAUSE_S),
            retry=tenacity.retry_if_result(should_retry),
            retry_error_callback=last_result,
        )(request)

    def of_leaders(
        self,
        request: Callable[[], Answers[KafkaPartition]],
        should_retry: Callable[[Answers[KafkaPartition]], bool] = lambda _pending: False,
    ) -> Answers[KafkaPartition]:
        """Return the answers of the partitions' leaders; ask again while leaders move."""
        return self.settled(request, lambda all_: self._leaders_move(all_) or should_retry(all_))

    def _leaders_move(self, pending: Answers[KafkaPartition]) -> bool:
        moved = [tp.topic for tp, asked in pending.items() if is_transient(asked.exception())]
        if moved:
            self._look_up_leaders(sorted(set(moved)))
            return True
        # New topics have no leader for a moment; topics that do not exist never have one.
        leaderless = any(failed_with(future, KafkaError._NOENT) for future in pending.values())
        topics = {tp.topic for tp in pending}
        return leaderless and len(self.partitions(sorted(topics))) == len(topics)

    def _look_up_leaders(self, topics: Sequence[str]) -> None:
        """Let the client forget the leaders, and their epochs, that it knows of these topics.

        By itself it asks about them again when a connection is lost, and otherwise minutes later;
        until then it gives a leader that was elected again the old epoch, and is refused.
        """
        for topic in topics:
            with suppress(KafkaException):  # The next request says what is wrong.
                self.client.list_topics(topic, self.timeout_s)

    def _error(self, failure: Exception, doing: str, since_s: float) -> StateStoreError:
        if not is_unanswered(failure):
            return translated(failure, doing)
        self.client.poll(0)
        return unanswered(self._settings, self._trouble, doing, since_s=since_s)

    def _leaderless(self, tps: Sequence[TopicPartition], doing: str) -> StateStoreError:
        """Return TopicMissing if a topic does not exist, else Unavailable.

        The client reports the same error for both: that it found no leaders.
        """
        topics = sorted({tp.topic for tp in tps})
        missing = [topic for topic in topics if topic not in self.partitions(topics)]
        if missing:
            return TopicMissing(
                f"could not {doing}: there is no topic {', '.join(missing)}: create it"
            )
        return Unavailable(
            f"could not {doing} of {', '.join(topics)}: partitions have no leader: "
            "are all brokers up?"
        )

    def close(self) -> None:
        """Close the client; the next request creates another."""
        self._client = None


def failed_with(pending: "Future[Any]", code: int) -> bool:
    """Return whether the request failed with this error code."""
    failure = pending.exception()
    error = kafka_error(failure) if isinstance(failure, Exception) else None
    return error is not None and error.code() == code


def _is_lost(future: "Future[Any]") -> bool:
    """Return whether a leader's answer was lost, which the client does not report as an error."""
    if future.exception() is not None:
        return False
    lost: bool = future.result().offset == OFFSET_INVALID
    return lost
