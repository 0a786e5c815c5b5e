"""Transactions that expire halve the batch; after three in a row the run is retried (E5)."""

from typing import Any

import pytest

from statestore.errors import Unavailable
from statestore.model.records import Record
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.graph import Topology
from statestore.topology.processors.user_processors import ProcessorContext

BATCH = 64


class World:
    """A pipeline whose transactions expire while it is at work, `expiring` times."""

    def __init__(self, expiring: int) -> None:
        self.expiring = expiring
        self.batches: list[int] = []
        self.driver = TopologyTestDriver(
            self._topology(), {"statestore.batch.max.records": BATCH, "commit.interval.ms": 1}
        )

    def pipe(self, count: int) -> None:
        self.driver.pipe_all("in", [Record(b"k", b"%d" % i, i) for i in range(count)])

    def _topology(self) -> Topology:
        b = StreamsBuilder()
        b.stream("in").process_batch(lambda context: _Slow(self, context)).to("out")
        return b.build()


class _Slow:
    def __init__(self, world: World, context: ProcessorContext) -> None:
        self._world = world
        self._context = context

    def process_batch(self, records: Any) -> None:
        self._world.batches.append(len(records))
        for record in records:
            self._context.forward(record)
        if self._world.expiring:
            self._world.expiring -= 1
            self._world.driver._broker.expire("topology-test-0_0")


@pytest.mark.parametrize("expiring", [1, 2, 3])
def test_each_transaction_lost_halves_the_batch_until_one_commits(expiring: int) -> None:
    world = World(expiring)
    with world.driver as driver:
        world.pipe(BATCH)
        assert [record.value for record in driver.read("out")] == [b"%d" % i for i in range(BATCH)]
    assert world.batches[: expiring + 1] == [BATCH >> i for i in range(expiring + 1)]


def test_the_fourth_in_a_row_ends_the_run_with_an_error_worth_a_retry() -> None:
    world = World(4)
    with (
        world.driver,
        pytest.raises(Unavailable, match=r"4 transactions in a row.*transaction\.timeout\.ms"),
    ):
        world.pipe(BATCH)


def test_a_commit_in_between_begins_the_count_anew_and_batches_grow_again() -> None:
    world = World(3)
    with world.driver:
        world.pipe(BATCH)
        world.expiring = 3
        world.pipe(BATCH)
        for _ in range(60):
            world.pipe(BATCH)
        assert world.batches[-1] == BATCH
