"""Operators as text tables: one input record a row on the left, what comes out on the right.

A record is `[topic:]key value time`, several with `;` between them, `-` is null. The topic is `in`
on the left and `out` on the right unless named. Topics carry the case's name before them, so all
cases make one topology too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

import statestore as ss
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.ktables import KTable
from statestore.topology.dsl.streams import KStream
from tests.builders import table_rows


class Seen(NamedTuple):
    """A record of a topic, as a table writes it."""

    topic: str
    key: Any
    value: Any
    timestamp_ms: int


class Case:
    """The topics of one case, and the builder all share."""

    def __init__(self, builder: StreamsBuilder, name: str, prefix: str = "") -> None:
        self.builder = builder
        self.name = f"{prefix}{name}"

    def stream(self, topic: str = "in", **options: Any) -> KStream[Any, Any]:
        return self.builder.stream(self.of(topic), **options)

    def table(self, topic: str) -> KTable[Any, Any]:
        kept = ss.Materialized(self.of(topic), caching=False)
        return self.builder.table(self.of(topic), materialized=kept)

    def kept(self, store: str = "kept") -> ss.Materialized:
        """A store of its own, every update emitted."""
        return ss.Materialized(self.of(store), caching=False)

    def out(self, stream: KStream[Any, Any], topic: str = "out") -> None:
        stream.to(self.of(topic))

    def of(self, thing: str) -> str:
        return f"{self.name}.{thing}"


@dataclass(frozen=True)
class Table:
    """A case: what it builds, and its rows.

    `races`: where records come at once, only what is there in the end is certain.
    """

    build: Callable[[Case], None]
    text: str
    races: bool = False

    def rows(self) -> list[tuple[Seen, list[Seen]]]:
        parsed = table_rows(self.text)
        return [(_record(left, "in"), list(_records(right))) for left, right in parsed]


Register = Callable[[Callable[[Case], None]], Callable[[Case], None]]


def collection(*, races: bool = False) -> tuple[dict[str, Table], Callable[[str], Register]]:
    """The cases of a module by name, and what makes one of a table and the function below it."""
    cases: dict[str, Table] = {}

    def case(text: str) -> Register:
        def register(build: Callable[[Case], None]) -> Callable[[Case], None]:
            cases[build.__name__.strip("_").replace("_", "-")] = Table(build, text, races)
            return build

        return register

    return cases, case


def by_key(
    records: Iterable[Seen], *, races: bool = False
) -> dict[tuple[str, Any], list[tuple[Any, int]]]:
    """What each key of each topic showed, in order: what does not depend on partitions.

    With `races`, the last row of each key, if it was not deleted.
    """
    found: dict[tuple[str, Any], list[tuple[Any, int]]] = defaultdict(list)
    for seen in records:
        found[(seen.topic, seen.key)].append((seen.value, seen.timestamp_ms))
    if races:
        return {key: rows[-1:] for key, rows in found.items() if rows[-1][0] is not None}
    return dict(found)


def _records(cell: str) -> Iterable[Seen]:
    return [_record(text, "out") for text in cell.split(";") if text.strip()]


def _record(text: str, topic: str) -> Seen:
    key, value, time = text.split()
    head, colon, tail = key.partition(":")
    if colon:
        topic, key = head, tail
    return Seen(topic, None if key == "-" else key, _value(value), int(time))


def _value(text: str) -> Any:
    if text == "-":
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def shown(key: Any, since_ms: int = 0) -> str | None:
    """A key as the tables write it: `a@10-20` for one in a window, counted from `since_ms`."""
    if isinstance(key, ss.Windowed):
        return f"{key.key}@{key.start_ms - since_ms}-{key.end_ms - since_ms}"
    return None if key is None else str(key)
