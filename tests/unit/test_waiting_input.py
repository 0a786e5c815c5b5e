"""Whether input waits for a run: from committed offsets and log ends, with nothing remembered."""

import random
from pathlib import Path

import pytest

from statestore.errors import Misuse, Unavailable
from statestore.layout.folders import StateLayout
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.deployed import Deployed, DeployedPart, publish_deployed
from statestore.operations.running.waiting_input import Threshold, WaitingInput, waiting_input
from statestore.ports import Records, TopicSpec
from statestore.settings import Settings
from statestore.testing.memory_broker import MemoryBroker

APPLICATION = "app"
NOW_MS = 1_000_000


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker()
    specs = [TopicSpec("in", 2, {}), TopicSpec(f"{APPLICATION}-by-key-repartition", 2, {})]
    made.cluster(APPLICATION).create(specs)
    return made


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout(tmp_path, APPLICATION)
    layout.create(layout.application_dir)
    parts = [
        DeployedPart(0, ["in"], tasks=2, internal=[]),
        DeployedPart(1, ["by-key-repartition"], tasks=2, internal=["by-key-repartition"]),
    ]
    publish_deployed(layout, Deployed(fingerprint="f", sub_topologies=parts))
    return layout


def produce(broker: MemoryBroker, topic: str, *times_ms: int, partition: int = 0) -> None:
    for time_ms in times_ms:
        broker.produce(TopicPartition(topic, partition), Record(b"k", b"v", time_ms))


def commit(broker: MemoryBroker, topic: str, offset: int, partition: int = 0) -> None:
    outbox = broker.outbox("id", APPLICATION)
    outbox.open()
    outbox.begin()
    outbox.send_offsets({TopicPartition(topic, partition): offset}, "")
    outbox.commit()


def ask(broker: MemoryBroker, layout: StateLayout) -> WaitingInput:
    settings = Settings.from_mapping({"application.id": APPLICATION})
    return waiting_input(layout, broker.monitoring(APPLICATION), settings)


def test_before_the_first_run_that_run_is_what_waits(broker: MemoryBroker, tmp_path: Path) -> None:
    found = ask(broker, StateLayout(tmp_path, "nobody-ran-it"))
    assert found == WaitingInput(0, None, is_first_run=True)
    assert Threshold(records=1000).is_reached(found, NOW_MS)


def test_all_that_was_not_committed_waits(broker: MemoryBroker, layout: StateLayout) -> None:
    assert ask(broker, layout) == WaitingInput(0, None)
    produce(broker, "in", 500, 700, 600)
    produce(broker, "in", 400, partition=1)
    assert ask(broker, layout) == WaitingInput(4, 400)
    commit(broker, "in", 1)
    commit(broker, "in", 1, partition=1)
    assert ask(broker, layout) == WaitingInput(2, 700)
    commit(broker, "in", 3)
    assert ask(broker, layout).oldest_ms is None


def test_what_a_killed_run_left_in_a_repartition_topic_waits_too(
    broker: MemoryBroker, layout: StateLayout
) -> None:
    produce(broker, f"{APPLICATION}-by-key-repartition", 500, partition=1)
    assert ask(broker, layout) == WaitingInput(1, 500)


def test_open_and_aborted_records_are_nothing_to_process(
    broker: MemoryBroker, layout: StateLayout
) -> None:
    writer = broker.outbox("writer", "other")
    writer.open()
    writer.begin()
    writer.send(Records("in", [b"k"] * 3, [b"v"] * 3, [NOW_MS] * 3, partition=0))
    assert not Threshold().is_reached(ask(broker, layout), NOW_MS)
    writer.abort()
    found = ask(broker, layout)
    assert found.oldest_ms is None
    assert not Threshold().is_reached(found, NOW_MS)


def test_a_topic_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path, APPLICATION)
    layout.create(layout.application_dir)
    parts = [DeployedPart(0, ["gone"], tasks=1, internal=[])]
    publish_deployed(layout, Deployed(fingerprint="f", sub_topologies=parts))
    assert ask(MemoryBroker(), layout) == WaitingInput(0, None)


def test_brokers_that_do_not_answer_are_asked_again(
    broker: MemoryBroker, layout: StateLayout
) -> None:
    broker.stop()
    with pytest.raises(Unavailable):
        ask(broker, layout)
    broker.resume()
    produce(broker, "in", 500)
    assert ask(broker, layout) == WaitingInput(1, 500)


@pytest.mark.parametrize(
    ("records", "age_ms", "waiting", "reached"),
    [
        (0, None, WaitingInput(0, None), False),
        (0, None, WaitingInput(1, NOW_MS), True),
        (10, None, WaitingInput(10, 0), False),
        (10, None, WaitingInput(11, NOW_MS), True),
        (10, 500, WaitingInput(1, NOW_MS - 500), False),
        (10, 500, WaitingInput(1, NOW_MS - 501), True),
        (10, 0, WaitingInput(1, NOW_MS + 60_000), False),
        (0, 0, WaitingInput(7, None), False),
    ],
)
def test_either_limit_makes_a_run_worth_its_start(
    records: int, age_ms: int | None, waiting: WaitingInput, *, reached: bool
) -> None:
    assert Threshold(records, age_ms).check().is_reached(waiting, NOW_MS) is reached


def test_negative_limits_are_refused() -> None:
    for threshold in (Threshold(records=-1), Threshold(age_ms=-1)):
        with pytest.raises(Misuse, match="0 or more"):
            threshold.check()


def test_nothing_is_remembered_between_two_questions(
    broker: MemoryBroker, layout: StateLayout
) -> None:
    """Random rounds: what one client says late, a new one says too."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    produced = committed = 0
    monitoring = broker.monitoring(APPLICATION)
    for _ in range(200):
        if rng.random() < 0.5:
            count = rng.randint(1, 5)
            produce(broker, "in", *[NOW_MS] * count)
            produced += count
        elif produced > committed:
            committed = rng.randint(committed + 1, produced)
            commit(broker, "in", committed)
        settings = Settings.from_mapping({"application.id": APPLICATION})
        told = waiting_input(layout, monitoring, settings)
        assert told == ask(broker, layout), f"seed {seed}"
        assert (told.oldest_ms is not None) is (produced > committed), f"seed {seed}"
        assert told.records == produced - committed, f"seed {seed}"
