"""The Spark task of an export: it uploads the snapshot of one stream task.

This module runs in a Python worker. A failure comes back as a row, so that the driver ends with its
exit code.
"""

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa

from statestore.commands.arguments import RunArguments
from statestore.errors import StateStoreError, failure_fields
from statestore.model.ids import TaskId
from statestore.operations.exports.create import Export, Part
from statestore.runtime import Runtime

SCHEMA = pa.schema([("stored", pa.string())])


class Stored(msgspec.Struct, frozen=True):
    """A part of an export, or the error that prevented it, as JSON."""

    part: Part | None = None
    error: str | None = None


def storing(
    arguments: RunArguments, tasks: list[str], folder: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function for mapInArrow over a column `id` of indexes into `tasks`."""

    def store_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                row = {"stored": _stored(arguments, TaskId.parse(tasks[number]), folder)}
                yield pa.RecordBatch.from_pylist([row], schema=SCHEMA)

    return store_partition


def _stored(arguments: RunArguments, task: TaskId, folder: str) -> str:
    try:
        with Runtime(arguments.settings()) as runtime:
            (part,) = Export(runtime).parts([task], folder)
    except StateStoreError as error:
        return _text(Stored(error=msgspec.json.encode(failure_fields(error)).decode()))
    return _text(Stored(part))


def _text(stored: Stored) -> str:
    return msgspec.json.encode(stored).decode()
