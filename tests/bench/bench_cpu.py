"""CPU a record of the jobs that users write, against a bare consumer: for busy machines.

    python -m tests.bench.bench_cpu [--records 1000000] [--repeats 5] [--only NAME] [--set K=V]

One process each, in turn, without Spark; the client's threads count, the broker's are told beside
them. Of a run what a second one over nothing takes is taken off: claims, stores and clients.
Compare quotients. A job with a table reads that first, which counts for it.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any, Final, NamedTuple

import click
import psutil

# Older commits import it with the first batch that they group; a service does that once.
import pyarrow.compute  # noqa: F401

import statestore as ss
from statestore.testing.local_kafka import LocalKafka
from tests.bench import pipelines, pipelines_in_columns
from tests.bench.harness import ROOT, Bench, scratch
from tests.bench.topic_children import CUSTOMERS, KEYS, ORDERS, PARTITIONS, consume_bare, fill

NOISE, OBJECTS, OUTPUT = "bench-in", "bench-objects", "bench-out"
ROWS, OBJECT_ROWS = "bench-rows", "bench-object-rows"
BARE: Final = "bare consumer"


class Job(NamedTuple):
    """A pipeline, and the topics it reads."""

    topology: Callable[[], ss.Topology]
    records: str = NOISE
    table: str = ROWS

    @property
    def topics(self) -> dict[str, str]:
        """The environment that names them to the pipeline."""
        return {
            pipelines.INPUT_VARIABLE: self.records,
            pipelines.TABLE_VARIABLE: self.table,
            pipelines.JSON_VARIABLE: OBJECTS,
            pipelines.JSON_TABLE_VARIABLE: OBJECT_ROWS,
            pipelines.OUTPUT_VARIABLE: OUTPUT,
        }


JOBS: Final = {
    "counting": Job(pipelines.counting),
    "counting_each": Job(pipelines.counting_each),
    "counting_anew": Job(pipelines.counting_anew),
    "windows": Job(pipelines.windows),
    "hops": Job(pipelines.hops),
    "enriching": Job(pipelines.enriching),
    "enriching_typed": Job(pipelines.enriching_typed),
    "expressing": Job(pipelines_in_columns.expressing, OBJECTS),
    "enriching_in_columns": Job(pipelines_in_columns.enriching),
    "in_functions": Job(pipelines_in_columns.in_functions, OBJECTS),
    "per_record": Job(pipelines.per_record),
    "sessions": Job(pipelines.sessions),
    "slides": Job(pipelines.slides),
    "joining": Job(pipelines.joining),
    "versions": Job(pipelines.versions),
}


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
    consume_bare(servers, NOISE, list(range(PARTITIONS)), f"bare-{time()}")
    return Used.now(broker).since(began)


def running(job: str, settings: dict[str, object], broker: int) -> Used:
    """What a run takes beyond one over nothing."""
    topology = JOBS[job].topology()
    ss.run(topology, settings, until=1)  # nothing yet, but imports
    began = Used.now(broker)
    ss.run(topology, settings)
    done = Used.now(broker)
    ss.run(topology, settings)
    return done.since(began).since(Used.now(broker).since(done))


def in_child(topics: Mapping[str, str], tree: Path = ROOT, **order: object) -> Used:
    """One measurement in a process of its own, by the library in the folder `tree`."""
    order["tree"] = str(tree)
    made = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_cpu", "--child", json.dumps(order)],
        cwd=tree,
        env={**os.environ, **topics, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Used(*json.loads(made.stdout.splitlines()[-1]))


def measure(
    bench: Bench,
    kafka: LocalKafka,
    jobs: Sequence[str],
    records: int,
    repeats: int,
    folder: Path,
    pairs: Any,
) -> None:
    """All in turn."""
    servers, broker = kafka.bootstrap_servers, kafka.pid()
    found: dict[str, list[Used]] = {name: [] for name in (BARE, *jobs)}
    for number in range(repeats):
        found[BARE].append(in_child({}, servers=servers, broker=broker))
        for name in jobs:
            settings = {
                "application.id": f"cpu-{name}-{number}",
                "bootstrap.servers": servers,
                "state.dir": str(folder),
                "processing.guarantee": "exactly_once",
                **pairs,
            }
            topics = JOBS[name].topics
            found[name].append(in_child(topics, job=name, settings=settings, broker=broker))
    for name, used in found.items():
        ours = [1e6 * each.ours / records for each in used]
        theirs = [1e6 * each.broker / records for each in used]
        bench.add(f"{name}, CPU a record", "us", ours)
        bench.add(f"{name}, the broker's CPU a record", "us", theirs)
    for name in jobs:
        turns = list(zip(found[BARE], found[name], strict=True))
        goal = ">= 0.35" if name == "counting" else ""
        bench.add(f"{BARE} / {name}", "x", [one.ours / other.ours for one, other in turns], goal)
        together = [sum(one) / sum(other) for one, other in turns]
        bench.add(f"{BARE} / {name}, with the broker", "x", together)


@click.command()
@click.option("--records", default=1_000_000, show_default=True)
@click.option("--repeats", default=5, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(sorted(JOBS)))
@click.option("--set", "settings", multiple=True, metavar="K=V", help="Any setting.")
@click.option("--child", hidden=True, help="One measurement, as JSON.")
def main(
    records: int, repeats: int, only: Sequence[str], settings: Sequence[str], child: str | None
) -> None:
    """Measure what each job takes of a processor."""
    if child is not None:
        order = json.loads(child)
        # An installed library must not be taken for the one to measure.
        assert Path(ss.__file__).is_relative_to(order.pop("tree")), ss.__file__
        click.echo(json.dumps(running(**order) if "settings" in order else bare(**order)))
        return
    bench = Bench("bench_cpu")
    with LocalKafka() as kafka, scratch() as folder:
        for topic in (NOISE, OBJECTS, ROWS, OBJECT_ROWS, OUTPUT):
            kafka.create_topic(topic, partitions=PARTITIONS)
        servers = kafka.bootstrap_servers
        fill(servers, ROWS, KEYS, distinct_from=0)
        fill(servers, OBJECT_ROWS, KEYS, distinct_from=0, objects=CUSTOMERS)
        # Later than the rows, which records are joined with as of their own times.
        fill(servers, NOISE, records)
        fill(servers, OBJECTS, records, objects=ORDERS)
        pairs = dict(pair.split("=", 1) for pair in settings)
        measure(bench, kafka, only or list(JOBS), records, repeats, folder, pairs)
    bench.finish()


if __name__ == "__main__":
    main()
