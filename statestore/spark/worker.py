"""The Spark task of a run: plans come in, one report row per stream task goes out.

This module runs in a Python worker. It raises a failure that another attempt may mend, so that
Spark tries the task again from the committed offsets. Any other failure comes back as a row, and
ends the run with its own exit code.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from statestore.commands.arguments import RunArguments
from statestore.errors import Action, StateStoreError, failure_fields
from statestore.faults import arm
from statestore.operations.pipelines import load_pipeline
from statestore.operations.run import PlannedTask
from statestore.operations.serving import run_request, serve_planned
from statestore.runtime import Runtime
from statestore.tasks.plan import TaskReport

REPORT_SCHEMA = pa.schema(
    [
        ("stream_task", pa.string()),
        ("records_in", pa.int64()),
        ("records_before", pa.int64()),
        ("records_out", pa.int64()),
        ("dropped_records", pa.int64()),
        ("held_records", pa.int64()),
        ("commits", pa.int64()),
        ("rewinds", pa.int64()),
        ("restored_records", pa.int64()),
        ("start_seconds", pa.float64()),
        ("restore_seconds", pa.float64()),
        ("poll_seconds", pa.float64()),
        ("process_seconds", pa.float64()),
        ("commit_seconds", pa.float64()),
        ("bytes_written", pa.int64()),
        ("snapshots", pa.int64()),
        ("snapshot_seconds", pa.float64()),
        ("first_record_ms", pa.int64()),
        ("last_commit_ms", pa.int64()),
        ("quarantined", pa.list_(pa.string())),
        ("caught_up", pa.bool_()),
        ("error", pa.string()),
    ]
)


class PlanRow(msgspec.Struct, frozen=True):
    """What one slot has to serve. It says where the settings are found, and carries no secret."""

    arguments: RunArguments
    tasks: list[PlannedTask]
    slots: int
    crash_at: str | None = None


def serving(
    plans: list[str],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function for mapInArrow over a column `id`: it serves the plan of each number."""

    def serve_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield _rows(_serve(msgspec.json.decode(plans[number], type=PlanRow)))

    return serve_partition


def _serve(row: PlanRow) -> list[tuple[TaskReport, str | None]]:
    arm(row.crash_at)
    arguments = row.arguments
    request = run_request(
        until=arguments.until_time(),  # type: ignore[arg-type]  # "latest" or a time
        run_for=arguments.run_for_ms,
        accept_new_topology=arguments.accept_new_topology,
        accept_empty_changelog=arguments.accept_empty_changelog,
    )
    try:
        topology = load_pipeline(arguments.pipeline)
        # Spark's daemon collects garbage after every task, which takes a tenth of a second if it
        # looks through all modules. It has just done so, and none of what is left is garbage.
        gc.freeze()
        with Runtime(arguments.settings()) as runtime:
            reports = serve_planned(
                runtime, topology, row.tasks, request, slots=row.slots, stop=threading.Event()
            )
    except StateStoreError as error:
        if error.action is Action.RETRY and not _last_attempt():
            raise
        text = msgspec.json.encode(failure_fields(error)).decode()
        return [(TaskReport(task.task), text) for task in row.tasks]
    return [(report, None) for report in reports]


def _last_attempt() -> bool:
    context = TaskContext.get()
    if context is None:
        return True
    allowed = int(context.getLocalProperty("statestore.task.maxFailures") or "1")
    return context.attemptNumber() + 1 >= allowed


def _rows(reports: list[tuple[TaskReport, str | None]]) -> pa.RecordBatch:
    rows = [asdict(report) | {"error": error} for report, error in reports]
    return pa.RecordBatch.from_pylist(rows, schema=REPORT_SCHEMA)
