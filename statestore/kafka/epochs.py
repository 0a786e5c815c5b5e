"""Gives every transaction its own producer epoch (SEMANTICS E2a, docs/adr/0013).

librdkafka uses the transaction protocol from before KIP-890: a late request of one transaction
acts on another transaction of the same epoch if it arrives during that one. Therefore no two
transactions share an epoch. Opening a transactional id with a new client gives a new epoch. The
broker refuses this until it has finished the id's last transaction; after that, it takes one or two
round trips. A stream task therefore uses two ids in turn: while one carries a transaction, the
other is opened again in the background, at the latest before the offsets of that transaction are
sent.

An owner that was replaced without noticing may also open an id again. This does no harm:
transaction n always uses id n mod 2, and after an id was opened for transaction n, the group's
offsets show whether n or a later one is already committed, in which case Fenced is raised.

Keeps I31.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from confluent_kafka import KafkaException

from statestore.errors import StateStoreError, Unavailable
from statestore.kafka.clients import (
    TRANSACTION_LOG,
    Properties,
    Trouble,
    connect,
    producer,
    unanswered,
)
from statestore.kafka.error_codes import is_transient, is_unanswered, run_callbacks, translated
from statestore.kafka.sender import Sender
from statestore.settings import Settings

# The broker answers a commit before it writes the transaction markers; only then can the id be
# opened.
_MARKED_S = 0.02
# A client that is told to retry does so half a second later; a new client asks at once.
_PATIENCE_S = 0.06
_PATIENCE_ROUND_TRIPS = 10
_PATIENCE_MAX_S = 5.0
_SLICE_S = 0.5


MakeSender = Callable[[Properties], Sender]
"""Creates a producer with these properties in addition to those of the settings."""
_AT_ONCE = 8


class Cancelled(Exception):
    """The opening of this id was cancelled."""


class Turn(NamedTuple):
    """What is needed to open an id again for its next transaction."""

    topics: Collection[str]
    """The topics of the last transaction, whose leaders the next client looks up in advance."""
    check: Callable[[], None]
    """Raises Fenced if the log shows that another owner has committed in the meantime."""


class Epochs:
    """The producers of one owner: one per transactional id, each for one transaction.

    One thread calls the methods; ids are opened in background threads.
    """

    def __init__(
        self, settings: Settings, ids: Sequence[str], trouble: Trouble, make: MakeSender
    ) -> None:
        """Create it without opening any id; messages include the connection errors in `trouble`."""
        self._settings = settings
        self._make = make
        self._ids = tuple(ids)
        self._trouble = trouble
        self._openings: dict[int, Future[Sender]] = {}
        self._turns: dict[int, Turn | None] = {}
        self._cancelled = threading.Event()
        self._pool = ThreadPoolExecutor(len(self._ids), thread_name_prefix="epochs")

    def open_all(self) -> None:
        """Open every id, which fences the last owner and aborts its open transaction."""
        self.discard()
        self._cancelled = threading.Event()
        for index in range(len(self._ids)):
            self._open(index, None)
        for opening in self._openings.values():
            opening.result()

    def take(self, number: int) -> Sender:
        """Return the producer for transaction `number` once it is open, or raise its error."""
        index = number % len(self._ids)
        opening = self._openings.pop(index, None)
        assert opening is not None, "an id carries one transaction each time it is opened"
        try:
            return opening.result()
        except Unavailable:
            self._open(index, self._turns[index])
            raise

    def wait_opened(self) -> None:
        """Wait until the ids of earlier transactions are open again, or raise the first error.

        Until then the broker takes late requests of the last transaction: offsets and an end,
        repeated in this order, would commit its offsets again, over those of the next one.
        """
        for index, opening in list(self._openings.items()):
            try:
                opening.result()
            except Unavailable:
                self._open(index, self._turns[index])
                raise

    def spent(self, number: int, sender: Sender, turn: Turn) -> None:
        """Close the producer of the ended transaction `number`; with two ids, open its id again."""
        if len(self._ids) == 1:
            sender.close()
            return
        self._open(number % len(self._ids), turn, sender)

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait until readers see the last transaction of each id ended; return False if too late.

        This is known once the ids have been opened again.
        """
        done, waiting = wait(self._openings.values(), timeout_s)
        return not waiting and all(opening.exception() is None for opening in done)

    def discard(self) -> None:
        """Close all producers, open or being opened, without aborting their transactions."""
        self._cancelled.set()
        openings = list(self._openings.values())
        self._openings.clear()
        for opening in openings:
            with suppress(KafkaException, StateStoreError, Cancelled):
                opening.result().close()

    def close(self) -> None:
        """Close all producers and the threads."""
        self.discard()
        self._pool.shutdown()

    def _open(self, index: int, turn: Turn | None, last: Sender | None = None) -> None:
        opening = _Opening(
            self._settings, self._ids[index], self._trouble, self._make, self._cancelled
        )
        self._turns[index] = turn
        self._openings[index] = self._pool.submit(opening.run, turn, last)


class _Opening:
    """The opening of one id, which may take several clients."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        trouble: Trouble,
        make: MakeSender,
        cancelled: threading.Event,
    ) -> None:
        self._settings = settings
        self._make = make
        self._name = name
        self._trouble = trouble
        self._cancelled = cancelled
        self._patience_s = _PATIENCE_S
        self._refused: KafkaException | None = None
        self._since_s = monotonic()
        self._deadline_s = self._since_s + settings.request_timeout_ms / 1000

    def run(self, turn: Turn | None, last: Sender | None) -> Sender:
        """Open the id; `turn` is None if this owner has not used it before."""
        ended_s = monotonic()
        if last is not None:
            last.close()
        while True:
            sender = self._connected(turn.topics if turn else ())
            try:
                if turn is not None:
                    self._cancelled.wait(ended_s + _MARKED_S - monotonic())
                opened = self._initialised(sender)
                if opened and turn is not None:
                    turn.check()
            except BaseException:
                sender.close()
                raise
            if opened:
                return sender
            sender.close()
            self._patience_s = min(2 * self._patience_s, _PATIENCE_MAX_S)

    def _connected(self, topics: Collection[str]) -> Sender:
        properties: Properties = {
            "transactional.id": self._name,
            "transaction.timeout.ms": self._settings.transaction_timeout_ms,
        }
        sender = self._make(properties)
        try:
            # Without a lasting connection, some requests fail inside the client, which repeats
            # them seconds later. The first answer may come over the connection to the bootstrap
            # address, which is then closed.
            round_trip_s = 0.0
            for topic in (TRANSACTION_LOG, TRANSACTION_LOG, *topics):
                asked_s = monotonic()
                self._ask(sender, topic)
                round_trip_s = monotonic() - asked_s
        except BaseException:
            sender.close()
            raise
        self._patience_s = max(self._patience_s, _PATIENCE_ROUND_TRIPS * round_trip_s)
        return sender

    def _ask(self, sender: Sender, topic: str) -> None:
        """Let the client look up a topic's leaders; stop soon after a discard."""
        while True:
            try:
                sender.client.list_topics(topic, self._slice_s())
            except KafkaException as failure:
                if not is_unanswered(failure):
                    run_callbacks(sender.client)
                    raise translated(failure, self._doing) from failure
            else:
                return

    def _initialised(self, sender: Sender) -> bool:
        """Return True once the broker gave a new epoch; False if this client waited too long."""
        until_s = min(monotonic() + self._patience_s, self._deadline_s)
        while True:
            left_s = until_s - monotonic()
            try:
                sender.client.init_transactions(max(min(left_s, self._slice_s()), 0.001))
            except KafkaException as failure:
                # A client that is told to retry reports the reason once its time is up.
                if not is_unanswered(failure) and not is_transient(failure):
                    run_callbacks(sender.client)
                    raise translated(failure, self._doing) from failure
                self._refused = failure
                if monotonic() >= until_s:
                    return False
            else:
                return True

    def _slice_s(self) -> float:
        """Return how long the next call may wait, in seconds."""
        if self._cancelled.is_set():
            raise Cancelled
        left_s = self._deadline_s - monotonic()
        if left_s <= 0:
            if self._refused is not None and not is_unanswered(self._refused):
                raise translated(self._refused, self._doing) from self._refused
            raise unanswered(self._settings, self._trouble, self._doing, since_s=self._since_s)
        return min(left_s, _SLICE_S)

    @property
    def _doing(self) -> str:
        return f"open the transactional id {self._name}"


def abort_open_transactions(settings: Settings, transactional_ids: Sequence[str]) -> None:
    """Open each id once, several at a time; raise the first failure once all have ended.

    Opening an id gives it a new producer epoch. The broker aborts the open transaction of an older
    epoch, writes its transaction markers, and refuses further requests with that epoch. It answers
    only after all that.
    """
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
    doing, since_s = f"abort the open transaction of {transactional_id}", monotonic()
    try:
        connect(client, timeout_s, trouble)
        client.init_transactions(timeout_s)
    except KafkaException as failure:
        run_callbacks(client)
        if is_unanswered(failure):
            raise unanswered(settings, trouble, doing, since_s=since_s) from failure
        raise translated(failure, doing) from failure
