"""The SparkSession of our jobs."""

import logging
import sys

from pyspark.sql import SparkSession


def spark_session(name: str) -> SparkSession:
    """A session whose workers run this interpreter; everything else is spark-submit's to decide.

    No speculation: two attempts at one stream task would fight for one transactional id.
    """
    # It logs every connection it closes, even after the streams are gone.
    logging.getLogger("py4j").setLevel(logging.WARNING)
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
