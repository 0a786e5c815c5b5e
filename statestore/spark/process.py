"""Process what the input topics hold: the main job, submitted by path to any Spark master.

    spark-submit jobs/process.py --pipeline M:F --application-id A --bootstrap-servers H:P …

It prints one JSON line at the end, writes the same line into --summary-file, after a failure too,
and exits with the codes of errors.py.
"""

from typing import Any, NoReturn

import click

from statestore.cli import set_up_logging
from statestore.commands.arguments import RunArguments, run_options
from statestore.commands.running import report_run, summary_line
from statestore.operations.running.run import Run, RunSummary
from statestore.spark.program import run_program
from statestore.spark.session import spark_session
from statestore.spark.waves import run_waves
from statestore.tasks.slot import Ending


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@run_options
def command(**flags: Any) -> None:
    """Run a pipeline on Spark."""
    summary = report_run(flags, run_on_spark, click.echo, set_up_logging)
    click.echo(summary_line(summary))


def run_on_spark(arguments: RunArguments, started: Run, _ending: Ending) -> RunSummary:
    """Run every wave in a session of this job's own, which nothing ends between two commits."""
    spark = spark_session(f"statestore {arguments.application_id}")
    return run_waves(spark, arguments, started)


def main() -> NoReturn:
    """Run the job with the flags of this process."""
    run_program(command)


if __name__ == "__main__":
    main()
