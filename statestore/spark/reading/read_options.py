"""The options of the Data Source, and what they ask for."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa

import statestore as ss
from statestore import serdes
from statestore.commands.arguments import StateArguments, parse_state_arguments
from statestore.errors import Misuse
from statestore.model.modes import parse_time, to_ms
from statestore.model.texts import whole_number
from statestore.operations.pipelines import StoreSerdes, load_pipeline
from statestore.reading.changes import STARTS, STATE, logged_parts
from statestore.reading.rows import StoreParts, Times, parts_of
from statestore.reading.splits import COUNT_MAX, ROWS_EACH, SplitWish
from statestore.reading.views import StoreView
from statestore.runtime import Runtime
from statestore.spark.reading.typed_columns import TIME, WAYS_OUT, ColumnDecoder, decoder_of
from statestore.spark.registry_options import registry_url

NAME: Final = "transactional_store"
COMMON: Final = frozenset({
    "application_id", "state_dir", "config", "bootstrap_servers", "target", "store", "partition",
    "raw", "typed", "columns", "pipeline", "schema_registry",
})  # fmt: skip
"""The options of every read of a store."""
_OF_CHANGES: Final = COMMON | {
    "changes", "startingoffsets", "maxoffsetspertrigger", "failondataloss",
}  # fmt: skip
_OF_ROWS: Final = COMMON | {
    "as_of", "from_time", "to_time", "changelog", "audit", "export", "splits", "rows_per_split",
}  # fmt: skip
_ROWS_MAX: Final = 1_000_000_000_000
_PARTITION_MAX: Final = 2**31 - 1


class AskedColumns(NamedTuple):
    """Which columns there are, and how keys and values become theirs; it carries no secret.

    `asked`: the names of the columns that were asked for; empty: all.
    """

    arguments: StateArguments
    parts: StoreParts
    raw: bool = False
    typed: bool = True
    pipeline: str | None = None
    asked: tuple[str, ...] = ()
    registry: str | None = None

    def wanted(self, all_of_them: pa.Schema) -> pa.Schema:
        """Return those of the columns that were asked for; Misuse if there is no such column."""
        unknown = [name for name in self.asked if name not in all_of_them.names]
        if unknown:
            raise Misuse(
                f"{NAME}: store {self.parts.view.name!r} has no column {unknown[0]!r}; it has "
                f"{', '.join(all_of_them.names)}"
            )
        twice = [name for name in self.asked if self.asked.count(name) > 1]
        if twice:
            raise Misuse(f"{NAME}: columns names {twice[0]!r} twice: name it once")
        return pa.schema([all_of_them.field(name) for name in self.asked or all_of_them.names])

    def sides(self) -> tuple[ColumnDecoder, ColumnDecoder]:
        """Return how keys and how values become a column."""
        if self.raw:
            return decoder_of(serdes.BYTES), decoder_of(serdes.BYTES)
        key, value = self.serdes()
        return decoder_of(key, typed=self.typed), decoder_of(value, typed=self.typed)

    def serdes(self) -> StoreSerdes:
        """Return the serdes of the keys themselves, and of values."""
        topology = None if self.pipeline is None else load_pipeline(self.pipeline)
        registry = None if self.registry is None else ss.SchemaRegistry(self.registry)
        way_out = f"pass {WAYS_OUT}"
        return self.parts.view.serdes(way_out, topology=topology, registry=registry)


class Plan(NamedTuple):
    """What to read of the rows of a store, and where the settings are found."""

    columns: AskedColumns
    as_of_ms: int | None
    changelog: bool
    times: Times | None = None
    splits: SplitWish | None = None
    """How partitions are split; None: one Spark task reads each."""

    @property
    def view(self) -> StoreView:
        """The store."""
        return self.columns.parts.view

    def schema(self) -> pa.Schema:
        """The columns."""
        key, value = self.columns.sides()
        fields = [("stream_task", pa.string()), ("partition", pa.int32()), ("key", key.type)]
        fields += [(name, TIME) for name in self.view.kind.span_columns]
        return self.columns.wanted(pa.schema([*fields, ("value", value.type)]))


class StreamPlan(NamedTuple):
    """What to read of the changes of a store.

    `starting`: one of `changes.STARTS`. `offsets_max`: about how many offsets a batch has; None:
    all there are. `lossless`: a query fails where changes are gone.
    """

    columns: AskedColumns
    starting: str = STATE
    offsets_max: int | None = None
    lossless: bool = True

    def schema(self) -> pa.Schema:
        """The columns. When a version ends is not known as long as it is the latest."""
        key, value = self.columns.sides()
        kind = self.columns.parts.view.kind
        spans = kind.span_columns[:1] if kind.keeps_history else kind.span_columns
        fields = [("stream_task", pa.string()), ("partition", pa.int32()), ("key", key.type)]
        fields += [*((name, TIME) for name in spans), ("value", value.type)]
        fields += [("change", pa.string()), ("offset", pa.int64()), ("timestamp", TIME)]
        return self.columns.wanted(pa.schema(fields))


def stream_plan_of(options: dict[str, str]) -> StreamPlan:
    """Return what the options of a stream of changes ask for; Misuse names one that is wrong."""
    options = {name.lower(): text for name, text in options.items()}
    if not is_set(options, "changes"):
        raise Misuse(
            f'{NAME}: a stream has the changes of a store: pass .option("changes", "true"), '
            "without which Spark is given the columns of rows"
        )
    arguments = arguments_of(options, _OF_CHANGES)
    starting = options.get("startingoffsets", STATE)
    if starting not in STARTS:
        raise Misuse(f"{NAME}: startingOffsets = {starting!r}: want {', '.join(STARTS)}")
    limit = options.get("maxoffsetspertrigger")
    most = None if limit is None else whole_number(limit)
    if limit is not None and not most:
        raise Misuse(f"{NAME}: maxOffsetsPerTrigger = {limit!r}: want a number above 0")
    parts = logged_parts(Runtime(arguments.settings()), options["store"], _partition(options))
    return StreamPlan(
        columns_of(options, arguments, parts),
        starting,
        most,
        is_set(options, "failondataloss", otherwise="true"),
    )


def plan_of(options: dict[str, str]) -> Plan:
    """Return what the options of a read of rows ask for; Misuse names one that is wrong."""
    arguments = arguments_of(options, _OF_ROWS)
    parts = parts_of(
        Runtime(arguments.settings()), options["store"], _partition(options), options.get("export")
    )
    for name in ("as_of", "from_time", "to_time"):
        if name in options and not parts.view.kind.keeps_history:
            raise Misuse(f"store {parts.view.name!r} keeps no history: leave {name} out")
    as_of_ms, times = _time_ms(options, "as_of"), None
    if "from_time" in options or "to_time" in options:
        if as_of_ms is not None:
            raise Misuse(f"{NAME}: pass as_of, or from_time and to_time, not both")
        times = Times(_time_ms(options, "from_time"), _time_ms(options, "to_time"))
        if times.first_ms is not None and times.last_ms is not None and times > times[::-1]:
            raise Misuse(f"{NAME}: from_time is after to_time: swap them")
    changelog = is_set(options, "changelog")
    return Plan(
        columns_of(options, arguments, parts),
        as_of_ms,
        changelog,
        times,
        _splits(options, whole=changelog or parts.export is not None),
    )


def _splits(options: Mapping[str, str], *, whole: bool) -> SplitWish | None:
    """Return how partitions are split; `whole`: what is read cannot be."""
    given = [name for name in ("splits", "rows_per_split") if name in options]
    if whole and given:
        raise Misuse(
            f"{NAME}: an export or a changelog is read by one Spark task for each partition: "
            f"leave {given[0]} out"
        )
    if len(given) > 1:
        raise Misuse(f"{NAME}: pass splits or rows_per_split, not both")
    if whole:
        return None
    count = _number(options, "splits", COUNT_MAX)
    rows_each = _number(options, "rows_per_split", _ROWS_MAX)
    return None if count == 1 else SplitWish(count, rows_each or ROWS_EACH)


def _number(options: Mapping[str, str], name: str, most: int, least: int = 1) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    found = whole_number(text)
    if found is None or not least <= found <= most:
        raise Misuse(f"{NAME}: {name} = {text!r:.99}: want a whole number from {least} to {most}")
    return found


def _partition(options: Mapping[str, str]) -> int | None:
    return _number(options, "partition", _PARTITION_MAX, least=0)


def arguments_of(options: Mapping[str, str], known: frozenset[str]) -> StateArguments:
    """Return where the settings are found; Misuse if an option is not known, or none is a store."""
    unknown = sorted(set(options) - known)
    if unknown:
        raise Misuse(f"{NAME} has no option {unknown[0]!r}; it has {', '.join(sorted(known))}")
    if not options.get("store"):
        raise Misuse(f'{NAME}: which store? pass .option("store", …)')
    named = {name: options.get(name) for name in ("application_id", "state_dir", "config")}
    named |= {name: options.get(name) for name in ("bootstrap_servers", "target")}
    arguments = parse_state_arguments({**named, "pairs": ()}).for_workers()
    if "schema_registry" in options and "pipeline" in options:
        raise Misuse(f"{NAME}: the pipeline says where its registry is: leave schema_registry out")
    if "pipeline" in options and is_set(options, "raw"):
        raise Misuse(f"{NAME}: raw rows are not decoded: leave pipeline out, or raw")
    return arguments


def columns_of(
    options: Mapping[str, str], arguments: StateArguments, parts: StoreParts
) -> AskedColumns:
    """Return what the options say of the columns."""
    asked = [name.strip() for name in options.get("columns", "").split(",")]
    return AskedColumns(
        arguments,
        parts,
        is_set(options, "raw"),
        is_set(options, "typed", otherwise="true"),
        options.get("pipeline"),
        tuple(name for name in asked if name),
        registry_url(options, NAME),
    )


def is_set(options: Mapping[str, str], name: str, *, otherwise: str = "false") -> bool:
    """Return whether an option is true; Misuse if it is neither true nor false."""
    text = options.get(name, otherwise).lower()
    if text not in {"true", "false"}:
        raise Misuse(f"{NAME}: {name} = {text!r}: want true or false")
    return text == "true"


def _time_ms(options: Mapping[str, str], name: str) -> int | None:
    return to_ms(parse_time(options[name])) if name in options else None
