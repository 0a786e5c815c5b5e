"""What an epoch for each transaction costs: count by key, exactly once, with and without.

    python -m tests.bench.bench_epochs [--records 2000000] [--repeats 7] [--set K=V]

One process without Spark, each run in a process and with an application of its own, in turn over
the same topic. "Without" is one producer for all transactions of an owner, which a late message can
tear. Compare quotients.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import click
import pytest

import statestore as ss
from statestore.kafka.outbox import TransactionalOutbox
from statestore.testing.local_kafka import LocalKafka
from tests.bench import pipelines
from tests.bench.harness import ROOT, Bench, scratch
from tests.bench.topic_children import PARTITIONS, fill
from tests.one_epoch import switch_off_epochs

INPUT, OUTPUT = "bench-in", "bench-out"


class Run(NamedTuple):
    """Seconds of the whole run, those of CPU, those of each commit."""

    seconds: float
    cpu_seconds: float
    commits: list[float]


def counting(settings: dict[str, object], *, epochs: bool) -> Run:
    """Count all records of the topic."""
    commits: list[float] = []
    log = TransactionalOutbox.commit

    def timed(self: TransactionalOutbox) -> None:
        began = perf_counter()
        log(self)
        commits.append(perf_counter() - began)

    with pytest.MonkeyPatch.context() as patch:
        if not epochs:
            switch_off_epochs(patch)
        patch.setattr(TransactionalOutbox, "commit", timed)
        topology = pipelines.counting()
        ss.run(topology, settings, until=1)  # nothing yet, but imports
        began, used = perf_counter(), process_time()
        ss.run(topology, settings)
        return Run(perf_counter() - began, process_time() - used, commits)


def in_child(**order: object) -> Run:
    """One run in a process of its own."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_epochs", "--child", json.dumps(order)],
        cwd=ROOT,
        env={**os.environ, pipelines.INPUT_VARIABLE: INPUT, pipelines.OUTPUT_VARIABLE: OUTPUT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Run(*json.loads(made.stdout.splitlines()[-1]))


def measure(
    bench: Bench, kafka: LocalKafka, records: int, repeats: int, folder: Path, pairs: Any
) -> None:
    """Both in turn."""
    found: dict[bool, list[Run]] = {False: [], True: []}
    for number in range(repeats):
        for epochs in (False, True) if number % 2 else (True, False):
            settings = {
                "application.id": f"epochs-{number}-{int(epochs)}",
                "bootstrap.servers": kafka.bootstrap_servers,
                "state.dir": str(folder),
                "processing.guarantee": "exactly_once",
                "kafka.client": "librdkafka",
                **pairs,
            }
            found[epochs].append(in_child(settings=settings, epochs=epochs))
    for epochs, runs in found.items():
        name = "an epoch for each transaction" if epochs else "one epoch for all"
        bench.add(f"{name}: rate", "records/s", [records / run.seconds for run in runs])
        bench.add(f"{name}: CPU a record", "us", [1e6 * run.cpu_seconds / records for run in runs])
        bench.add(f"{name}: commits", "", [len(run.commits) for run in runs])
        medians = [1e3 * statistics.median(run.commits) for run in runs]
        bench.add(f"{name}: median of a log commit", "ms", medians)
    one, each = found[False], found[True]
    bench.ratios(
        "rate with / without", [a.seconds for a in one], [a.seconds for a in each], ">= 0.98"
    )
    bench.ratios("CPU with / without", [a.cpu_seconds for a in each], [a.cpu_seconds for a in one])


@click.command()
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--repeats", default=7, show_default=True)
@click.option("--set", "settings", multiple=True, metavar="K=V", help="Any setting.")
@click.option("--child", hidden=True, help="One measurement, as JSON.")
def main(records: int, repeats: int, settings: Sequence[str], child: str | None) -> None:
    """Measure what an epoch for each transaction costs."""
    if child is not None:
        click.echo(json.dumps(counting(**json.loads(child))))
        return
    bench = Bench("bench_epochs")
    with LocalKafka() as kafka, scratch() as folder:
        for topic in (INPUT, OUTPUT):
            kafka.create_topic(topic, PARTITIONS)
        fill(kafka.bootstrap_servers, INPUT, records)
        pairs = dict(pair.split("=", 1) for pair in settings)
        measure(bench, kafka, records, repeats, folder, pairs)
    bench.finish()


if __name__ == "__main__":
    main()
