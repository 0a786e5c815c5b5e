"""DataFrames and streams of a real Spark into real topics, each row once whatever is killed."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from statestore.spark import TransactionalKafka
from statestore.testing.local_kafka import LocalKafka
from tests.builders import eventually
from tests.kafka.run_rig import name_of
from tests.kafka.writing_rig import Sink
from tests.spark.local_spark import local_spark

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 60


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
        assert query.awaitTermination(120)
        assert query.exception() is None
    assert sink.read() == expected
    eventually(lambda: not query.isActive, "the end of the query")
