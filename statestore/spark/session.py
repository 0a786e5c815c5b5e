"""The SparkSession of the jobs, and how a failure of a Spark task reaches the driver."""

import logging
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from statestore import errors
from statestore.errors import Misuse
from statestore.extras import SPARK_REMOTE, require_one_pyspark
from statestore.settings import CONNECTION_VARIABLE

# These hold unless spark-submit says otherwise.
_DEFAULTS = {"spark.log.level": "WARN"}
# These hold for a Spark within this machine: its ports are of no use to other machines, and its
# page listens on all addresses and asks for no password.
_LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
_log = logging.getLogger(__name__)


def spark_session(name: str) -> SparkSession:
    """Make a session whose workers run this interpreter; spark-submit decides everything else.

    If SPARK_REMOTE names a server of Spark Connect, it is one of that server's.
    """
    require_one_pyspark()
    remote = os.environ.get(SPARK_REMOTE)
    if remote:
        return _connected(name, remote)
    # py4j logs every connection that it closes, even after the streams are gone.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.appName(name)
    for key, value in _defaults().items():
        builder = builder.config(key, value)
    session = (
        builder.config("spark.python.worker.reuse", "true")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .getOrCreate()
    )
    pass_on_connection(session.sparkContext)
    return session


def _connected(name: str, remote: str) -> SparkSession:
    try:
        from statestore.spark.connected import connected_session
    except ImportError as error:
        raise Misuse(
            f"{SPARK_REMOTE} is set, and the client of Spark Connect cannot be imported ({error}): "
            f"pip install 'pyspark[connect]', or unset {SPARK_REMOTE}"
        ) from error
    return connected_session(name, remote)


def pass_on_connection(context: SparkContext) -> None:
    """Hand the variables of a scheduler's connection to the Python workers of all executors.

    They travel with the tasks, and neither Spark's page nor its event log shows them.
    """
    context.environment |= {
        name: value for name, value in os.environ.items() if name.startswith(CONNECTION_VARIABLE)
    }


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


class Slots(NamedTuple):
    """What Spark gives to Spark tasks: how many run at once, and how many of them on one host.

    `max_failures`: how often it tries one. `twins`: it may begin another attempt at one that runs.
    """

    everywhere: int
    per_host: int
    max_failures: int
    twins: bool

    @classmethod
    def of(cls, spark: SparkSession) -> "Slots":
        """Those of a session, which may be one of Spark Connect."""
        everywhere = parallelism(spark)
        cores, cpus = spark.conf.get("spark.executor.cores", None), _number(spark, "task.cpus", 1)
        return cls(
            everywhere,
            max(1, int(cores) // cpus) if cores else max(1, everywhere),
            _max_failures(spark),
            (spark.conf.get("spark.speculation", None) or "").lower() == "true",
        )


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once, in a session of Spark Connect, too."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:
        # A client of Spark Connect has no context. A range is cut into as many parts.
        _log.info(
            "asking the server of Spark Connect how many tasks it runs at once: it answers when "
            "one of its slots is free; what it does for a client that was killed ends after minutes"
        )
        parts = spark.range(0, 100_000).select(spark_partition_id()).distinct()
        return parts.count()


def _max_failures(spark: SparkSession) -> int:
    """How often Spark tries a task; a local master says so itself, as in `local[*,4]`."""
    master = spark.conf.get("spark.master", None) or "local"
    if master.startswith("local") and not master.startswith("local-cluster"):
        return int(master.rstrip("]").split(",")[1]) if "," in master else 1
    return _number(spark, "task.maxFailures", 4)


def _number(spark: SparkSession, key: str, default: int) -> int:
    # Without a default, asking for a key that is not set is an error.
    return int(spark.conf.get(f"spark.{key}", None) or default)


def raise_first_error(texts: Iterable[str | None]) -> None:
    """Raise the first failure that a Spark task reported, as an error of its own class."""
    for text in texts:
        if text is not None:
            error = msgspec.json.decode(text)
            kind = getattr(errors, error["class"], errors.StateStoreError)
            raise kind(error["message"])
