"""The SparkSession of our jobs, and how their Spark tasks fail."""

import logging
import sys
from collections.abc import Iterable

import msgspec
from pyspark.sql import SparkSession

from statestore import errors


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


def raise_first_error(texts: Iterable[str | None]) -> None:
    """Raise what a Spark task told of its failure, as what it was."""
    for text in texts:
        if text is not None:
            error = msgspec.json.decode(text)
            kind = getattr(errors, error["class"], errors.StateStoreError)
            raise kind(error["message"])
