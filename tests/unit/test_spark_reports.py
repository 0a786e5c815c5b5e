"""What Spark's workers report has a column for each field of a task's report."""

import dataclasses
import importlib

from statestore.tasks.plan import TaskReport


def test_every_field_of_a_report_travels() -> None:
    worker = importlib.import_module("statestore.spark.spark_task")
    fields = {field.name for field in dataclasses.fields(TaskReport)}
    assert {*worker.REPORT_SCHEMA.names} == fields | {"error"}
