"""What a node says of a record it cannot take: at which stage, why, and which record it was.

Built where the failure is met, judged by the stream task (tasks/poison.py), which alone knows the
handlers (SEMANTICS E9). Which record of a batch it was is found out only once one has failed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

from statestore.errors import RecordFailed, SerdeMismatch, StateStoreError
from statestore.model.batch import Batch, Column
from statestore.model.records import Serde
from statestore.stores import serdes
from statestore.topology.graph import NodeContext

# What these say is about a record; any other error of ours is about the pipeline or the world: a
# topic that is not there takes no record, whichever it is.
_ABOUT_A_RECORD = (SerdeMismatch, RecordFailed)


class Stage(StrEnum):
    """What was being done to a record; each stage has its handler."""

    DESERIALIZATION = "deserialization"
    PROCESSING = "processing"
    PRODUCTION = "production"


class Culprit(NamedTuple):
    """A record by its input offset, and what it made a node raise."""

    offset: int
    cause: Exception


class NodeFailed(Exception):
    """A node cannot take some record of a batch.

    `culprits` are those known, none: it may be any. `certain`: the node looks at each record by
    itself, so if no node before it has a store, each fails whatever the others do; else an earlier
    record may be to blame, and the suspects have to be tried alone.
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
    ) -> None:
        """`place`: what failed, for messages; `node`: its name if it is a node."""
        self.stage = stage
        self.place = place
        self.node = node
        self.cause = cause
        self.culprits = culprits
        self.certain = certain
        super().__init__(str(self.error(where, cause)))

    def error(self, where: str, cause: Exception) -> StateStoreError:
        """What a run ends with that passes over no record; `where` says which one it was."""
        place = f"{self.place}, {where}"
        for kind in _ABOUT_A_RECORD:
            if isinstance(cause, kind):
                return kind(f"{place}: {cause}")
        doing = "cannot decode: " if self.stage is Stage.DESERIALIZATION else ""
        return RecordFailed(
            f"{place}: {doing}{type(cause).__name__}: {cause}; correct the record or the pipeline, "
            f"then start again, or let {self.stage}.exception.handler pass over such records"
        )


def failed(
    stage: Stage,
    node: str,
    batch: Batch,
    error: Exception,
    *,
    found: Sequence[tuple[int, Exception]] = (),
    certain: bool = False,
) -> Exception:
    """The error to raise for one met in a node; ours that are not about a record stay as they are.

    `found`: indices of the records that failed, and what each raised.
    """
    if isinstance(error, StateStoreError) and not isinstance(error, _ABOUT_A_RECORD):
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
    )


@contextmanager
def punctuating(node: str, time_ms: int) -> Iterator[None]:
    """What a user's function raises that runs by time becomes NodeFailed."""
    try:
        yield
    except NodeFailed:
        raise
    except Exception as error:
        if isinstance(error, StateStoreError) and not isinstance(error, _ABOUT_A_RECORD):
            raise
        where = f"punctuation at {time_ms}"
        made = NodeFailed(Stage.PROCESSING, f"node {node}", error, node=node, where=where)
        raise made from error


@contextmanager
def processing(node: str, batch: Batch) -> Iterator[None]:
    """What a user's function raises inside becomes NodeFailed: some record of the batch did it."""
    try:
        yield
    except NodeFailed:
        raise
    except Exception as error:
        raise failed(Stage.PROCESSING, node, batch, error) from error


def one_by_one(
    stage: Stage, node: str, batch: Batch, error: Exception, attempt: Callable[[Batch], object]
) -> Exception:
    """The error for a batch that failed in `attempt`, which looks at each record by itself."""
    found: list[tuple[int, Exception]] = []
    for i in range(len(batch)):
        try:
            attempt(batch.slice(i, i + 1))
        except Exception as cause:  # noqa: BLE001  # whatever a user's code raises is the finding
            found.append((i, cause))
    return failed(stage, node, batch, error, found=found, certain=True)


def decoded(node: str, batch: Batch, side: str) -> list[Any]:
    """The keys or values (`side`) of a batch; NodeFailed names those that cannot be decoded."""
    try:
        return _column(batch, side).objects
    except Exception as error:
        raise one_by_one(
            Stage.DESERIALIZATION, node, batch, error, lambda one: _column(one, side).objects
        ) from error


def encoded(
    node: str,
    batch: Batch,
    side: str,
    serde: Serde[Any],
    stage: Stage = Stage.PROCESSING,
    *,
    told_to: str = "",
) -> list[bytes | None]:
    """The keys or values (`side`) of a batch under a serde; NodeFailed names those unfit.

    `told_to`: what takes the serde, where it is not the node itself.
    """
    try:
        return _column(batch, side).encoded(serde)
    except Exception as error:
        decoded(node, batch, side)
        raise one_by_one(
            stage, node, batch, error, lambda one: _encoded_one(one, side, serde, told_to)
        ) from error


def keyed(
    context: NodeContext, node: str, batch: Batch, serde: Serde[Any]
) -> tuple[Batch, list[bytes]]:
    """The records that have a key, and their keys under `serde`; the others are dropped."""
    found = encoded(node, batch, "key", serde)
    keys = [key for key in found if key is not None]
    if len(keys) < len(found):
        context.drop(node, batch, [i for i, key in enumerate(found) if key is None], "null_key")
        batch = batch.take([i for i, key in enumerate(found) if key is not None])
    return batch, keys


def mismatch(
    side: str, value: object, serde: Serde[Any], error: Exception, told_to: str = ""
) -> SerdeMismatch:
    """The cause for a key or value that does not fit its serde (INTERFACE rule 3)."""
    keyword = f"{side}_serde"
    return serdes.mismatch(
        where="", side=side, value=value, serde=serde, keyword=keyword, cause=error, told_to=told_to
    )


def _encoded_one(one: Batch, side: str, serde: Serde[Any], told_to: str) -> None:
    column = _column(one, side)
    try:
        column.encoded(serde)
    except Exception as error:
        raise mismatch(side, column.objects[0], serde, error, told_to) from error


def _column(batch: Batch, side: str) -> Column:
    return batch.keys if side == "key" else batch.values


def _where(batch: Batch, culprits: tuple[Culprit, ...]) -> str:
    if not batch.topic or batch.offsets is None:
        return "records made by an operator"
    first, last = batch.offsets[0], batch.offsets[-1]
    if culprits or first == last:
        return f"{batch.topic}-{batch.partition} offset {culprits[0].offset if culprits else first}"
    return f"{batch.topic}-{batch.partition} offsets {first} to {last}"
