"""Reads the committed offsets of a consumer group, and waits until no transaction is pending."""

import json
import threading
from collections.abc import Sequence
from contextlib import closing
from time import monotonic
from typing import Any

import tenacity
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.errors import Unavailable
from statestore.kafka.clients import Trouble, consumer, unanswered, waited
from statestore.kafka.error_codes import error_for, is_transient, is_unanswered, translated
from statestore.model.ids import TopicPartition
from statestore.ports import GroupOffset
from statestore.settings import Settings

_JSON = json.JSONDecoder()
_PAUSE_S = 0.03
# A client that the coordinator refuses waits silently, so its events are checked this often.
_EVENTS_S = 2.0


class GroupClient:
    """A consumer that reads its group's committed offsets and never joins the group.

    An admin client would not do: its ListConsumerGroupOffsets crashes the process when the
    coordinator is loading or has moved (librdkafka 2.16: the error handler uses a consumer group
    that an admin client does not have).
    """

    def __init__(self, settings: Settings, group_id: str, *, stable: bool = True) -> None:
        """With `stable` False, read current offsets, which an open transaction may change."""
        self._settings = settings
        self._group_id = group_id
        self._trouble = Trouble()
        self._client = consumer(settings, group_id, self._trouble, stable=stable)

    def member(self) -> Any:
        """Return the group metadata with which a transaction commits the group's offsets."""
        return self._client.consumer_group_metadata()

    def committed(self, tps: Sequence[TopicPartition]) -> list[KafkaPartition]:
        """Return the committed offsets; wait for the coordinator and, if stable, transactions."""
        doing = f"read the committed offsets of group {self._group_id}"
        timeout_s = self._settings.request_timeout_ms / 1000
        asked, since_s = [KafkaPartition(*tp) for tp in tps], monotonic()
        until_s = since_s + timeout_s

        def ask() -> list[KafkaPartition]:
            left_s = max(until_s - monotonic(), _PAUSE_S)
            try:
                return self._client.committed(asked, min(left_s, _EVENTS_S))
            except KafkaException:
                self._raise_refusal(doing)
                raise

        # UnicodeDecodeError: the client may read foreign bytes too, see `metadata_of`.
        try:
            found: list[KafkaPartition] = tenacity.Retrying(
                stop=tenacity.stop_after_delay(timeout_s),
                wait=tenacity.wait_fixed(_PAUSE_S),
                retry=tenacity.retry_if_result(_any_unstable)
                | tenacity.retry_if_exception(is_transient)
                | tenacity.retry_if_exception(is_unanswered)
                | tenacity.retry_if_exception_type(UnicodeDecodeError),
                retry_error_callback=last_result,
            )(ask)
        except UnicodeDecodeError as failure:
            raise Unavailable(
                f"could not {doing} within {timeout_s:g} s: the client cannot decode their "
                "metadata: start again; if that does not help, another program writes to the group"
            ) from failure
        except KafkaException as failure:
            if not is_transient(failure) and not is_unanswered(failure):
                raise translated(failure, doing) from failure
            self._client.poll(0)
            if self._trouble:
                raise unanswered(self._settings, self._trouble, doing, since_s=since_s) from failure
            raise Unavailable(
                f"could not {doing} within {waited(since_s)}: its coordinator is not ready, or a "
                "transaction with such offsets is open: wait for its owner to finish, or for the "
                "broker to abort it after transaction.timeout.ms"
            ) from failure
        return found

    def _raise_refusal(self, doing: str) -> None:
        """Raise the error that the client received while it waited, if it is permanent."""
        event = self._client.poll(0)
        error = None if event is None else event.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise error_for(error, doing)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class Groups:
    """The clients that read the offsets of an application's group, shared by all of a process.

    They are made when first asked for. Any thread may use them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._clients: dict[bool, GroupClient] = {}

    def client(self, *, stable: bool) -> GroupClient:
        """Return the client whose answers wait for open transactions, or the one whose do not."""
        with self._lock:
            if stable not in self._clients:
                group_id = self._settings.application_id
                self._clients[stable] = GroupClient(self._settings, group_id, stable=stable)
            return self._clients[stable]

    def read(
        self, tps: Sequence[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, GroupOffset]:
        """Read the offsets that the group has committed; see `GroupClient`."""
        return _offsets_in(self.client(stable=stable).committed(tps)) if tps else {}

    def close(self) -> None:
        """Close the clients."""
        with self._lock:
            while self._clients:
                self._clients.popitem()[1].close()


def read_group(
    settings: Settings, tps: Sequence[TopicPartition], *, stable: bool = True
) -> dict[TopicPartition, GroupOffset]:
    """Read the offsets that the application's group has committed, with a client of its own."""
    with closing(Groups(settings)) as groups:
        return groups.read(tps, stable=stable)


def _offsets_in(found: Sequence[KafkaPartition]) -> dict[TopicPartition, GroupOffset]:
    committed = {}
    for tp in found:
        if tp.error is not None:
            raise error_for(tp.error, f"read the committed offset of {tp.topic}-{tp.partition}")
        if tp.offset >= 0:
            at = TopicPartition(tp.topic, tp.partition)
            committed[at] = GroupOffset(tp.offset, metadata_of(tp))
    return committed


def metadata_of(committed: KafkaPartition) -> str:
    """Return the metadata of a committed offset without bytes that the client put behind its end.

    The client (confluent-kafka 2.16) reads metadata up to a zero byte, but librdkafka copies it
    without one, so that foreign bytes may follow, which may even be no text. All metadata of ours
    are JSON objects, which tell where they end.
    """
    try:
        metadata: str = committed.metadata or ""
    except UnicodeDecodeError as failure:
        metadata = bytes(failure.object).decode(errors="replace")
    try:
        _, end = _JSON.raw_decode(metadata)
    except ValueError:
        return metadata
    return metadata[:end]


def last_result(state: tenacity.RetryCallState) -> Any:
    """Return or raise the result of the last attempt when a `Retrying` runs out of time."""
    assert state.outcome is not None
    return state.outcome.result()


def _any_unstable(found: Sequence[KafkaPartition]) -> bool:
    return any(
        tp.error is not None and tp.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
        for tp in found
    )
