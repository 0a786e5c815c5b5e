"""Lets go of clients in the middle of a transaction. That may end the process, so it is a child.

python -m tests.kafka.let_go unanswered|at-once|fenced <application> <bootstrap.servers>
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from time import perf_counter

from confluent_kafka import KafkaException

from statestore.kafka.clients import TRANSACTION_LOG, Trouble
from statestore.kafka.outbox import TransactionalOutbox
from statestore.kafka.sender import Sender
from statestore.ports import Records
from statestore.settings import Settings
from tests.builders import DEADLINE_S

_OWNERS = 6
_ABORTS = 40
_TAKEOVERS = 15
# A client asks for a partition a millisecond after the first record for it.
_EARLIEST_S, _LATEST_S = 0.0005, 0.002


def close_unanswered(application: str, address: str) -> None:
    """Close an outbox whose transaction waits for an answer about its second partition."""
    outbox = TransactionalOutbox(
        _settings(application, address), transactional_ids=["x", "x-2"], group_id=application
    )
    outbox.open()
    outbox.begin()
    outbox.send(_records(application, 0))
    outbox.flush()
    outbox.send(_records(application, 1))
    sys.stdin.read()  # It ends when the answer is lost.
    outbox.close()


def close_at_once(application: str, address: str) -> None:
    """Let go of clients around the moment at which they ask for their first partition."""
    settings = _settings(application, address)

    def work(owner: int) -> None:
        rng = Random(owner)
        for _ in range(_ABORTS):
            sender = _sender(settings, f"{application}-{owner}")
            sender.begin()
            _send(sender, application, [0])
            until_s = perf_counter() + rng.uniform(_EARLIEST_S, _LATEST_S)
            while perf_counter() < until_s:
                pass  # A wait would be longer than that moment.
            sender.close()

    _for_each_owner(work)


def close_fenced(application: str, address: str) -> None:
    """Let go of clients as soon as they hear that they are fenced, with more answers to come."""
    settings = _settings(application, address)

    def work(owner: int) -> None:
        sender = _sender(settings, f"{application}-{owner}")
        for _ in range(_TAKEOVERS):
            sender.begin()
            _send(sender, application, [0, 1])
            sender.client.flush(DEADLINE_S)
            successor = _sender(settings, f"{application}-{owner}")
            with suppress(KafkaException):
                _send(sender, application, [0, 1] * 10)
                sender.client.commit_transaction(DEADLINE_S)
            sender.close()
            sender = successor
        sender.close()

    _for_each_owner(work)


def _settings(application: str, address: str) -> Settings:
    return Settings.from_mapping(
        {
            "application.id": application,
            "bootstrap.servers": address,
            "processing.guarantee": "exactly_once",
            "producer.socket.timeout.ms": 2_000,
            "producer.batch.size": 1,  # A request for each record: several are on their way.
        }
    )


def _sender(settings: Settings, name: str) -> Sender:
    """A client that knows its brokers and has opened its id."""
    sender = Sender(settings, {"transactional.id": name}, Trouble())
    for topic in (TRANSACTION_LOG, TRANSACTION_LOG, f"{settings.application_id}-out"):
        sender.client.list_topics(topic, DEADLINE_S)
    sender.client.init_transactions(DEADLINE_S)
    return sender


def _records(application: str, partition: int) -> Records:
    return Records(f"{application}-out", [b"k"], [b"v"], [1], partition=partition)


def _send(sender: Sender, application: str, partitions: Sequence[int]) -> None:
    for partition in partitions:
        sender.send(_records(application, partition), each=None, last=sender.on_report)


def _for_each_owner(work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(_OWNERS) as pool:
        for done in [pool.submit(work, owner) for owner in range(_OWNERS)]:
            done.result()


if __name__ == "__main__":
    cases = {"unanswered": close_unanswered, "at-once": close_at_once, "fenced": close_fenced}
    cases[sys.argv[1]](*sys.argv[2:])
