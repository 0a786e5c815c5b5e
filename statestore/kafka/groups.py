"""Reads what a consumer group committed, and waits until that is known for certain."""

from collections.abc import Sequence
from contextlib import closing
from time import monotonic
from typing import Any

import tenacity
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.errors import Unavailable
from statestore.kafka.clients import Trouble, consumer, unanswered
from statestore.kafka.errors import error_for, is_passing, is_silence, translated
from statestore.model.ids import TopicPartition
from statestore.settings import Settings

_PAUSE_S = 0.03
# Refused by the coordinator, a client waits in silence; what it was told is looked at so often.
_GLANCE_S = 2.0


class GroupClient:
    """A consumer that never joins its group: it asks where the group stands.

    Not an admin client: its ListConsumerGroupOffsets crashes the process when the coordinator
    is loading or moved (librdkafka 2.16: the error handler reaches for a consumer group that an
    admin client does not have).
    """

    def __init__(self, settings: Settings, group_id: str, *, stable: bool = True) -> None:
        """`stable` False: asks for the offsets of now, which an open transaction may move."""
        self._settings = settings
        self._group_id = group_id
        self._trouble = Trouble()
        self._client = consumer(settings, group_id, self._trouble, stable=stable)

    def member(self) -> Any:
        """Who a transaction commits the group's offsets as."""
        return self._client.consumer_group_metadata()

    def committed(self, tps: Sequence[TopicPartition]) -> list[KafkaPartition]:
        """The committed offsets, once the coordinator is there and, if stable, none is pending."""
        doing = f"read the committed offsets of group {self._group_id}"
        timeout_s = self._settings.request_timeout_ms / 1000
        asked, until_s = [KafkaPartition(*tp) for tp in tps], monotonic() + timeout_s

        def ask() -> list[KafkaPartition]:
            left_s = max(until_s - monotonic(), _PAUSE_S)
            try:
                return self._client.committed(asked, min(left_s, _GLANCE_S))
            except KafkaException:
                self._raise_refusal(doing)
                raise

        try:
            found: list[KafkaPartition] = tenacity.Retrying(
                stop=tenacity.stop_after_delay(timeout_s),
                wait=tenacity.wait_fixed(_PAUSE_S),
                retry=tenacity.retry_if_result(_any_unstable)
                | tenacity.retry_if_exception(is_passing)
                | tenacity.retry_if_exception(is_silence),
                retry_error_callback=last_result,
            )(ask)
        except KafkaException as failure:
            if not is_passing(failure) and not is_silence(failure):
                raise translated(failure, doing) from failure
            self._client.poll(0)
            if self._trouble:
                raise unanswered(self._settings, self._trouble, doing) from failure
            raise Unavailable(
                f"could not {doing} within {timeout_s:g} s: its coordinator is not ready, or a "
                "transaction that carries some is open: its owner still runs, or it ends by "
                "transaction.timeout.ms"
            ) from failure
        return found

    def _raise_refusal(self, doing: str) -> None:
        """Raise what the client was told while it waited, if that will not pass."""
        event = self._client.poll(0)
        error = None if event is None else event.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise error_for(error, doing)

    def close(self) -> None:
        """Let go of it."""
        self._client.close()


def read_group(
    settings: Settings, group_id: str, tps: Sequence[TopicPartition], *, stable: bool = True
) -> list[KafkaPartition]:
    """The committed offsets, asked once; see `GroupClient`."""
    with closing(GroupClient(settings, group_id, stable=stable)) as client:
        return client.committed(tps)


def last_result(state: tenacity.RetryCallState) -> Any:
    """For `Retrying`: when time is up, what the last attempt gave or raised."""
    assert state.outcome is not None
    return state.outcome.result()


def _any_unstable(found: Sequence[KafkaPartition]) -> bool:
    return any(
        tp.error is not None and tp.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
        for tp in found
    )
