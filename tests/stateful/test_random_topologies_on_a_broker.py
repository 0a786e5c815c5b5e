"""Random small pipelines on a real broker with stores on disk, against the naive interpreter.

Several pipelines make one application; each lot of their input is one bounded run of it.
STATESTORE_PROGRAM_SEED=77 repeats one.
"""

import os
import random
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import statestore as ss
from statestore import serdes
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.stateful.built_programs import keys_of, topology_of, write_file
from tests.stateful.naive_streams import Naive
from tests.stateful.random_programs import (
    FILE,
    FUNCTIONS,
    YEAR_2099,
    Lot,
    Outcome,
    Run,
    in_the_end,
    looks_up,
    lots_of,
    program_of,
)

pytestmark = pytest.mark.kafka

# A broker takes no time before 1970, and its clients take 0 for now.
BEGINS = [10_000, 1_700_000_000_000, 1_700_000_000_000, YEAR_2099]
ANY_TIME = {"message.timestamp.after.max.ms": 2**63 - 1, "retention.ms": -1}
KINDS = [("any", False), ("any", True), ("texts", True), ("bytes", False)]
PROGRAMS, LOTS_MAX = 6, 3
SEED = os.environ.get("STATESTORE_PROGRAM_SEED")
SEEDS = [int(SEED)] if SEED else range(len(KINDS))


def runs_of(seed: int) -> dict[str, Run]:
    """Programs and their input, by prefix."""
    chance = random.Random(seed)
    values, windowed = KINDS[seed % len(KINDS)]
    made = {}
    for number in range(PROGRAMS):
        program = program_of(chance, values=values, windowed=windowed)
        lots = lots_of(chance, program, chance.choice(BEGINS))
        made[f"r{seed}-{number}-"] = program, lots[: 1 + looks_up(program) + LOTS_MAX]
    return made


def wanted(run: Run) -> list[Outcome]:
    program, lots = run
    naive = Naive(program)
    return [
        (made.key, made.value, made.time)
        for lot in lots
        for fact in lot.facts
        for made in naive.run(lot.topic, fact)
    ]


def produce(kafka: LocalKafka, runs: Mapping[str, Run], lots: Mapping[str, Lot]) -> None:
    """A lot of each program that has one left, without its files."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    for prefix, lot in lots.items():
        if lot.topic == FILE:
            continue
        program = runs[prefix][0]
        keys = keys_of(program) if lot.topic == "in" else serdes.STRING
        values = FUNCTIONS[program.values].serde
        for key, value, time, _ in lot.facts:
            producer.produce(
                f"{prefix}{lot.topic}",
                key=None if key is None else keys.serialize(key),
                value=None if value is None else values.serialize(value),
                timestamp=time,
            )
    assert producer.flush(DEADLINE_S) == 0


def outcome(kafka: LocalKafka, runs: Mapping[str, Run]) -> dict[str, list[Outcome]]:
    """What each program has written, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "audit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(f"{prefix}out", 0, 0) for prefix in runs])
    found: dict[str, list[Outcome]] = {prefix: [] for prefix in runs}
    at_end = set()

    def read_all() -> bool:
        for message in consumer.consume(500, 0.2):
            prefix = str(message.topic()).removesuffix("out")
            if message.error():
                at_end.add(prefix)
                continue
            program, _ = runs[prefix]
            key, value = message.key(), message.value()
            read, decode = keys_of(program).deserialize, FUNCTIONS[program.values].serde.deserialize
            time = message.timestamp()[1]
            found[prefix].append(
                (
                    None if key is None else read(key),
                    None if value is None else decode(value),
                    time,
                )
            )
        return len(at_end) == len(runs)

    eventually(read_all, "every output read")
    consumer.close()
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed",
    [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.thorough) for seed in SEEDS[1:])],
)
def test_pipelines_do_on_a_broker_what_their_naive_interpreter_does(
    kafka: LocalKafka, tmp_path: Path, seed: int
) -> None:
    runs = runs_of(seed)
    topology = topology_of({prefix: program for prefix, (program, _) in runs.items()}, tmp_path)
    for name in sorted(set.union(*topology.topics())):
        kafka.create_topic(name, 1, ANY_TIME)
    settings = {
        "application.id": f"random-{seed}",
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(tmp_path),
        "processing.guarantee": "exactly_once",
        "ensure.explicit.internal.resource.naming": False,
    }
    for turn in zip_longest(*(lots for _, lots in runs.values())):
        lots = {prefix: lot for prefix, lot in zip(runs, turn, strict=True) if lot is not None}
        produce(kafka, runs, lots)
        for prefix, lot in lots.items():
            if lot.topic == FILE:
                write_file(tmp_path, prefix, lot.facts[0].value)
        assert ss.run(topology, settings).caught_up
    found = outcome(kafka, runs)
    for prefix, run in runs.items():
        expected = wanted(run)
        program, given = run
        story = "\n".join(map(str, given))
        # Equal numbers of two types are two values.
        one, other = (in_the_end(program, made) for made in (found[prefix], expected))
        assert repr(one) == repr(other), f"seed {seed}\n{program}\n{story}"
