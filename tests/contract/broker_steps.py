"""What the contract tests of the broker ports do again and again."""

import time
from collections.abc import Callable, Sequence

from statestore.errors import Fenced
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.ports import Outbox, Records, Source
from tests.builders import DEADLINE_S
from tests.contract.broker_worlds import World

# Metadata that are no JSON may have bytes of librdkafka's behind their end (`metadata_of`).
STAMP = '{"number": 7}'
YEAR_2013 = 1_357_034_400_000
Rows = list[Record[bytes | None, bytes | None]]


def until(done: Callable[[], bool], what: str) -> None:
    """Repeat a call that waits by itself until it succeeds."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"


def read(source: Source, ends: dict[TopicPartition, int], *, at_once: int = 1000) -> Rows:
    """Poll until every position is at its end."""
    found: Rows = []

    def step() -> bool:
        batches = source.poll(at_once, 100)
        assert sum(map(len, batches)) <= at_once
        for batch in batches:
            found.extend(batch.records())
        return all(source.position(tp) >= end for tp, end in ends.items())

    until(step, f"positions {ends}")
    return found


def read_all(world: World, *tps: TopicPartition, at_once: int = 1000) -> Rows:
    for topic in {tp.topic for tp in tps}:
        world.settle(topic)
    bounds = world.cluster().bounds(tps)
    source = world.source()
    source.start({tp: bound.start for tp, bound in bounds.items()})
    return read(source, {tp: bound.end for tp, bound in bounds.items()}, at_once=at_once)


def values(records: Sequence[Record[bytes | None, bytes | None]]) -> list[bytes | None]:
    return [record.value for record in records]


def send(outbox: Outbox, topic: str, *texts: str, partition: int | None = 0) -> None:
    data = [text.encode() for text in texts]
    outbox.send(Records(topic, data, data, [YEAR_2013] * len(data), partition=partition))


def commit(outbox: Outbox, topic: str, *texts: str) -> None:
    outbox.begin()
    send(outbox, topic, *texts)
    outbox.commit()


def succeed(outbox: Outbox, topic: str, *texts: str) -> None:
    """Commit as the newest owner: one that lives on beside it may have opened an id once more."""
    try:
        commit(outbox, topic, *texts)
    except Fenced:
        outbox.open()
        commit(outbox, topic, *texts)


def opened(world: World, name: str = "0_0", **settings: int) -> Outbox:
    outbox = world.outbox(name, **settings)
    outbox.open()
    return outbox
