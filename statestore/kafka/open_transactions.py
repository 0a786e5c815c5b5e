"""Ends what the owners of transactional ids left open, without becoming their owner for long.

Opening an id gives it a new epoch: the broker aborts what an older one has open, marks its records,
and takes nothing from it any more. It answers only when all that is done.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaException

from statestore.kafka.clients import Properties, Trouble, connect, producer, unanswered
from statestore.kafka.errors import hear_out, is_silence, translated
from statestore.settings import Settings

_AT_ONCE = 8


def abort_open_transactions(settings: Settings, transactional_ids: Sequence[str]) -> None:
    """Open each id once, several at a time; the first failure is raised when none is under way."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="abort-open") as pool:
        for done in [pool.submit(_abort_one, settings, name) for name in transactional_ids]:
            done.result()


def _abort_one(settings: Settings, transactional_id: str) -> None:
    trouble = Trouble()
    properties: Properties = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": settings.transaction_timeout_ms,
    }
    timeout_s = settings.request_timeout_ms / 1000
    client = producer(settings, properties, trouble)
    doing = f"abort what is open of {transactional_id}"
    try:
        connect(client, timeout_s)
        client.init_transactions(timeout_s)
    except KafkaException as failure:
        hear_out(client)
        if is_silence(failure):
            raise unanswered(settings, trouble, doing) from failure
        raise translated(failure, doing) from failure
