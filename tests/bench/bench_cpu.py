"""CPU seconds of count by key, against a bare consumer of the same topic: for busy machines.

    python -m tests.bench.bench_cpu [--records 1000000] [--repeats 5] [--set K=V]

One process each, in turn, without Spark; the client's threads count, the broker's are told beside
them. Of a run what a second one over nothing takes is taken off: claims, stores and clients.
Compare quotients.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import click
import psutil

import statestore as ss
from statestore.testing.local_kafka import LocalKafka
from tests.bench import pipelines
from tests.bench.harness import ROOT, Bench, scratch
from tests.bench.topic_children import PARTITIONS, consume_bare, fill

INPUT, OUTPUT = "bench-in", "bench-out"


class Used(NamedTuple):
    """CPU seconds: of this process with all its threads, of the broker."""

    ours: float
    broker: float

    @classmethod
    def now(cls, broker: int) -> "Used":
        """`broker`: its process id."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        theirs = psutil.Process(broker).cpu_times()
        return cls(used.ru_utime + used.ru_stime, theirs.user + theirs.system)

    def since(self, before: "Used") -> "Used":
        return Used(self.ours - before.ours, self.broker - before.broker)


def bare(servers: str, broker: int) -> Used:
    """What it takes to read keys and values of the whole topic."""
    began = Used.now(broker)
    consume_bare(servers, INPUT, list(range(PARTITIONS)), f"bare-{time()}")
    return Used.now(broker).since(began)


def counting(settings: dict[str, object], broker: int) -> Used:
    """What a run takes beyond one over nothing."""
    topology = pipelines.counting()
    ss.run(topology, settings, until=1)  # nothing yet, but imports
    began = Used.now(broker)
    ss.run(topology, settings)
    done = Used.now(broker)
    ss.run(topology, settings)
    return done.since(began).since(Used.now(broker).since(done))


def in_child(**order: object) -> Used:
    """One measurement in a process of its own."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_cpu", "--child", json.dumps(order)],
        cwd=ROOT,
        env={**os.environ, pipelines.INPUT_VARIABLE: INPUT, pipelines.OUTPUT_VARIABLE: OUTPUT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Used(*json.loads(made.stdout.splitlines()[-1]))


def measure(
    bench: Bench, kafka: LocalKafka, records: int, repeats: int, folder: Path, pairs: Any
) -> None:
    """Both in turn."""
    servers, broker = kafka.bootstrap_servers, kafka.pid()
    found: dict[str, list[Used]] = {"bare": [], "counting": []}
    for number in range(repeats):
        settings = {
            "application.id": f"cpu-{number}",
            "bootstrap.servers": servers,
            "state.dir": str(folder),
            "processing.guarantee": "exactly_once",
            **pairs,
        }
        found["bare"].append(in_child(servers=servers, broker=broker))
        found["counting"].append(in_child(settings=settings, broker=broker))
    names = {"bare": "a bare consumer", "counting": "count by key"}
    for name, used in found.items():
        ours = [1e6 * each.ours / records for each in used]
        theirs = [1e6 * each.broker / records for each in used]
        bench.add(f"{names[name]}, CPU a record", "us", ours)
        bench.add(f"{names[name]}, the broker's CPU a record", "us", theirs)
    turns = list(zip(found["bare"], found["counting"], strict=True))
    alone = [one.ours / other.ours for one, other in turns]
    bench.add("bare / count by key", "x", alone, ">= 0.35")
    together = [sum(one) / sum(other) for one, other in turns]
    bench.add("bare / count by key, with the broker", "x", together)


@click.command()
@click.option("--records", default=1_000_000, show_default=True)
@click.option("--repeats", default=5, show_default=True)
@click.option("--set", "settings", multiple=True, metavar="K=V", help="Any setting.")
@click.option("--child", hidden=True, help="One measurement, as JSON.")
def main(records: int, repeats: int, settings: Sequence[str], child: str | None) -> None:
    """Measure what count by key takes of a processor."""
    if child is not None:
        order = json.loads(child)
        click.echo(json.dumps(counting(**order) if "settings" in order else bare(**order)))
        return
    bench = Bench("bench_cpu")
    with LocalKafka() as kafka, scratch() as folder:
        for topic in (INPUT, OUTPUT):
            kafka.create_topic(topic, partitions=PARTITIONS)
        fill(kafka.bootstrap_servers, INPUT, records)
        pairs = dict(pair.split("=", 1) for pair in settings)
        measure(bench, kafka, records, repeats, folder, pairs)
    bench.finish()


if __name__ == "__main__":
    main()
