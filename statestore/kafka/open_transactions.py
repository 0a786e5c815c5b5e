"""Aborts open transactions by opening their transactional ids once.

Opening an id gives it a new producer epoch. The broker aborts the open transaction of an older
epoch, writes its transaction markers, and refuses further requests with that epoch. It answers
only after all that.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaException

from statestore.kafka.clients import Properties, Trouble, connect, producer, unanswered
from statestore.kafka.errors import is_unanswered, run_callbacks, translated
from statestore.settings import Settings

_AT_ONCE = 8


def abort_open_transactions(settings: Settings, transactional_ids: Sequence[str]) -> None:
    """Open each id once, several at a time; raise the first failure once all have ended."""
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
    doing = f"abort the open transaction of {transactional_id}"
    try:
        connect(client, timeout_s)
        client.init_transactions(timeout_s)
    except KafkaException as failure:
        run_callbacks(client)
        if is_unanswered(failure):
            raise unanswered(settings, trouble, doing) from failure
        raise translated(failure, doing) from failure
