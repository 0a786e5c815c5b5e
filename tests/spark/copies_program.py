"""Writes of which Spark runs tasks twice, as a user's own program on a cluster.

copies_program.py SERVERS TOPIC FOLDER CASE

`speculated`: the task of partition 0 is slow, in two ways. `lost`: partitions 1 and 3 wait, with
rows on the way, until FOLDER/gate is there. Each copy of a task leaves a file in FOLDER.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from statestore.spark import TransactionalKafka
from tests.builders import eventually

ROWS = 400
PARTITIONS = 4
PATIENCE_S = 60
WAITS_AT = 5  # of ten batches: Spark's processes keep the last ones in their buffers
PassOn = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
# Longer than the buffers between Spark's processes, so that a task sends rows before it waits.
KEYS = "cast(id % 50 as string) key", "rpad(cast(id as string), 20000, ' ') value"


def are_there(folder: Path, case: str) -> bool:
    """Whether a slow copy may go on."""
    match case:
        case "racing":
            return len(list(folder.glob(f"{case}-0-*"))) > 1
        case "lost":
            return (folder / "gate").exists()
    return False  # the other copy comes to its end, and Spark ends this one


def passing_on(folder: Path, case: str, *slow: int) -> PassOn:
    """A function of mapInArrow; the first copies of the tasks of the partitions `slow` are slow."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        (folder / f"{case}-{partition}-{context.taskAttemptId()}").touch()
        reached = folder / f"reached-{case}-{partition}"
        is_slow = partition in slow and not reached.exists()
        for number, batch in enumerate(batches):
            if number == WAITS_AT and is_slow:
                # The task has claimed its partition and sent rows.
                reached.with_suffix(".new").write_text(str(os.getpid()))
                reached.with_suffix(".new").rename(reached)
                eventually(partial(are_there, folder, case), f"{case} goes on", PATIENCE_S)
            yield batch

    return pass_on


def main() -> None:
    servers, topic, folder, case = sys.argv[1:]
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", PARTITIONS).getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.dataSource.register(TransactionalKafka)

    def write(rows: DataFrame, batch: int, how: str, *slow: int) -> None:
        rows = rows.mapInArrow(passing_on(Path(folder), how, *slow), "key string, value string")
        writing = rows.write.format("transactional_kafka").mode("append")
        writing = writing.option("kafka.bootstrap.servers", servers).option("topic", topic)
        # Rows are sent once they fill a batch: here a few do.
        writing = writing.option("kafka.batch.size", "20000")
        writing.option("query", topic).option("batchId", batch).save()

    if case == "lost":
        rows = spark.range(0, ROWS, 1, PARTITIONS).selectExpr(*KEYS)
        write(rows.repartition(PARTITIONS, "value"), 0, case, 1, 3)
    else:
        for batch, how in enumerate(("beaten", "racing")):
            rows = spark.range(batch * ROWS, (batch + 1) * ROWS, 1, PARTITIONS)
            write(rows.selectExpr(*KEYS), batch, how, 0)
    spark.stop()


if __name__ == "__main__":
    main()
