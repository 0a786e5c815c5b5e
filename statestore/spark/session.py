"""The SparkSession of the jobs, and how a failure of a Spark task reaches the driver."""

import logging
import sys
from collections.abc import Iterable

import msgspec
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from statestore import errors

# These hold unless spark-submit says otherwise.
_DEFAULTS = {"spark.log.level": "WARN"}
# These hold for a Spark within this machine: its ports are of no use to other machines, and its
# page listens on all addresses and asks for no password.
_LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}


def spark_session(name: str) -> SparkSession:
    """Make a session whose workers run this interpreter; spark-submit decides everything else.

    Speculation is off: two attempts at one stream task would fight for one transactional id.
    """
    # py4j logs every connection that it closes, even after the streams are gone.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.appName(name)
    for key, value in _defaults().items():
        builder = builder.config(key, value)
    return (
        builder.config("spark.speculation", "false")
        .config("spark.python.worker.reuse", "true")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .getOrCreate()
    )


def _defaults() -> dict[str, str]:
    """Settings for what the flags and files of spark-submit leave open."""
    SparkContext._ensure_initialized()  # noqa: SLF001  # without it a SparkConf does not know them
    told = SparkConf()
    local = (told.get("spark.master") or "local").startswith("local")
    return {
        key: value
        for key, value in (_DEFAULTS | (_LOCAL_DEFAULTS if local else {})).items()
        if not told.contains(key)
    }


def slots_per_host(spark: SparkSession) -> int:
    """How many Spark tasks share one executor host's memory."""
    cores = spark.conf.get("spark.executor.cores", None)
    return int(cores) if cores else max(1, spark.sparkContext.defaultParallelism)


def raise_first_error(texts: Iterable[str | None]) -> None:
    """Raise the first failure that a Spark task reported, as an error of its own class."""
    for text in texts:
        if text is not None:
            error = msgspec.json.decode(text)
            kind = getattr(errors, error["class"], errors.StateStoreError)
            raise kind(error["message"])
