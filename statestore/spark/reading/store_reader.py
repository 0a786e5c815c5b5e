"""Reads the rows of a store in Arrow batches: those that it holds, or those that its log makes."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from statestore import serdes
from statestore.reading.rows import ALL, committed_rows, logged_rows
from statestore.reading.splits import Split, plan_splits
from statestore.runtime import Runtime
from statestore.spark.reading.pushed_filters import PushedFilters
from statestore.spark.reading.read_options import AskedColumns, Plan
from statestore.spark.reading.typed_columns import TIME
from statestore.stores.kinds.kind import Columns, LoggedChanges

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class StorePartition(InputPartition):
    """The part of a store that one stream task owns, or a split of it."""

    def __init__(self, stream_task: str, partition: int, split: Split | None = None) -> None:
        self.stream_task = stream_task
        self.partition = partition
        self.split = split

    @property
    def place(self) -> tuple[str, int]:
        """The stream task and its partition."""
        return self.stream_task, self.partition


class StoreReader(DataSourceReader):
    """Reads one store: its committed rows, or its folded changelog."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pushed: PushedFilters | None = None

    def partitions(self) -> list[InputPartition]:
        """One for each split of a stream task that has the store, and may have wanted rows."""
        pushed, plan = self._pushed, self._plan
        # Spark makes a partition of its own if there is none.
        tasks = [task for task in plan.columns.parts.tasks if pushed is None or pushed.wants(*task)]
        part = ALL if pushed is None else pushed.part()
        if plan.splits is None or not part.divisible:
            return [StorePartition(*task) for task in tasks]
        with Runtime(plan.columns.arguments.settings()) as runtime:
            names = [name for name, _ in tasks]
            splits = plan_splits(runtime, plan.view, names, plan.splits, part.low, part.high)
        none: list[Split | None] = [None]
        return [
            StorePartition(*task, split)
            for task, found in zip(tasks, splits, strict=True)
            for split in found or none
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in chunks."""
        if not isinstance(partition, StorePartition):
            return
        plan, task, pushed = self._plan, partition.stream_task, self._pushed
        convert = batches_of(plan, task, partition.partition)
        lots: Iterator[Columns]
        with Runtime(plan.columns.arguments.settings()) as runtime:
            if plan.changelog:
                lots = logged_rows(
                    runtime,
                    plan.columns.parts,
                    *partition.place,
                    as_of_ms=plan.as_of_ms,
                    times=plan.times,
                )
            else:
                lots = committed_rows(
                    runtime,
                    plan.columns.parts,
                    task,
                    as_of_ms=plan.as_of_ms,
                    times=plan.times,
                    part=ALL if pushed is None else pushed.part(),
                    split=partition.split,
                )
            for found in lots:
                rows = found if pushed is None else pushed.of(found)
                if rows.keys:
                    yield convert(rows)


class FilteringReader(StoreReader):
    """A reader that takes filters over from Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Take those that the store answers, and give the others back."""
        key = serdes.BYTES if self._plan.columns.raw else self._plan.columns.serdes()[0]
        spans = self._plan.view.kind.span_columns
        pushed = self._pushed = PushedFilters(spans)
        for one in filters:
            if not pushed.take(one, key):
                yield one


def reader_of(plan: Plan) -> StoreReader:
    """Return a reader that takes filters over where Spark asks for that.

    Spark refuses any reader with `pushFilters` while `spark.sql.python.filterPushdown.enabled` is
    false, which is its default. It plans reads with filters in a program of its own.
    """
    main = sys.modules.get("__main__")
    running = getattr(getattr(main, "__spec__", None), "name", "")
    asked = _PUSHING in sys.modules or running == _PUSHING
    return FilteringReader(plan) if asked else StoreReader(plan)


def batches_of(plan: Plan, task: str, partition: int) -> Callable[[Columns], pa.RecordBatch]:
    """Return what makes a batch of rows of a stream task; only what is asked for is decoded."""
    schema, column = plan.schema(), column_of(plan.columns, task, partition)

    def convert(rows: Columns) -> pa.RecordBatch:
        arrays = [column(name, rows) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return convert


def column_of(
    columns: AskedColumns, task: str, partition: int
) -> Callable[[str, Columns | LoggedChanges], pa.Array]:
    """Return what makes the column of that name, of rows of a stream task or of their changes."""
    store = columns.parts.view.name
    key, value = columns.sides()
    spans = columns.parts.view.kind.span_columns

    def column(name: str, rows: Columns | LoggedChanges) -> pa.Array:
        match name:
            case "stream_task":
                return pa.repeat(pa.scalar(task), len(rows.keys))
            case "partition":
                return pa.repeat(pa.scalar(partition, pa.int32()), len(rows.keys))
            case "key":
                return key.column(store, rows.keys)
            case "value":
                return value.column(store, rows.values)
        return times_of(rows.begins if name == spans[0] else rows.ends)

    return column


def times_of(times_ms: list[Any]) -> pa.Array:
    """Return a column of times in ms."""
    return pa.array(times_ms, pa.timestamp("ms", tz="UTC")).cast(TIME)
