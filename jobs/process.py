"""Process what the input topics hold: the main job, submitted by path to any Spark master.

    spark-submit jobs/process.py --pipeline M:F --application-id A --bootstrap-servers H:P …

Prints one JSON line at the end, writes the same into --summary-file (on failure too), exits with
the codes of errors.py.
"""

import logging
import os
import sys
from typing import Any

import click
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.session import raise_first_error, slots_per_host, spark_session
from jobs.worker import REPORT_SCHEMA, PlanRow, serving
from statestore.cli import guarded, set_up_logging
from statestore.commands.arguments import RunArguments, run_options
from statestore.commands.running import report_run, summary_line
from statestore.faults import VARIABLE
from statestore.operations.run import PlannedTask, Run, RunSummary
from statestore.tasks.plan import TaskReport

_log = logging.getLogger("statestore.process")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@run_options
def main(**flags: Any) -> None:
    """Run a pipeline on Spark."""
    set_up_logging()
    summary = report_run(flags, run_on_spark, click.echo)
    click.echo(summary_line(summary))


def run_on_spark(arguments: RunArguments, started: Run) -> RunSummary:
    """Every wave as one Spark stage; sums up the commit reports."""
    spark = spark_session(f"statestore {arguments.application_id}")
    summary = RunSummary(arguments.application_id)
    slots = slots_per_host(spark)
    for number, planned in enumerate(started.waves()):
        _log.info("wave %d: %d stream tasks on %d slots", number, len(planned), slots)
        reports = commit_reports(spark, arguments.for_workers(), planned, slots).collect()
        for report in reports:
            _log.info("%s", report.asDict())
        raise_first_error([report.error for report in reports])
        fields = TaskReport.__dataclass_fields__
        summary.add([TaskReport(**{name: report[name] for name in fields}) for report in reports])
    return summary


def commit_reports(
    spark: SparkSession, arguments: RunArguments, planned: list[PlannedTask], slots: int
) -> DataFrame:
    """One row per stream task, computed by its Spark task; one stage, a partition per share."""
    if arguments.run_for_ms is None:
        shares = [[task] for task in planned]
    else:
        width = min(len(planned), spark.sparkContext.defaultParallelism)
        shares = [planned[i::width] for i in range(width)]
    plans = [
        msgspec.json.encode(PlanRow(arguments, share, slots, os.environ.get(VARIABLE))).decode()
        for share in shares
    ]
    spark.sparkContext.setLocalProperty("statestore.task.maxFailures", str(_max_failures(spark)))
    # Numbered rows made by the JVM: a DataFrame of the plans would cost a second Python stage.
    frame = spark.range(0, len(plans), 1, len(plans))
    return frame.mapInArrow(serving(plans), from_arrow_schema(REPORT_SCHEMA))


def _max_failures(spark: SparkSession) -> int:
    """How often Spark tries a task: local masters say so themselves, `local[*,4]`."""
    master = spark.sparkContext.master or "local"
    if master.startswith("local"):
        return int(master.rstrip("]").split(",")[1]) if "," in master else 1
    # Without a default, asking for a key nobody set is an error.
    return int(spark.conf.get("spark.task.maxFailures", None) or 4)


if __name__ == "__main__":
    sys.exit(guarded(main))
