"""The section `soak`: two continuous runs for as long as there is time, and records all along.

One run is killed again and again, the other never. What they hold must stay as large as it was:
memory, threads and open files of the processes, files and bytes of the state dir. In the end
nothing was lost or doubled, and the product's own audit is right.
"""

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import psutil
from confluent_kafka import Consumer, Message, TopicPartition

from statestore.model.modes import KafkaClient
from statestore.model.texts import size_text
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.crash.kill_harness import STATESTORE
from tests.processes import Process
from tests.prove.kind_rig import KindRig, Refused, broker_of, rig_on
from tests.prove.kinds import PARTITIONS
from tests.prove.section import (
    Deadline,
    Finding,
    Harm,
    Planted,
    Section,
    SectionResult,
    repeating,
)

# Of one input: what waits for another one is not known record by record while a run goes on.
STEADY_KINDS = ("aggregate", "repartition", "processor", "windows", "sessions", "timers")
_RATE, _MOST_RECORDS = 100, 400_000
_KILL_EVERY_S = 60.0
_SAMPLE_S = 1.0
_WARM_S = 10.0
"""A process that has put out something for less time still fills its caches."""
_QUARTERS, _LEAST_OF_A_QUARTER = 4, 5
_ENDED_BEFORE_IT_BEGAN = 128 + signal.SIGTERM
_PLANTED_S = 40.0
_PLANTED_SHARE = 0.2
_LEAST, _LEAST_PLANTED = 8, 24
_GROWS, _FAILED, _UNLIKE = "grows without end", "a run failed", "audit"
_SETTINGS: Mapping[str, object] = {"commit.interval.ms": 100}


class Limit(NamedTuple):
    """How far the median of the last quarter may lie above that of the second."""

    ratio: float
    more: float
    unit: str = ""

    def allows(self, before: float, after: float) -> bool:
        return after <= before * self.ratio + self.more

    def text(self, value: float) -> str:
        return size_text(value) if self.unit == "bytes" else f"{value:.0f}"


LIMITS: Mapping[str, Limit] = {
    "memory": Limit(1.1, 16 << 20, "bytes"),
    "threads": Limit(1.0, 2),
    "open files": Limit(1.1, 8),
    "files on disk": Limit(1.2, 20),
    "bytes on disk": Limit(1.5, 32 << 20, "bytes"),
}


OF_PROCESSES, OF_DISKS = ("memory", "threads", "open files"), ("files on disk", "bytes on disk")


@dataclass
class Watched:
    """What one application's run held, second by second, and how long its records took."""

    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    latencies_ms: list[float] = field(default_factory=list)

    def sample(self, process: Process | None, state_dir: Path) -> None:
        """Note what is held now, of a warm process too; nothing of one that is ending."""
        sizes = list(_sizes(state_dir))
        self._note(OF_DISKS, (len(sizes), sum(sizes)))
        if process is not None:
            with suppress(psutil.Error):
                run = psutil.Process(process.pid)
                with run.oneshot():
                    held = run.memory_info().rss, run.num_threads(), run.num_fds()
                self._note(OF_PROCESSES, held)

    def _note(self, names: Sequence[str], values: Sequence[float]) -> None:
        for name, value in zip(names, values, strict=True):
            self.samples[name].append(value)

    def grown(self) -> list[str]:
        """What the last quarter of the time has more of than the second, as far as it is known."""
        found = []
        for name, limit in LIMITS.items():
            values = self.samples[name]
            quarters = _quarters(values)
            is_known = len(values) >= _QUARTERS * _LEAST_OF_A_QUARTER
            if is_known and not limit.allows(quarters[1], quarters[3]):
                texts = ", ".join(limit.text(one) for one in quarters)
                found.append(f"{name}, by quarters of the time: {texts}")
        return found

    def figures(self) -> dict[str, str]:
        """The medians of the quarters, in a line for each."""
        told = {
            name: ", ".join(limit.text(one) for one in _quarters(self.samples[name]))
            for name, limit in LIMITS.items()
        }
        parts = np.array_split(np.asarray(self.latencies_ms), _QUARTERS)
        shown = [
            f"{np.median(part):.0f} / {np.quantile(part, 0.99):.0f}" for part in parts if len(part)
        ]
        return told | {"produce to committed output, ms, p50 / p99": ", ".join(shown)}


class Soaked:
    """One application with a continuous run; `killed`: that is killed about once a minute."""

    def __init__(self, rig: KindRig, rng: Random, *, killed: bool) -> None:
        self.rig = rig
        self.watched = Watched()
        self.kills = 0
        self.failures: list[str] = []
        self._rng = rng
        self.is_killed = killed
        self._results = threading.Event()
        """Set once the present run has put out something."""
        self._began_at: Mapping[tuple[str, int], int] = {}
        """Where the output ended when the present run was started."""
        self._warm_s = 0.0
        self._sent = 0, 0.0
        """How many batches of records were sent, and when the last of them was."""

    def soak(self, deadline: Deadline, rate: int, least: int = _LEAST) -> None:
        """Produce, watch and kill until the time is over; then stop the run in order.

        Only a run that puts out results is looked at, at least so many times: the process of one
        that is never killed, else the state dir.
        """
        counted = OF_DISKS[0] if self.is_killed else OF_PROCESSES[0]
        stop = threading.Event()
        reader = threading.Thread(target=self._read, args=(stop,), name=f"{self.rig.kind}-reader")
        reader.start()
        process = self._start()
        kill_s = self._next_kill()
        try:
            while not self.failures and not (
                deadline.over and len(self.watched.samples[counted]) >= least
            ):
                began_s = time.monotonic()
                self._sent = self._sent[0] + 1, began_s
                self.rig.produce(rate)
                if process.poll() is not None:
                    self.failures.append(processes.outputs_of(process)[1][-2000:])
                elif self._results.is_set():
                    is_warm = began_s >= self._warm_s
                    self.watched.sample(process if is_warm else None, self.rig.state_dir)
                    if began_s >= kill_s:
                        process.kill()
                        processes.outputs_of(process)
                        self.kills += 1
                        process, kill_s = self._start(), self._next_kill()
                stop.wait(max(0.0, _SAMPLE_S - (time.monotonic() - began_s)))
        finally:
            process.terminate()
            _, err = processes.outputs_of(process)
            stop.set()
            reader.join()
        # A run that was started a moment ago may be asked to stop before it has begun.
        if process.returncode not in {0, _ENDED_BEFORE_IT_BEGAN}:
            self.failures.append(err[-2000:])

    def findings(self) -> Iterator[tuple[str, str, Harm]]:
        """What must not be, once a last run has come to the end."""
        yield from ((_FAILED, text, Harm.ANOMALY) for text in self.failures)
        self.rig.options = ()
        try:
            self.rig.ended()
        except Refused as refused:
            yield _FAILED, str(refused), Harm.ANOMALY
            return
        yield from self.rig.anomalies()
        audit = processes.run(
            [
                *(str(STATESTORE), "audit", "--json"),
                *(
                    f"--application-id={self.rig.application_id}",
                    f"--state-dir={self.rig.state_dir}",
                ),
                f"--bootstrap-servers={self.rig.kafka.bootstrap_servers}",
            ],
        )
        if audit.returncode:
            yield _UNLIKE, audit.stderr[-2000:], Harm.ANOMALY
        yield from ((_GROWS, text, Harm.ANOMALY) for text in self.watched.grown())

    def _start(self) -> Process:
        self.rig.options = ("--run-for=forever",)
        # What a killed run had put out may be read when the next one runs.
        self._began_at = self.rig.output_ends()
        self._results.clear()
        return self.rig.start()

    def _next_kill(self) -> float:
        pause_s = self._rng.uniform(0.5, 1.5) * _KILL_EVERY_S
        return time.monotonic() + pause_s if self.is_killed else float("inf")

    def _read(self, stop: threading.Event) -> None:
        """Note how long the first result took to come that was read after each batch was sent."""
        topic = f"{self.rig.topic_prefix}-out"
        consumer = Consumer(
            {
                "bootstrap.servers": self.rig.kafka.bootstrap_servers,
                "group.id": "soak",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        told = 0
        while not stop.is_set():
            came = [message for message in consumer.consume(1000, 0.1) if not message.error()]
            if not self._results.is_set() and any(map(self._is_of_present_run, came)):
                self._warm_s = time.monotonic() + _WARM_S
                self._results.set()
            batches, sent_s = self._sent
            if came and told < batches:
                self.watched.latencies_ms.append((time.monotonic() - sent_s) * 1000)
                told = batches
        consumer.close()

    def _is_of_present_run(self, message: Message) -> bool:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        return offset >= self._began_at.get((topic, partition), 0)


def run(seed: int, deadline: Deadline) -> SectionResult:
    """Soak two applications of the seed's kinds until the time is over, and one with a defect."""
    rng = Random(seed)
    kinds = rng.sample(STEADY_KINDS, 2)
    with broker_of("soak") as (kafka, folder):
        planted = _planted(kafka, folder, deadline.part(_PLANTED_SHARE), seed)
        rate = int(max(1, min(_RATE, _MOST_RECORDS / max(1.0, deadline.left_s))))
        soaked = [
            Soaked(
                rig_on(kafka, folder, kind, f"soak-{seed}-{kind}", settings=_settings(rng)),
                Random(f"{seed} {kind}"),
                killed=killed,
            )
            for kind, killed in zip(kinds, (True, False), strict=True)
        ]
        began_s = time.monotonic()
        with ThreadPoolExecutor(len(soaked)) as pool:
            list(pool.map(lambda one: one.soak(deadline, rate), soaked))
        minutes = int((time.monotonic() - began_s) / 60)
        found = [finding for one in soaked for finding in one.findings()]
    names = [f"{one.rig.kind}, {'killed' if one.is_killed else 'never killed'}" for one in soaked]
    return SectionResult(
        tried={
            "records": sum(one.rig.produced for one in soaked),
            "seconds": int(time.monotonic() - began_s),
            "kills": sum(one.kills for one in soaked),
        },
        least={"kills": minutes // 2},
        findings=tuple(Finding(*one[:2], repeating("soak", seed), one[2]) for one in found),
        planted=(planted,),
        figures={
            f"{name}: {what}": text
            for name, one in zip(names, soaked, strict=True)
            for what, text in one.watched.figures().items()
        },
        notes=(_NOTE,),
    )


def _settings(rng: Random) -> Mapping[str, object]:
    return {**_SETTINGS, "kafka.client": str(rng.choice(list(KafkaClient)))}


def _planted(kafka: LocalKafka, folder: Path, deadline: Deadline, seed: int) -> Planted:
    """Soak an application that keeps something of each commit."""
    name = f"soak-{seed}-hoarder"
    rig = rig_on(kafka, folder, "aggregate", name, defect="hoarder", settings=_SETTINGS)
    one = Soaked(rig, Random(seed), killed=False)
    one.soak(Deadline(min(_PLANTED_S, deadline.seconds)), _RATE, least=_LEAST_PLANTED)
    return Planted("hoarder", tuple(sorted({rule for rule, _, _ in one.findings()})), 1)


def _sizes(folder: Path) -> Iterator[int]:
    """How large each file below a folder is, which changes meanwhile."""
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.lstat(f"{path}/{name}").st_size


def _quarters(values: Sequence[float]) -> list[float]:
    """The median of each quarter; none if there are fewer values."""
    if len(values) < _QUARTERS:
        return []
    return [float(np.median(part)) for part in np.array_split(np.asarray(values), _QUARTERS)]


_NOTE = (
    "Memory, threads, files and bytes are looked at once a second, those of a process once it has "
    f"put out something for {_WARM_S:.0f} s, and the last quarter of the time is held against the "
    "second. How long records take is told and not judged, as it is the machine's."
)

SECTION = Section(
    "soak",
    "Runs that never end, one of them killed once a minute: what they hold stays as large.",
    None,
    run,
)
