"""CPU a record beside another commit, in turns: what a change gained or lost on a busy machine.

    make bench-turns BASE=439dd16c                      all jobs, four turns
    make bench-turns BASE=439dd16c JOBS=counting,sessions TURNS=5 RECORDS=200000

Once all jobs were measured, tests/bench/turns.json says so, which `make check` wants of each change
of the code that records pass (tests/bench/measured.py). With some jobs only, nothing is kept.

`BASE` is unpacked into a scratch folder, and its C is compiled there. The pipelines are those of
this tree, so that both run the same jobs. A turn is one process for each of the two, over one real
broker, one right after the other, and the next turn begins with the other one. What a second run
over nothing takes is taken off, as in `bench_cpu`. A quotient below 1 is a gain over BASE. What
is kept is the least of the turns, which other work on the machine touches least.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

import click

from statestore.testing.local_kafka import LocalKafka
from tests.bench import measured
from tests.bench.bench_cpu import JOBS, NOISE, OBJECT_ROWS, OBJECTS, OUTPUT, ROWS, in_child
from tests.bench.harness import ROOT, Bench, scratch
from tests.bench.topic_children import CUSTOMERS, KEYS, ORDERS, PARTITIONS, fill

GUARDED: Final = (
    *("counting", "counting_each", "enriching", "enriching_typed", "expressing", "per_record"),
    *("windows", "slides", "sessions", "joining", "versions"),
)
"""The jobs that users write, by their names in `bench_cpu`."""
_BUILD: Final = "from setuptools import setup; setup()"


def unpacked(base: str, folder: Path) -> Path:
    """Put the library of a commit, with the benchmarks of this tree, into a folder; return it."""
    packed = subprocess.run(
        ["git", "-c", "safe.directory=*", "archive", base],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        why = packed.stderr.decode(errors="replace").strip()
        raise click.BadParameter(f"{base!r} is no commit of this repository: {why}")
    tree = folder / "base"
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    shutil.rmtree(tree / "tests" / "bench", ignore_errors=True)
    shutil.copytree(ROOT / "tests" / "bench", tree / "tests" / "bench")
    if list(tree.glob("statestore/**/*.c")):
        command = [sys.executable, "-c", _BUILD, "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=tree, check=True)
    return tree


def measure(
    bench: Bench, kafka: LocalKafka, trees: tuple[Path, Path], jobs: Sequence[str], sizes: "Sizes"
) -> dict[str, tuple[float, float]]:
    """Run each job by both trees, in turns; return the least that either took of a processor."""
    turns, records = sizes
    least: dict[str, tuple[float, float]] = {}
    for job in jobs:

        def used(tree: Path, turn: int, job: str = job) -> float:
            with scratch() as folder:
                settings = {
                    "application.id": f"turns-{job}-{turn}-{trees.index(tree)}",
                    "bootstrap.servers": kafka.bootstrap_servers,
                    "state.dir": str(folder),
                    "processing.guarantee": "exactly_once",
                }
                order = {"job": job, "settings": settings, "broker": kafka.pid()}
                return 1e6 * in_child(JOBS[job].topics, tree, **order).ours / records

        base, now = add_turns(bench, (job, "CPU a record", "us"), trees, turns, used)
        least[job] = round(min(base), 3), round(min(now), 3)
    return least


def add_turns(
    bench: Bench,
    figure: tuple[str, str, str],
    trees: tuple[Path, Path],
    turns: int,
    measured: Callable[[Path, int], float],
) -> tuple[list[float], list[float]]:
    """Measure and return both trees, base first, turn by turn; the quotient is this of base's.

    `figure`: whose, of what, in which unit. `measured`: the figure of a tree in a turn.
    """
    whose, what, unit = figure
    found: dict[Path, list[float]] = {tree: [] for tree in trees}
    for turn in range(turns):
        # Who comes first finds other caches.
        for tree in trees if turn % 2 == 0 else reversed(trees):
            found[tree].append(measured(tree, turn))
    base, now = (found[tree] for tree in trees)
    bench.add(f"{whose}, {what}, base", unit, base)
    bench.add(f"{whose}, {what}, now", unit, now)
    bench.ratios(f"{whose}, now / base", now, base)
    return base, now


Sizes = tuple[int, int]
"""How many turns, and of how many records."""


@click.command()
@click.option("--base", required=True, metavar="COMMIT", help="What to compare this tree with.")
@click.option("--jobs", default=",".join(GUARDED), show_default=True)
@click.option("--turns", default=4, show_default=True)
@click.option("--records", default=500_000, show_default=True)
@click.option("--accept", default="", metavar="REASON", help="Why a job may take more than before.")
def main(base: str, jobs: str, turns: int, records: int, accept: str) -> None:
    """Compare what jobs take of a processor with what they took at another commit."""
    chosen = jobs.split(",")
    if unknown := sorted(set(chosen) - set(JOBS)):
        raise click.BadParameter(f"no such jobs: {', '.join(unknown)}; known: {', '.join(JOBS)}")
    bench = Bench("bench_turns")
    with scratch() as folder, LocalKafka() as kafka:
        tree = unpacked(base, folder)
        for topic in (NOISE, OBJECTS, ROWS, OBJECT_ROWS, OUTPUT):
            kafka.create_topic(topic, partitions=PARTITIONS)
        servers = kafka.bootstrap_servers
        fill(servers, ROWS, KEYS, distinct_from=0)
        fill(servers, OBJECT_ROWS, KEYS, distinct_from=0, objects=CUSTOMERS)
        fill(servers, NOISE, records)
        fill(servers, OBJECTS, records, objects=ORDERS)
        bench.notes["base"] = base
        digest = measured.digest(ROOT / "statestore")
        least = measure(bench, kafka, (tree, ROOT), chosen, (turns, records))
    bench.finish()
    loads = f"{min(bench.load_average):.1f} to {max(bench.load_average):.1f}"
    click.echo(f"base {base}; {os.cpu_count()} cores, load average {loads}")
    for job, (before, now) in least.items():
        click.echo(f"{job}: least {before:g} -> {now:g} us, {now / before:.2f} x")
    if set(GUARDED) <= set(chosen):
        made = measured.Turns(digest, measured.python(), base, records, turns, least, accept)
        measured.keep(made)


if __name__ == "__main__":
    main()
