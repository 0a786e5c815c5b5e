"""The Python Data Source `transactional_store`: rows of stores as DataFrames, in Arrow batches.

    spark.dataSource.register(TransactionalStore)
    spark.read.format("transactional_store").option("state_dir", D).option("application_id", A)
        .option("store", S).load()

Options are the flags of the command line in snake case (INTERFACE rule 13): state_dir,
application_id, config, bootstrap_servers, target; store, partition, export, as_of, from_time,
to_time, raw, pipeline; from_time and to_time, inclusive, give the versions valid in between;
`changelog` = true reads the store's log, folded, instead of the store. Columns:

    stream_task, partition, key, value                         of every store
    valid_from, valid_to                                       with history; valid_to null: latest
    window_start, window_end                                   of windows; of sessions the times
                                                               of the first and the last record

A query sees each store as of its last commit, whether or not a run is on: each Spark partition
takes a snapshot of its stream task. The serdes that the deployed topology names decode keys and
values, or with pipeline = module:function those of the pipeline, which the workers import, too.
JSON, MSGPACK and serdes of your own become JSON text. raw = true gives bytes. Times are of the type
TIMESTAMP.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statestore.commands.arguments import StateArguments, parse_state_arguments
from statestore.commands.printing import json_text
from statestore.errors import Misuse
from statestore.model.modes import parse_time, to_ms
from statestore.model.records import Serde
from statestore.operations.pipelines import load_pipeline, serdes_of
from statestore.operations.rows import (
    Columns,
    Shape,
    Times,
    committed_rows,
    logged_rows,
    shape_of,
)
from statestore.runtime import Runtime
from statestore.spark.audit_source import AuditReader, audit_schema
from statestore.stores import serdes
from statestore.stores.java_serdes import scalar_type
from statestore.stores.migration import outside
from statestore.stores.specs import SessionSpec, WindowSpec
from statestore.stores.versioned import layout as versioned_layout

NAME = "transactional_store"
_KNOWN = {
    "application_id", "state_dir", "config", "bootstrap_servers", "store", "partition", "as_of",
    "from_time", "to_time", "raw", "changelog", "audit", "export", "target", "pipeline",
}  # fmt: skip
_TIME = pa.timestamp("us", tz="UTC")
_WAYS_OUT = (
    '.option("pipeline", "module:function") for the serdes of the pipeline, or '
    '.option("raw", "true")'
)
_IN_WINDOWS = (WindowSpec.kind, SessionSpec.kind)


class TransactionalStore(DataSource):
    """The Data Source of this module; Misuse names an option that is wrong."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return NAME

    def schema(self) -> StructType:
        """The columns that the store's kind and serdes give."""
        if "audit" in self.options:
            return from_arrow_schema(audit_schema(self.options["audit"]))
        return from_arrow_schema(_plan(dict(self.options)).schema())

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # ours comes back
        """A reader with one Spark partition for each partition of the store."""
        if "audit" in self.options:
            return AuditReader(dict(self.options))
        return StoreReader(_plan(dict(self.options)))


class Plan(NamedTuple):
    """What to read, and where the settings are found; it carries no secret."""

    arguments: StateArguments
    shape: Shape
    as_of_ms: int | None
    raw: bool
    changelog: bool
    pipeline: str | None = None
    times: Times | None = None

    def schema(self) -> pa.Schema:
        """The columns."""
        key, value = self.sides()
        fields = [("stream_task", pa.string()), ("partition", pa.int32()), ("key", key.type)]
        if self.shape.kind == versioned_layout.KIND:
            fields += [("valid_from", _TIME), ("valid_to", _TIME)]
        if self.shape.kind in _IN_WINDOWS:
            fields += [("window_start", _TIME), ("window_end", _TIME)]
        return pa.schema([*fields, ("value", value.type)])

    def sides(self) -> tuple["ColumnDecoder", "ColumnDecoder"]:
        """How keys and how values become a column."""
        if self.raw:
            return _decoder(serdes.BYTES), _decoder(serdes.BYTES)
        key, value = self._serdes()
        return _decoder(key), _decoder(value)

    def _serdes(self) -> tuple[Serde[Any], Serde[Any]]:
        shape = self.shape
        if self.pipeline is not None:
            application = self.arguments.application_id
            return serdes_of(load_pipeline(self.pipeline), shape.store, application)
        key_serde = shape.key_serde
        found = serdes.of_windowed(key_serde or "")
        if found is not None:
            key_serde = found.inner
        if key_serde is None or shape.value_serde is None:
            raise Misuse(
                f"store {shape.store!r} is not in the topology deployed last, so nothing says how "
                f"to decode it: pass {_WAYS_OUT}"
            )
        try:
            return serdes.by_name(key_serde), serdes.by_name(shape.value_serde)
        except Misuse as error:
            raise Misuse(f"store {shape.store!r}: {error}: pass {_WAYS_OUT}") from error

    def window_ms(self) -> int:
        """The length of a window."""
        found = serdes.of_windowed(self.shape.key_serde or "")
        return 0 if found is None else found.size_ms or 0


class StorePartition(InputPartition):
    """The part of a store that one stream task owns."""

    def __init__(self, stream_task: str, partition: int) -> None:
        self.stream_task = stream_task
        self.partition = partition

    @property
    def place(self) -> tuple[str, int]:
        """The stream task and its partition."""
        return self.stream_task, self.partition


class StoreReader(DataSourceReader):
    """Reads one store: its committed rows, or its folded changelog."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        """One for each stream task that has the store."""
        return [StorePartition(*task) for task in self._plan.shape.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in chunks."""
        assert isinstance(partition, StorePartition)
        plan, task = self._plan, partition.stream_task
        schema, convert = plan.schema(), _converter(plan)
        lots: Iterator[Columns]
        with Runtime(plan.arguments.settings()) as runtime:
            if plan.changelog:
                lots = logged_rows(
                    runtime,
                    plan.shape,
                    *partition.place,
                    as_of_ms=plan.as_of_ms,
                    times=plan.times,
                )
            else:
                lots = committed_rows(
                    runtime, plan.shape, task, as_of_ms=plan.as_of_ms, times=plan.times
                )
            for rows in lots:
                if rows.keys:
                    yield _batch(schema, task, partition.partition, convert(rows))


class ColumnDecoder(NamedTuple):
    """The type of a column, and the function that makes its entries from bytes."""

    type: pa.DataType
    read: Callable[[bytes], Any] | None


def _plan(options: dict[str, str]) -> Plan:
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise Misuse(f"{NAME} has no option {unknown[0]!r}; it has {', '.join(sorted(_KNOWN))}")
    if not options.get("store"):
        raise Misuse(f'{NAME}: which store? pass .option("store", …)')
    named = {name: options.get(name) for name in ("application_id", "state_dir", "config")}
    named |= {name: options.get(name) for name in ("bootstrap_servers", "target")}
    arguments = parse_state_arguments({**named, "pairs": ()}).for_workers()
    pipeline = options.get("pipeline")
    if pipeline is not None and _is_set(options, "raw"):
        raise Misuse(f"{NAME}: raw rows are not decoded: leave pipeline out, or raw")
    partition = options.get("partition")
    shape = shape_of(
        Runtime(arguments.settings()),
        options["store"],
        None if partition is None else int(partition),
        options.get("export"),
    )
    for name in ("as_of", "from_time", "to_time"):
        if name in options and shape.kind != versioned_layout.KIND:
            raise Misuse(f"store {shape.store!r} keeps no history: leave {name} out")
    as_of_ms, times = _time_ms(options, "as_of"), None
    if "from_time" in options or "to_time" in options:
        if as_of_ms is not None:
            raise Misuse(f"{NAME}: pass as_of, or from_time and to_time, not both")
        times = Times(_time_ms(options, "from_time"), _time_ms(options, "to_time"))
        if times.first_ms is not None and times.last_ms is not None and times > times[::-1]:
            raise Misuse(f"{NAME}: from_time is after to_time: swap them")
    return Plan(
        arguments,
        shape,
        as_of_ms,
        _is_set(options, "raw"),
        _is_set(options, "changelog"),
        pipeline,
        times,
    )


def _time_ms(options: dict[str, str], name: str) -> int | None:
    return to_ms(parse_time(options[name])) if name in options else None


def _is_set(options: dict[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in {"true", "false"}:
        raise Misuse(f"{NAME}: {name} = {text!r}: want true or false")
    return text == "true"


def _decoder(serde: Serde[Any]) -> ColumnDecoder:
    if serde is serdes.BYTES:
        return ColumnDecoder(pa.binary(), None)
    read, shown = serde.deserialize, outside(serde)
    if shown is serdes.STRING:
        return ColumnDecoder(pa.string(), read)
    kind = scalar_type(shown)
    if kind is not None:
        return ColumnDecoder(kind, read)
    if shown is serdes.UUID:
        return ColumnDecoder(pa.string(), lambda data: str(read(data)))
    return ColumnDecoder(pa.string(), lambda data: json_text(read(data)))


def _converter(plan: Plan) -> Callable[[Columns], list[pa.Array]]:
    """Make the function from rows to the columns from `key` on."""
    key, value = plan.sides()

    def column(side: ColumnDecoder, data: list[Any]) -> pa.Array:
        read = side.read
        if read is None:
            return pa.array(data, side.type)
        try:
            return pa.array(list(map(read, data)), side.type)
        except Exception as error:
            raise _undecodable(plan.shape.store, read, data, error) from error

    def times(found: list[int | None]) -> pa.Array:
        return pa.array(found, pa.timestamp("ms", tz="UTC")).cast(_TIME)

    def convert(rows: Columns) -> list[pa.Array]:
        spans = []
        if plan.shape.kind in (versioned_layout.KIND, *_IN_WINDOWS):
            spans = [times(rows.begins), times(rows.ends)]
        return [column(key, rows.keys), *spans, column(value, rows.values)]

    return convert


def _undecodable(
    store: str, read: Callable[[bytes], Any], data: list[bytes], error: Exception
) -> Exception:
    """Return the error that shows which bytes could not be decoded."""
    for one in data:
        try:
            read(one)
        except Exception as cause:  # noqa: BLE001  # a user's serde may raise anything
            shown = serdes.printable(one[:200])
            return Misuse(f"store {store!r}: cannot decode {shown} ({cause}): pass {_WAYS_OUT}")
    return error


def _batch(schema: pa.Schema, task: str, partition: int, columns: list[pa.Array]) -> pa.RecordBatch:
    count = len(columns[0])
    head = [pa.array([task] * count), pa.array([partition] * count, pa.int32())]
    return pa.RecordBatch.from_arrays([*head, *columns], schema=schema)
