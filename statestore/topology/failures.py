"""What a node raises for a record that it cannot take: stage, cause, and which record it is.

The node that meets a failure describes it, and the stream task decides about it (tasks/poison.py),
because only the task knows the handlers (SEMANTICS E9). Which record of a batch it was is found out
only after the batch has failed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from operator import length_hint
from typing import Any, NamedTuple

from statestore import serdes
from statestore.errors import (
    ABOUT_A_RECORD,
    RecordFailed,
    SerdeMismatch,
    StateStoreError,
    user_line,
)
from statestore.model.batch import Batch, Column
from statestore.model.records import ArrowForm, Header, Serde, SerdeContext, Side, T
from statestore.topology.nodes import NodeContext

Finding = tuple[int, Exception]
"""The index of a record in its batch, and what was raised for it."""


class Stage(StrEnum):
    """What was being done to a record when it failed; each stage has its own handler."""

    DESERIALIZATION = "deserialization"
    PROCESSING = "processing"
    PRODUCTION = "production"


class Culprit(NamedTuple):
    """A record, by its input offset, and the exception that a node raised for it."""

    offset: int
    cause: Exception


class NodeFailed(Exception):
    """A node cannot take some record of a batch.

    `culprits` are the records known to have failed; if there are none, it may be any record of the
    batch. `certain`: the node takes each record by itself, so each culprit fails whatever the other
    records do, provided that no node before it has a store. Otherwise an earlier record may be the
    cause, and the suspects have to be tried one by one.
    """

    def __init__(
        self,
        stage: Stage,
        place: str,
        cause: Exception,
        *,
        node: str = "",
        where: str,
        culprits: tuple[Culprit, ...] = (),
        certain: bool = False,
        reading: str = "",
    ) -> None:
        """`place` says in messages what failed; `node` is its name if it is a node.

        `reading`: what was decoded, as which serde.
        """
        self.stage = stage
        self.reading = reading
        self.place = place
        self.node = node
        self.cause = cause
        self.culprits = culprits
        self.certain = certain
        super().__init__(str(self.error(where, cause)))

    def error(self, where: str, cause: Exception) -> StateStoreError:
        """Return the error with which a run ends; `where` says which record it was."""
        told = f"{self.place}, {where}: {self.reason(cause)}{user_line(cause)}"
        for kind in ABOUT_A_RECORD:
            if isinstance(cause, kind):
                return kind(told)
        return RecordFailed(
            f"{told}; correct the record or the pipeline, then start again, or let "
            f"{self.stage}.exception.handler pass over such records"
        )

    def reason(self, cause: Exception) -> str:
        """What happened, without place or way out."""
        if isinstance(cause, ABOUT_A_RECORD):
            return str(cause)
        doing = ""
        if self.stage is Stage.DESERIALIZATION:
            doing = f"cannot decode {self.reading}: " if self.reading else "cannot decode: "
        return f"{doing}{type(cause).__name__}: {cause}"


def failed(
    stage: Stage,
    node: str,
    batch: Batch,
    error: Exception,
    *,
    found: Sequence[Finding] = (),
    certain: bool = False,
    reading: str = "",
) -> Exception:
    """Return the error to raise for an exception in a node.

    An error of this library that is not about a record stays as it is. `found` has the indices of
    the records that failed, and the exception of each. `reading`: see NodeFailed.
    """
    if isinstance(error, StateStoreError) and not isinstance(error, ABOUT_A_RECORD):
        return error
    offsets = batch.offsets
    culprits = () if offsets is None else tuple(Culprit(offsets[i], e) for i, e in found)
    cause = found[0][1] if found else error
    where = _where(batch, culprits)
    return NodeFailed(
        stage,
        f"node {node}",
        cause,
        node=node,
        where=where,
        culprits=culprits,
        certain=certain and bool(culprits),
        reading=reading,
    )


def failed_at(node: str, batch: Batch, place: int, error: Exception) -> Exception:
    """Return the error to raise for an exception that the record at `place` has caused."""
    return failed(Stage.PROCESSING, node, batch, error, found=[(place, error)])


def each(
    node: str,
    batch: Batch,
    rows: Sequence[Any],
    call: Callable[[Iterator[Any]], T],
    *,
    place_of: Callable[[int], int] | None = None,
    stage: Stage = Stage.PROCESSING,
    certain: bool = False,
) -> T:
    """Return what `call` makes of rows, which it takes one after another from an iterator.

    If it raises, NodeFailed names the record of the row that it took last. `place_of(n)` is the
    index of the record of row n; None: the rows are those of the batch. `certain`: see NodeFailed.

    The iterator of a list knows how many rows are left. So nothing has to be noted for each row,
    and it must be the first argument if `call` zips it.
    """
    ahead = iter(rows)
    try:
        return call(ahead)
    except NodeFailed:
        raise
    except Exception as error:
        row = len(rows) - length_hint(ahead) - 1
        found = [(row if place_of is None else place_of(row), error)]
        raise failed(stage, node, batch, error, found=found, certain=certain) from error


def findings(places: Iterable[int], attempt: Callable[[int], object]) -> Iterator[Finding]:
    """Yield each place for which `attempt` raises, where no record depends on another one."""
    for place in places:
        try:
            attempt(place)
        except Exception as cause:  # noqa: BLE001  # any exception of a user's code is a finding
            yield place, cause


@contextmanager
def punctuating(node: str, time_ms: int) -> Iterator[None]:
    """Turn what a user's punctuation raises into NodeFailed."""
    try:
        yield
    except NodeFailed:
        raise
    except Exception as error:
        if isinstance(error, StateStoreError) and not isinstance(error, ABOUT_A_RECORD):
            raise
        where = f"punctuation at {time_ms}"
        made = NodeFailed(Stage.PROCESSING, f"node {node}", error, node=node, where=where)
        raise made from error


def timer_failed(node: str, error: Exception) -> NodeFailed:
    """Return the error for what a processor did when its timers fired."""
    return NodeFailed(Stage.PROCESSING, f"node {node}", error, node=node, where="at its timers")


@contextmanager
def processing(node: str, batch: Batch) -> Iterator[None]:
    """Turn what a user's function raises into NodeFailed for some record of the batch."""
    try:
        yield
    except NodeFailed:
        raise
    except Exception as error:
        raise failed(Stage.PROCESSING, node, batch, error) from error


def decoded(node: str, batch: Batch, side: str) -> list[Any]:
    """Return the decoded keys or values (`side`) of a batch; NodeFailed if some do not decode."""
    column = _column(batch, side)
    try:
        return column.objects
    except Exception as error:
        raise _one_by_one(
            Stage.DESERIALIZATION,
            node,
            batch,
            error,
            lambda one: _column(one, side).objects,
            f"the {side} as {column.serde_name}",
        ) from error


class InArrow(NamedTuple):
    """A serde, and how it reads and writes whole columns."""

    serde: Serde[Any]
    form: ArrowForm


def decoded_in_arrow(node: str, batch: Batch, side: Side, how: InArrow) -> Any:
    """Return the keys or values (`side`) of a batch in Arrow; NodeFailed if some do not decode."""
    serde, form = how
    try:
        return _column(batch, side).arrow(serde, form)
    except Exception as error:
        encoded(node, batch, side, serde)  # Values that an operator made may not fit.
        raise _one_by_one(
            Stage.DESERIALIZATION,
            node,
            batch,
            error,
            lambda one: _column(one, side).arrow(serde, form),
            f"the {side} as {serde.name}",
        ) from error


def encoded(
    node: str,
    batch: Batch,
    side: str,
    serde: Serde[Any],
    stage: Stage = Stage.PROCESSING,
    *,
    taker: str = "",
) -> list[bytes | None]:
    """Return the keys or values (`side`) of a batch as bytes; NodeFailed if some do not fit.

    `taker` says in messages what takes the serde, where that is not the node itself.
    """
    try:
        return _column(batch, side).encoded(serde)
    except Exception as error:
        decoded(node, batch, side)
        raise _one_by_one(
            stage, node, batch, error, lambda one: _encoded_one(one, side, serde, taker)
        ) from error


def encoded_for(
    topic: str,
    headers: Sequence[list[Header]],
    node: str,
    batch: Batch,
    side: Side,
    serde: Serde[Any],
    *,
    taker: str,
) -> list[bytes | None]:
    """Return what `encoded` does for a sink whose serde sees the topic and each record's headers.

    The serde may add to the headers.
    """
    values = decoded(node, batch, side)
    made: list[bytes | None] = []

    def write(place: int) -> None:
        value, context = values[place], SerdeContext(topic, side, headers[place])
        try:
            made.append(None if value is None else serde.write(value, context))
        except Exception as error:
            raise mismatch(side, value, serde, error, taker) from error

    if found := list(findings(range(len(values)), write)):
        raise failed(Stage.PRODUCTION, node, batch, found[0][1], found=found, certain=True)
    return made


def keyed(
    context: NodeContext, node: str, batch: Batch, serde: Serde[Any]
) -> tuple[Batch, list[bytes]]:
    """Return the records that have a key, and their keys as bytes; drop the others."""
    found = encoded(node, batch, "key", serde)
    keys = [key for key in found if key is not None]
    if len(keys) < len(found):
        context.drop(node, batch, [i for i, key in enumerate(found) if key is None], "null_key")
        batch = batch.take([i for i, key in enumerate(found) if key is not None])
    return batch, keys


def mismatch(
    side: str, value: object, serde: Serde[Any], error: Exception, taker: str = ""
) -> SerdeMismatch:
    """Return the error for a key or value that does not fit its serde (INTERFACE rule 3)."""
    keyword = f"{side}_serde"
    return serdes.mismatch(
        where="", side=side, value=value, serde=serde, keyword=keyword, cause=error, taker=taker
    )


def made_by(node: str, batch: Batch, place: int, value: Any, serde: Serde[Any]) -> bytes:
    """Return the stored form of a value; a failure names the record at `place`, which made it."""
    try:
        return serde.serialize(value)
    except Exception as error:
        wrong = mismatch("value", value, serde, error)
        raise failed_at(node, batch, place, wrong) from error


def _one_by_one(
    stage: Stage,
    node: str,
    batch: Batch,
    error: Exception,
    attempt: Callable[[Batch], object],
    reading: str = "",
) -> Exception:
    """Return the error for a batch that failed in `attempt`, which takes each record by itself."""
    found: list[Finding] = []
    for place, cause in findings(range(len(batch)), lambda i: attempt(batch.slice(i, i + 1))):
        if isinstance(cause, StateStoreError) and not isinstance(cause, ABOUT_A_RECORD):
            return cause
        found.append((place, cause))
    return failed(stage, node, batch, error, found=found, certain=True, reading=reading)


def _encoded_one(one: Batch, side: str, serde: Serde[Any], taker: str) -> None:
    column = _column(one, side)
    try:
        column.encoded(serde)
    except Exception as error:
        raise mismatch(side, column.objects[0], serde, error, taker) from error


def _column(batch: Batch, side: str) -> Column:
    return batch.keys if side == "key" else batch.values


def _where(batch: Batch, culprits: tuple[Culprit, ...]) -> str:
    if not batch.topic or batch.offsets is None:
        return "records made by an operator"
    first, last = batch.offsets[0], batch.offsets[-1]
    if culprits or first == last:
        return f"{batch.topic}-{batch.partition} offset {culprits[0].offset if culprits else first}"
    return f"{batch.topic}-{batch.partition} offsets {first} to {last}"
