"""A stream of files into a topic, as a user's own program: to be killed, and started again.

python -m tests.spark.sink_program SERVERS TOPIC FOLDER CHECKPOINT MASTER ATOMIC [OPTION=VALUE]...

MASTER may be the address of a server of Spark Connect.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession

from statestore.spark import TransactionalKafka


def main() -> None:
    servers, topic, folder, checkpoint, master, atomic, *more = sys.argv[1:]
    builder: Any = SparkSession.builder
    if master.startswith("sc://"):
        builder = builder.remote(master)
    else:
        builder = builder.master(master).config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.sql.shuffle.partitions", "3").getOrCreate()
    spark.dataSource.register(TransactionalKafka)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder)
    # Equal rows of equal partitions each time: by a column.
    lines = lines.repartition("value").selectExpr("substr(value, 1, 3) key", "value")
    writing = lines.writeStream.format("transactional_kafka").trigger(availableNow=True)
    writing = writing.option("kafka.bootstrap.servers", servers).option("topic", topic)
    writing = writing.option("checkpointLocation", checkpoint).option("atomic", atomic)
    query = writing.options(**dict(option.split("=", 1) for option in more)).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
