"""Exports: what the second uploads, and a restore from one against a restore from the changelog.

A table of one partition on a real broker. First an export of all rows; then one percent of the rows
change and a second export follows; then the volume is lost, once with the changelog alone to
restore from and once with the second export. Compaction is left out: the changelog has each row
once and each change once, so a changelog in use is longer than this one and its restore slower.
"""

import os
import shutil
from pathlib import Path
from time import perf_counter

import click
from confluent_kafka import Producer

import statestore as ss
from statestore.operations.exports.create import create_export
from statestore.operations.exports.restore_export import restore_export
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.bench.harness import Bench, scratch

TOPIC = "rows"


def topology() -> ss.Topology:
    """The latest value per key."""
    b = ss.StreamsBuilder()
    b.table(TOPIC, materialized="latest", name="rows-table")
    return b.build()


def produce(kafka: LocalKafka, numbers: range) -> None:
    """Rows of about 100 bytes that do not compress."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    for number in numbers:
        while True:
            try:
                producer.produce(TOPIC, key=f"{number:012}", value=os.urandom(88))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def first_start_s(settings: ss.Settings) -> tuple[float, int]:
    """How long the next start restores, and how many records."""
    done = ss.run(topology(), settings)
    return done.restore_seconds, done.restored_records


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(rows: int, repeats: int) -> None:
    """Measure exports and restores right after each other."""
    bench = Bench("bench_exports")
    took: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        took.setdefault(name, []).append(value)

    with scratch() as folder, LocalKafka() as kafka:
        kafka.create_topic(TOPIC, 1, {"retention.ms": -1})
        settings = ss.Settings.from_mapping(
            {
                "application.id": "bench",
                "bootstrap.servers": kafka.bootstrap_servers,
                "state.dir": str(folder / "state"),
                "processing.guarantee": "exactly_once",
            }
        )
        produce(kafka, range(rows))
        ss.run(topology(), settings)
        for repeat in range(repeats):
            target = {"statestore.export.target": str(folder / f"exports-{repeat}")}
            known = ss.Settings.from_mapping(settings.to_mapping() | target)
            first = create_export(Runtime(known))
            produce(kafka, range(repeat, rows, 100))
            ss.run(topology(), settings)
            second = create_export(Runtime(known))
            note("first", first.bytes_uploaded / first.seconds / 1e6)
            note("share", second.bytes_uploaded / first.bytes_uploaded)
            note("read", second.bytes_read / first.bytes_read)
            lose(folder)
            seconds, records = first_start_s(settings)
            assert records > rows
            note("changelog", seconds)
            lose(folder)
            began = perf_counter()
            report = restore_export(Runtime(known))
            placed = perf_counter() - began
            seconds, records = first_start_s(settings)
            assert (len(report.placed), records) == (1, 0)
            note("export", placed + seconds)
    bench.add("first export uploaded", "MB/s", took["first"])
    bench.add("second export, 1 % of the rows changed: uploaded of the first", "", took["share"])
    bench.add("second export: read of the first", "", took["read"])
    bench.add("restore from the changelog", "s", took["changelog"])
    bench.add("restore from the export, tail replayed", "s", took["export"])
    bench.ratios("restore from changelog over export", took["changelog"], took["export"])
    bench.finish()


def lose(folder: Path) -> None:
    shutil.rmtree(folder / "state")


if __name__ == "__main__":
    main()
