"""What somebody is told who calls a method that a stream or table does not have.

A KStream cannot be counted before it is grouped, and a KTable cannot be written before it is a
stream. Names that only Kafka Streams or Quix Streams have lead to what does the same here. Type
checkers say that a method is missing; this says what to call. They do not see it, so they go on
refusing such calls.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

C = TypeVar("C")

_GROUP = "group the records first: group_by_key(), or group_by(function)"
_AGGREGATE = "aggregate the groups first: count(), reduce(…) or aggregate(…) gives a table"
_STREAM = "make a stream of the table first: to_stream()"
_PROCESS_VALUES = "call process_values(factory)"
_WINDOWS = "call group_by_key().windowed_by(windows)"
_VALUES = "call map_values(function) with one that returns a new dict"
_NAMED = "call aggregate(…) with an aggregate of ss.agg, or reduce(function, store)"
OF_STREAMS = {
    "count": _GROUP,
    "reduce": _GROUP,
    "aggregate": _GROUP,
    "windowed_by": _GROUP,
    "to_stream": "it is a stream already",
    "for_each": "call foreach(function)",
    "print": "call peek(print)",
    "flat_transform": "call process(factory)",
    "transform": "call process(factory)",
    **dict.fromkeys(("transform_values", "flat_transform_values"), _PROCESS_VALUES),
    "through": "call repartition(name), or to(topic) and StreamsBuilder.stream(topic)",
    "apply": "call map_values(function), or flat_map_values(function) for expand=True",
    "update": "call map_values(function), or peek(function) to look only",
    **dict.fromkeys(("drop", "fill"), _VALUES),
    "contains": "call filter(function)",
    "to_topic": "call to(topic)",
    "sink": "write to a topic with to(topic)",
    "print_table": "call peek(print)",
    "concat": "call merge(stream)",
    "join_asof": "call join(table, function) with a table that keeps its history",
    "join_interval": "call join(stream, function, windows)",
    "join_lookup": "call join(table, function, key=selector) with StreamsBuilder.lookup(url) or "
    "global_table(topic)",
    **dict.fromkeys(("tumbling_window", "hopping_window", "sliding_window"), _WINDOWS),
    **dict.fromkeys(("tumbling_count_window", "sliding_count_window"), _WINDOWS),
    "hopping_count_window": _WINDOWS,
}
OF_TABLES = {
    **dict.fromkeys(("to", "map", "flat_map", "flat_map_values", "peek"), _STREAM),
    **dict.fromkeys(("select_key", "process", "process_batch", "merge", "branch"), _STREAM),
    **dict.fromkeys(
        ("count", "reduce", "aggregate"),
        "group the rows first: group_by(function); or the updates: to_stream().group_by_key()",
    ),
    **dict.fromkeys(("group_by_key", "windowed_by"), f"{_STREAM}, then group its records"),
    "to_table": "it is a table already",
    "transform_values": f"{_STREAM}, then process_values(factory) and to_table(store)",
    "process_values": _STREAM,
    "queryable_store_name": "read its attribute store",
}
OF_GLOBAL_TABLES = dict.fromkeys(
    ("to_stream", "filter", "map_values", "join", "left_join", "outer_join", "group_by", "to"),
    "a global table is only looked up: stream.join(table, function, key=selector); "
    "StreamsBuilder.table(topic) has updates",
)
OF_GROUPS = {
    **dict.fromkeys(
        ("to", "to_stream", "map", "map_values", "filter", "peek", "join", "left_join", "process"),
        _AGGREGATE,
    ),
    **dict.fromkeys(("sum", "mean", "min", "max", "agg", "collect", "first", "last"), _NAMED),
    **dict.fromkeys(
        ("emit_strategy", "final"), "call windowed_by(windows, emit='on_window_close')"
    ),
    "current": "results are told as they change by default",
}
OF_BUILDERS = {
    "add_state_store": "pass the store's spec to process(factory, spec)",
    "add_global_store": "call global_table(topic), which processors may read",
    "add_read_only_state_store": "call table(topic)",
    "dataframe": "call stream(topic)",
    "topic": "call stream(topic, value_serde=serde), or to(topic) of a stream",
    "run": "call build(), and pass what it returns to ss.run(topology, settings)",
}
OF_TOPOLOGIES = {
    "add_source": "call stream(topic) of a StreamsBuilder",
    "add_sink": "call to(topic) of a stream",
    "add_processor": "call process(factory) of a stream",
    "add_state_store": OF_BUILDERS["add_state_store"],
    "add_global_store": "call global_table(topic) of a StreamsBuilder",
    "connect_processor_and_state_stores": OF_BUILDERS["add_state_store"],
}
OF_CONTEXTS = {
    "get_state_store": "call store(spec)",
    "current_stream_time_ms": "read its attribute stream_time",
    "current_system_time_ms": "call wall_clock_ms()",
    "record_metadata": "a record has topic, partition and offset",
    "headers": "a record has headers",
    "timestamp": "a record has timestamp_ms",
}
OF_DRIVERS = {
    "create_input_topic": "call pipe(topic, key, value, timestamp_ms)",
    "pipe_input": "call pipe(topic, key, value, timestamp_ms)",
    "create_output_topic": "call read(topic)",
    "advance_wall_clock_time": "call advance_wall_clock(span)",
    "pipe_key_value_list": "call pipe_all(topic, records)",
    **dict.fromkeys(("read_key_values_to_map", "read_record", "read_value"), "call read(topic)"),
    **dict.fromkeys(
        ("get_state_store", "get_key_value_store", "get_timestamped_key_value_store"),
        "call store(spec)",
    ),
    **dict.fromkeys(
        ("get_window_store", "get_session_store", "get_versioned_key_value_store"),
        "call store(spec)",
    ),
}


def explains(hints: Mapping[str, str]) -> Callable[[type[C]], type[C]]:
    """Decorate a class so that an AttributeError of its objects says what to call instead."""

    def decorate(kind: type[C]) -> type[C]:
        def missing(self: Any, name: str) -> Any:
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_"):
                said += way_out(dir(type(self)), name, hints)
            raise AttributeError(said, name=name, obj=self)

        changed: Any = kind
        changed.__getattr__ = missing
        return kind

    return decorate


def way_out(names: Iterable[str], name: str, hints: Mapping[str, str]) -> str:
    """Return what to say of a name that is missing among others: what to use instead."""
    spelt = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for one in (name, spelt):
        if one in hints:
            return f": {hints[one]}"
    known = [one for one in names if not one.startswith("_")]
    near = [spelt] if spelt in known else difflib.get_close_matches(spelt, known, n=1)
    return f": did you mean {near[0]}()?" if near else f": it has {', '.join(known)}"
