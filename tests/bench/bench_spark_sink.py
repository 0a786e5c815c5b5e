"""Rows of Spark into Kafka: our sink beside Spark's own, and what a failed task makes of either.

    python -m tests.bench.bench_spark_sink [--rows 1000000] [--repeats 3]

Both sinks write the same rows from one session, in turn; Maven fetches the jars of Spark's own
once. CPU is that of the driver, its JVM and all workers. With `--repeats 0` it only counts what
they repeat. The last line is these counts as JSON.
"""

import json
import os
import sys
import uuid
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

import click
import psutil
import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from statestore.spark import TransactionalKafka
from statestore.testing.local_kafka import LocalKafka
from tests.bench.harness import Bench
from tests.bench.peers.environments import jars_of
from tests.kafka.writing_rig import committed

SINKS = {"ours": "transactional_kafka", "spark": "kafka"}
PARTITIONS = 4
FAILING_ROWS = 100_000
_CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


class Written(NamedTuple):
    """Seconds of a write, and those of CPU."""

    seconds: float
    cpu_seconds: float


def cpu_seconds() -> float:
    """Those of this process and all that it started and that still run."""
    process = psutil.Process(os.getpid())
    used = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(times.user + times.system for times in used)


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """Rows of 98 bytes and keys of 100 000."""
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "cast(id % 100000 as string) key", "rpad(cast(id as string), 98, 'x') value"
    )


def write(frame: DataFrame, sink: str, kafka: LocalKafka, topic: str) -> Written:
    """Write all rows."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
    options |= {"query": topic} if sink == "ours" else {"kafka.compression.type": "lz4"}
    began, used = perf_counter(), cpu_seconds()
    frame.write.format(SINKS[sink]).mode("append").options(**options).save()
    return Written(perf_counter() - began, cpu_seconds() - used)


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail the first attempt of each task after its first 10 000 rows."""
    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number and not context.attemptNumber():
            raise OSError("this attempt fails on purpose")
        yield batch


def repeated(spark: SparkSession, sink: str, kafka: LocalKafka, rows: int) -> int:
    """How many rows a reader of committed records sees twice, after each task failed once."""
    topic = f"{sink}-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS)
    frame = rows_of(spark, rows).mapInArrow(failing_once, "key string, value string")
    write(frame, sink, kafka, topic)
    values = [message.value() for message in committed(kafka.bootstrap_servers, topic)]
    assert len(set(values)) == rows, "a row was lost"
    return len(values) - rows


@click.command()
@click.option("--rows", default=1_000_000)
@click.option("--repeats", default=3)
def main(rows: int, repeats: int) -> None:
    """Measure both sinks, and count what they repeat."""
    bench = Bench("bench_spark_sink")
    found: dict[str, list[Written]] = {sink: [] for sink in SINKS}
    spark = _session()
    spark.dataSource.register(TransactionalKafka)
    with LocalKafka() as kafka:
        for topic in SINKS:
            kafka.create_topic(topic, PARTITIONS)
        frame = rows_of(spark, rows)
        for repeat in range(repeats and repeats + 1):
            for sink in list(SINKS)[:: 1 if repeat % 2 else -1]:
                one = write(frame, sink, kafka, sink)
                if repeat:  # the first one warms up
                    found[sink].append(one)
        if repeats:
            _report(bench, rows, found)
        doubled = {sink: repeated(spark, sink, kafka, FAILING_ROWS) for sink in SINKS}
    for sink, count in doubled.items():
        bench.add(f"{sink}: repeated of {FAILING_ROWS} rows", "rows", [count])
    spark.stop()
    bench.finish()
    click.echo(json.dumps(doubled))


def _report(bench: Bench, rows: int, found: dict[str, list[Written]]) -> None:
    for sink, all_of in found.items():
        bench.add(f"{sink}: rate", "rows/s", [rows / one.seconds for one in all_of])
        bench.add(f"{sink}: CPU a row", "us", [1e6 * one.cpu_seconds / rows for one in all_of])
    ours, spark = found["ours"], found["spark"]
    seconds = [one.seconds for one in ours], [one.seconds for one in spark]
    bench.ratios("rate of ours / Spark's", *seconds[::-1], ">= 0.7")


def _session() -> SparkSession:
    jars = jars_of(
        "spark-sink", [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"]
    )
    # Other jars that it needs are older than Spark's own.
    used = [str(path) for path in jars.glob("*.jar") if path.name.startswith(_CONNECTOR)]
    builder = SparkSession.builder.master("local[2,4]")
    builder = builder.config("spark.driver.extraClassPath", ":".join(used))
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "2g")
    # What plans a write of a Python Data Source goes by the environment alone.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return builder.getOrCreate()


if __name__ == "__main__":
    main()
