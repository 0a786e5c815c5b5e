"""One run of one peer: started, warmed up, given its records at one moment, watched, checked.

The records lie in an open transaction until the peer has told the right results of the first few.
Then the transaction commits: nobody's start, imports or first compilation are in the figures. The
run is over when the output, as readers of committed records see it, has been quiet for a while and
is right; the figures are those of the moment when it last grew.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import NamedTuple

import psutil
from confluent_kafka import Consumer, IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from statestore.testing.kafka_jars import java
from statestore.testing.local_kafka import LocalKafka
from tests.bench.harness import ROOT
from tests.bench.peers.environments import Environment
from tests.bench.peers.jobs import Given, Job, Results, Telling, expected, faults, in_minute, rows
from tests.bench.peers.table import Form, Peer
from tests.bench.pipelines import (
    INPUT_VARIABLE,
    JSON_TABLE_VARIABLE,
    JSON_VARIABLE,
    OUTPUT_VARIABLE,
    TABLE_VARIABLE,
)
from tests.bench.topic_children import PARTITIONS, filler

PIPELINES: Mapping[Job, str] = {
    Job.COUNT: "counting",
    Job.JSON: "enriching",
    Job.PROCESSOR: "per_record",
}
_LOOK_S = 0.05
_QUIET_S = 2.5
_SILENCE_S = 90.0
_END_S = 20.0
_REQUEST_S = 30.0
_WINDOW_BYTES = 8
_PER_POLL = 1000


class Failed(Exception):
    """The peer ended, was silent, or told something wrong; the last line of what it said."""


class Used(NamedTuple):
    """What a peer took for its records: seconds by the clock and of processors, bytes at most."""

    clock_s: float
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True)
class Run:
    """The peer, its job and its topics; `name` is another one for each run."""

    kafka: LocalKafka
    peer: Peer
    environment: Environment
    job: Job
    name: str
    folder: Path

    @property
    def topics(self) -> dict[str, str]:
        return {end: f"{self.name}-{end}" for end in ("input", "table", "output")}

    @property
    def pipeline(self) -> str:
        return self.peer.pipelines.get(self.job, f"pipelines:{PIPELINES[self.job]}")

    def command(self) -> list[str]:
        servers, topics = self.kafka.bootstrap_servers, self.topics
        if self.peer.main_class:
            words = (servers, self.name, str(self.folder), PIPELINES[self.job])
            path = self.environment.class_path()
            properties = [f"-D{each}" for each in self.peer.properties]
            begun = [java(), *properties, "-cp", path, self.peer.main_class]
            return [*begun, *words, *topics.values(), "forever"]
        if self.peer.module:
            told = {
                "servers": servers,
                "name": self.name,
                "folder": str(self.folder),
                "job": self.job,
                "jars": [str(jar) for jar in sorted(self.environment.jars.glob("*.jar"))],
                **topics,
            }
            program = ["-m", f"tests.bench.peers.{self.peer.module}", json.dumps(told)]
            return [str(self.environment.python), *program]
        return [
            *(sys.executable, "-m", "statestore", "run", "--run-for=forever"),
            f"--pipeline=tests.bench.{self.pipeline}",
            *(f"--application-id={self.name}", f"--bootstrap-servers={servers}"),
            *(f"--state-dir={self.folder}", "--processing-guarantee=exactly_once"),
        ]

    def variables(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"},
            INPUT_VARIABLE: self.topics["input"],
            OUTPUT_VARIABLE: self.topics["output"],
            TABLE_VARIABLE: self.topics["table"],
            JSON_VARIABLE: self.topics["input"],
            JSON_TABLE_VARIABLE: self.topics["table"],
            "PYSPARK_PYTHON": str(self.environment.python),
        }

    def measure(self, given: list[Given], warm: int) -> Used:
        """What the records after the first `warm` took. Failed if the peer does not do its job."""
        for topic in self.topics.values():
            self.kafka.create_topic(topic, partitions=PARTITIONS)
        servers, topic = self.kafka.bootstrap_servers, self.topics["input"]
        plain = filler(servers)
        _send(plain, self.topics["table"], rows(given[0].time_ms))
        _send(plain, topic, given[:warm])
        output = Output(servers, self.topics["output"], self.peer.form, self.job)
        telling = self.peer.telling[self.job]
        with output, self._started() as tree:
            tree.await_results(output, expected(self.job, given[:warm]), telling)
            producer = filler(servers, **{"transactional.id": f"fills-{self.name}"})
            producer.init_transactions(_REQUEST_S)
            producer.begin_transaction()
            _send(producer, topic, given[warm:])
            cpu_s, began = tree.cpu_s(), monotonic()
            producer.commit_transaction(_REQUEST_S)
            ended = tree.await_results(output, expected(self.job, given), telling)
        output.delete(self.topics.values())
        return Used(ended.clock_s - began, ended.cpu_s - cpu_s, ended.rss_bytes)

    @contextmanager
    def _started(self) -> Iterator["Tree"]:
        self.folder.mkdir(parents=True)
        log = self.folder.with_suffix(".log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            tree = Tree(process, log)
            try:
                yield tree
            finally:
                tree.end()


class Tree:
    """A peer's processes: the first one and all that it started."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._root = psutil.Process(process.pid)
        self._log = log

    def cpu_s(self) -> float:
        """Seconds of processors, user and system; of those that ended, too."""
        total = 0.0
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])
        return total

    def rss_bytes(self) -> int:
        """Memory held; what processes share counts for each."""
        total = 0
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def await_results(self, output: "Output", wanted: Results, telling: Telling) -> Used:
        """Wait until the output has all results, once each. When it last grew, by what then."""
        size, since, looked = -1, monotonic(), False
        ended = Used(since, 0.0, 0)
        while True:
            if (found := output.size()) != size:
                size, since, looked = found, monotonic(), False
                most = max(ended.rss_bytes, self.rss_bytes())
                ended = Used(since, self.cpu_s(), most)
            silent_s = monotonic() - since
            wrong: list[str] = []
            if silent_s > _QUIET_S and not looked:
                looked, wrong = True, faults(wanted, output.read(), telling)
                if not wrong:
                    return ended
            if self._process.poll() is not None:
                raise Failed(f"it ended with {self._process.returncode}: {self.last_line()}")
            if silent_s > _SILENCE_S:
                wrong = faults(wanted, output.read(), telling)
                raise Failed(f"wrong output: {'; '.join(wrong)}; its log: {self.last_line()}")
            Event().wait(_LOOK_S)

    def last_line(self) -> str:
        """Of its log, but for lines of Java's stack."""
        lines = map(str.strip, self._log.read_text(encoding="utf-8", errors="replace").split("\n"))
        said = [line for line in lines if line and not line.startswith(("at ", "..."))]
        return said[-1] if said else "nothing"

    def end(self) -> None:
        """End all of its processes, at once: what it leaves behind is thrown away."""
        processes = self._all()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=_END_S)

    def _all(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [self._root, *self._root.children(recursive=True)]
        return []


class Output:
    """The topic of results, as readers of committed records see it."""

    def __init__(self, servers: str, topic: str, form: Form, job: Job) -> None:
        self._parts = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"reads-{topic}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        self._form = form
        self._job = job
        self._told: dict[bytes, list[int]] = defaultdict(list)

    def __enter__(self) -> None:
        self._consumer.assign(self._parts)

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def size(self) -> int:
        """How far readers of committed records can see."""
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # library gap
        asked = self._admin.list_offsets(
            {TopicPartition(part.topic, part.partition): latest for part in self._parts},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_REQUEST_S,
        )
        return sum(future.result().offset for future in asked.values())

    def read(self) -> Results:
        """All results told so far, by key."""
        at_end = 0
        # Assigned anew, it tells the ends of now.
        self._consumer.assign(self._parts)
        while at_end < len(self._parts):
            for message in self._consumer.consume(1000, 1.0):
                if message.error() is not None:
                    at_end += 1
                else:
                    self._note(message)
        for part, now in zip(self._parts, self._consumer.position(self._parts), strict=True):
            part.offset = max(part.offset, now.offset)  # that of an empty one is below 0
        return self._told

    def delete(self, topics: Iterable[str]) -> None:
        """Make room."""
        for future in self._admin.delete_topics(list(topics)).values():
            future.result()

    def _note(self, message: Message) -> None:
        key, value = message.key(), message.value()
        if value is None or ("pathway_diff", b"-1") in (message.headers() or ()):
            return  # a result that is taken back comes before the one that takes its place
        assert isinstance(key, bytes)
        result = int.from_bytes(value, "big") if self._form is Form.BINARY else int(value)
        if self._form is not Form.TEXT and self._job is Job.JSON:
            start_ms = int.from_bytes(key[-_WINDOW_BYTES:], "big")
            key = in_minute(key[:-_WINDOW_BYTES], start_ms)
        self._told[key].append(result)


def _send(producer: Producer, topic: str, given: Iterable[Given]) -> None:
    for number, record in enumerate(given):
        while True:
            try:
                producer.produce(topic, record.value, record.key, timestamp=record.time_ms)
                break
            except BufferError:
                producer.poll(0.05)
        if number % _PER_POLL == 0:
            producer.poll(0)
    assert producer.flush(_REQUEST_S) == 0
