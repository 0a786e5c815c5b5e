"""Kill, remove the volume, start: from the claim to the first commit, by what restores the store.

    python -m tests.bench.bench_lost_volumes [--rows 1000000] [--repeats 3] [--beside-streams]

A table of one partition on a real broker, filled and exported at each size. Then rows change, a run
of another process is killed between its log's commit and the store's, the volume is removed, and a
run begins over one more record: by links into the export, by copies of it, and by the changelog.
The changelog has each row once and each change once; one in use is longer than this one.

`--beside-streams`: Kafka Streams restores the same changelog right after that, into an empty state
directory, from the start of its threads to their running. Needs Maven and a JDK.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import click
from confluent_kafka import Producer

import statestore as ss
from statestore import faults
from statestore.faults import VARIABLE, CrashPoint
from statestore.operations.exports.create import create_export
from statestore.runtime import Runtime
from statestore.testing.kafka_jars import java
from statestore.testing.local_kafka import LocalKafka
from tests.bench.bench_kafka_streams import compiled, streams_libs
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


class FirstCommit(NamedTuple):
    """Seconds from the claim and from the call, those of the processor since the claim, and what
    was replayed.
    """

    claim_s: float
    call_s: float
    busy_s: float
    replayed: int


def first_commit(settings: dict[str, object]) -> FirstCommit:
    """Run, and look at the clock and the processor at the claim and at the first commit."""
    seen: dict[CrashPoint, tuple[float, float]] = {}

    def look(point: CrashPoint) -> None:
        if point not in seen:
            seen[point] = perf_counter(), process_time()

    faults.on_reach(look)
    began = perf_counter()
    try:
        done = ss.run(topology(), settings)
    finally:
        faults.on_reach(None)
    (claimed, busy), (committed, until) = (
        seen[CrashPoint.CLAIM_LOCKED],
        seen[CrashPoint.COMMIT_DONE],
    )
    return FirstCommit(committed - claimed, committed - began, until - busy, done.restored_records)


def restored_by_streams(
    kafka: LocalKafka, class_path: str, application_id: str, topic: str, folder: Path
) -> tuple[float, float]:
    """Seconds until Kafka Streams runs over that changelog, and those of its processor."""
    done = subprocess.run(
        [
            *(java(), "-cp", class_path, "KafkaStreamsRestore", kafka.bootstrap_servers),
            *(application_id, str(folder / "streams"), topic),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    clock_ms, busy_ms = map(int, done.stdout.splitlines()[-1].split())
    return clock_ms / 1000, busy_ms / 1000


@click.command()
@click.option("--rows", "sizes", multiple=True, type=int, default=(100_000, 1_000_000))
@click.option("--tail", default=10_000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--beside-streams", is_flag=True, help="Let Kafka Streams restore it as well.")
def main(sizes: tuple[int, ...], tail: int, repeats: int, *, beside_streams: bool) -> None:
    """Measure the three ways right after each other, at each size."""
    bench = Bench("bench_lost_volumes")
    with scratch() as folder, LocalKafka() as kafka:
        path = compiled(streams_libs(), folder, "KafkaStreamsRestore") if beside_streams else ""
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
            took: dict[str, list[FirstCommit]] = {}
            streams = []
            for repeat in range(repeats):
                for how in HOW:
                    create_export(known)
                    produce(kafka, topic, range(0, rows, max(1, rows // tail)))
                    killed(settings)
                    shutil.rmtree(folder / "state")
                    produce(kafka, topic, range(1))
                    first = first_commit({**settings, "statestore.export.restore": how})
                    took.setdefault(how, []).append(first)
                    assert (first.replayed > rows) == (how == "off"), (how, first)
                if beside_streams:
                    log, group = f"bench-{rows}-latest-changelog", f"streams-{rows}-{repeat}"
                    streams.append(restored_by_streams(kafka, path, group, log, folder))
            for how in HOW:
                what = f"{rows:,} rows by {NAMES[how]}"
                bench.add(f"{what}: claim to first commit", "s", [it.claim_s for it in took[how]])
                bench.add(f"{what}: call to first commit", "s", [it.call_s for it in took[how]])
                bench.add(
                    f"{what}: processor since the claim", "s", [it.busy_s for it in took[how]]
                )
            if streams:
                what = f"{rows:,} rows by Kafka Streams"
                bench.add(f"{what}: start to running", "s", [clock for clock, _ in streams])
                bench.add(f"{what}: processor since the start", "s", [busy for _, busy in streams])
    bench.finish()


if __name__ == "__main__":
    main()
