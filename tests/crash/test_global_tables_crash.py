# ruff: noqa: T201 - what each kill met is part of the result
"""SIGKILL of runs in the refresh of a global table and after it: each record meets its row once.

Shows I38.
"""

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

import statestore as ss
from statestore import serdes
from statestore.faults import CrashPoint
from statestore.layout.folders import StateLayout
from statestore.layout.global_versions import GlobalVersions
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.crash.kill_harness import PARTITIONS, Rig
from tests.crash.pipeline import PREFIX_VARIABLE

pytestmark = pytest.mark.kafka
RATES = 300
POINTS = (
    CrashPoint.GLOBAL_LINKED,
    CrashPoint.GLOBAL_ROWS_WRITTEN,
    CrashPoint.GLOBAL_PUBLISHED,
    CrashPoint.COMMIT_OFFSETS_SENT,
)


def topology() -> ss.Topology:
    prefix = os.environ.get(PREFIX_VARIABLE, "rates")
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table(f"{prefix}-rates", materialized="rates")
    b.stream(f"{prefix}-in").join(
        rates, lambda number, rate: [number, rate], key=lambda _key, number: f"r{number % RATES}"
    ).to(f"{prefix}-out")
    return b.build()


@dataclass
class RatesRig(Rig):
    """Every lot of numbers comes after a new generation of all rates."""

    pipeline: str = "tests.crash.test_global_tables_crash:topology"
    generation: int = 0

    def create_topics(self) -> None:
        for name, partitions in (("in", PARTITIONS), ("out", PARTITIONS), ("rates", 3)):
            self.kafka.create_topic(
                f"{self.topic_prefix}-{name}",
                partitions=partitions,
                config={"retention.ms": "-1"},
            )

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 5})
        self.generation += 1
        for rate in range(RATES):
            value = json.dumps([rate, self.generation])
            producer.produce(f"{self.topic_prefix}-rates", key=f"r{rate}", value=value)
        assert producer.flush(DEADLINE_S) == 0
        for number in range(self.produced, self.produced + count):
            producer.produce(f"{self.topic_prefix}-in", key=f"k{number}", value=str(number))
            self.wanted[number, number % RATES, self.generation] += 1
        assert producer.flush(DEADLINE_S) == 0
        self.produced += count

    def __post_init__(self) -> None:
        self.wanted: Counter[tuple[int, int, int]] = Counter()

    def written(self) -> list[str]:
        return [f"{self.topic_prefix}-out"]

    def findings(self) -> list[str]:
        rows = self.read(f"{self.topic_prefix}-out")
        told = [json.loads(value or b"") for _, _, value in rows]
        found = Counter((number, rate, generation) for number, (rate, generation) in told)
        more, less = found - self.wanted, self.wanted - found
        return [f"{len(more)} more: {[*more][:3]}, {len(less)} lost: {[*less][:3]}"] * bool(
            more or less
        )


@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("--workers=2",), marks=pytest.mark.slow)],
    ids=["one process", "two workers"],
)
def test_a_refresh_that_is_killed_costs_nothing_but_the_refresh(
    kafka: LocalKafka, tmp_path: Path, options: tuple[str, ...]
) -> None:
    name = f"rates-{len(options)}"
    rig = RatesRig(kafka, tmp_path, application_id=name, topic_prefix=name, options=options)
    rig.create_topics()
    rig.produce(2000)
    rig.run()
    # With workers, only one of them dies at a commit, and another one takes over.
    for point in POINTS[:3] if options else POINTS:
        rig.produce(2000)
        kill = rig.run_until_crash(f"{point}:{3 if point.startswith('commit.') else 1}")
        print(f"{point}: {kill}")
        assert kill.died, f"{point} was not reached: it proves nothing"
        rig.run()
    assert rig.findings() == []
    versions = GlobalVersions(StateLayout(tmp_path, name))
    assert not list(versions.unfinished())
    assert len(versions.numbers()) <= 2
