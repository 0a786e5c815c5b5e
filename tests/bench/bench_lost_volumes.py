"""Kill, remove the volume, start: from the claim to the first commit, by what restores the store.

A table of one partition on a real broker, filled and exported at each size. Then rows change, a run
of another process is killed between its log's commit and the store's, the volume is removed, and a
run begins over one more record: by links into the export, by copies of it, and by the changelog.
The changelog has each row once and each change once; one in use is longer than this one.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import click
from confluent_kafka import Producer

import statestore as ss
from statestore import faults
from statestore.faults import VARIABLE, CrashPoint
from statestore.operations.exports.create import create_export
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.bench.harness import ROOT, Bench, scratch

TOPIC_VARIABLE = "BENCH_TOPIC"
HOW = ("mounted", "copied", "off")
NAMES = {"mounted": "links", "copied": "copies", "off": "changelog"}


def topology() -> ss.Topology:
    """The latest value per key."""
    b = ss.StreamsBuilder()
    b.table(os.environ[TOPIC_VARIABLE], materialized="latest", name="rows-table")
    return b.build()


def produce(kafka: LocalKafka, topic: str, numbers: Sequence[int]) -> None:
    """Rows of about 100 bytes that do not compress."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    for number in numbers:
        while True:
            try:
                producer.produce(topic, key=f"{number:012}", value=os.urandom(88))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def killed(settings: dict[str, object]) -> None:
    """A run in a process of its own, killed after its log has committed."""
    command = [
        str(Path(sys.executable).with_name("statestore")),
        "run",
        "--pipeline=tests.bench.bench_lost_volumes:topology",
        f"--application-id={settings['application.id']}",
        f"--state-dir={settings['state.dir']}",
        f"--bootstrap-servers={settings['bootstrap.servers']}",
        f"--processing-guarantee={settings['processing.guarantee']}",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        VARIABLE: str(CrashPoint.COMMIT_LOG_DONE),
    }
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]


def first_commit_s(settings: dict[str, object]) -> tuple[float, float, int]:
    """From the claim, and from the call, to the first commit; how many records were replayed."""
    seen: dict[CrashPoint, float] = {}

    def look(point: CrashPoint) -> None:
        seen.setdefault(point, perf_counter())

    faults.on_reach(look)
    began = perf_counter()
    try:
        done = ss.run(topology(), settings)
    finally:
        faults.on_reach(None)
    committed = seen[CrashPoint.COMMIT_DONE]
    return committed - seen[CrashPoint.CLAIM_LOCKED], committed - began, done.restored_records


@click.command()
@click.option("--rows", "sizes", multiple=True, type=int, default=(100_000, 1_000_000))
@click.option("--tail", default=10_000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(sizes: tuple[int, ...], tail: int, repeats: int) -> None:
    """Measure the three ways right after each other, at each size."""
    bench = Bench("bench_lost_volumes")
    with scratch() as folder, LocalKafka() as kafka:
        for rows in sizes:
            topic = os.environ[TOPIC_VARIABLE] = f"rows-{rows}"
            kafka.create_topic(topic, 1, {"retention.ms": -1})
            settings: dict[str, object] = {
                "application.id": f"bench-{rows}",
                "bootstrap.servers": kafka.bootstrap_servers,
                "state.dir": str(folder / "state"),
                "processing.guarantee": "exactly_once",
                "statestore.export.target": str(folder / "exports"),
            }
            produce(kafka, topic, range(rows))
            ss.run(topology(), settings)
            known = Runtime(ss.Settings.from_mapping(settings))
            took: dict[str, list[float]] = {}
            for _ in range(repeats):
                for how in HOW:
                    create_export(known)
                    produce(kafka, topic, range(0, rows, max(1, rows // tail)))
                    killed(settings)
                    shutil.rmtree(folder / "state")
                    produce(kafka, topic, range(1))
                    claim, call, replayed = first_commit_s(
                        {**settings, "statestore.export.restore": how}
                    )
                    took.setdefault(f"{how} claim", []).append(claim)
                    took.setdefault(f"{how} call", []).append(call)
                    assert (replayed > rows) == (how == "off"), (how, replayed)
            for how in HOW:
                what = f"{rows:,} rows by {NAMES[how]}"
                bench.add(f"{what}: claim to first commit", "s", took[f"{how} claim"])
                bench.add(f"{what}: call to first commit", "s", took[f"{how} call"])
    bench.finish()


if __name__ == "__main__":
    main()
