"""What a stream task costs, whether or not it has work: one application of 1, 64 and more tasks.

    python -m tests.bench.bench_scale [--tasks 1,64,256] [--seconds 20]

One process without Spark runs a count by key continuously, exactly once, over a topic with as many
partitions as there are tasks to be. Told are the process's memory, threads, files and connections
once every task has committed; the processors' time while nothing comes; and what a commit takes
while some tasks get a record each second. The broker is one process on the same machine: what it
takes is told beside it. docs/scale.md counts with these figures.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import NamedTuple

import click
import psutil
from confluent_kafka import Producer

from statestore.testing.local_kafka import LocalKafka
from tests.bench.harness import ROOT, Bench, scratch
from tests.bench.pipelines import INPUT_VARIABLE, OUTPUT_VARIABLE
from tests.kafka.writing_rig import committed

_COMMIT_MS = 1000
_WORKING = 20
_READY_S = 900
_END_S = 120
_LOOK_S = 0.5
_DONE_S = 3


class Held(NamedTuple):
    """What a process holds at a moment."""

    rss_bytes: int
    threads: int
    files: int
    connections: int

    @classmethod
    def of(cls, process: psutil.Process) -> "Held":
        sockets = [one for one in process.net_connections("tcp") if one.status == "ESTABLISHED"]
        return cls(
            process.memory_info().rss,
            process.num_threads(),
            process.num_fds() - len(sockets),
            len(sockets),
        )


def cpu_s(process: psutil.Process) -> float:
    """Seconds of processors so far."""
    used = process.cpu_times()
    return used.user + used.system


def size_of(folder: Path) -> int:
    """Bytes on disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


class Application(NamedTuple):
    """A run that goes on, its topics and its state directory."""

    kafka: LocalKafka
    process: psutil.Process
    folder: Path
    topics: tuple[str, str]
    producer: Producer

    def records(self, partitions: Sequence[int]) -> None:
        """A record for each of these tasks."""
        for number in partitions:
            self.producer.produce(self.topics[0], b"x" * 90, b"key-%d" % number, number)
        assert self.producer.flush(_END_S) == 0

    def results(self) -> int:
        """How many counts are committed."""
        return len(committed(self.kafka.bootstrap_servers, self.topics[1]))

    def await_results(self, wanted: int) -> None:
        until_s = monotonic() + _READY_S
        while (found := self.results()) < wanted:
            assert self.process.is_running(), "the run ended"
            assert monotonic() < until_s, f"{found} of {wanted} tasks committed"
            Event().wait(_LOOK_S)


@contextmanager
def running(kafka: LocalKafka, folder: Path, tasks: int) -> Iterator[Application]:
    """An application of so many stream tasks, each of which has committed a record."""
    name = f"tasks-{tasks}"
    topics = (f"{name}-in", f"{name}-out")
    kafka.create_topic(topics[0], tasks)
    kafka.create_topic(topics[1], 1)
    command = [
        *(sys.executable, "-m", "statestore", "run", "--run-for=forever"),
        "--pipeline=tests.bench.pipelines:counting",
        *(f"--application-id={name}", f"--bootstrap-servers={kafka.bootstrap_servers}"),
        *(f"--state-dir={folder / name}", "--processing-guarantee=exactly_once"),
        f"--set=commit.interval.ms={_COMMIT_MS}",
    ]
    environment = {**os.environ, INPUT_VARIABLE: topics[0], OUTPUT_VARIABLE: topics[1]}
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    one = Application(kafka, psutil.Process(child.pid), folder / name, topics, producer)
    try:
        one.records(range(tasks))
        one.await_results(tasks)
        Event().wait(_DONE_S)
        yield one
    finally:
        child.terminate()
        child.wait(_END_S)


def measure(bench: Bench, kafka: LocalKafka, folder: Path, tasks: int, seconds: int) -> None:
    """All figures of one number of tasks."""
    broker = psutil.Process(kafka.pid())
    began_s = monotonic()
    with running(kafka, folder, tasks) as one:
        began = cpu_s(one.process)
        bench.add(f"{tasks} tasks: until all have committed", "s", [monotonic() - began_s])
        bench.add(f"{tasks} tasks: processors until then", "CPU s", [began])
        held = Held.of(one.process)
        bench.add(f"{tasks} tasks: memory", "MiB", [held.rss_bytes / 2**20])
        bench.add(f"{tasks} tasks: threads", "", [held.threads])
        bench.add(f"{tasks} tasks: files", "", [held.files])
        bench.add(f"{tasks} tasks: connections to the broker", "", [held.connections])
        bench.add(f"{tasks} tasks: state directory", "MiB", [size_of(one.folder) / 2**20])
        before, beside = cpu_s(one.process), cpu_s(broker)
        Event().wait(seconds)
        idle, idle_broker = cpu_s(one.process) - before, cpu_s(broker) - beside
        bench.add(f"{tasks} tasks: at rest", "CPU ms/s", [1000 * idle / seconds])
        bench.add(f"{tasks} tasks: at rest, broker", "CPU ms/s", [1000 * idle_broker / seconds])
        working = range(min(_WORKING, tasks))
        done = one.results()
        before, beside = cpu_s(one.process), cpu_s(broker)
        for _ in range(seconds):
            one.records(working)
            Event().wait(_COMMIT_MS / 1000)
        took, took_broker = cpu_s(one.process) - before, cpu_s(broker) - beside
        Event().wait(_DONE_S)
        commits = one.results() - done  # each tells the one count that changed
        bench.add(f"{tasks} tasks: a commit", "CPU ms", [1000 * (took - idle) / commits])
        bench.add(
            f"{tasks} tasks: a commit, broker",
            "CPU ms",
            [1000 * (took_broker - idle_broker) / commits],
        )


@click.command()
@click.option("--tasks", default="1,64,256", show_default=True, help="Separated by commas.")
@click.option("--seconds", default=20, show_default=True, help="Of each measurement.")
def main(tasks: str, seconds: int) -> None:
    """Measure applications of so many stream tasks."""
    bench = Bench("bench_scale")
    with scratch() as folder, LocalKafka() as kafka:
        for number in map(int, tasks.split(",")):
            measure(bench, kafka, folder, number, seconds)
    bench.notes["commit.interval.ms"] = _COMMIT_MS
    bench.finish()
    click.echo(json.dumps({one.name: one.median for one in bench.figures}))


if __name__ == "__main__":
    main()
