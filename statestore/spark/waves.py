"""Runs the waves of a run as Spark stages: the driver's side, in a session of anybody's.

It uses DataFrames and the session's configuration only, so a session of Spark Connect will do.
"""

import logging
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkAttributeError, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from statestore.commands.arguments import RunArguments
from statestore.commands.progress import logged_activities
from statestore.errors import InvalidSetting, Misuse
from statestore.faults import VARIABLE
from statestore.operations.running.run import PlannedTask, Run, RunSummary
from statestore.operations.running.runner import shares_of
from statestore.spark.session import Slots, raise_first_error
from statestore.spark.spark_task import REPORT_SCHEMA, PlanRow, serving
from statestore.tasks.plan import TaskReport

_log = logging.getLogger("statestore.process")
_NOT_THERE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*")


def run_waves(
    spark: SparkSession, arguments: RunArguments, started: Run, topology: bytes | None = None
) -> RunSummary:
    """Run every wave as one Spark stage, and sum up the commit reports.

    `topology`: what the workers run, packed; None: the pipeline that the arguments name.
    """
    summary = started.summary
    slots = Slots.of(spark)
    if slots.twins and not started.environment.settings.volume_locks:
        raise InvalidSetting(
            "spark.speculation is on, and statestore.volume.locks is false: without locks a second "
            "attempt at a Spark task would take the stream tasks from the first: set "
            "spark.speculation=false, or use a volume with locks"
        )
    fields = TaskReport.__dataclass_fields__
    for number, planned in enumerate(started.waves()):
        _log.info("wave %d: %d stream tasks on %d slots", number, len(planned), slots.everywhere)
        stage = commit_reports(spark, arguments.for_workers(), planned, slots, topology)
        try:
            with (
                _interruptible(spark, f"statestore-{summary.application_id}"),
                logged_activities(started.environment),
            ):
                reports = stage.collect()
        except PySparkException as error:
            raise _explained(error) from error
        for report in reports:
            _log.info("%s", report.asDict())
        summary.add([TaskReport(**{name: report[name] for name in fields}) for report in reports])
        raise_first_error([report.error for report in reports])
    summary.lookups = started.lookups()
    return summary


@contextmanager
def _interruptible(spark: SparkSession, tag: str) -> Iterator[None]:
    """End the stage if the caller is interrupted, as by the stop button of a notebook.

    A client of Spark Connect does so itself. PySpark tries to, and fails where the interrupt meets
    a call to its JVM, as it does here: that cuts this thread's connection. Another one has its own.
    """
    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        yield
        return
    context.addJobTag(tag)
    try:
        yield
    except KeyboardInterrupt:
        with ThreadPoolExecutor(1) as another:
            another.submit(context.cancelJobsWithTag, tag).result()
        with suppress(Py4JError):
            context.removeJobTag(tag)
        raise
    except BaseException:
        context.removeJobTag(tag)
        raise
    context.removeJobTag(tag)


def commit_reports(
    spark: SparkSession,
    arguments: RunArguments,
    planned: list[PlannedTask],
    slots: Slots,
    topology: bytes | None = None,
) -> DataFrame:
    """One row per stream task, computed by its Spark task.

    It is one stage, with a Spark partition for each share of the stream tasks.
    """
    plans = [
        msgspec.json.encode(
            PlanRow(
                arguments,
                list(share),
                slots.per_host,
                slots.max_failures,
                slots.twins,
                crash_at=os.environ.get(VARIABLE),
            )
        ).decode()
        for share in shares_of(planned, slots.everywhere)
    ]
    # The JVM makes numbered rows: a DataFrame of the plans would cost a second Python stage.
    frame = spark.range(0, len(plans), 1, len(plans))
    return frame.mapInArrow(serving(plans, topology), from_arrow_schema(REPORT_SCHEMA))


def _explained(error: PySparkException) -> Exception:
    """The same failure in words of ours where the workers' environment is at fault."""
    text = str(error)
    if (found := _NOT_THERE.search(text)) is not None:
        return Misuse(
            f"Spark's workers have no module {found[1]!r}: give them the driver's packages, by "
            "--archives, --py-files or their image, and name their Python in PYSPARK_PYTHON or "
            "spark.pyspark.python"
        )
    if (found := _OTHER_PYTHON.search(text)) is not None:
        return Misuse(f"{found[0]}: name the workers' Python in PYSPARK_PYTHON")
    return error
