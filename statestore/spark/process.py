"""Process what the input topics hold: the main job, submitted by path to any Spark master.

    spark-submit jobs/process.py --pipeline M:F --application-id A --bootstrap-servers H:P …

It prints one JSON line at the end, writes the same line into --summary-file, after a failure too,
and exits with the codes of errors.py.
"""

import logging
import os
from typing import Any, NoReturn

import click
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from statestore.cli import set_up_logging
from statestore.commands.arguments import RunArguments, run_options
from statestore.commands.running import report_run, summary_line
from statestore.faults import VARIABLE
from statestore.operations.run import PlannedTask, Run, RunSummary
from statestore.spark.program import run_program
from statestore.spark.session import raise_first_error, slots_per_host, spark_session
from statestore.spark.worker import REPORT_SCHEMA, PlanRow, serving
from statestore.tasks.plan import TaskReport

_log = logging.getLogger("statestore.process")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@run_options
def command(**flags: Any) -> None:
    """Run a pipeline on Spark."""
    set_up_logging()
    summary = report_run(flags, run_on_spark, click.echo)
    click.echo(summary_line(summary))


def run_on_spark(arguments: RunArguments, started: Run) -> RunSummary:
    """Run every wave as one Spark stage, and sum up the commit reports."""
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
    """One row per stream task, computed by its Spark task.

    It is one stage, with a Spark partition for each share of the stream tasks.
    """
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
    # The JVM makes numbered rows: a DataFrame of the plans would cost a second Python stage.
    frame = spark.range(0, len(plans), 1, len(plans))
    return frame.mapInArrow(serving(plans), from_arrow_schema(REPORT_SCHEMA))


def _max_failures(spark: SparkSession) -> int:
    """How often Spark tries a task; a local master says so itself, as in `local[*,4]`."""
    master = spark.sparkContext.master or "local"
    if master.startswith("local"):
        return int(master.rstrip("]").split(",")[1]) if "," in master else 1
    # Without a default, asking for a key that is not set is an error.
    return int(spark.conf.get("spark.task.maxFailures", None) or 4)


def main() -> NoReturn:
    """Run the job with the flags of this process."""
    run_program(command)


if __name__ == "__main__":
    main()
