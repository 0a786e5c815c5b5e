"""What continuous exports cost the run that makes them: the first, whole one, and the later ones.

    python -m tests.bench.bench_continuous_exports [--changes 8000000] [--every-ms 60000]

A table of one partition on a real broker that holds its rows already, and its first export, made by
itself. Then the same changes, at random among the rows, are processed by continuous runs in one
process, with exports and without, right after each other, and in the other order the next time.
That is the worst case: the run has no rest between records, soon every row has changed, and exports
are made in its own process, to a folder of the same disk.

Two runs of the same work differ by more than exports cost, but not in all they do. So beside the
ratio of both there is what exports cost by part: what the threads that export have used themselves,
how long the owner of the task answered them, and how much more RocksDB flushed and compacted in its
threads than without exports. Each is told as a part of the processor that the run needs without.
"""

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import click
import psutil

import statestore as ss
from statestore import metrics
from statestore.model.ids import TopicPartition
from statestore.operations.exports.create import create_export
from statestore.runtime import Runtime
from statestore.tasks.snapshot_responder import SnapshotResponder
from statestore.testing.local_kafka import LocalKafka
from tests.bench.bench_lost_volumes import TOPIC_VARIABLE, produce, topology
from tests.bench.harness import Bench, scratch

TOPIC = "rows"
TP = TopicPartition(TOPIC, 0)


class Ran(NamedTuple):
    """Seconds by the clock and of the processor; `own_s`: of the latter, of threads that export.

    `engine_s`: of the latter, of RocksDB's threads, which flush and compact. `waited_s`: by the
    clock, of the owner of the task for snapshots.
    """

    clock_s: float
    busy_s: float
    own_s: float
    engine_s: float
    waited_s: float
    exports: int
    uploaded_mb: float


def processed(settings: dict[str, object], end: int) -> Ran:
    """A run until the group has committed everything."""
    stop, used = threading.Event(), dict[int, float]()

    def watch() -> None:
        with Runtime(settings) as runtime:
            while runtime.cluster.group_offsets([TP])[TP].offset < end:
                used.update(used_by_exports())
                stop.wait(0.05)
        used.update(used_by_exports())
        stop.set()

    watching = threading.Thread(target=watch, name="watch")
    made, mb = exported()
    engine_s = used_by_the_engine_s()
    with answers_timed() as waited:
        began_s, busy_s = perf_counter(), process_time()
        watching.start()
        ss.run(topology(), settings, run_for="forever", stop=stop)
        watching.join()
        clock_s, busy_s = perf_counter() - began_s, process_time() - busy_s
    now_made, now_mb = exported()
    engine_s = used_by_the_engine_s() - engine_s
    own_s = sum(used.values())
    return Ran(clock_s, busy_s, own_s, engine_s, sum(waited), now_made - made, now_mb - mb)


def used_by_exports() -> dict[int, float]:
    """By thread that exports, its seconds of the processor so far."""
    ours = {it.native_id for it in threading.enumerate() if it.name.startswith("export")}
    return used_by(lambda thread: thread in ours)


def used_by_the_engine_s() -> float:
    """Seconds of the processor so far of RocksDB's threads, which live as long as the process."""

    def is_of_rocksdb(thread: int) -> bool:
        return (
            Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8").startswith("rocks")
        )

    return sum(used_by(is_of_rocksdb).values())


def used_by(is_wanted: Callable[[int], bool]) -> dict[int, float]:
    """By thread, the seconds of the processor so far of those that are wanted."""
    threads = psutil.Process().threads()
    return {it.id: it.user_time + it.system_time for it in threads if is_wanted(it.id)}


@contextmanager
def answers_timed() -> Iterator[list[float]]:
    """Collect the seconds for which owners answer requests for snapshots."""
    took, answer = list[float](), SnapshotResponder._answer

    def timed(responder: SnapshotResponder, *args: Any) -> None:
        began_s = perf_counter()
        answer(responder, *args)
        took.append(perf_counter() - began_s)

    SnapshotResponder._answer = timed  # type: ignore[assignment,method-assign]  # measured, not replaced
    try:
        yield took
    finally:
        SnapshotResponder._answer = answer  # type: ignore[method-assign]  # as it was


def exported() -> tuple[int, float]:
    """How many exports the runs of this process have made, and their megabytes."""
    figures = metrics.export_figures()
    return sum(it.made for it in figures), sum(it.uploaded_bytes for it in figures) / 1e6


def first_export(bench: Bench, settings: dict[str, object]) -> float:
    """Export everything, and return the seconds of the processor."""
    with Runtime(settings) as runtime:
        began_s, busy_s = perf_counter(), process_time()
        made = create_export(runtime)
        clock_s, busy_s = perf_counter() - began_s, process_time() - busy_s
    bench.add("first export, uploaded", "MB", [made.bytes_uploaded / 1e6])
    bench.add("first export, clock", "s", [clock_s])
    bench.add("first export, processor", "s", [busy_s])
    return busy_s


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--changes", default=8_000_000, show_default=True)
@click.option("--every-ms", default=60_000, show_default=True)
@click.option("--repeats", default=2, show_default=True)
def main(rows: int, changes: int, every_ms: int, repeats: int) -> None:
    """Measure runs with and without exports in turn."""
    bench = Bench("bench_continuous_exports")
    os.environ[TOPIC_VARIABLE] = TOPIC
    without, exporting = list[Ran](), list[Ran]()
    with scratch() as folder, LocalKafka() as kafka:
        kafka.create_topic(TOPIC, 1, {"retention.ms": -1})
        plain: dict[str, object] = {
            "application.id": "bench",
            "bootstrap.servers": kafka.bootstrap_servers,
            "state.dir": str(folder / "state"),
            "processing.guarantee": "exactly_once",
        }
        target = {"statestore.export.target": str(folder / "exports")}
        often = {"statestore.export.interval.ms": every_ms}
        produce(kafka, TOPIC, range(rows))
        ss.run(topology(), plain)
        first_s = first_export(bench, plain | target)
        with Runtime(plain) as runtime:
            for number in range(repeats):
                turns = [(without, plain), (exporting, plain | target | often)]
                for into, settings in turns if number % 2 == 0 else turns[::-1]:
                    picked = random.Random(number).choices(range(rows), k=changes)
                    produce(kafka, TOPIC, picked)
                    into.append(processed(settings, runtime.cluster.bounds([TP])[TP].end))
        shutil.rmtree(folder / "state")
    report(bench, first_s, every_ms / 1000, changes, without, exporting)


def report(
    bench: Bench,
    first_s: float,
    every_s: float,
    changes: int,
    without: list[Ran],
    exporting: list[Ran],
) -> None:
    """Say what one export costs of what the run does in one interval, and compare the runs."""
    bench.add("changes without exports", "1/s", [changes / it.clock_s for it in without])
    bench.add("changes with exports", "1/s", [changes / it.clock_s for it in exporting])
    bench.add("processor without exports", "s", [it.busy_s for it in without])
    bench.add("processor with exports", "s", [it.busy_s for it in exporting])
    bench.add("RocksDB's threads without exports", "s", [it.engine_s for it in without])
    bench.add("RocksDB's threads with exports", "s", [it.engine_s for it in exporting])
    bench.add("exports made", "", [it.exports for it in exporting])
    clocks = [it.clock_s for it in exporting], [it.clock_s for it in without]
    busy = [it.busy_s for it in exporting], [it.busy_s for it in without]
    bench.ratios("clock, with over without", *clocks)
    bench.ratios("processor, with over without", *busy)
    pairs = [pair for pair in zip(exporting, without, strict=True) if pair[0].exports]
    if pairs:
        # What was begun at the end of a run and given up counts as well.
        bench.add("later export, uploaded", "MB", [a.uploaded_mb / a.exports for a, _ in pairs])
        bench.add("later export, processor", "s", [a.own_s / a.exports for a, _ in pairs])
        bench.add("later export, its owner waits", "s", [a.waited_s / a.exports for a, _ in pairs])
        shares = [a.own_s / a.exports / (b.busy_s / b.clock_s * every_s) for a, b in pairs]
        bench.add("later exports, of an interval's processor", "", shares, "< 0.03")
        waits = [a.waited_s / a.exports / every_s for a, _ in pairs]
        bench.add("later exports, of an interval's clock", "", waits, "< 0.03")
        parts = [
            (a.own_s / b.busy_s, a.waited_s / b.busy_s, (a.engine_s - b.engine_s) / b.busy_s)
            for a, b in pairs
        ]
        named = ("exporting", "owner waits", "RocksDB's threads, more than without")
        for name, column in zip(named, zip(*parts, strict=True), strict=True):
            bench.add(f"of the run's processor: {name}", "", list(column))
        bench.add("of the run's processor: all three", "", list(map(sum, parts)), "< 0.03")
    first = [first_s / (it.busy_s / it.clock_s * every_s) for it in without]
    bench.add("first export, of an interval's processor", "", first)
    bench.finish()


if __name__ == "__main__":
    main()
