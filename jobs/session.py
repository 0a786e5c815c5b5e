"""The SparkSession of our jobs."""

import sys

from pyspark.sql import SparkSession


def spark_session(name: str) -> SparkSession:
    """A session whose workers run this interpreter; everything else is spark-submit's to decide.

    No speculation: two attempts at one stream task would fight for one transactional id.
    """
    return (
        SparkSession.builder.appName(name)
        .config("spark.speculation", "false")
        .config("spark.python.worker.reuse", "true")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .getOrCreate()
    )


def slots_per_host(spark: SparkSession) -> int:
    """How many Spark tasks share one executor host's memory."""
    cores = spark.conf.get("spark.executor.cores", None)
    return int(cores) if cores else max(1, spark.sparkContext.defaultParallelism)
