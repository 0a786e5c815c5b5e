"""A reader beside writers, in random order: committed records once each, in order, none skipped."""

import random

import pytest

from statestore.model.ids import TopicPartition
from statestore.ports import Outbox
from tests.contract.broker_steps import opened, read, send
from tests.contract.broker_worlds import World

STEPS = 120
MOVES = ["write", "write", "end", "poll", "poll", "pause", "restart"]


class Writer:
    """Transactions of random size that end either way."""

    def __init__(self, outbox: Outbox, chance: random.Random) -> None:
        self._outbox = outbox
        self._chance = chance
        self._is_open = False

    def write(self, topic: str, step: int) -> None:
        if not self._is_open:
            self._outbox.begin()
            self._is_open = True
        texts = [f"{step}-{i}" for i in range(self._chance.randrange(1, 60))]
        send(self._outbox, topic, *texts, partition=self._chance.randrange(2))

    def end(self) -> None:
        if self._is_open:
            self._outbox.flush()
            self._chance.choice([self._outbox.commit, self._outbox.commit, self._outbox.abort])()
            self._is_open = False


class Reader:
    """A source, and what it gave since the beginning as a restarted task would know it."""

    def __init__(self, world: World, tps: list[TopicPartition], chance: random.Random) -> None:
        self._source = world.source()
        self._source.start(dict.fromkeys(tps, 0))
        self._chance = chance
        self._paused: set[TopicPartition] = set()
        self.got: dict[TopicPartition, list[tuple[int, bytes | None]]] = {tp: [] for tp in tps}

    def poll(self) -> None:
        before = {tp: self._source.position(tp) for tp in self.got}
        for batch in self._source.poll(self._chance.choice([1, 10, 1000]), 20):
            tp = TopicPartition(batch.topic or "", batch.partition or 0)
            offsets = list(batch.offsets or ())
            assert tp not in self._paused
            assert before[tp] <= offsets[0]
            assert offsets == sorted(set(offsets))
            assert offsets[-1] < self._source.position(tp)
            self.got[tp] += zip(offsets, batch.values.objects, strict=True)

    def pause(self) -> None:
        wanted = {tp for tp in self.got if self._chance.random() < 0.5}
        self._source.resume(sorted(self._paused - wanted))
        self._source.pause(sorted(wanted))
        self._paused = wanted

    def restart(self) -> None:
        back = {tp: self._chance.randint(0, self._source.position(tp)) for tp in self.got}
        self.got = {tp: [row for row in rows if row[0] < back[tp]] for tp, rows in self.got.items()}
        self._source.start(back)
        self._paused = set()

    def finish(self, ends: dict[TopicPartition, int]) -> None:
        self._source.resume(list(self.got))
        for record in read(self._source, ends):
            tp = TopicPartition(record.topic or "", record.partition or 0)
            self.got[tp].append((record.offset or 0, record.value))


@pytest.mark.parametrize("seed", range(4))
def test_a_reader_gets_what_was_committed_whatever_happens_around_it(
    world: World, seed: int
) -> None:
    chance = random.Random(seed)
    topic = world.topic(partitions=2)
    tps = [TopicPartition(topic, p) for p in range(2)]
    writers = [Writer(opened(world, f"0_{i}"), chance) for i in range(2)]
    reader = Reader(world, tps, chance)
    for step in range(STEPS):
        match chance.choice(MOVES):
            case "write":
                chance.choice(writers).write(topic, step)
            case "end":
                chance.choice(writers).end()
            case "poll":
                reader.poll()
            case "pause":
                reader.pause()
            case "restart":
                reader.restart()
    for writer in writers:
        writer.end()
    world.settle(topic)
    reader.finish({tp: bound.end for tp, bound in world.cluster().bounds(tps).items()})
    rows = world.rows(topic)
    assert reader.got == {
        tp: [(row.offset, row.value) for row in rows if row.partition == tp.partition] for tp in tps
    }
