# ruff: noqa: T201 - what each kill met is part of the result
"""SIGKILL of runs while they read the file of a lookup and after it: a record meets its row once.

Shows I38.
"""

import json
import os
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
from tests.crash.kill_harness import PARTITIONS
from tests.crash.pipeline import PREFIX_VARIABLE
from tests.crash.test_global_tables_crash import RATES, RatesRig

pytestmark = pytest.mark.kafka
FILE_VARIABLE = "LOOKUP_FILE"
POINTS = (CrashPoint.GLOBAL_ROWS_WRITTEN, CrashPoint.COMMIT_OFFSETS_SENT)


def topology() -> ss.Topology:
    prefix = os.environ.get(PREFIX_VARIABLE, "lookups")
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.lookup(os.environ.get(FILE_VARIABLE, "rates.jsonl"), key="code", store="rates")
    b.stream(f"{prefix}-in").join(
        rates,
        lambda number, row: [number, [row["rate"], row["generation"]]],
        key=lambda _key, number: f"r{number % RATES}",
    ).to(f"{prefix}-out")
    return b.build()


@dataclass
class LookupRig(RatesRig):
    """Every lot of numbers comes after a new file."""

    pipeline: str = "tests.crash.test_lookups_crash:topology"

    @property
    def file(self) -> Path:
        return self.state_dir / "rates.jsonl"

    def create_topics(self) -> None:
        for name in ("in", "out"):
            self.kafka.create_topic(
                f"{self.topic_prefix}-{name}",
                partitions=PARTITIONS,
                config={"retention.ms": "-1"},
            )

    def produce(self, count: int) -> None:
        self.generation += 1
        rows = [
            {"code": f"r{rate}", "rate": rate, "generation": self.generation}
            for rate in range(RATES)
        ]
        beside = self.file.with_suffix(".new")
        beside.write_text("".join(json.dumps(row) + "\n" for row in rows))
        beside.rename(self.file)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 5})
        for number in range(self.produced, self.produced + count):
            producer.produce(f"{self.topic_prefix}-in", key=f"k{number}", value=str(number))
            self.wanted[number, number % RATES, self.generation] += 1
        assert producer.flush(DEADLINE_S) == 0
        self.produced += count


def test_a_file_that_is_read_by_killed_runs_gives_each_record_its_row_once(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = LookupRig(kafka, tmp_path, application_id="lookups", topic_prefix="lookups")
    monkeypatch.setenv(FILE_VARIABLE, str(rig.file))
    rig.create_topics()
    rig.produce(2000)
    rig.run()
    for point in POINTS:
        rig.produce(2000)
        kill = rig.run_until_crash(f"{point}:{3 if point.startswith('commit.') else 1}")
        print(f"{point}: {kill}")
        assert kill.died, f"{point} was not reached: it proves nothing"
        [told] = rig.run()["lookups"]
        assert told["rows"] == RATES
    assert rig.findings() == []
    assert not list(GlobalVersions(StateLayout(tmp_path, "lookups")).unfinished())
