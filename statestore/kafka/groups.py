"""Reads what a consumer group committed, and waits until that is known for certain."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tenacity
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from statestore.errors import Unavailable
from statestore.kafka.clients import Trouble, consumer, unanswered
from statestore.kafka.errors import is_passing, is_silence, translated
from statestore.model import TopicPartition
from statestore.settings import Settings

_PAUSE_S = 0.03


class Group(NamedTuple):
    """A group as its coordinator knows it; a transaction commits for it as `member`."""

    offsets: list[KafkaPartition]
    member: Any


def read_group(
    settings: Settings, group_id: str, tps: Sequence[TopicPartition], *, stable: bool = True
) -> Group:
    """The committed offsets, once no transaction holds one open and the coordinator is there.

    `stable` False: those of now, which a transaction still open may be about to move.
    Not by the admin client: its ListConsumerGroupOffsets crashes the process when the coordinator
    is loading or moved (librdkafka 2.16: the error handler reaches for a consumer group that an
    admin client does not have).
    """
    doing = f"read the committed offsets of group {group_id}"
    timeout_s = settings.request_timeout_ms / 1000
    trouble = Trouble()
    client = consumer(settings, group_id, trouble, stable=stable)
    try:
        offsets = tenacity.Retrying(
            stop=tenacity.stop_after_delay(timeout_s),
            wait=tenacity.wait_fixed(_PAUSE_S),
            retry=tenacity.retry_if_result(_any_unstable) | tenacity.retry_if_exception(is_passing),
            retry_error_callback=last_result,
        )(client.committed, [KafkaPartition(*tp) for tp in tps], timeout_s)
        return Group(offsets, client.consumer_group_metadata())
    except KafkaException as failure:
        if not is_passing(failure) and not is_silence(failure):
            raise translated(failure, doing) from failure
        client.poll(0)
        if trouble:
            raise unanswered(settings, trouble, doing) from failure
        raise Unavailable(
            f"could not {doing} within {timeout_s:g} s: its coordinator is not ready, or a "
            "transaction that carries some is open: its owner still runs, or it ends by "
            "transaction.timeout.ms"
        ) from failure
    finally:
        client.close()


def last_result(state: tenacity.RetryCallState) -> Any:
    """For `Retrying`: when time is up, what the last attempt gave or raised."""
    assert state.outcome is not None
    return state.outcome.result()


def _any_unstable(found: Sequence[KafkaPartition]) -> bool:
    return any(
        tp.error is not None and tp.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
        for tp in found
    )
