"""Runs that start only when input waits: random rounds on a real broker, asked over one client.

The client that asks is as Airflow's trigger keeps it: open all the while, whatever befalls it.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

import statestore as ss
from statestore import serdes
from statestore.errors import Unavailable
from statestore.kafka.monitoring import KafkaMonitoringClient
from statestore.layout.folders import StateLayout
from statestore.operations.running.waiting_input import Threshold, WaitingInput, waiting_input
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.crash.kill_harness import STATESTORE
from tests.kafka.fault_proxy import Action, Fault, FaultProxy

pytestmark = pytest.mark.kafka

APPLICATION = "waiting"
PARTITIONS = 2
AT_ONCE = Threshold()
_COMMITTED, _UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # library gap
POINTS = ("commit.begin", "commit.offsets-sent", "commit.log-done", "start.offsets-known")
ROUNDS = int(os.environ.get("STATESTORE_TRIGGER_ROUNDS", "30"))


def topology() -> ss.Topology:
    """Count by a new key, so that a killed run may leave records in a repartition topic."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    grouped = b.stream("waiting-in").group_by(lambda _key, value: value, name="by-value")
    grouped.count("counts").to_stream().to("waiting-out")
    return b.build()


@pytest.fixture(scope="module")
def kafka(proxy: FaultProxy) -> Iterator[LocalKafka]:
    with LocalKafka(proxy_port=proxy.port) as broker:
        proxy.lead_to(broker.behind_proxy)
        yield broker


@dataclass
class Rounds:
    """One application and its input; `outstanding`: whether a complete run would find records."""

    proxy: FaultProxy
    settings: Settings
    rng: random.Random
    monitoring: KafkaMonitoringClient
    expected: Counter[str] = field(default_factory=Counter)
    outstanding: bool = False
    certain: bool = True
    open_values: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        servers = {"bootstrap.servers": self.proxy.address}
        self._plain = Producer({**servers, "enable.idempotence": True, "linger.ms": 0})
        self._writer = Producer({**servers, "transactional.id": "somebody-elses", "linger.ms": 0})
        self._writer.init_transactions(DEADLINE_S)
        self._admin = AdminClient({**servers})

    def first_run(self) -> None:
        """Deploy the application: until then its first run is what waits, with or without input."""
        assert self.look().is_first_run
        assert self.run().records_in == 0

    def values(self) -> list[str]:
        return [f"value-{self.rng.randrange(7)}" for _ in range(self.rng.randint(1, 20))]

    def produce(self) -> None:
        values = self.values()
        for value in values:
            self._plain.produce("waiting-in", value, value)
        assert self._plain.flush(DEADLINE_S) == 0
        self.expected.update(values)
        self.outstanding = True

    def begin(self) -> None:
        """Leave a transaction open: it hides its records and all that come after them."""
        self._writer.begin_transaction()
        self.open_values = self.values()
        for value in self.open_values:
            self._writer.produce("waiting-in", value, value)
        assert self._writer.flush(DEADLINE_S) == 0

    def end(self) -> None:
        if self.rng.random() < 0.5:
            self._writer.commit_transaction(DEADLINE_S)
            self.expected.update(self.open_values)
            self.outstanding = True
        else:
            self._writer.abort_transaction(DEADLINE_S)
            self.certain = False  # what came behind it in the log is seen from now on
        self.open_values = []
        # The call returns when the outcome is certain; the partitions hear of it a little later.
        eventually(self.is_all_seen, "the end of the transaction")

    def is_all_seen(self) -> bool:
        """Whether no open transaction hides records of the input."""
        committed, all_records = map(self._ends, (_COMMITTED, _UNCOMMITTED))
        return committed == all_records

    def _ends(self, level: IsolationLevel) -> list[int]:
        asked = {TopicPartition("waiting-in", p): _LATEST for p in range(PARTITIONS)}
        futures = self._admin.list_offsets(asked, isolation_level=level, request_timeout=DEADLINE_S)
        return [futures[tp].result().offset for tp in asked]

    def look(self) -> WaitingInput:
        layout = StateLayout(Path(self.settings.state_dir), APPLICATION)
        return waiting_input(layout, self.monitoring, self.settings)

    def waits(self) -> bool:
        """Whether a run is due; asked again as long as nobody answers."""
        found: list[WaitingInput] = []

        def is_answered() -> bool:
            with suppress(Unavailable):
                found.append(self.look())
            return bool(found)

        eventually(is_answered, "the brokers answer")
        return AT_ONCE.is_reached(found[0], 0)

    def partitioned(self) -> None:
        self.proxy.follow(APPLICATION, lambda _request: Fault(Action.CUT))
        with pytest.raises(Unavailable):
            self.look()
        self.proxy.follow(APPLICATION, None)

    def run(self) -> ss.RunSummary:
        summary = ss.run(topology(), self.settings)
        self.outstanding = False
        self.certain = not self.open_values  # what lies behind them was not to be seen
        return summary

    def killed(self) -> None:
        point = f"{self.rng.choice(POINTS)}:{self.rng.randint(1, 3)}"
        flags = {
            "pipeline": "tests.kafka.test_waiting_input:topology",
            "application-id": APPLICATION,
            "bootstrap-servers": self.proxy.address,
            "state-dir": self.settings.state_dir,
            "processing-guarantee": "exactly_once",
        }
        command = [str(STATESTORE), "run", *(f"--{name}={value}" for name, value in flags.items())]
        env: Mapping[str, str] = {
            **os.environ,
            "STATESTORE_CRASH_AT": point,
            "PYTHONPATH": str(ROOT),
        }
        processes.run(command, env=env, cwd=ROOT, timeout=DEADLINE_S)
        self.certain = False  # it may have done all of it, or none

    def play(self) -> None:
        """One round: something happens, then the question, then a run if the answer asks for it."""
        what = self.rng.choices(
            ["produce", "transaction", "partition", "kill", "nothing"], [50, 15, 8, 7, 20]
        )[0]
        self.done[what] += 1
        match what:
            case "produce":
                self.produce()
            case "transaction":
                self.end() if self.open_values else self.begin()
            case "partition":
                self.partitioned()
        waits = self.waits()
        if not self.open_values and self.certain:
            assert waits or not self.outstanding, "a wake-up was lost"
            assert self.outstanding or not waits, "a run would find nothing"
        if not waits:
            return
        self.done["runs"] += 1
        if what == "kill":
            self.killed()
        else:
            assert self.run().records_in > 0, "a run without work"

    def finish(self) -> None:
        """End what is open, then do as the trigger does until it has nothing to fire for."""
        if self.open_values:
            self.end()

        def is_idle() -> bool:
            if self.waits():
                self.run()
                return False
            return counted(self.settings) == self.expected

        eventually(is_idle, "everything produced is counted")


def counted(settings: Settings) -> Counter[str]:
    with ss.open_snapshot(settings.state_dir, APPLICATION, "counts") as store:
        readable = cast("ss.ReadOnlyKeyValueStore[str, int]", store)
        return Counter(dict(readable.all()))


@pytest.mark.thorough
@pytest.mark.timeout(max(180, 5 * ROUNDS))
def test_every_input_wakes_a_run_and_every_run_has_input(
    kafka: LocalKafka, proxy: FaultProxy, tmp_path: Path
) -> None:
    for name in ("waiting-in", "waiting-out"):
        kafka.create_topic(name, partitions=PARTITIONS, config={"retention.ms": "-1"})
    settings = Settings.from_mapping(
        {
            "application.id": APPLICATION,
            "bootstrap.servers": proxy.address,
            "state.dir": str(tmp_path / "state"),
            "processing.guarantee": "exactly_once",
            "default.api.timeout.ms": 10_000,
        }
    )
    impatient = Settings.from_mapping({**settings.to_mapping(), "default.api.timeout.ms": 1_000})
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - it repeats what failed
    with closing(KafkaMonitoringClient(impatient)) as monitoring:
        rounds = Rounds(proxy, settings, random.Random(seed), monitoring)
        rounds.first_run()
        for _ in range(ROUNDS):
            rounds.play()
        rounds.finish()
    print(f"{ROUNDS} rounds: {dict(rounds.done)}")  # noqa: T201
