"""The three jobs in Spark's Structured Streaming, on its own state store in RocksDB."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from tests.bench.peers.jobs import AMOUNT_LEAST, MINUTE_MS, Job
from tests.bench.peers.told import Told, told

_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# Spark brings all others itself, some of them in other versions.
_JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
_ORDER = "amount INT, at BIGINT"
_ROW = "country STRING"


class Total(StatefulProcessor):
    """One get and one put for each record, one row out."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of a key."""
        self._total = handle.getValueState("total", StructType([StructField("n", LongType())]))

    def handleInputRows(  # noqa: N802  # Spark's names
        self,
        key: Any,
        rows: Any,
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """All records of a key in a batch, one after the other."""
        for row in rows:
            found = self._total.get()
            total = (found[0] if found else 0) + len(row.value)
            self._total.update((total,))
            yield Row(key=key[0], value=str(total))

    def close(self) -> None:
        """Nothing is open."""


def results(spark: SparkSession, order: Told) -> DataFrame:
    """A streaming frame of key and result."""
    reading = {
        "kafka.bootstrap.servers": order.servers,
        "kafka.isolation.level": "read_committed",
        "startingOffsets": "earliest",
    }
    records = spark.readStream.format("kafka").options(**reading, subscribe=order.input).load()
    if order.job is Job.COUNT:
        counted = records.groupBy("key").count()
        return counted.select("key", fn.col("count").cast("string").alias("value"))
    if order.job is Job.PROCESSOR:
        keyed = records.select("key", "value").groupBy("key")
        return keyed.transformWithState(Total(), "key BINARY, value STRING", "Update", "None")
    table = spark.read.format("kafka").options(**reading, subscribe=order.table).load()
    parsed = fn.from_json(fn.col("value").cast("string"), _ROW)
    rows = table.select("key", parsed.alias("row")).select("key", "row.country").cache()
    orders = records.select(
        "key", fn.from_json(fn.col("value").cast("string"), _ORDER).alias("it")
    ).select("key", "it.amount", (fn.col("it.at") - fn.col("it.at") % MINUTE_MS).alias("minute"))
    joined = orders.where(fn.col("amount") >= AMOUNT_LEAST).join(rows, "key")
    summed = joined.groupBy("key", "minute").agg(fn.sum("amount").alias("sum"))
    named = fn.concat_ws("@", fn.col("key").cast("string"), fn.col("minute").cast("string"))
    return summed.select(named.alias("key"), fn.col("sum").cast("string").alias("value"))


def main() -> None:
    """Run until it is killed."""
    order = told()
    jars = [jar for jar in order.jars if Path(jar).name.startswith(_JARS)]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraClassPath", ":".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.streaming.stateStore.providerClass", _PROVIDER)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.local.dir", f"{order.folder}/local")
        .getOrCreate()
    )
    query = (
        results(spark, order)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", order.servers)
        .option("topic", order.output)
        .option("checkpointLocation", f"{order.folder}/checkpoint")
        .outputMode("update")
        .trigger(processingTime="0 seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
