"""DataFrames and streams of a real Spark into real topics, each row once whatever is killed."""

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from statestore.faults import VARIABLE, CrashPoint
from statestore.spark import TransactionalKafka, kafka_batches
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.kafka.run_rig import name_of
from tests.kafka.writing_rig import Sink
from tests.spark.cluster_rig import kill_tree
from tests.spark.local_spark import local_spark

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 60
WAIT_S = round(5 * DEADLINE_S)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("sink", "local[2,4]") as session:
        session.dataSource.register(TransactionalKafka)
        yield session


@pytest.fixture
def sink(kafka: LocalKafka, request: pytest.FixtureRequest) -> Sink:
    return Sink(kafka, name_of(request.node.name)).create()


def options(sink: Sink) -> dict[str, str]:
    servers = sink.kafka.bootstrap_servers
    return {"kafka.bootstrap.servers": servers, "topic": sink.name, "query": sink.name}


def numbers(spark: SparkSession, partitions: int = 3) -> DataFrame:
    return spark.range(0, ROWS, 1, partitions).selectExpr(
        "cast(id % 7 as string) key", "cast(id as string) value"
    )


def files(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of the lines of files, one file a batch."""
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))


def add_file(folder: Path, batch: int) -> "Counter[str]":
    lines = [f"{batch}-{n}" for n in range(10)]
    folder.mkdir(exist_ok=True)
    written = folder.with_suffix(".new")
    written.write_text("\n".join(lines), encoding="utf-8")
    written.rename(folder / f"{batch}.txt")
    return Counter(lines)


def test_a_frame_and_a_stream_are_written_once(
    spark: SparkSession, sink: Sink, tmp_path: Path
) -> None:
    frame = numbers(spark)
    for _ in range(2):
        writing = frame.write.format("transactional_kafka").mode("append")
        writing.options(**options(sink), batchId="5").save()
    expected = Counter(map(str, range(ROWS)))
    assert sink.read() == expected

    given = options(sink) | {"checkpointLocation": str(tmp_path / "checkpoint")}
    del given["query"]  # that of the checkpoint
    for batch in range(2):
        expected += add_file(tmp_path / "lines", batch)
        writer = files(spark, tmp_path / "lines").writeStream.format("transactional_kafka")
        query = writer.options(**given).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        assert query.exception() is None
    assert sink.read() == expected
    eventually(lambda: not query.isActive, "the end of the query")


def test_a_task_that_fails_half_way_is_tried_again_and_doubles_nothing(
    spark: SparkSession, sink: Sink
) -> None:
    def flaky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number and context.partitionId() == 1 and not context.attemptNumber():
                raise OSError("this attempt fails after its first rows")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
    frame = numbers(spark).mapInArrow(flaky, "key string, value string")
    frame.write.format("transactional_kafka").mode("append").options(**options(sink)).save()
    assert sink.read() == Counter(map(str, range(ROWS)))


@pytest.mark.parametrize("atomic", [pytest.param("partition", marks=pytest.mark.thorough), "batch"])
def test_foreach_batch_and_atomic_batches_write_each_row_once(
    spark: SparkSession, sink: Sink, tmp_path: Path, atomic: str
) -> None:
    expected = add_file(tmp_path / "lines", 0) + add_file(tmp_path / "lines", 1)
    write = kafka_batches(options(sink) | {"atomic": atomic})

    def twice(rows: DataFrame, batch: int) -> None:
        write(rows, batch)
        write(rows, batch)

    lines = files(spark, tmp_path / "lines").repartition(3, "value").writeStream
    writing = lines.foreachBatch(twice).trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(WAIT_S)
    assert query.exception() is None
    given = options(sink) | {"query": f"{sink.name}-frame", "atomic": atomic}
    numbers(spark).write.format("transactional_kafka").mode("append").options(**given).save()
    assert sink.read() == expected + Counter(map(str, range(ROWS)))


@pytest.mark.thorough
def test_batch_0_of_a_stream_is_not_repeated_under_another_name(
    spark: SparkSession, sink: Sink, tmp_path: Path
) -> None:
    lines = add_file(tmp_path / "lines", 0)
    checkpoint = tmp_path / "checkpoint"

    def write(query: str, **more: str) -> BaseException | None:
        given = options(sink) | {"checkpointLocation": str(checkpoint), "query": query} | more
        writer = files(spark, tmp_path / "lines").writeStream.format("transactional_kafka")
        running = writer.options(**given).trigger(availableNow=True).start()
        with suppress(StreamingQueryException):
            running.awaitTermination(WAIT_S)
        return running.exception()

    assert write(sink.name) is None
    # As if Spark had died before its log said that the batch is done.
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    refused = write(f"{sink.name}-renamed")
    assert "is of output" in str(refused), refused
    assert write(sink.name) is None
    assert sink.read() == lines
    # That is what the note of the checkpoint is for.
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    (checkpoint / "_transactional_kafka.json").unlink()
    assert write(f"{sink.name}-renamed") is None
    assert sink.read() == lines + lines


def test_continuous_processing_is_refused_by_name(
    spark: SparkSession, sink: Sink, tmp_path: Path
) -> None:
    rates = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
    given = options(sink) | {"checkpointLocation": str(tmp_path / "checkpoint")}
    writer = rates.writeStream.format("transactional_kafka").options(**given)
    query = writer.trigger(continuous="1 second").start()
    try:
        with pytest.raises(StreamingQueryException, match="trigger of this one is `continuous`"):
            query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    assert not sink.read()


class Program:
    """The stream of `sink_program`, in processes of its own."""

    def __init__(self, sink: Sink, folder: Path, atomic: str = "partition") -> None:
        self._sink = sink
        self._folder = folder
        self._atomic = atomic

    def start(self, master: str, crash_at: str = "") -> "subprocess.Popen[bytes]":
        arguments = (
            self._sink.kafka.bootstrap_servers,
            self._sink.name,
            str(self._folder / "lines"),
            str(self._folder / "checkpoint"),
            master,
            self._atomic,
        )
        environment = os.environ | {VARIABLE: crash_at, "PYTHONPATH": str(ROOT)}
        with (self._folder / "program.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink_program", *arguments],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def run_to_the_end(self, master: str = "local[2]") -> None:
        process = self.start(master)
        assert process.wait(900) == 0, (self._folder / "program.log").read_text()[-3000:]


POINTS = [point for point in CrashPoint if point.startswith("write.")]
OF_TASKS = [
    CrashPoint.WRITE_CLAIMED,
    CrashPoint.WRITE_ROWS_SENT,
    CrashPoint.WRITE_MARKED,
    CrashPoint.WRITE_COMMITTED,
]
KILLS = [
    *(("partition", "local[2]", point) for point in POINTS),
    *(("partition", "local[2,4]", point) for point in OF_TASKS),
    *(("batch", "local[2]", point) for point in POINTS),  # all of them on the driver
]


@pytest.mark.thorough
@pytest.mark.parametrize(("atomic", "master", "point"), KILLS)
def test_a_worker_killed_at_any_step_loses_and_doubles_nothing(
    sink: Sink, tmp_path: Path, atomic: str, master: str, point: CrashPoint
) -> None:
    expected = add_file(tmp_path / "lines", 0) + add_file(tmp_path / "lines", 1)
    program, token = Program(sink, tmp_path, atomic), tmp_path / "killed"
    process = program.start(master, f"{point}:1:{token}")
    process.wait(300)
    assert token.exists(), "the kill missed"
    program.run_to_the_end()
    assert sink.read() == expected


def has_moved(sink: Sink, process: "subprocess.Popen[bytes]", before: int) -> bool:
    return process.poll() is not None or sum(sink.read().values()) > before


@pytest.mark.thorough
def test_a_driver_killed_at_any_time_goes_on_from_its_checkpoint(
    sink: Sink, tmp_path: Path
) -> None:
    expected: Counter[str] = Counter()
    for batch in range(12):
        expected += add_file(tmp_path / "lines", batch)
    program, chosen = Program(sink, tmp_path), random.Random(28908)
    for _ in range(4):
        before = sum(sink.read().values())
        process = program.start("local[2]")

        eventually(partial(has_moved, sink, process, before), "a run's rows", 3 * DEADLINE_S)
        threading.Event().wait(chosen.random() * 2)
        if process.poll() is None:
            kill_tree(process)
    program.run_to_the_end()
    assert sink.read() == expected
