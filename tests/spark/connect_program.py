"""A client of Spark Connect: it reads a store, its changes, and writes DataFrames and streams.

    python -m tests.spark.connect_program REMOTE OPTIONS FOLDER

OPTIONS: JSON; what the Data Source is told, and the servers and the topic to write to.
"""

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import tenacity
from pyspark.sql import DataFrame, SparkSession

from statestore.spark import (
    TransactionalKafka,
    TransactionalStore,
    kafka_batches,
    read_store,
)


def main(remote: str, options: dict[str, str], folder: Path) -> None:
    servers, topic = options.pop("servers"), options.pop("topic")
    spark: Any = SparkSession.builder.remote(remote).getOrCreate()
    spark.dataSource.register(TransactionalStore)
    spark.dataSource.register(TransactionalKafka)
    read = spark.read.format("transactional_store").options(**options)
    rows = sorted(tuple(row) for row in read.load().select("key", "value").collect())
    split = sorted(
        tuple(row) for row in read.option("splits", "3").load()["key", "value"].collect()
    )
    named = read_store(spark, **options, columns="key,value")
    assert sorted(map(tuple, named.collect())) == rows
    with redirect_stdout(io.StringIO()) as plan:
        named.explain()
    assert f"transactional_store {options['store']} " in plan.getvalue(), plan.getvalue()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    found = read.load().where("key = '7'").select("value").toPandas()["value"].tolist()

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")

    def sink(writer: Any, query: str) -> Any:
        writer = writer.format("transactional_kafka").option("topic", topic)
        return writer.option("kafka.bootstrap.servers", servers).option("query", f"{topic}-{query}")

    numbers = spark.range(50).selectExpr("cast(id as string) key", "cast(id as string) value")
    for _ in range(2):
        sink(numbers.write.mode("append"), "batch").option("batchId", 1).save()

    def changes() -> DataFrame:
        source = spark.readStream.format("transactional_store").options(**options)
        told = source.option("changes", "true").option("bootstrap_servers", servers).load()
        found: DataFrame = told.selectExpr("key", "cast(value as string) value")
        return found

    def run(writer: Any, name: str) -> None:
        writer = writer.option("checkpointLocation", str(folder / name)).trigger(availableNow=True)
        # Spark gives a worker 10 s to connect, on a machine however busy; nothing is written then.
        again = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(5),
            retry=tenacity.retry_if_exception_message(match="(?s).*failed to connect back"),
            reraise=True,
        )
        again(writer.start).awaitTermination()

    run(sink(changes().writeStream, "stream"), "stream")
    each = {"topic": topic, "kafka.bootstrap.servers": servers, "query": f"{topic}-each"}
    run(changes().writeStream.foreachBatch(kafka_batches(each)), "each")
    print("RESULT", json.dumps({"rows": rows, "split": split, "found": found}))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
