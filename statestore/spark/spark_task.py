"""The Spark task of a run: plans come in, one report row per stream task goes out.

This module runs in a Python worker. It raises a failure that another attempt may mend, so that
Spark tries the task again from the committed offsets. Any other failure comes back as a row, and
ends the run with its own exit code.

Spark may have two attempts at one task at the same time: with speculation, while an executor is
decommissioned, and when it lost one that is still alive. The attempt that holds the stream tasks
processes; another one waits until they are released, or until Spark ends it.
"""

import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from statestore import __version__
from statestore.commands.arguments import RunArguments
from statestore.errors import Action, Locked, Misuse, StateStoreError, failure_fields
from statestore.faults import arm
from statestore.model.decoders import json_decoder
from statestore.operations.pipelines import load_pipeline
from statestore.operations.running.run import PlannedTask, RunRequest
from statestore.operations.running.runner import serve_planned
from statestore.operations.shipping import unpacked
from statestore.runtime import Runtime
from statestore.tasks.plan import TaskReport
from statestore.topology.graph import Topology

_log = logging.getLogger("statestore")

REPORT_SCHEMA = pa.schema(
    [
        ("stream_task", pa.string()),
        ("records_in", pa.int64()),
        ("records_before", pa.int64()),
        ("records_out", pa.int64()),
        ("dropped_records", pa.int64()),
        ("left_out", pa.map_(pa.string(), pa.int64())),
        ("held", pa.map_(pa.string(), pa.int64())),
        ("commits", pa.int64()),
        ("rewinds", pa.int64()),
        ("restored_records", pa.int64()),
        ("start_seconds", pa.float64()),
        ("restore_seconds", pa.float64()),
        ("poll_seconds", pa.float64()),
        ("process_seconds", pa.float64()),
        ("commit_seconds", pa.float64()),
        ("timed_commits", pa.int64()),
        ("bytes_written", pa.int64()),
        ("snapshots", pa.int64()),
        ("snapshot_seconds", pa.float64()),
        ("first_record_ms", pa.int64()),
        ("last_commit_ms", pa.int64()),
        ("quarantined", pa.list_(pa.string())),
        ("caught_up", pa.bool_()),
        ("waits_for_time", pa.bool_()),
        ("error", pa.string()),
    ]
)


class PlanRow(msgspec.Struct, frozen=True):
    """What one slot has to serve. It says where the settings are found, and carries no secret.

    `max_failures`: how often Spark tries a Spark task. `twins`: Spark may have several attempts at
    one at the same time, also before any has failed. `version`: of the driver's statestore.
    """

    arguments: RunArguments
    tasks: list[PlannedTask]
    slots: int
    max_failures: int
    twins: bool
    version: str = __version__
    crash_at: str | None = None


def serving(
    plans: list[str], topology: bytes | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function for mapInArrow over a column `id`: it serves the plan of each number.

    `topology`: packed, see `shipping`; None: the pipeline that the plan names.
    """

    def serve_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield _rows(_serve(json_decoder(PlanRow).decode(plans[number]), topology))

    return serve_partition


def _serve(row: PlanRow, packed: bytes | None) -> list[tuple[TaskReport, str | None]]:
    arm(row.crash_at)
    arguments, reports = row.arguments, list[TaskReport]()
    try:
        _check_version(row)
        request = arguments.request()
        topology = load_pipeline(arguments.pipeline) if packed is None else unpacked(packed)
        # Spark's daemon collects garbage after every task, which takes a tenth of a second if it
        # looks through all modules. It has just done so, and none of what is left is garbage.
        gc.freeze()
        with Runtime(arguments.settings()) as runtime:
            _served(runtime, topology, row, request, reports)
    except StateStoreError as error:
        if error.action is Action.RETRY and _attempt() + 1 < row.max_failures:
            raise
        text = msgspec.json.encode(failure_fields(error)).decode()
        reports = reports or [TaskReport(task.task) for task in row.tasks]
        return [(report, text) for report in reports]
    return [(report, None) for report in reports]


def _check_version(row: PlanRow) -> None:
    if row.version != __version__:
        raise Misuse(
            f"the driver has statestore {row.version}, and a Spark worker has {__version__} "
            f"({sys.executable}): give both the same one"
        )


def _served(
    runtime: Runtime,
    topology: Topology,
    row: PlanRow,
    request: RunRequest,
    reports: list[TaskReport],
) -> None:
    """Serve the tasks, after another attempt at the same Spark task if that has them.

    The driver holds the application, so no other run has them. To say that they are locked would
    end the run, as Spark takes the first answer of any attempt.
    """
    stop = threading.Event()
    while True:
        try:
            serve_planned(
                runtime,
                topology,
                row.tasks,
                request,
                slots=row.slots,
                stop=stop,
                reports=reports,
            )
        except Locked as locked:
            if not row.twins and not _attempt():
                raise
            reports.clear()
            _log.warning(
                "another attempt at this Spark task is at work: waiting for it: %s", locked
            )
        else:
            return


def _attempt() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _rows(reports: list[tuple[TaskReport, str | None]]) -> pa.RecordBatch:
    rows = [asdict(report) | {"error": error} for report, error in reports]
    return pa.RecordBatch.from_pylist(rows, schema=REPORT_SCHEMA)
