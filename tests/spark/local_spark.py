"""A Spark within this process's machine, whatever Spark an earlier test of the process had."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from statestore.spark.session import spark_session


@contextmanager
def local_spark(name: str, master: str) -> Iterator[SparkSession]:
    """Give a session of the jobs on `master`, as spark-submit would make it.

    PYSPARK_SUBMIT_ARGS would not do: it is read once, when the process starts its JVM.
    """
    SparkContext.setSystemProperty("spark.master", master)
    SparkContext.setSystemProperty("spark.python.daemon.module", "tests.spark.ready_daemon")
    session = spark_session(name)
    assert session.sparkContext.master == master
    try:
        yield session
    finally:
        session.stop()
