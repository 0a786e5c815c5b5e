"""Who writes the input: plainly, or in transactions that may stay open and may be aborted."""

from random import Random

from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.ports import Outbox, Records
from statestore.testing.memory_broker import MemoryBroker
from tests.simulation.pipeline import KEYS, is_unreadable, key_of
from tests.simulation.world import SimulatedClock


class Feeders:
    """Numbers from 0, each in one record; `fed` are those that count."""

    def __init__(
        self, broker: MemoryBroker, clock: SimulatedClock, rng: Random, partitions: int
    ) -> None:
        self.fed: set[int] = set()
        self._broker = broker
        self._clock = clock
        self._rng = rng
        self._partitions = partitions
        self._next = 0
        self._feeders = 0
        self._open: list[tuple[Outbox, list[int]]] = []

    def feed(self) -> str:
        """One move of one feeder; what it did."""
        if self._open and self._rng.random() < 0.6:
            outbox, numbers = self._rng.choice(self._open)
            if self._rng.random() < 0.5:
                return self._end(outbox, numbers)
            return f"a feeder sends {self._send(outbox, numbers)}, uncommitted"
        if self._rng.random() < 0.3 and len(self._open) < 2:
            self._feeders += 1
            outbox = self._broker.outbox(f"feeder-{self._feeders}", "feeders")
            outbox.open()
            outbox.begin()
            sent: list[int] = []
            self._open.append((outbox, sent))
            return f"a feeder begins with {self._send(outbox, sent)}, uncommitted"
        return f"a feeder appends {self._append()}"

    def stop(self) -> None:
        """End what is open."""
        while self._open:
            self._end(*self._open[0])

    def _append(self) -> list[int]:
        taken = self._take()
        for number in taken:
            key, value, time_ms, partition = self._row(number)
            record: Record[bytes | None, bytes | None] = Record(key, value, time_ms)
            self._broker.produce(TopicPartition("in", partition), record)
        self.fed.update(taken)
        return taken

    def _send(self, outbox: Outbox, numbers: list[int]) -> list[int]:
        taken = self._take()
        for number in taken:
            key, value, time_ms, partition = self._row(number)
            outbox.send(Records("in", [key], [value], [time_ms], partition=partition))
        numbers += taken
        return taken

    def _end(self, outbox: Outbox, numbers: list[int]) -> str:
        self._open.remove((outbox, numbers))
        if self._rng.random() < 0.6:
            outbox.commit()
            self.fed.update(numbers)
            return f"a feeder commits {numbers}"
        outbox.abort()
        return f"a feeder aborts {numbers}"

    def _take(self) -> list[int]:
        count = self._rng.randint(1, 4)
        taken = list(range(self._next, self._next + count))
        self._next += count
        return taken

    def _row(self, number: int) -> tuple[bytes, bytes, int, int]:
        partition = number % KEYS % self._partitions
        value = b"{%d" if is_unreadable(number) else b"%d"
        return key_of(number).encode(), value % number, self._clock.now_ms(), partition
