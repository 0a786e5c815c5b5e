"""Another number of partitions for a table, on a real broker: seconds for each million rows.

    python -m tests.bench.bench_repartition [--rows 100000] [--repeats 3]

A table of rows of about 100 bytes is changed from 4 to 6 partitions. Measured are a dry run, which
reads the changelog once, and the change, which reads it twice and writes it twice; then the start
that restores the stores. Seconds of the clock, and of this process's processor: the broker has
its own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter, process_time
from typing import NamedTuple

import click

import statestore as ss
from statestore.operations.repartition.apply import repartition
from statestore.operations.repartition.partition_plan import Inputs
from statestore.operations.repartition.planner import PartitionsAsked
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.bench.bench_lost_volumes import produce
from tests.bench.harness import Bench, scratch

MILLION = 1_000_000
BEFORE, AFTER = 4, 6


class Took(NamedTuple):
    """Seconds of the clock and of the processor."""

    clock_s: float
    busy_s: float


def took(action: Callable[[], object]) -> Took:
    """Do something and look at both clocks."""
    began, busy = perf_counter(), process_time()
    action()
    return Took(perf_counter() - began, process_time() - busy)


def change(
    topology: ss.Topology, settings: Mapping[str, object], rows: int, *, dry_run: bool
) -> None:
    """Give the table more partitions, or only see what that would do."""
    with Runtime(settings) as runtime:
        asked = PartitionsAsked(AFTER, Inputs.GROW)
        report = repartition(runtime, topology, asked, dry_run=dry_run)
    assert sum(store.records for store in report.plan.stores) >= rows


@click.command()
@click.option("--rows", default=100_000)
@click.option("--repeats", default=3)
def main(*, rows: int, repeats: int) -> None:
    """Change a table of that many rows, so many times."""
    bench = Bench("repartition")
    found: dict[str, list[Took]] = {}
    with scratch() as folder, LocalKafka() as kafka:
        for repeat in range(repeats):
            topic = f"rows-{repeat}"
            kafka.create_topic(topic, BEFORE)
            produce(kafka, topic, range(rows))
            b = ss.StreamsBuilder()
            b.table(topic, materialized="latest", name="rows-table")
            topology = b.build()
            settings = {
                "application.id": f"bench-{repeat}",
                "bootstrap.servers": kafka.bootstrap_servers,
                "state.dir": str(folder / "state"),
                "processing.guarantee": "exactly_once",
            }
            ss.run(topology, settings)

            dry = partial(change, topology, settings, rows, dry_run=True)
            found.setdefault("dry run", []).append(took(dry))
            real = partial(change, topology, settings, rows, dry_run=False)
            found.setdefault("change", []).append(took(real))
            start = partial(ss.run, topology, settings)
            found.setdefault("next start", []).append(took(start))
    for what, times in found.items():
        name = f"{rows:,} rows from {BEFORE} to {AFTER} partitions, {what}"
        for kind in Took._fields:
            values = [getattr(one, kind) * MILLION / rows for one in times]
            bench.add(f"{name}: {kind.removesuffix('_s')}", "s for a million rows", values)
    bench.finish()


if __name__ == "__main__":
    main()
