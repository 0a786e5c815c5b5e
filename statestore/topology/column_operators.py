"""Operators that take Polars expressions in place of functions. Loads Polars.

The nodes have the names of those that take functions, so one can take the other's place in a
deployed topology.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import polars as pl
import pyarrow as pa

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.batch import Batch, Column, MadeColumn
from statestore.model.records import ArrowForm, Serde
from statestore.serdes.arrow_forms import TypedForm
from statestore.serdes.derived_json import derived_json, shape_of
from statestore.topology.arrow_operators import encoded_column
from statestore.topology.arrow_results import fitted
from statestore.topology.expressions import WHOLE, Expressions
from statestore.topology.failures import InArrow
from statestore.topology.flows import Flow
from statestore.topology.nodes import Build, Forward, NodeContext, Push
from statestore.topology.operators import hand_out

_KEYS: Final[tuple[tuple[type, Serde[Any]], ...]] = (
    (str, serdes.STRING),
    (int, serdes.INT64),
    (float, serdes.FLOAT64),
    (bytes, serdes.BYTES),
    (bool, serdes.BOOLEAN),
)
"""Types of keys, and the serdes that they have unless another is given."""


def filtered(
    flow: Flow, verb: str, predicate: Any, name: str | None, *, keeps: bool = True
) -> Flow:
    """Return the stream of the records for which the expression is true or, not `keeps`, is not.

    Misuse if it gives no booleans.
    """
    where, serde, given = place_of(verb, name), flow.value_serde, {WHOLE: predicate}
    made = _predicate(where, serde, predicate)

    def make(node: str) -> Build:
        def build(_context: NodeContext, forward: Forward) -> Push:
            held = Expressions(where, serde, given)

            def push(batch: Batch) -> None:
                mask = held.of(node, batch)[WHOLE].fill_null(value=False)
                kept = (mask if keeps else ~mask).to_numpy()
                if kept.any():
                    forward(batch.where(kept), None)

            return push

        return build

    text = str(made) if keeps else f"not {made}"
    return flow.same(flow.add("KSTREAM-FILTER", name, make, says=text))


def parting(
    flow: Flow, where: str, predicates: Sequence[Any], children: Sequence[str | None]
) -> tuple[Callable[[str], Build], str]:
    """Return what builds a node like `operators.branched`, by expressions, and its text.

    Misuse if one of them gives no booleans. As a function is not called for a record that an
    earlier branch has, an expression is not computed for it either.
    """
    serde = flow.value_serde
    text = "; ".join(str(_predicate(where, serde, one)) for one in predicates)

    def make(node: str) -> Build:
        def build(_context: NodeContext, forward: Forward) -> Push:
            held = [Expressions(where, serde, {WHOLE: one}) for one in predicates]

            def push(batch: Batch) -> None:
                chosen, left = [], list(range(len(batch)))
                for one in held:
                    rest = batch if len(left) == len(batch) else batch.take(left)
                    mask = one.of(node, rest)[WHOLE].fill_null(value=False) if left else ()
                    marked = list(zip(left, mask, strict=True))
                    chosen.append([place for place, holds in marked if holds])
                    left = [place for place, holds in marked if not holds]
                hand_out(batch, zip(children, [*chosen, left], strict=True), forward)

            return push

        return build

    return make, text


def _predicate(where: str, serde: Serde[Any], given: Any) -> Expressions:
    made = Expressions(where, serde, {WHOLE: given})
    if made.types[WHOLE] != pl.Boolean:
        raise Misuse(f"{where}: {given} is {made.types[WHOLE]}, want Boolean: compare it")
    return made


def mapped_values(flow: Flow, given: Any, value_serde: Serde[Any] | None, name: str | None) -> Flow:
    """Return the stream whose values are those of an expression or, of a dict, structs of several.

    Without a serde, the values are JSON of the expressions' types. Misuse if the serde has others.
    """
    values = NewValues.checked(place_of("map_values", name), flow.value_serde, given, value_serde)

    def make(node: str) -> Build:
        def build(_context: NodeContext, forward: Forward) -> Push:
            held = values.expressions()

            def push(batch: Batch) -> None:
                nulls = held.read(node, batch)
                made = values.column(node, batch, held.of(node, batch), nulls)
                forward(batch.with_columns(values=made), None)

            return push

        return build

    node = flow.add("KSTREAM-MAPVALUES", name, make, says=values.says)
    return replace(flow, node=node, value_serde=values.serde)


class NewValues(NamedTuple):
    """Values that an expression or, `whole` false, several make of those of a serde.

    They are written by `serde`. It `is_derived` from the expressions' types unless one was given.
    `beside`: the serde of the table's rows that they are made of, too. `says`: the expressions'
    text.
    """

    where: str
    source: Serde[Any]
    beside: Serde[Any] | None
    named: dict[str, Any]
    serde: Serde[Any]
    whole: bool
    is_derived: bool
    says: str

    @classmethod
    def checked(
        cls,
        where: str,
        source: Serde[Any],
        given: Any,
        value_serde: Serde[Any] | None,
        beside: Serde[Any] | None = None,
    ) -> "NewValues":
        """Return what makes the values; Misuse if they do not fit the serde that was given."""
        whole = not isinstance(given, Mapping)
        named = {WHOLE: given} if whole else dict(given)
        if not named:
            raise Misuse(f"{where}: the dict has no expressions: pass {{name: expression}}")
        for field in named:
            if not isinstance(field, str):
                raise Misuse(f"{where}: the name of an expression is {field!r:.99}, want a str")
        made = Expressions(where, source, named, beside)
        kind = _assembled(where, made.types, whole=whole)
        serde = derived_json(shape_of(kind, where)) if value_serde is None else value_serde
        form = serde.arrow_form()
        if form is None:
            raise Misuse(
                f"{where}: the serde {serde.name} has no columns: leave out value_serde, or pass "
                "one that has, as serdes.json(Type)"
            )
        try:
            fitted(pa.nulls(0, kind), form.type, "the value")
        except (TypeError, pa.ArrowException) as error:
            raise Misuse(
                f"{where}: {error}; write the expressions so, or pass another value_serde"
            ) from error
        return cls(where, source, beside, named, serde, whole, value_serde is None, str(made))

    def expressions(self) -> Expressions:
        """Return what computes them."""
        return Expressions(self.where, self.source, self.named, self.beside)

    def column(
        self, node: str, batch: Batch, found: Mapping[str, pl.Series], nulls: Sequence[int] = ()
    ) -> Column:
        """Return the values of a batch, none at `nulls`; NodeFailed if one cannot be written."""
        form = self.serde.arrow_form()
        assert form is not None
        column = _joined(found, whole=self.whole)
        if self.is_derived and not nulls:
            made = _in_columns(column, self.serde, form)
            if made is not None:
                return made
        rows = encoded_column(node, batch, column, InArrow(self.serde, form), nulls)
        return Column(raw=rows, serde=self.serde)


class NewKeys(NamedTuple):
    """Keys that an expression makes of the values of a serde. They are written by `serde`."""

    where: str
    source: Serde[Any]
    given: Any
    serde: Serde[Any]
    says: str

    @classmethod
    def checked(
        cls, where: str, source: Serde[Any], given: Any, key_serde: Serde[Any] | None
    ) -> "NewKeys":
        """Return what makes the keys; Misuse if they do not fit the serde that was given.

        Without one, keys have that of the expression's type.
        """
        made = Expressions(where, source, {WHOLE: given})
        return cls(where, source, given, _key_serde(where, made, key_serde), str(made))

    def begin(self) -> Callable[[str, Batch], list[Any]]:
        """Return what computes the keys of a node's batches, as `Expressions.of` does."""
        held = Expressions(self.where, self.source, {WHOLE: self.given})
        return lambda node, batch: held.of(node, batch)[WHOLE].to_list()


def keyed(
    flow: Flow,
    verb: str,
    given: Any,
    key_serde: Serde[Any] | None,
    name: str | None,
    label: str = "",
) -> Flow:
    """Return the stream whose keys are the values of an expression; `label` is for messages.

    Without a serde, keys have that of the expression's type. Misuse if the serde has another.
    """
    keys = NewKeys.checked(place_of(verb, label or name), flow.value_serde, given, key_serde)

    def make(node: str) -> Build:
        def build(_context: NodeContext, forward: Forward) -> Push:
            made = keys.begin()

            def push(batch: Batch) -> None:
                forward(batch.with_columns(keys=Column(objects=made(node, batch))), None)

            return push

        return build

    node = flow.add("KSTREAM-KEY-SELECT", name, make, says=keys.says)
    return flow.keyed_anew(node, key_serde=keys.serde, value_serde=flow.value_serde)


def place_of(verb: str, name: str | None) -> str:
    """Return how messages call an operator."""
    return verb if name is None else f"{verb} {name!r}"


def _key_serde(where: str, made: Expressions, given: Serde[Any] | None) -> Serde[Any]:
    """Return the serde of keys that an expression makes; Misuse if they do not fit it."""
    kind = made.types[WHOLE].to_python() if made.types[WHOLE] != pl.Null else type(None)
    own = next((serde for of, serde in _KEYS if of is kind), None)
    if given is None:
        if own is None:
            raise Misuse(f"{where}: {made} is {made.types[WHOLE]}: pass key_serde=…, its serde")
        return own
    wanted = next((of for of, serde in _KEYS if serde is given), None)
    if wanted is not None and kind is not wanted and not (wanted is float and kind is int):
        raise Misuse(
            f"{where}: {made} is {made.types[WHOLE]}, which is not {given.name}: cast it, or pass "
            "another key_serde"
        )
    return given


def _assembled(where: str, types: Mapping[str, Any], *, whole: bool) -> pa.DataType:
    """Return the Arrow type of values with results of these types; Misuse if Arrow lacks one."""
    for name, kind in types.items():
        try:
            pl.Series(dtype=kind).to_arrow()
        except pa.ArrowException as error:
            raise Misuse(f"{where}: {name} is {kind}, which Arrow lacks: cast it") from error
    return _joined({name: pl.Series(dtype=kind) for name, kind in types.items()}, whole=whole).type


def _in_columns(column: pa.Array, serde: Serde[Any], form: ArrowForm) -> Column | None:
    """Return values of a derived serde without a way through JSON; None: only that is exact."""
    assert isinstance(form, TypedForm)
    try:
        fitting = fitted(column, form.type)
    except pa.ArrowException:
        return None  # Encoded one by one, it is told which value does not fit.
    return MadeColumn(fitting, form.objects, serde, form) if form.is_exact(fitting) else None


def _joined(found: Mapping[str, pl.Series], *, whole: bool) -> pa.Array:
    columns = {name: one.rechunk().to_arrow() for name, one in found.items()}
    if whole:
        return columns[WHOLE]
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
