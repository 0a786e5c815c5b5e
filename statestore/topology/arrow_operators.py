"""Operators whose functions take whole columns of a batch as Arrow arrays.

Rows are decoded before a function is called, and what it makes is encoded as it returns, so that a
record that cannot be decoded or encoded fails by itself, as it does where records go one by one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute

from statestore.errors import Misuse
from statestore.model.batch import Batch, Column
from statestore.model.records import Serde, Side
from statestore.topology.arrow_results import fitted, whole
from statestore.topology.callbacks import ArrowFunction, takes_key
from statestore.topology.failures import (
    Finding,
    InArrow,
    Stage,
    decoded_in_arrow,
    failed,
    findings,
    mismatch,
    processing,
)
from statestore.topology.flows import Flow
from statestore.topology.nodes import Build, Forward, NodeContext, Push

Taken = Sequence[tuple[Side, Serde[Any]]]
"""The columns that a function takes, and their serdes."""


def mapped_values(
    flow: Flow, function: ArrowFunction, value_serde: Serde[Any] | None, name: str | None
) -> Flow:
    """Return the stream whose values the function makes of whole columns.

    Misuse if a serde offers no Arrow.
    """
    verb = "map_values_arrow"
    taken = _taken(verb, flow, function, name)
    serde = flow.builder.value_serde if value_serde is None else value_serde
    _check(verb, serde, "value", "pass value_serde=…, a serde that does")
    node = flow.add("KSTREAM-MAPVALUES", name, lambda n: _mapped(n, function, taken, serde))
    return replace(flow, node=node, value_serde=serde)


def filtered(flow: Flow, predicate: ArrowFunction, name: str | None) -> Flow:
    """Return the stream of the records for which the predicate's column is true.

    Misuse if a serde offers no Arrow.
    """
    taken = _taken("filter_arrow", flow, predicate, name)
    return flow.same(flow.add("KSTREAM-FILTER", name, lambda n: _filtered(n, predicate, taken)))


def _taken(verb: str, flow: Flow, function: ArrowFunction, name: str | None) -> Taken:
    """Return the columns that a function takes: values, or keys and values."""
    way_out = "use a source with a serde that does, as serdes.json(Type), or map_values() and"
    _check(verb, flow.value_serde, "value", f"{way_out} filter()")
    if not takes_key(verb, function, 1, name):
        return [("value", flow.value_serde)]
    _check(verb, flow.key_serde, "key", "give it a function that takes values alone")
    return [("key", flow.key_serde), ("value", flow.value_serde)]


def _check(verb: str, serde: Serde[Any], side: Side, way_out: str) -> None:
    if serde.arrow_form() is None:
        raise Misuse(
            f"{verb}: the {side} has the serde {serde.name}, which offers no Arrow: {way_out}"
        )


def _in_arrow(serde: Serde[Any]) -> InArrow:
    # Made where it is used, because a form does not travel.
    form = serde.arrow_form()
    assert form is not None
    return InArrow(serde, form)


def _mapped(node: str, function: ArrowFunction, taken: Taken, serde: Serde[Any]) -> Build:
    def build(_context: NodeContext, forward: Forward) -> Push:
        columns, made = [(side, _in_arrow(one)) for side, one in taken], _in_arrow(serde)

        def push(batch: Batch) -> None:
            column = _called(node, batch, function, columns)
            rows = encoded_column(node, batch, column, made, batch.values.nulls())
            forward(batch.with_columns(values=Column(raw=rows, serde=serde)), None)

        return push

    return build


def _filtered(node: str, predicate: ArrowFunction, taken: Taken) -> Build:
    def build(_context: NodeContext, forward: Forward) -> Push:
        columns = [(side, _in_arrow(one)) for side, one in taken]

        def push(batch: Batch) -> None:
            mask = _called(node, batch, predicate, columns)
            if not pa.types.is_boolean(mask.type):
                error = TypeError(f"the function returned {mask.type}, want booleans")
                raise failed(Stage.PROCESSING, node, batch, error)
            kept = mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
            if kept.any():
                forward(batch.where(kept), None)

        return push

    return build


def _called(
    node: str, batch: Batch, function: ArrowFunction, taken: Sequence[tuple[Side, InArrow]]
) -> pa.Array:
    columns = [decoded_in_arrow(node, batch, side, how) for side, how in taken]
    with processing(node, batch):
        return whole(function(*columns), len(batch))


def encoded_column(
    node: str, batch: Batch, column: pa.Array, made: InArrow, without: Sequence[int]
) -> list[bytes | None]:
    """Return the bytes of new values of a batch, None at these places; NodeFailed for misfits.

    As in nearly all functions of Arrow, there is no value where there was none.
    """
    if not without:
        return _encoded(node, batch, column, made)
    nulls = set(without)
    places = [i for i in range(len(batch)) if i not in nulls]
    some = _encoded(node, batch.take(places), column.take(pa.array(places, pa.int64())), made)
    written = iter(some)
    return [None if i in nulls else next(written) for i in range(len(batch))]


def _encoded(node: str, batch: Batch, column: pa.Array, made: InArrow) -> list[bytes | None]:
    serde, form = made
    try:
        return form.encode(fitted(column, form.type))
    except Exception as error:

        def again(place: int) -> None:
            form.encode(fitted(column.slice(place, 1), form.type))

        found: list[Finding] = [
            (place, mismatch("value", column[place].as_py(), serde, cause))
            for place, cause in findings(range(len(batch)), again)
        ]
        raise failed(Stage.PROCESSING, node, batch, error, found=found, certain=True) from error
