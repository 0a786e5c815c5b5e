"""Moving house: an export of one cluster goes on at another one, over mirrors of its inputs.

The mirrors have the same records at other offsets. What both clusters have of the output, one after
the other, is each update once. Shows I45.
"""

import json
import re
import signal
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from statestore.faults import CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.moved_pipelines import MIRROR_VARIABLE
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import (
    DEADLINE_S,
    START_MS,
    App,
    Ended,
    assert_refused,
    counted,
    name_of,
    updates_in_order,
    user,
)

pytestmark = pytest.mark.kafka
SOURCE = "source."
PARTITIONS = 2
HOUSE = "tests.kafka.moved_pipelines:house"
POINTS = [point for point in CrashPoint if point.startswith("move.")]
OPTIMIZED = {"topology.optimization": "all"}


@pytest.fixture(scope="module")
def new_kafka() -> Iterator[LocalKafka]:
    """The cluster that applications move to; `kafka` is the one they leave."""
    with LocalKafka() as broker:
        yield broker


@dataclass
class Houses:
    """An application at the old place, and the same one at the new place."""

    old: App
    new: App
    monkeypatch: pytest.MonkeyPatch
    prefix: str = SOURCE

    def commit(self, numbers: Sequence[int], *, topic: str = "in") -> None:
        """Produce in transactions, so that offsets have gaps, one of which is aborted."""
        producer = Producer(
            {"bootstrap.servers": self.old.kafka.bootstrap_servers, "transactional.id": topic}
        )
        producer.init_transactions()
        for begin in range(0, len(numbers), 7):
            for ends in (producer.abort_transaction, producer.commit_transaction):
                producer.begin_transaction()
                for n in numbers[begin : begin + 7]:
                    row = json.dumps({"user": user(n), "number": n})
                    at = START_MS + n // 5  # five records have the same time
                    producer.produce(
                        f"{self.old.name}-{topic}", row, f"k{n}", n % PARTITIONS, timestamp=at
                    )
                producer.flush()
                ends()

    def mirror(self, *, syncs: bool = False) -> None:
        """Copy what the mirrors lack of the committed records, as MirrorMaker does."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.old.kafka.bootstrap_servers,
                "group.id": f"mirror-{self.old.name}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        producer = Producer({"bootstrap.servers": self.new.kafka.bootstrap_servers})
        topics = (f"{self.old.name}-in", f"{self.old.name}-rows")
        tps = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]
        consumer.assign(consumer.committed(tps, DEADLINE_S))
        ended: set[tuple[str, int]] = set()
        found: list[tuple[tuple[str, int, int], list[int]]] = []
        while len(ended) < len(tps):
            for message in consumer.consume(500, 0.1):
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None
                assert partition is not None
                if message.error():
                    ended.add((topic, partition))
                    continue
                assert offset is not None
                at: list[int] = []
                found.append(((topic, partition, offset), at))
                producer.produce(
                    f"{self.prefix}{topic}",
                    message.value(),
                    message.key(),
                    partition,
                    timestamp=message.timestamp()[1],
                    on_delivery=partial(_note, at),
                )
        assert producer.flush(DEADLINE_S) == 0
        consumer.commit(offsets=consumer.position(tps), asynchronous=False)
        consumer.close()
        for (topic, partition, offset), (copied,) in found if syncs else ():
            key = struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", partition)
            producer.produce(self.syncs, struct.pack(">qq", offset, copied), key, 0)
        assert producer.flush(DEADLINE_S) == 0

    @property
    def syncs(self) -> str:
        return f"mm2-offset-syncs.{self.new.name}.internal"

    def export(self, *more: str, **how: Any) -> Ended:
        return self.old.run("--for-move", *more, command="export", **how)

    def move(self, *more: str, **how: Any) -> Ended:
        self.monkeypatch.setenv(MIRROR_VARIABLE, self.prefix)
        flags = [f"--topic-prefix={self.prefix}"] if self.prefix else []
        return self.new.run("--moved", *flags, *more, command="restore", **how)

    def goes_on(self) -> None:
        """What is produced now reaches the new place alone, which has each update once."""
        self.commit(range(100, 160))
        self.mirror()
        before = len(self.new.read())
        summary = self.new.drained()
        assert (summary["restored_records"], summary["caught_up"]) == (0, True)
        assert before < len(self.new.read())
        rows = sorted(self.old.read() + self.new.read(), key=lambda row: (row.key, row.value))
        assert updates_in_order(self.old.read() + self.new.read()) == counted(range(160))
        assert len(rows) == 160
        assert self.new.stored() == counted(range(160))


def _note(at: list[int], _error: object, sent: Message) -> None:
    offset = sent.offset()
    assert offset is not None
    at.append(offset)


@pytest.fixture
def houses(
    kafka: LocalKafka,
    new_kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Houses]:
    name = name_of(request.node.name)[-40:]
    monkeypatch.setenv(PREFIX_VARIABLE, name)
    target = {"statestore.export.target": str(tmp_path / "exports"), **OPTIMIZED}
    old = App(kafka, name, tmp_path / "old" / "state", HOUSE, target)
    new = App(new_kafka, name, tmp_path / "new" / "state", HOUSE, target)
    for app in (old, new):
        app.state_dir.parent.mkdir()
    old.create_topics(partitions=PARTITIONS, rows=PARTITIONS)
    new_kafka.create_topic(f"{name}-out", PARTITIONS, {"retention.ms": -1})
    made = Houses(old, new, monkeypatch)
    made.commit(range(40))
    made.commit(range(30), topic="rows")
    yield made
    old.end_children()
    new.end_children()


def create_mirrors(houses: Houses, **config: object) -> None:
    for topic in ("in", "rows"):
        name = f"{houses.prefix}{houses.old.name}-{topic}"
        houses.new.kafka.create_topic(name, PARTITIONS, {"retention.ms": -1, **config})
    houses.new.kafka.create_topic(houses.syncs, 1, {"cleanup.policy": "compact"})


def ready(houses: Houses) -> None:
    """Processed at the old place to 100, exported, and mirrored a bit beyond that."""
    create_mirrors(houses)
    houses.old.drained()
    houses.commit(range(40, 100))
    houses.old.drained()
    ended = houses.export()
    assert ended.code == 0, ended.err


def test_an_application_moves_and_each_record_counts_once(houses: Houses) -> None:
    ready(houses)
    houses.mirror()
    ended = houses.move()
    assert ended.code == 0, ended.err
    inputs = ended.summary["inputs"]
    assert len(inputs) == 2 * PARTITIONS
    assert all(one["offset"] != one["offset_there"] for one in inputs)
    houses.goes_on()


def test_mirrors_of_the_same_names_and_offset_syncs_do_as_well(houses: Houses) -> None:
    houses.prefix = ""
    ready(houses)
    houses.mirror(syncs=True)
    ended = houses.move(f"--offset-syncs={houses.syncs}", "--dry-run")
    assert ended.code == 0, ended.err
    assert not (houses.new.state_dir / houses.new.name).exists()
    assert {one["found_by"] for one in ended.summary["inputs"]} == {"an offset sync"}
    planned = ended.summary["inputs"]
    ended = houses.move()
    assert ended.code == 0, ended.err
    found = [{**one, "found_by": ""} for one in ended.summary["inputs"]]
    assert found == [{**one, "found_by": ""} for one in planned]
    houses.goes_on()


@pytest.mark.parametrize("point", POINTS)
def test_a_move_killed_anywhere_is_made_anew_and_each_record_counts_once(
    houses: Houses, point: str
) -> None:
    ready(houses)
    houses.mirror()
    ended = houses.move(crash_at=point)
    assert ended.code == -signal.SIGKILL, ended.err
    if point != CrashPoint.MOVE_FINISHED:
        assert_refused(houses.new.run(), 2, "Misuse", "is being moved here, or a move died")
        ended = houses.move()
        assert ended.code == 0, ended.err
    houses.goes_on()


def test_a_move_waits_for_its_mirror_and_refuses_one_that_has_doubled_records(
    houses: Houses,
) -> None:
    ready(houses)
    with houses.new.unchanged():
        assert_refused(houses.move(), 7, "Unavailable", "wait until the mirror has caught up")
    houses.mirror()
    rows = [(row.key, json.dumps(row.value).encode(), row.timestamp_ms) for row in read(houses)]
    for partition in range(PARTITIONS):
        copies = [row for row in rows if int(row[0][1:]) % PARTITIONS == partition]
        producer = replace(houses.new, name=f"{SOURCE}{houses.old.name}")
        producer.produce_raw(copies, partition=partition)
    with houses.new.unchanged():
        assert_refused(houses.move(), 2, "Misuse", "2 times", "a mirror that has doubled them")


def read(houses: Houses) -> list[Any]:
    return houses.old.read("in")


def test_an_application_that_has_not_processed_everything_is_not_exported(houses: Houses) -> None:
    create_mirrors(houses)
    died = houses.old.run(crash_at=f"{CrashPoint.CLOSE_RELEASED}:2")
    assert died.code == -signal.SIGKILL
    ended = houses.export()
    # Tasks are released side by side: the kill may leave another one's store behind its log, too.
    assert_refused(ended, 7, "Unavailable")
    assert re.search("let a bounded run|run it once to its end", ended.message), ended.message
    houses.old.drained()
    ended = houses.export()
    assert ended.code == 0, ended.err
    # At the old place, everything of it is there already.
    with houses.old.unchanged_topics():
        ended = replace(houses.old, state_dir=houses.new.state_dir).run(
            "--moved", command="restore"
        )
        assert_refused(ended, 2, "Misuse", "is this the new cluster?")
