"""How soon a killed application is back, and how soon a record is through.

    python -m tests.bench.bench_lives [--full] [--repeats 3] [--only restore] [--secured]

restore: one application whose changelog grows from 10 000 to 1 000 000 records (10 million with
--full); at each size a run is killed with a transaction open, and the next one reports what it
cost to begin: claim to first poll, records replayed. At the end the volume is lost.
starts: from the start of a process to its first committed output.
latency: a continuous run over a steady trickle; from produce() to the output read as committed.
With --secured the run also comes over TLS and by SCRAM-SHA-512, in turns with plain text; who
produces and who reads come as before.
"""

import os
import statistics
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from time import time, time_ns

import click
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from statestore.faults import VARIABLE, CrashPoint
from statestore.model.modes import KafkaClient
from statestore.testing.local_kafka import LocalKafka
from tests.bench.bench_tasks import MASTER, MICRO_BATCH, Rig, environment, session
from tests.bench.harness import ROOT, Bench, scratch
from tests.bench.pipelines import INPUT_VARIABLE, OUTPUT_VARIABLE
from tests.bench.topic_children import PARTITIONS, fill
from tests.certificates import Authority
from tests.spark.cluster_rig import CHECKOUT, connect_server

SIZES = (10_000, 100_000, 1_000_000)
LARGEST = 10_000_000
OPEN_AT_THE_KILL = 200_000
_RUN_S = 20
_WARM_S = 5
_PER_SECOND = 1000
_INTERVALS_MS = (10, 100)
_USER, _PASSWORD, _PASSWORD_VARIABLE = "shop", "correct horse", "BENCH_PASSWORD"
_SENT_AT = struct.Struct(">q")
_STATESTORE = str(Path(sys.executable).with_name("statestore"))


def bench_restore(bench: Bench, rig: Rig, sizes: Sequence[int]) -> None:
    """The same application at growing sizes, killed each time with a transaction open."""
    there = 0
    for size in sizes:
        fill(rig.kafka.bootstrap_servers, rig.input, size - there, distinct_from=there)
        there = size
        rig.on_spark("counting", "grown")
        fill(rig.kafka.bootstrap_servers, rig.input, OPEN_AT_THE_KILL, seed=size)
        _kill(rig, "counting", "grown")
        reports = rig.on_spark("counting", "grown")
        bench.add(
            f"changelog of {size:,}: claim to first poll, slowest stream task",
            "s",
            [max(report["start_seconds"] for report in reports)],
            "< 1",
        )
        replayed = sum(report["restored_records"] for report in reports)
        bench.add(f"changelog of {size:,}: records replayed, all stream tasks", "", [replayed])
    rmtree(rig.folder / "grown")
    reports = rig.on_spark("counting", "grown")
    replayed = sum(report["restored_records"] for report in reports)
    seconds = sum(report["restore_seconds"] for report in reports)
    bench.add("volume lost: records restored", "", [replayed])
    bench.add("volume lost: seconds of all stream tasks", "s", [seconds])
    bench.add("volume lost: rate of one stream task", "rec/s", [replayed / seconds])


def _kill(rig: Rig, pipeline: str, application_id: str) -> None:
    """SIGKILL after a commit, with the next one's records and offsets in the log."""
    armed = {**os.environ, VARIABLE: f"{CrashPoint.COMMIT_OFFSETS_SENT}:2"}
    command = [
        *rig.command([_STATESTORE, "run"], pipeline, application_id),
        "--set=statestore.batch.max.records=20000",
    ]
    done = subprocess.run(command, cwd=ROOT, env=armed, check=False, capture_output=True)
    assert done.returncode < 0, done.stderr.decode()[-2000:]


def bench_starts(bench: Bench, rig: Rig, repeats: int) -> None:
    """Over 10 000 waiting records, by an application that has run before."""
    rig.on_spark("counting", "warm")
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", MASTER]
    folder = rig.folder / "server"
    folder.mkdir()
    with connect_server(folder, {**os.environ, **CHECKOUT}) as (_, address):
        programs: dict[str, tuple[list[str], dict[str, str]]] = {
            "spark-submit jobs/process.py": ([*submit, "jobs/process.py"], {}),
            "the same as a client of Spark Connect": (
                [sys.executable, "jobs/process.py"],
                {"SPARK_REMOTE": address},
            ),
            "statestore run": ([_STATESTORE, "run"], {}),
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        # The first turn warms the server.
        for number in range(repeats + 1):
            for name, (program, variables) in programs.items():
                fill(rig.kafka.bootstrap_servers, rig.input, MICRO_BATCH, seed=200 + number)
                took[name].append(_start(rig, program, variables))
    for name, found in took.items():
        first, last = zip(*found[1:], strict=True)
        bench.add(f"{name}: start to first committed output", "s", first)
        bench.add(f"{name}: start to exit", "s", last)


def _start(rig: Rig, program: list[str], variables: Mapping[str, str]) -> tuple[float, float]:
    """Seconds to the first committed output, and to the exit."""
    outputs = _Outputs(rig)
    began = time()
    command = rig.command(program, "counting", "warm")
    with (rig.folder / "start.log").open("w") as log:
        child = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **variables}, stdout=log, stderr=log
        )
    first = outputs.next()[1] - began
    assert child.wait() == 0, (rig.folder / "start.log").read_text()[-2000:]
    last = time() - began
    outputs.close()
    return first, last


def bench_latency(bench: Bench, rig: Rig, doors: Mapping[str, Sequence[str]]) -> None:
    """With both clients and through each door, by turns, committing often and as by default."""
    for interval_ms in _INTERVALS_MS:
        for client in KafkaClient:
            for door, flags in doors.items():
                _latency(bench, rig, client, interval_ms, door, flags)


def _latency(
    bench: Bench,
    rig: Rig,
    client: KafkaClient,
    interval_ms: int,
    door: str,
    flags: Sequence[str],
) -> None:
    """Each record carries when it was sent."""
    outputs = _Outputs(rig)
    application_id = f"trickle-{client}-{interval_ms}{'-secured' if flags else ''}"
    command = [
        *rig.command([_STATESTORE, "run"], "passing", application_id),
        *flags,
        f"--run-for={_RUN_S}",
        f"--set=kafka.client={client}",
        f"--set=commit.interval.ms={interval_ms}",
    ]
    stop = threading.Event()
    sender = threading.Thread(target=_trickle, args=(rig, stop), daemon=True)
    with (
        (rig.folder / "latency.log").open("w") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as child,
    ):
        sender.start()
        arrived = [outputs.next()]
        began = arrived[0][1]
        while arrived[-1][1] < began + _RUN_S - _WARM_S:
            arrived.append(outputs.next())
        stop.set()
        sender.join()
        assert child.wait() == 0
    outputs.close()
    late = [
        1000 * (at - _SENT_AT.unpack(value)[0] / 1e9)
        for value, at in arrived
        if at > began + _WARM_S
    ]
    cuts = statistics.quantiles(late, n=100)
    for share in (50, 95, 99):
        what = f"a commit each {interval_ms} ms: produce to committed output, {share} %"
        bench.add(f"{client}{door}, {what}", "ms", [cuts[share - 1]])


def _doors(kafka: LocalKafka, authority: Path | None) -> dict[str, Sequence[str]]:
    """What a run is told to come in plain text, and over TLS and by SCRAM if there is a door."""
    plain: dict[str, Sequence[str]] = {"": ()}
    if authority is None:
        return plain
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": _USER,
        "sasl.password": f"${{{_PASSWORD_VARIABLE}}}",
    }
    told = [f"--set={key}={value}" for key, value in settings.items()]
    return plain | {" over SASL_SSL": (f"--bootstrap-servers={kafka.sasl_servers}", *told)}


def _trickle(rig: Rig, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": rig.kafka.bootstrap_servers, "linger.ms": 0})
    number = 0
    while not stop.wait(10 / _PER_SECOND):
        for _ in range(10):
            number += 1
            key = f"key-{number % 1000}".encode()
            producer.produce(rig.input, _SENT_AT.pack(time_ns()), key)
        producer.poll(0)
    assert producer.flush(30) == 0


class _Outputs:
    """What is committed to the output topic from now on."""

    def __init__(self, rig: Rig) -> None:
        servers = rig.kafka.bootstrap_servers
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "bench-outputs",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 5,
            }
        )
        topic = os.environ[OUTPUT_VARIABLE]
        self._consumer.assign([TopicPartition(topic, p, OFFSET_END) for p in range(PARTITIONS)])
        self._consumer.poll(1)  # where the ends are is asked now, not with the first record

    def next(self) -> tuple[bytes, float]:
        """The next value, and when it came."""
        message = self._consumer.poll(60)
        assert message is not None, "no output within a minute"
        assert message.error() is None, message.error()
        return message.value() or b"", time()

    def close(self) -> None:
        self._consumer.close()


@click.command()
@click.option("--full", is_flag=True, help="Up to 10 million records.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--only", multiple=True, help="restore, starts, latency")
@click.option("--secured", is_flag=True, help="Latency also over TLS and by SCRAM.")
def main(*, full: bool, repeats: int, only: tuple[str, ...], secured: bool) -> None:
    """Measure starts, restores and latency."""
    bench = Bench("bench_lives")
    topics = {INPUT_VARIABLE: "bench-in", OUTPUT_VARIABLE: "bench-out"}
    told = environment(**topics, PYTHONPATH=str(ROOT), **{_PASSWORD_VARIABLE: _PASSWORD})
    with (
        scratch() as folder,
        _kafka(folder, secured=secured) as (kafka, authority),
        told,
        session() as spark,
    ):
        for topic in topics.values():
            kafka.create_topic(topic, partitions=PARTITIONS)
        rig = Rig(kafka, folder, spark, topics[INPUT_VARIABLE], 0)
        if not only or "latency" in only:
            bench_latency(bench, rig, _doors(kafka, authority))
        if not only or "starts" in only:
            bench_starts(bench, rig, repeats)
        if not only or "restore" in only:
            bench_restore(bench, rig, (*SIZES, LARGEST) if full else SIZES)
    bench.finish()


@contextmanager
def _kafka(folder: Path, *, secured: bool) -> Iterator[tuple[LocalKafka, Path | None]]:
    """A broker, and the authority of its certificate if it has a door with TLS."""
    if not secured:
        with LocalKafka() as kafka:
            yield kafka, None
        return
    certificates = folder / "certificates"
    certificates.mkdir()
    authority = Authority(certificates, "ours")
    issued = authority.issue("broker")
    with LocalKafka(
        users={_USER: _PASSWORD}, tls_certificate=issued.certificate, tls_key=issued.key
    ) as kafka:
        yield kafka, authority.certificate


if __name__ == "__main__":
    main()
