"""Runs as users start them, and what they left: files, topics, offsets.

Nothing here asks the code under test what happened: topics are read with plain clients.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tenacity
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions

import statestore as ss
from statestore.faults import VARIABLE, CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import ROOT, eventually
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.processes import AnyProcess
from tests.tiers import client_settings

STATESTORE = Path(sys.executable).with_name("statestore")
START_MS = 1_700_000_000_000
USERS = 7
DEADLINE_S = 60.0
SMALL_COMMITS = ("--set=commit.interval.ms=20", "--set=statestore.batch.max.records=100")
COMMIT_STEPS = (
    CrashPoint.COMMIT_RECORDS_SENT,
    CrashPoint.COMMIT_OFFSETS_SENT,
    CrashPoint.COMMIT_LOG_DONE,
    CrashPoint.COMMIT_DONE,
)
ANY_PARTITION = -1
# Of brokers that ask for a password.
USER, PASSWORD = "shop", "correct horse"
# Root may write anywhere; without these capabilities it is stopped by file modes like others.
NO_PRIVILEGE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # library gap
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # library gap


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def summary(self) -> dict[str, Any]:
        """The one JSON line; spark-submit mixes what Python logs into the output."""
        (line,) = [line for line in self.out.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def message(self) -> str:
        """The one line that says what, where and the way out."""
        return self.err.rstrip("\n").rpartition("\n")[2]


class World(NamedTuple):
    """What a run could have changed."""

    files: Mapping[str, str] | None
    topics: frozenset[str]


class Row(NamedTuple):
    partition: int
    key: str
    value: Any
    timestamp_ms: int


@dataclass(frozen=True)
class App:
    """An application on a broker; its topics are `<name>-in`, `<name>-out`."""

    kafka: LocalKafka
    name: str
    state_dir: Path
    pipeline: str = "counts"
    settings: Mapping[str, object] = field(default_factory=dict)
    children: list[AnyProcess] = field(default_factory=list)

    # Topics.

    def create_topics(self, *, partitions: int = 2, **others: int) -> "App":
        """`in` and `out`, and others by name and partition count."""
        for name, count in {"in": partitions, "out": partitions, **others}.items():
            # Records are stamped in the past, and retention goes by their stamps.
            self.kafka.create_topic(f"{self.name}-{name}", count, {"retention.ms": -1})
        return self

    def produce(
        self, numbers: Sequence[int], *, topic: str = "in", partition: int | None = None
    ) -> None:
        """One record per number, stamped with it."""
        rows = [
            (f"k{n}", json.dumps({"user": user(n), "number": n}).encode(), START_MS + n)
            for n in numbers
        ]
        self.produce_raw(rows, topic=topic, partition=partition)

    def produce_raw(
        self,
        rows: Sequence[tuple[str, bytes | None, int]],
        *,
        topic: str = "in",
        partition: int | None = None,
        partitioner: str = "consistent_random",
    ) -> None:
        where = ANY_PARTITION if partition is None else partition
        producer = Producer({**self._client(), "linger.ms": 5, "partitioner": partitioner})
        for i, (key, value, time_ms) in enumerate(rows):
            producer.produce(
                f"{self.name}-{topic}", key=key, value=value, partition=where, timestamp=time_ms
            )
            if i % 1000 == 0:
                producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0

    def delete_topic(self, name: str) -> None:
        """Delete it and wait until it is gone."""
        admin = self._admin()
        (pending,) = admin.delete_topics([name]).values()
        pending.result()
        eventually(lambda: name not in self.topics(), f"{name} is deleted")

    def grow_topic(self, name: str, partitions: int) -> None:
        """Add partitions, as an administrator does."""
        admin, topic = self._admin(), f"{self.name}-{name}"
        (pending,) = admin.create_partitions([NewPartitions(topic, partitions)]).values()
        pending.result()

        def has_grown() -> bool:
            found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
            return len(found) == partitions and all(one.leader >= 0 for one in found.values())

        eventually(has_grown, f"{topic} has grown")

    def topics(self) -> frozenset[str]:
        """All of this application; other tests have theirs on the same broker."""
        listed = self._admin().list_topics(timeout=DEADLINE_S).topics
        return frozenset(name for name in listed if name.startswith(f"{self.name}-"))

    def read(self, topic: str = "out") -> list[Row]:
        """Every committed record, in order per partition; values of 8 bytes are INT64."""
        name = f"{self.name}-{topic}"
        ends = {p: end for p, (start, end) in self.bounds(name).items() if end > start}
        consumer = Consumer(
            {
                **self._client(),
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition(name, p, 0) for p in ends])
        rows: list[Row] = []
        deadline = time.monotonic() + DEADLINE_S
        while ends:
            assert time.monotonic() < deadline, f"deadline: reading {name}"
            for message in consumer.consume(1000, 0.1):
                partition = message.partition()
                assert partition is not None
                if message.error():
                    ends.pop(partition, None)
                else:
                    rows.append(_row(message, partition))
        consumer.close()
        return rows

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Log start and last stable offset of each partition."""
        admin = self._admin()
        partitions = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        tps = [TopicPartition(topic, p) for p in partitions]

        def offsets(spec: OffsetSpec) -> dict[int, int]:
            asked = admin.list_offsets(
                dict.fromkeys(tps, spec), isolation_level=IsolationLevel.READ_COMMITTED
            )
            return {tp.partition: future.result().offset for tp, future in asked.items()}

        starts, ends = offsets(_EARLIEST), offsets(_LATEST)
        return {p: (starts[p], ends[p]) for p in starts}

    def committed(self, topic: str = "in") -> dict[int, int]:
        """The group's committed offsets, also while a transaction is open."""
        name = f"{self.name}-{topic}"
        consumer = self._group()
        tps = [TopicPartition(name, p) for p in self.bounds(name)]
        # A coordinator that loads or moves says so; nothing else is repeated.
        found = tenacity.Retrying(
            stop=tenacity.stop_after_delay(DEADLINE_S),
            wait=tenacity.wait_fixed(0.1),
            retry=tenacity.retry_if_exception_type(KafkaException),
        )(consumer.committed, tps, DEADLINE_S)
        consumer.close()
        return {tp.partition: tp.offset for tp in found if tp.offset >= 0}

    def commit_offset(self, partition: int, offset: int, *, topic: str = "in") -> None:
        """Set the group's offset of an input partition, as an administrator does."""
        consumer = self._group()
        tp = TopicPartition(f"{self.name}-{topic}", partition, offset)
        consumer.commit(offsets=[tp], asynchronous=False)
        consumer.close()

    def forget_offsets(self) -> None:
        """Drop the group's offsets, as the broker does a week after the last commit."""
        admin = self._admin()
        (pending,) = admin.delete_consumer_groups([self.name]).values()
        pending.result()

    # Runs.

    def run_settings(self, **more: object) -> dict[str, object]:
        """For ss.run in this process."""
        return {
            "application.id": self.name,
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "state.dir": str(self.state_dir),
            "processing.guarantee": "exactly_once",
            "statestore.lock.wait.ms": 300,
            **client_settings(self.name),
            **self.settings,
            **more,
        }

    def flags(self, pipeline: str | None = None) -> list[str]:
        path = pipeline or self.pipeline
        if ":" not in path and path.isidentifier():
            path = f"tests.kafka.run_pipelines:{path}"
        named = ("application.id", "bootstrap.servers", "state.dir", "processing.guarantee")
        settings = self.run_settings()
        return [
            f"--pipeline={path}",
            *(f"--{key.replace('.', '-')}={settings.pop(key)}" for key in named),
            *(f"--set={key}={value}" for key, value in settings.items()),
        ]

    def start(
        self,
        *more: str,
        pipeline: str | None = None,
        crash_at: str | None = None,
        through: Sequence[str] = (),
        command: str | Sequence[str] = "run",
    ) -> AnyProcess:
        """`statestore run`, or another command, in a child process; `through` what runs it."""
        words = [command] if isinstance(command, str) else command
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.state_dir.parent}",
            PREFIX_VARIABLE: self.name,
        }
        environment.pop(VARIABLE, None)
        if crash_at:
            environment[VARIABLE] = crash_at
        begin = partial(subprocess.Popen[str], text=True) if through else processes.start
        child = begin(
            [*through, str(STATESTORE), *words, "--json", *self.flags(pipeline), *more],
            cwd=self.state_dir.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.children.append(child)
        return child

    def end_children(self) -> None:
        """End what a failed test left running."""
        for child in self.children:
            with child:
                if child.poll() is None:
                    child.kill()

    def run(self, *more: str, **how: Any) -> Ended:
        """`statestore run` to its end."""
        began = time.monotonic()
        return end_of(self.start(*more, **how), began)

    def drained(self, *more: str, **how: Any) -> dict[str, Any]:
        """The summary of a run that must succeed."""
        ended = self.run(*more, **how)
        assert ended.code == 0, ended.err[-4000:]
        return ended.summary

    def killed_at_each_step(self, pipeline: str) -> None:
        """A run over 1000 records is killed at each step of its fourth commit; then one ends."""
        for round_, point in enumerate(COMMIT_STEPS):
            self.produce(range(20 + 1000 * round_, 1020 + 1000 * round_))
            ended = self.run(*SMALL_COMMITS, pipeline=pipeline, crash_at=f"{point}:4")
            assert ended.code == -signal.SIGKILL, f"{point} was not reached: {ended.err[-2000:]}"
        self.drained(*SMALL_COMMITS, pipeline=pipeline)

    def checked(self, *more: str, **how: Any) -> Ended:
        """`statestore topology check`."""
        return self.run(*more, command=("topology", "check"), **how)

    # What is there.

    def world(self) -> World:
        """The state dir byte by byte, and the topics of the application."""
        files = None
        if self.state_dir.exists():
            files = {
                str(path.relative_to(self.state_dir)): _fingerprint(path)
                for path in sorted(self.state_dir.rglob("*"))
            }
        return World(files, self.topics())

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Whatever happens inside leaves files and topics as they were."""
        before = self.world()
        yield
        assert self.world() == before

    @contextmanager
    def unchanged_topics(self) -> Iterator[None]:
        """For a refusal beside a run that goes on writing files."""
        before = self.topics()
        yield
        assert self.topics() == before

    def stored(self, store: str = "counts", ordinal: int = 1) -> dict[str, int]:
        """The rows of a closed store of counts, all partitions."""
        spec = ss.persistent_key_value_store(store)
        rows: dict[str, int] = {}
        for folder in (self.state_dir / self.name).glob(f"{ordinal}_*/rocksdb"):
            with ss.open_store(spec, folder) as opened, opened.all() as pairs:
                rows |= {key.decode(): int.from_bytes(value, "big") for key, value in pairs}
        return rows

    def _client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0}

    def _admin(self) -> AdminClient:
        return AdminClient(self._client())

    def _group(self) -> Consumer:
        return Consumer(
            {
                **self._client(),
                "group.id": self.name,
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
            }
        )


def name_of(test: str) -> str:
    """A name for the application and the topics of a test."""
    return re.sub(r"\W+", "-", test.removeprefix("test_"))[-60:].strip("-")


def user(number: int) -> str:
    return f"u{number % USERS}"


def counted(numbers: Sequence[int]) -> dict[str, int]:
    """What counting these records by user must give."""
    return dict(Counter(user(number) for number in numbers))


def updates_in_order(rows: Sequence[Row]) -> dict[str, int]:
    """The last count per user, if each one's updates read 1, 2, 3 …: nothing twice, none lost."""
    seen: Counter[str] = Counter()
    for row in rows:
        seen[row.key] += 1
        assert row.value == seen[row.key], f"{row} is update {seen[row.key]} of its key"
    return dict(seen)


def end_of(process: AnyProcess, began: float) -> Ended:
    out, err = processes.outputs_of(process)
    return Ended(process.returncode, out, err, time.monotonic() - began)


def running(app: App, process: AnyProcess, holds: Callable[[], bool]) -> None:
    """Wait until it holds while the run goes on."""
    pause = threading.Event()

    def held() -> bool:
        assert process.poll() is None, end_of(process, 0).err[-4000:]
        if holds():
            return True
        # Most questions go to the broker, by a client of their own each time.
        pause.wait(0.03)
        return False

    eventually(held, f"the run of {app.name} gets there", DEADLINE_S)


def _row(message: Message, partition: int) -> Row:
    key, value = message.key(), message.value()
    assert key is not None
    assert value is not None
    decoded = int.from_bytes(value, "big") if len(value) == 8 else json.loads(value)
    return Row(partition, key.decode(), decoded, message.timestamp()[1])


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"


def assert_refused(ended: Ended, code: int, error: str, *says: str) -> None:
    """Exit code, JSON line and the line on stderr agree, and say what they must."""
    assert ended.code == code, ended.err[-4000:]
    found = ended.summary["error"]
    assert (found["class"], found["exit_code"], found["foreseen"]) == (error, code, True)
    assert ended.message == f"statestore: {error}: {found['message']}"
    assert [text for text in says if text not in ended.message] == [], ended.message
    assert "Traceback" not in ended.err
