"""What somebody is told who calls a method that a stream or table does not have.

A KStream cannot be counted before it is grouped, and a KTable cannot be written before it is a
stream. Type checkers say that a method is missing; this says what to call first. They do not see
it, so they go on refusing such calls.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

C = TypeVar("C")

_GROUP = "group the records first: group_by_key(), or group_by(function)"
_AGGREGATE = "aggregate the groups first: count(), reduce(…) or aggregate(…) gives a table"
_STREAM = "make a stream of the table first: to_stream()"
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
    "transform_values": "call process_values(factory)",
    "through": "call repartition(name), or to(topic) and StreamsBuilder.stream(topic)",
    "split": "call branch(predicate, …)",
    "apply": "call map_values(function)",
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
}
OF_GLOBAL_TABLES = dict.fromkeys(
    ("to_stream", "filter", "map_values", "join", "left_join", "outer_join", "group_by", "to"),
    "a global table is only looked up: stream.join(table, function, key=selector); "
    "StreamsBuilder.table(topic) has updates",
)
OF_GROUPS = dict.fromkeys(
    ("to", "to_stream", "map", "map_values", "filter", "peek", "join", "left_join", "process"),
    _AGGREGATE,
)


def explains(hints: Mapping[str, str]) -> Callable[[type[C]], type[C]]:
    """Decorate a class so that an AttributeError of its objects says what to call instead."""

    def decorate(kind: type[C]) -> type[C]:
        def missing(self: Any, name: str) -> Any:
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_"):
                said += _way_out(type(self), name, hints)
            raise AttributeError(said, name=name, obj=self)

        changed: Any = kind
        changed.__getattr__ = missing
        return kind

    return decorate


def _way_out(kind: type, name: str, hints: Mapping[str, str]) -> str:
    spelt = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if spelt in hints:
        return f": {hints[spelt]}"
    known = [one for one in dir(kind) if not one.startswith("_")]
    near = [spelt] if spelt in known else difflib.get_close_matches(spelt, known, n=1)
    return f": did you mean {near[0]}()?" if near else f": it has {', '.join(known)}"
