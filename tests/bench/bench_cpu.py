"""CPU seconds of count by key, against a bare consumer of the same topic: for busy machines.

    python -m tests.bench.bench_cpu [--records 1000000] [--repeats 5] [--set K=V]

One process each, in turn, without Spark; the client's threads count, the broker does not. Of a run
what a second one over nothing takes is taken off: claims, stores and clients. Compare quotients.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Any

import click

import statestore as ss
from statestore.testing.local_kafka import LocalKafka
from tests.bench import pipelines
from tests.bench.harness import ROOT, Bench, scratch
from tests.bench.topic_children import PARTITIONS, consume_bare, fill

INPUT, OUTPUT = "bench-in", "bench-out"


def cpu_seconds() -> float:
    """Of this process, all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def bare(servers: str) -> float:
    """What it takes to read keys and values of the whole topic."""
    began = cpu_seconds()
    consume_bare(servers, INPUT, list(range(PARTITIONS)), f"bare-{time()}")
    return cpu_seconds() - began


def counting(settings: dict[str, object]) -> float:
    """What a run takes beyond one over nothing."""
    topology = pipelines.counting()
    ss.run(topology, settings, until=1)  # nothing yet, but imports
    began = cpu_seconds()
    ss.run(topology, settings)
    done = cpu_seconds()
    ss.run(topology, settings)
    return (done - began) - (cpu_seconds() - done)


def in_child(**order: object) -> float:
    """CPU seconds of one measurement in a process of its own."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_cpu", "--child", json.dumps(order)],
        cwd=ROOT,
        env={**os.environ, pipelines.INPUT_VARIABLE: INPUT, pipelines.OUTPUT_VARIABLE: OUTPUT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(made.stdout.split()[-1])


def measure(
    bench: Bench, servers: str, records: int, repeats: int, folder: Path, pairs: Any
) -> None:
    """Both in turn."""
    found: dict[str, list[float]] = {"bare": [], "counting": []}
    for number in range(repeats):
        settings = {
            "application.id": f"cpu-{number}",
            "bootstrap.servers": servers,
            "state.dir": str(folder),
            "processing.guarantee": "exactly_once",
            **pairs,
        }
        found["bare"].append(1e6 * in_child(servers=servers) / records)
        found["counting"].append(1e6 * in_child(settings=settings) / records)
    bench.add("a bare consumer, CPU a record", "us", found["bare"])
    bench.add("count by key, CPU a record", "us", found["counting"])
    bench.ratios("bare / count by key", found["bare"], found["counting"], ">= 0.35")


@click.command()
@click.option("--records", default=1_000_000, show_default=True)
@click.option("--repeats", default=5, show_default=True)
@click.option("--set", "settings", multiple=True, metavar="K=V", help="Any setting.")
@click.option("--child", hidden=True, help="One measurement, as JSON.")
def main(records: int, repeats: int, settings: Sequence[str], child: str | None) -> None:
    """Measure what count by key takes of a processor."""
    if child is not None:
        order = json.loads(child)
        taken = counting(order["settings"]) if "settings" in order else bare(order["servers"])
        click.echo(taken)
        return
    bench = Bench("bench_cpu")
    with LocalKafka() as kafka, scratch() as folder:
        for topic in (INPUT, OUTPUT):
            kafka.create_topic(topic, partitions=PARTITIONS)
        fill(kafka.bootstrap_servers, INPUT, records)
        pairs = dict(pair.split("=", 1) for pair in settings)
        measure(bench, kafka.bootstrap_servers, records, repeats, folder, pairs)
    bench.finish()


if __name__ == "__main__":
    main()
