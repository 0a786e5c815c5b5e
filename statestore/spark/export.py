"""Export all stores over the network of every worker, where one machine's would take too long.

    spark-submit jobs/export.py --application-id A --state-dir D --target s3://bucket/path

It does what `statestore export` does, but a Spark task reads and uploads each stream task. The
driver holds the lease and publishes the manifest. The job prints one JSON line and exits with the
codes of errors.py.
"""

import logging
from typing import Any, NoReturn

import click
from pyspark.sql.pandas.types import from_arrow_schema

from statestore.cli import set_up_logging
from statestore.commands.arguments import export_options, parse_exports
from statestore.commands.exports import export_result, json_option, showing_results
from statestore.commands.progress import logged_activities
from statestore.model.decoders import json_decoder
from statestore.operations.exports.create import Export
from statestore.spark.program import run_program
from statestore.spark.session import raise_first_error, spark_session
from statestore.spark.uploading import SCHEMA, Stored, storing

_log = logging.getLogger("statestore.export")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@export_options
@json_option
def command(*, as_json: bool, **flags: Any) -> None:
    """Export an application's stores, a Spark task for each stream task."""
    set_up_logging()
    with showing_results(flags, "state.dir", as_json=as_json) as (runtime, tell):
        arguments = parse_exports(flags).for_workers()
        export = Export(runtime)
        with export.begin() as begun:
            spark = spark_session(f"statestore export {arguments.application_id}")
            tasks = list(map(str, begun.tasks))
            _log.info("%s: %d stream tasks", begun.export_id, len(tasks))
            store = storing(arguments, tasks, begun.upload.folder)
            frame = spark.range(0, len(tasks), 1, len(tasks))
            with logged_activities(runtime):
                rows = frame.mapInArrow(store, from_arrow_schema(SCHEMA)).collect()
            stored = [json_decoder(Stored).decode(row.stored) for row in rows]
            raise_first_error(one.error for one in stored)
            parts = [one.part for one in stored if one.part is not None]
            tell(*export_result(export.publish(begun, parts)))


def main() -> NoReturn:
    """Run the job with the flags of this process."""
    run_program(command)


if __name__ == "__main__":
    main()
