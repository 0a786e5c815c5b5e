"""The stateless operators: each function here builds a node that turns batches into batches.

A node works on a whole batch in one pass. Keys and values are decoded only where the user's
function needs them (INTERFACE rule 6).
"""

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import length_hint
from typing import Any

from statestore.model.batch import Batch, Column
from statestore.model.modes import EVENT_TIME_MAX_MS, Time, to_ms
from statestore.model.records import Header, Record, T
from statestore.topology.failures import Stage, decoded, failed, findings
from statestore.topology.nodes import Build, Forward, NodeContext, Push

_TEXTS = frozenset({str, bytes})
_SEVERAL_PAIRS = "pairs: return a list of (key, value), or yield them; an empty list for none"
_SEVERAL_VALUES = "values: return a list of them, or yield them; an empty list for none"
_TIME = "a time: return milliseconds since 1970 or an aware datetime"
_HEADERS = "headers: return pairs (name, bytes), or (name, None); an empty list for none"
Transform = Callable[[Batch, Iterator[Any]], T]


def filtered(node: str, predicate: Callable[[Any, Any], object]) -> Build:
    """Build a node that keeps the records for which the predicate holds."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        return batch.where([bool(predicate(key, value)) for key, value in rows])

    return _guarded(node, transform, "key", "value")


def rejected(node: str, predicate: Callable[[Any, Any], object]) -> Build:
    """Build a node that drops the records for which the predicate holds."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        return batch.where([not predicate(key, value) for key, value in rows])

    return _guarded(node, transform, "key", "value")


def mapped_values(node: str, function: Callable[..., Any], *, with_key: bool = False) -> Build:
    """Build a node that gives each record a new value; `with_key`: the function takes the key."""
    if with_key:

        def transform_pairs(batch: Batch, rows: Iterator[Any]) -> Batch:
            return batch.with_columns(values=Column(objects=[function(k, v) for k, v in rows]))

        return _guarded(node, transform_pairs, "key", "value")

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        return batch.with_columns(values=Column(objects=[function(value) for value in rows]))

    return _guarded(node, transform, "value")


def mapped(node: str, function: Callable[[Any, Any], tuple[Any, Any]]) -> Build:
    """Build a node that gives each record a new key and value."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        pairs = [
            made if type(made := function(k, v)) is tuple and len(made) == 2 else _pair(made)
            for k, v in rows
        ]
        return batch.with_columns(
            keys=Column(objects=[key for key, _ in pairs]),
            values=Column(objects=[value for _, value in pairs]),
        )

    return _guarded(node, transform, "key", "value", wanted="a pair: return (key, value)")


def keyed(node: str, function: Callable[[Any, Any], Any]) -> Build:
    """Build a node that gives each record a new key."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        return batch.with_columns(keys=Column(objects=[function(key, v) for key, v in rows]))

    return _guarded(node, transform, "key", "value")


def flattened(node: str, function: Callable[[Any, Any], Iterable[tuple[Any, Any]]]) -> Build:
    """Build a node that makes any number of records from each record."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        made = [(i, key, new) for i, (k, v) in enumerate(rows) for key, new in function(k, v)]
        return batch.take([i for i, _, _ in made]).with_columns(
            keys=Column(objects=[key for _, key, _ in made]),
            values=Column(objects=[value for _, _, value in made]),
        )

    return _guarded(node, transform, "key", "value", wanted=_SEVERAL_PAIRS)


def flattened_values(
    node: str, function: Callable[..., Iterable[Any]], *, with_key: bool = False
) -> Build:
    """Build a node that makes any number of records from each record, with the same key.

    `with_key`: the function takes the key before the value.
    """

    def of_pair(pair: tuple[Any, Any]) -> Iterable[Any]:
        return function(*pair)

    call = of_pair if with_key else function

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        made = [
            (i, new)
            for i, old in enumerate(rows)
            for found in (call(old),)
            for new in (found if type(found) not in _TEXTS else _values(found))
        ]
        spread = batch.take([i for i, _ in made])
        return spread.with_columns(values=Column(objects=[value for _, value in made]))

    sides = ("key", "value") if with_key else ("value",)
    return _guarded(node, transform, *sides, wanted=_SEVERAL_VALUES)


def peeked(node: str, function: Callable[[Any, Any], object]) -> Build:
    """Build a node that shows each record to the function and hands it on unchanged."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        for key, value in rows:
            function(key, value)
        return batch

    return _guarded(node, transform, "key", "value")


def filtered_records(node: str, predicate: Callable[[Record[Any, Any]], object]) -> Build:
    """Build a node that keeps the records for which the predicate of a record holds."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        return batch.where([bool(predicate(one)) for one in _records(batch, rows)])

    return _guarded(node, transform, "key", "value")


def retimed(node: str, function: Callable[[Record[Any, Any]], Time]) -> Build:
    """Build a node that gives each record a new time."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        times = [_time_ms(function(record)) for record in _records(batch, rows)]
        return batch.with_columns(timestamps=times)

    build_transform = _guarded(node, transform, "key", "value", wanted=_TIME)

    def build(context: NodeContext, forward: Forward) -> Push:
        context.sets_times(node)
        return build_transform(context, forward)

    return build


def reheaded(node: str, function: Callable[[Record[Any, Any]], Iterable[Header]]) -> Build:
    """Build a node that gives each record new headers."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        made = [_headers(function(record)) for record in _records(batch, rows)]
        return replace(batch, headers=made if any(made) else None)

    return _guarded(node, transform, "key", "value", wanted=_HEADERS)


def passed() -> Build:
    """Build a node that hands batches on unchanged, as merges do."""
    return lambda _context, forward: lambda batch: forward(batch, None)


def branched(
    node: str, predicates: Sequence[Callable[[Any, Any], object]], children: Sequence[str | None]
) -> Build:
    """Build a node that gives each record to the first child whose predicate holds, or the last.

    The last child is None if records for which no predicate holds are dropped.
    """

    def choose(_batch: Batch, rows: Iterator[Any]) -> list[list[int]]:
        chosen: list[list[int]] = [[] for _ in children]
        for i, (key, value) in enumerate(rows):
            hit = (n for n, holds in enumerate(predicates) if holds(key, value))
            chosen[next(hit, len(predicates))].append(i)
        return chosen

    def build(_context: NodeContext, forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            chosen = _transformed(node, batch, choose, ("key", "value"))
            hand_out(batch, zip(children, chosen, strict=True), forward)

        return push

    return build


def routed(
    node: str, choose: Callable[[Record[Any, Any]], str], children: Mapping[str, str]
) -> Build:
    """Build a node that gives each record to the child of the topic that `choose` returns."""

    def by_child(batch: Batch, rows: Iterator[Any]) -> dict[str, list[int]]:
        chosen: dict[str, list[int]] = {child: [] for child in children.values()}
        for i, record in enumerate(_records(batch, rows)):
            topic = choose(record)
            if topic not in children:
                raise ValueError(
                    f"the function of to() returned {topic!r}, which topics= does not name; it "
                    f"names {', '.join(children)}"
                )
            chosen[children[topic]].append(i)
        return chosen

    def build(_context: NodeContext, forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            chosen = _transformed(node, batch, by_child, ("key", "value"))
            hand_out(batch, chosen.items(), forward)

        return push

    return build


def hand_out(
    batch: Batch, chosen: Iterable[tuple[str | None, list[int]]], forward: Forward
) -> None:
    """Give each child the records at its places; those for None are dropped."""
    for child, indices in chosen:
        if indices and child is not None:
            forward(batch.take(indices), child)


def _guarded(node: str, transform: Transform[Batch], *sides: str, wanted: str = "") -> Build:
    """Build a node whose `transform` gets the batch and its rows, decoded on these `sides`.

    `wanted`: what the user's function must return, if anything else is an error.
    """

    def build(_context: NodeContext, forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            out = _transformed(node, batch, transform, sides, wanted)
            if len(out):
                forward(out, None)

        return push

    return build


def _transformed(
    node: str, batch: Batch, transform: Transform[T], sides: Sequence[str], wanted: str = ""
) -> T:
    first, *others = (decoded(node, batch, side) for side in sides)
    # A list's iterator knows how many rows are left, which tells for which row a function raised.
    ahead = iter(first)
    try:
        return transform(batch, zip(ahead, *others, strict=True) if others else ahead)
    except Exception as error:

        def again(place: int) -> None:
            row = tuple(column[place] for column in (first, *others))
            transform(batch.slice(place, place + 1), iter([row if others else row[0]]))

        place = len(batch) - length_hint(ahead) - 1
        # Earlier rows are not tried again, because a function may have changed what it was given.
        later = findings(range(place + 1, len(batch)), again)
        found = [(i, _explained(cause, wanted)) for i, cause in ((place, error), *later)]
        raise failed(Stage.PROCESSING, node, batch, error, found=found, certain=True) from error


def _explained(error: Exception, wanted: str) -> Exception:
    """The error, or what was wanted if not the user's function raised but what it returned."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not wanted or trace is None or trace.tb_frame.f_code.co_filename != __file__:
        return error
    told = TypeError(f"the function did not return {wanted} ({error})")
    told.__cause__ = error
    return told


def _pair(made: Any) -> tuple[Any, Any]:
    """A pair that is not a plain tuple; TypeError if it is none at all."""
    if not isinstance(made, list | tuple):
        raise TypeError(f"it returned {_shown(made)}")
    if len(made) != 2:
        raise TypeError(f"it returned a {type(made).__name__} of {len(made)} items")
    key, value = made
    return key, value


def _records(batch: Batch, rows: Iterator[Any]) -> Iterator[Record[Any, Any]]:
    """Yield the records of a batch, each as its row is taken."""
    for record, _ in zip(batch.records(), rows, strict=True):
        yield record


def _time_ms(made: Any) -> int:
    aware = isinstance(made, datetime) and made.tzinfo is not None
    time = to_ms(made) if aware else made
    if type(time) is not int or not 0 <= time <= EVENT_TIME_MAX_MS:
        raise TypeError(f"it returned {_shown(made)}")
    return time


def _headers(made: Any) -> tuple[Header, ...]:
    headers = tuple(made) if type(made) not in _TEXTS else _values(made)
    for header in headers:
        match header:
            case (str(), bytes() | None):
                continue
        raise TypeError(f"it returned the header {reprlib.repr(header)}")
    return tuple((name, value) for name, value in headers)


def _values(made: Any) -> Iterable[Any]:
    """TypeError for a text, which would be taken apart character by character."""
    raise TypeError(f"it returned {_shown(made)}")


def _shown(made: Any) -> str:
    return "None" if made is None else f"{reprlib.repr(made)}, which is {type(made).__name__}"
