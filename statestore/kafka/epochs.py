"""Gives every transaction a producer epoch of its own (SEMANTICS E2a, docs/adr/0013).

librdkafka speaks the transaction protocol of before KIP-890: what a request of one transaction
does when it arrives during another one of the same epoch, it does to the other one. So no two
transactions share an epoch. An epoch is had by opening a transactional id with a new client, which
takes a round trip or two once the broker has finished the id's last transaction, and is refused
before. A stream task therefore has two ids and uses them in turn: while one carries a transaction,
the other is opened anew in the background.

An owner that was replaced without noticing may open an id anew too. It gets nothing by that:
transaction n goes to id n mod 2, whoever writes it, and after an id was opened for transaction n
the group is asked whether n or a later one was committed already, which ends in Fenced.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from confluent_kafka import KafkaException

from statestore.errors import StateStoreError, Unavailable
from statestore.kafka.clients import TRANSACTION_LOG, Properties, Trouble, unanswered
from statestore.kafka.errors import is_transient, is_unanswered, run_callbacks, translated
from statestore.kafka.sender import Sender
from statestore.settings import Settings

# The broker answers a commit before it has marked the records; opening the id succeeds after that.
_MARKED_S = 0.02
# A client that is told to come back does so half a second later, a new one whenever it is asked.
_PATIENCE_S = 0.06
_PATIENCE_ROUND_TRIPS = 10
_PATIENCE_MAX_S = 5.0
_SLICE_S = 0.5


MakeSender = Callable[[Properties], Sender]
"""Makes a producer with these properties besides the settings'."""


class Cancelled(Exception):
    """Nobody waits for this id to be opened any more."""


class Turn(NamedTuple):
    """What is known when an id is to be opened anew, before the transaction it will carry."""

    topics: Collection[str]
    """Where the last transaction wrote: the next one finds their leaders known."""
    check: Callable[[], None]
    """Raises Fenced if the log says that another owner was here in the meantime."""


class Epochs:
    """The producers of one owner: one per transactional id, each good for one transaction.

    One thread calls; the opening runs in threads of its own.
    """

    def __init__(
        self, settings: Settings, ids: Sequence[str], trouble: Trouble, make: MakeSender
    ) -> None:
        """`trouble`: what the clients say aside, for messages."""
        self._settings = settings
        self._make = make
        self._ids = tuple(ids)
        self._trouble = trouble
        self._openings: dict[int, Future[Sender]] = {}
        self._turns: dict[int, Turn | None] = {}
        self._cancelled = threading.Event()
        self._pool = ThreadPoolExecutor(len(self._ids), thread_name_prefix="epochs")

    def open_all(self) -> None:
        """Open every id: fences their last owner and ends what it left open."""
        self.discard()
        self._cancelled = threading.Event()
        for index in range(len(self._ids)):
            self._open(index, None)
        for opening in self._openings.values():
            opening.result()

    def take(self, number: int) -> Sender:
        """The producer for transaction `number`, once it is open; raises what opening it met."""
        index = number % len(self._ids)
        opening = self._openings.pop(index, None)
        assert opening is not None, "an id carries one transaction each time it is opened"
        try:
            return opening.result()
        except Unavailable:
            self._open(index, self._turns[index])
            raise

    def spent(self, number: int, sender: Sender, turn: Turn) -> None:
        """Transaction `number` has ended: let go of its producer; open its id anew, if in turn."""
        if len(self._ids) == 1:
            sender.close()
            return
        self._open(number % len(self._ids), turn, sender)

    def wait_ended(self, timeout_s: float) -> bool:
        """Whether the last transaction of each id has ended for every reader by then.

        As far as that is known: by the ids being opened anew.
        """
        done, waiting = wait(self._openings.values(), timeout_s)
        return not waiting and all(opening.exception() is None for opening in done)

    def discard(self) -> None:
        """Let go of all producers, opened or on their way; what they left open stays so."""
        self._cancelled.set()
        openings = list(self._openings.values())
        self._openings.clear()
        for opening in openings:
            with suppress(KafkaException, StateStoreError, Cancelled):
                opening.result().close()

    def close(self) -> None:
        """Let go for good."""
        self.discard()
        self._pool.shutdown()

    def _open(self, index: int, turn: Turn | None, last: Sender | None = None) -> None:
        opening = _Opening(
            self._settings, self._ids[index], self._trouble, self._make, self._cancelled
        )
        self._turns[index] = turn
        self._openings[index] = self._pool.submit(opening.run, turn, last)


class _Opening:
    """One id being opened by as many clients as it takes."""

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
        self._deadline_s = monotonic() + settings.request_timeout_ms / 1000

    def run(self, turn: Turn | None, last: Sender | None) -> Sender:
        """Open it; `turn` None: it was not this owner's before."""
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
            # Without a live connection that stays, some requests fail inside the client, which
            # repeats them seconds later. The first answer may come over the connection to the
            # bootstrap address, which is then given up.
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
        """Have the client look for a topic's leaders, in slices that end soon after a discard."""
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
        """Whether the broker gave a new epoch; False: not within this client's patience."""
        until_s = min(monotonic() + self._patience_s, self._deadline_s)
        while True:
            left_s = until_s - monotonic()
            try:
                sender.client.init_transactions(max(min(left_s, self._slice_s()), 0.001))
            except KafkaException as failure:
                # Told to come back, the client says why once its time is up.
                if not is_unanswered(failure) and not is_transient(failure):
                    run_callbacks(sender.client)
                    raise translated(failure, self._doing) from failure
                self._refused = failure
                if monotonic() >= until_s:
                    return False
            else:
                return True

    def _slice_s(self) -> float:
        """How long the next call may wait."""
        if self._cancelled.is_set():
            raise Cancelled
        left_s = self._deadline_s - monotonic()
        if left_s <= 0:
            if self._refused is not None and not is_unanswered(self._refused):
                raise translated(self._refused, self._doing) from self._refused
            raise unanswered(self._settings, self._trouble, self._doing)
        return min(left_s, _SLICE_S)

    @property
    def _doing(self) -> str:
        return f"open the transactional id {self._name}"
