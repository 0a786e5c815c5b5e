"""Reads the changes of a store as a stream: what its log has that was in no batch before.

Spark's checkpoint keeps the offsets (`reading/changes.py`), so each change is in one batch. What
a batch has depends on its offsets alone: a batch that is repeated has the same changes, except for
those that compaction replaced meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.decoders import converted
from statestore.model.ids import TopicPartition
from statestore.model.records import Serde
from statestore.ports import Bounds
from statestore.reading.changes import (
    ChangedRows,
    ChangePlan,
    Fits,
    Reached,
    changed_rows,
    rows_of_state,
)
from statestore.runtime import Runtime
from statestore.spark.reading.read_options import StreamPlan
from statestore.spark.reading.store_reader import column_of, times_of


class ChangePartition(InputPartition):
    """The changes of one partition of a store's log; `whole`: as the rows that they made."""

    def __init__(self, stream_task: str, log: TopicPartition, span: Bounds, *, whole: bool) -> None:
        self.stream_task = stream_task
        self.log = log
        self.span = span
        self.whole = whole


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of one store. It travels to workers without its connections."""

    def __init__(self, plan: StreamPlan) -> None:
        self._plan = plan
        self._runtime: Runtime | None = None
        self._changes: ChangePlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_runtime": None, "_changes": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where the option `startingOffsets` says."""
        return _written(self._planned().first(self._plan.starting))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Up to where the next batch goes: the last stable offsets, unless there is a limit."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = _read(start)
        following = self._planned().following(reached, rows_max)
        return start if following is reached else _written(following)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As many offsets as the option `maxOffsetsPerTrigger` says."""
        rows_max = self._plan.offsets_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read nothing that comes from now on."""
        self._planned().stop_here()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One for each partition of the log that has anything new."""
        reached, until = _read(start), _read(end)
        planned = self._planned()
        spans = planned.spans(reached, until)
        tasks = {partition: task for task, partition in planned.parts.tasks}
        return [
            ChangePartition(tasks[log.partition], log, span, whole=reached.whole)
            for log, span in spans.items()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a partition, in the order of its log."""
        assert isinstance(partition, ChangePartition)
        plan, (log, span) = self._plan, (partition.log, partition.span)
        convert = _batches_of(plan, partition)
        with Runtime(plan.columns.arguments.settings()) as runtime:
            if partition.whole:
                found = rows_of_state(
                    runtime, plan.columns.parts, partition.stream_task, log, span.end
                )
            else:
                found = changed_rows(
                    runtime, plan.columns.parts, log, span, _fits(plan), lossless=plan.lossless
                )
            for changes in found:
                if changes.rows.keys:
                    yield convert(changes)

    def stop(self) -> None:
        """Close the connections."""
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = self._changes = None

    def _planned(self) -> ChangePlan:
        if self._changes is None:
            plan = self._plan
            self._runtime = Runtime(plan.columns.arguments.settings())
            self._changes = ChangePlan(self._runtime, plan.columns.parts, lossless=plan.lossless)
        return self._changes


def _written(reached: Reached) -> dict[str, Any]:
    written: dict[str, Any] = msgspec.to_builtins(reached)
    return written


def _read(offset: dict[str, Any]) -> Reached:
    try:
        return converted(offset, Reached)
    except msgspec.ValidationError as error:
        raise Misuse(
            f"the checkpoint has offsets of another source ({error}): give the query one of its own"
        ) from error


def _fits(plan: StreamPlan) -> Fits:
    """Return what tells the records of a source topic that its table has."""
    if plan.columns.raw:
        return lambda _key, _value: True
    key, value = plan.columns.serdes()

    def fits(found_key: bytes, found_value: bytes | None) -> bool:
        return _reads(key, found_key) and (found_value is None or _reads(value, found_value))

    return fits


def _reads(serde: Serde[Any], data: bytes) -> bool:
    if serde is serdes.BYTES:
        return True
    try:
        serde.deserialize(data)
    except Exception:  # noqa: BLE001  # a user's serde may raise anything
        return False
    return True


def _batches_of(plan: StreamPlan, part: ChangePartition) -> Callable[[ChangedRows], pa.RecordBatch]:
    """Return what makes a batch of the changes of a partition."""
    schema = plan.schema()
    of_row = column_of(plan.columns, part.stream_task, part.log.partition)

    def column(name: str, changes: ChangedRows) -> pa.Array:
        rows = changes.rows
        none: list[int | None] = [None] * len(rows.keys)
        match name:
            case "change":
                said = ["delete" if found is None else "upsert" for found in rows.values]
                return pa.array(said, pa.string())
            case "offset":
                return pa.array(changes.offsets or none, pa.int64())
            case "timestamp":
                return times_of(rows.times or none)
        return of_row(name, rows)

    def convert(changes: ChangedRows) -> pa.RecordBatch:
        arrays = [column(name, changes) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return convert
