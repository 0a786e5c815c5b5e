"""A run is killed, started again, audited: topics, stores and oracle must agree.

Nothing here uses the code under test to judge it: topics are read with a plain consumer, stores
through raw rows.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tenacity
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

import statestore as ss
from statestore.faults import CrashPoint
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S
from tests.crash.pipeline import COUNTS, PREFIX_VARIABLE
from tests.processes import Process
from tests.tiers import client_settings

PARTITIONS = 2
# Visited only when something is broken, the topology changed or somebody asks: these have tests of
# their own.
_ELSEWHERE = (
    "audit.",
    "clone.",
    "commit.marked",
    "export.",
    "global.",
    "import.",
    "links.",
    "move.",
    "offsets.",
    "quarantine.",
    "relocate.",
    "repartition.",
    "reset.",
    "snapshot.",
    "takeover.",
    "upgrade.",
    "verify.",
    "write.",
)
ELSEWHERE = {point for point in CrashPoint if point.startswith(_ELSEWHERE)}
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # library gap
STATESTORE = Path(sys.executable).with_name("statestore")


@dataclass(frozen=True)
class Kill:
    """What a kill met: it counts only if commits came before it and writes were open at it."""

    died: bool
    commits_before: bool
    writes_open: bool

    @property
    def counts(self) -> bool:
        return self.died and self.commits_before and self.writes_open


@dataclass
class Rig:
    """One application on one broker, with its input and what must come out."""

    kafka: LocalKafka
    state_dir: Path
    guarantee: str = "exactly_once"
    application_id: str = "kill"
    topic_prefix: str = "kill"
    pipeline: str = "tests.crash.pipeline:topology"
    options: Sequence[str] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    is_poison: Callable[[int], bool] = lambda _number: False
    servers: str = ""
    """The brokers as runs know them, if they do not reach them as the rig does."""
    produced: int = 0
    expected: Counter[str] = field(default_factory=Counter)

    def create_topics(self) -> None:
        for name in ("in", "passed", "counts", "dead"):
            # Records are stamped in the past, and retention goes by their stamps.
            self.kafka.create_topic(
                f"{self.topic_prefix}-{name}",
                partitions=PARTITIONS,
                config={"retention.ms": "-1"},
            )

    def produce(self, count: int) -> None:
        """Append `count` records with increasing numbers."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 5})
        for number in range(self.produced, self.produced + count):
            producer.produce(
                f"{self.topic_prefix}-in",
                key=f"k{number}",
                value=str(number),
                timestamp=1_700_000_000_000 + number,
            )
            if not self.is_poison(number):
                self.expected[f"user-{number % 17}"] += 1
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        self.produced += count

    def command(self, summary: Path | None = None) -> list[str]:
        settings = {
            "statestore.batch.max.records": 400,
            "commit.interval.ms": 20,
            "statestore.lock.wait.ms": 20_000,
            "statestore.flush.lag.max.records": 40,
            # Records leave at once, so that a kill meets them in the log, not in the client.
            "producer.linger.ms": 0,
            **client_settings(self.application_id),
            **self.settings,
        }
        pairs = [f"--set={key}={value}" for key, value in settings.items()]
        return [
            f"--pipeline={self.pipeline}",
            f"--application-id={self.application_id}",
            f"--bootstrap-servers={self.servers or self.kafka.bootstrap_servers}",
            f"--state-dir={self.state_dir}",
            f"--processing-guarantee={self.guarantee}",
            *([f"--summary-file={summary}"] if summary else []),
            *pairs,
        ]

    def start(self, crash_at: str | None = None) -> Process:
        """A run in a child process; `crash_at` as in STATESTORE_CRASH_AT."""
        environment = self.environment()
        if crash_at:
            environment["STATESTORE_CRASH_AT"] = crash_at
        return processes.start(
            [str(STATESTORE), "run", "--json", *self.options, *self.command()],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def environment(self) -> dict[str, str]:
        """The variables of a run."""
        environment = dict(os.environ)
        environment.pop("STATESTORE_CRASH_AT", None)
        root = Path(__file__).resolve().parents[2]
        environment["PYTHONPATH"] = str(root)
        environment[PREFIX_VARIABLE] = self.topic_prefix
        return {**environment, **self.variables}

    def run(self) -> dict[str, Any]:
        """A run to the end; its summary."""
        process = self.start()
        out, err = processes.outputs_of(process)
        assert process.returncode == 0, err[-4000:]
        summary: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return summary

    def run_until_crash(self, crash_at: str, *, open_within_s: float = 0.0) -> Kill:
        """A run that dies at a crash point.

        `open_within_s`: the kernel sends on what a dead process had written, and the broker takes a
        moment to store it.
        """
        before = self.committed()
        process = self.start(crash_at)
        _, err = processes.outputs_of(process)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, err[-4000:]
            return Kill(died=False, commits_before=False, writes_open=False)
        is_open = tenacity.Retrying(
            stop=tenacity.stop_after_delay(open_within_s),
            wait=tenacity.wait_fixed(0.05),
            retry=tenacity.retry_if_result(lambda found: not found),
            retry_error_callback=lambda _state: False,
        )(self.writes_open)
        return Kill(True, bool(before) or bool(self.committed()), is_open)

    def run_until_killed(self, rng: random.Random) -> Kill:
        """A run without end, killed at a random moment after its first commit.

        Records come all the time, or a quick run has nothing to write at that moment.
        """
        before = self.committed()
        process = replace(self, options=("--run-for=forever",)).start()
        with self.producing(500):
            deadline = _Deadline(DEADLINE_S)
            while self.committed() == before:
                assert process.poll() is None, processes.outputs_of(process)[1][-4000:]
                deadline.check("no commit")
            time.sleep(rng.uniform(0.0, 0.4))
            process.kill()
        processes.outputs_of(process)
        died = process.returncode == -signal.SIGKILL
        return Kill(died, self.committed() != before, died and self.writes_open())

    @contextmanager
    def producing(self, count: int) -> Iterator[None]:
        """Append records all the time, so many at once."""
        stop = threading.Event()

        def produce() -> None:
            while not stop.wait(0.01):
                self.produce(count)

        thread = threading.Thread(target=produce, name="producing")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # What the log says.

    def committed(self) -> dict[tuple[str, int], int]:
        """The group's committed input offsets."""
        # Not waiting for what a killed run left open: read_uncommitted asks for no stable offset.
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": self.application_id,
                "isolation.level": "read_uncommitted",
            }
        )
        source = f"{self.topic_prefix}-in"
        asked = [TopicPartition(source, p) for p in range(PARTITIONS)]
        # A coordinator that loads or moves says so; nothing else is repeated.
        found = tenacity.Retrying(
            stop=tenacity.stop_after_delay(30),
            wait=tenacity.wait_fixed(0.1),
            retry=tenacity.retry_if_exception_type(KafkaException),
        )(consumer.committed, asked, 30)
        consumer.close()
        return {(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def written(self) -> list[str]:
        """The topics a transaction may write to."""
        return [
            f"{self.topic_prefix}-passed",
            f"{self.topic_prefix}-counts",
            f"{self.application_id}-by-user-repartition",
            f"{self.application_id}-counts-changelog",
        ]

    def writes_open(self) -> bool:
        """Whether some topic holds records past its last stable offset: written, not committed."""
        tps = [TopicPartition(topic, p) for topic in self.written() for p in range(PARTITIONS)]
        return self._ends(tps, IsolationLevel.READ_COMMITTED) != self._ends(
            tps, IsolationLevel.READ_UNCOMMITTED
        )

    def read(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """(partition, key, value) of every committed record, in order per partition."""
        tps = [TopicPartition(topic, p, 0) for p in range(PARTITIONS)]
        ends = self._ends(tps, IsolationLevel.READ_COMMITTED)
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": "audit",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign(tps)
        rows: list[tuple[int, bytes | None, bytes | None]] = []
        done = {p for p in range(PARTITIONS) if ends[(topic, p)] == 0}
        deadline = _Deadline(DEADLINE_S)
        while len(done) < PARTITIONS:
            deadline.check(f"reading {topic}")
            for message in consumer.consume(1000, 0.2):
                partition = message.partition()
                assert partition is not None
                if message.error():
                    done.add(partition)
                else:
                    rows.append((partition, message.key(), message.value()))
        consumer.close()
        return rows

    def findings(self) -> list[str]:
        """Every duplicate, loss and disagreement; empty is what exactly-once means."""
        found: list[str] = []
        passed = [
            (p, tuple(json.loads(value or b"[]")))
            for p, _, value in self.read(f"{self.topic_prefix}-passed")
        ]
        seen = Counter(origin for _, origin in passed)
        duplicates = {origin: n for origin, n in seen.items() if n > 1}
        if duplicates:
            found.append(
                f"passed: {len(duplicates)} records more than once, e.g. {_some(duplicates)}"
            )
        source = f"{self.topic_prefix}-in"
        inputs = self._ends(
            [TopicPartition(source, p) for p in range(PARTITIONS)], IsolationLevel.READ_COMMITTED
        )
        wanted = {(source, p, offset) for (_, p), end in inputs.items() for offset in range(end)}
        buried = len(self.poison())
        if len(missing := wanted - seen.keys()) != buried:
            found.append(f"passed: {len(missing)} records lost, e.g. {_some(missing)}")
        for partition in range(PARTITIONS):
            order = [origin for p, origin in passed if p == partition]
            for read_from in range(PARTITIONS):
                offsets = [origin[2] for origin in order if origin[1] == read_from]
                if offsets != sorted(offsets):
                    found.append(f"passed-{partition}: input {read_from} is out of order")
        found += self._count_findings()
        return found

    def poison(self) -> list[str]:
        """The keys of what is to be passed over."""
        return [f"k{number}" for number in range(self.produced) if self.is_poison(number)]

    def burial_findings(self) -> list[str]:
        """Dead letters lost, doubled or of records that are none."""
        letters = Counter((k or b"").decode() for _, k, _ in self.read(f"{self.topic_prefix}-dead"))
        wanted = Counter(self.poison())
        return (
            [] if letters == wanted else [f"dead letters: {letters - wanted}, {wanted - letters}"]
        )

    def _count_findings(self) -> list[str]:
        found = []
        updates: dict[str, list[int]] = defaultdict(list)
        for _, key, value in self.read(f"{self.topic_prefix}-counts"):
            updates[(key or b"").decode()].append(int.from_bytes(value or b""))
        for user, total in self.expected.items():
            if updates[user] != list(range(1, total + 1)):
                found.append(f"counts: {user} reads {_gaps(updates[user])}, want 1..{total}")
        folded: dict[str, int] = {}
        for _, key, value in self.read(f"{self.application_id}-counts-changelog"):
            folded[(key or b"").decode()] = int.from_bytes(value or b"")
        if folded != dict(self.expected):
            found.append(f"changelog fold differs: {_difference(folded, self.expected)}")
        if (rows := self.store_rows()) != dict(self.expected):
            found.append(f"store differs: {_difference(rows, self.expected)}")
        return found

    def store_rows(self) -> dict[str, int]:
        """Every row of the store, over all partitions."""
        rows: dict[str, int] = {}
        for partition in range(PARTITIONS):
            layout = StateLayout(self.state_dir, self.application_id)
            folder = layout.stores_dir(TaskId(1, partition))
            with ss.open_store(COUNTS, folder) as store, store.all() as pairs:
                rows |= dict(pairs)
        return rows

    def _ends(self, tps: list[TopicPartition], level: IsolationLevel) -> dict[tuple[str, int], int]:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        existing = admin.list_topics(timeout=DEADLINE_S).topics
        asked = {tp: _LATEST for tp in tps if tp.topic in existing}
        futures = admin.list_offsets(asked, isolation_level=level, request_timeout=DEADLINE_S)
        return {(tp.topic, tp.partition): f.result().offset for tp, f in futures.items()}


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._clock = time.monotonic
        self._until = self._clock() + seconds

    def check(self, what: str) -> None:
        assert self._clock() < self._until, f"deadline: {what}"


def _some(items: Any) -> list[Any]:
    return sorted(items)[:3]


def _gaps(numbers: list[int]) -> str:
    wrong = [(i + 1, n) for i, n in enumerate(numbers) if n != i + 1]
    return f"{len(numbers)} updates, first wrong (place, value) {wrong[0] if wrong else None}"


def _difference(
    found: Mapping[str, int], wanted: Mapping[str, int]
) -> list[tuple[str, int | None, int]]:
    return [(k, found.get(k), wanted[k]) for k in sorted(wanted) if found.get(k) != wanted[k]][:3]
