"""The outbox as it would be without an epoch for each transaction: for tests and benchmarks."""

from concurrent.futures import Future

import pytest

from statestore.kafka import outbox
from statestore.kafka.epochs import Epochs, Turn
from statestore.kafka.sender import Sender


class OneEpoch(Epochs):
    """Every transaction of an owner goes through the producer that its first id was opened with."""

    def take(self, number: int) -> Sender:
        return super().take(0)

    def spent(self, number: int, sender: Sender, turn: Turn) -> None:
        same: Future[Sender] = Future()
        same.set_result(sender)
        self._openings[0] = same


def switch_off_epochs(patch: pytest.MonkeyPatch) -> None:
    """From here on, outboxes made in this process know one epoch only."""
    patch.setattr(outbox, "Epochs", OneEpoch)
