"""Polars expressions over the values of records, in place of functions. Loads Polars.

An expression is evaluated for many records at once, so it is taken only if each row of its result
comes from the same row of its columns: then no result depends on where batches end. Polars itself
does not tell that of a whole expression, so each of its parts is looked at. What is not known to be
computed row by row is refused where the pipeline is written, and so are columns and types that do
not fit.

Values are decoded by their serde, one by one (docs/adr/0044). Only the fields that an expression
names become columns, and the objects are kept only where somebody else asks for them
(docs/adr/0058). A record that cannot be computed fails alone: it is found by halving, since no row
depends on another one.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import TypeIs

from statestore.errors import Misuse
from statestore.model.batch import Batch, Column
from statestore.model.fields_read import Wanted
from statestore.model.nulls import any_none
from statestore.model.records import ArrowForm, Serde
from statestore.serdes.arrow_forms import TypedForm
from statestore.topology.failures import Finding, InArrow, Stage, decoded, decoded_in_arrow, failed
from statestore.topology.met_rows import MetRows

WHOLE: Final = "value"
"""The column of values that have no fields."""
_OF_MANY: Final = frozenset(
    {
        "AllHorizontal",
        "AnyHorizontal",
        "AsStruct",
        "Atan2",
        "Clip",
        "Coalesce",
        "Concat",
        "ConcatHorizontal",
        "FillNull",
        "Format",
        "IsBetween",
        "IsClose",
        "MaxHorizontal",
        "MeanHorizontal",
        "MinHorizontal",
        "Pow",
        "SumHorizontal",
    }
)
"""Functions that take several columns row by row; others may look up a row in a whole column."""
_FAMILIES: Final = frozenset(
    {
        *("ArrayExpr", "BinaryExpr", "Bitwise", "Boolean", "ListExpr", "StringExpr"),
        *("StructExpr", "TemporalExpr", "Trigonometry"),
    }
)
"""What functions are listed under."""
_OF_BATCHES: Final = frozenset({"Random", "Sample", "SetSorted", "SetSortedFlag", "Shuffle"})
"""Functions that go by chance, or say of a whole column what holds for some batches only."""
Cells = Callable[[int, int], dict[str, pa.Array]]
"""From the first place and the one behind the last to the columns of these records."""


class Expressions:
    """Expressions over the values of one serde, by the names of their results.

    With a table's serde `beside` them, they are over the rows of the table, too. A field that both
    have is called as Polars calls it in a join of its own: that of the row has `_right` behind it.
    """

    def __init__(
        self,
        where: str,
        serde: Serde[Any],
        expressions: Mapping[str, Any],
        beside: Serde[Any] | None = None,
    ) -> None:
        """Misuse, naming `where`, if one cannot be computed row by row of such values."""
        self._how = _in_arrow(where, "the value", "to the source", serde)
        self._beside: InArrow | None = None
        self._made = {name: _own(where, name, one) for name, one in expressions.items()}
        names = sorted({name for one in self._made.values() for name in _roots(one)})
        mine, fields = _types(self._how.form.type), dict[str, str]()
        types = dict(mine)
        if beside is not None:
            self._beside = _in_arrow(where, "the table's value", "to the table", beside)
            for field, kind in _types(self._beside.form.type).items():
                name = f"{field}_right" if field in mine else field
                if name in types and name in names:
                    raise Misuse(
                        f"{where}: {name!r} could be a field of either side or two of one: give "
                        "one of them another name, or use a function"
                    )
                fields[name], types[name] = field, kind
        for name in names:
            if name not in types:
                sides = serde.name if beside is None else f"{serde.name} and {beside.name}"
                has = "has" if beside is None else "have"
                raise Misuse(
                    f"{where}: there is no column {name!r} in {sides}, which {has} "
                    f"{', '.join(types)}"
                )
        self._names = [name for name in names if name in mine]
        self._fields = {name: fields[name] for name in names if name in fields}
        self._types = {name: types[name] for name in names}
        self._wanted = Wanted(self._names)
        self.types = self._checked(where)

    def _checked(self, where: str) -> dict[str, Any]:
        """Return the Polars types of the results."""
        for name, kind in self._types.items():
            _check_type(f"{where}: the column {name!r}", kind)
        empty = {name: pa.array([], kind) for name, kind in self._types.items()}
        found = {}
        for name, one in self._made.items():
            try:
                found[name] = _computed({name: one}, empty, 0)[name].dtype
            except Exception as error:
                columns = ", ".join(f"{c} {_series(empty[c]).dtype}" for c in _roots(one))
                raise Misuse(
                    f"{where}: {one} does not fit the columns ({columns or 'none'}): "
                    f"{str(error).splitlines()[0]}"
                ) from error
        return found

    def __str__(self) -> str:
        return ", ".join(
            str(one) if name == WHOLE else f"{name}={one}" for name, one in self._made.items()
        )

    def read(self, node: str, batch: Batch) -> list[int]:
        """Read what the expressions need of a batch; return the places of records without a value.

        NodeFailed if some records do not decode.
        """
        self._cells(node, batch)
        if batch.values.has_fields:
            return batch.values.nulls()
        if _takes_objects(self._how.form):
            values = decoded(node, batch, "value")
            return [i for i, one in enumerate(values) if one is None] if any_none(values) else []
        there = decoded_in_arrow(node, batch, "value", self._how).is_valid()
        return np.flatnonzero(~there.to_numpy(zero_copy_only=False)).tolist()

    def of(self, node: str, batch: Batch, met: MetRows | None = None) -> dict[str, pl.Series]:
        """Return the results for a batch; NodeFailed if some records do not decode or compute.

        `met`: the rows that its records met.
        """
        cells = self._cells(node, batch)
        if met is not None:
            cells = self._beside_theirs(cells, met)
        try:
            return self._some(cells, 0, len(batch))
        except Exception as error:
            found = list(_failing(lambda lo, hi: self._some(cells, lo, hi), 0, len(batch)))
            raise failed(Stage.PROCESSING, node, batch, error, found=found, certain=True) from error

    def _some(self, cells: Cells, low: int, high: int) -> dict[str, pl.Series]:
        found = _computed(self._made, cells(low, high), high - low)
        for name, one in found.items():
            if one.dtype != self.types[name]:
                raise TypeError(f"{self._made[name]} is {one.dtype}, want {self.types[name]}")
        return found

    def _beside_theirs(self, mine: Cells, met: MetRows) -> Cells:
        return lambda low, high: mine(low, high) | self._theirs(met, low, high)

    def _theirs(self, met: MetRows, low: int, high: int) -> dict[str, pa.Array]:
        """Return the columns of the rows that records met, from the place `low` to `high`."""
        assert self._beside is not None
        serde, form = self._beside
        rows, of = met.rows, met.of[low:high]
        if high - low < len(met.of):
            # Only a row that fails is to fail its record.
            rows, of = [rows[place] for place in of.tolist()], np.arange(len(of))
        fields = list(self._fields.values())
        if _takes_objects(form):
            columns = form.columns(rows, fields, whole=WHOLE)
        else:
            columns = _parts_of(form.decode(serde.serialize_all(rows)), fields)
        return {name: columns[field].take(of) for name, field in self._fields.items()}

    def _cells(self, node: str, batch: Batch) -> Cells:
        form, names = self._how.form, self._names
        if _takes_objects(form):
            fields = self._read(form, batch.values)
            if fields is not None:
                return lambda low, high: {n: fields[n][low:high] for n in names}
            values = decoded(node, batch, "value")
            return lambda low, high: form.columns(values[low:high], names, whole=WHOLE)
        children = _parts_of(decoded_in_arrow(node, batch, "value", self._how), names)
        return lambda low, high: {n: one[low:high] for n, one in children.items()}

    def _read(self, form: TypedForm, values: Column) -> dict[str, pa.Array] | None:
        """Return the fields of values that nobody needs otherwise; None: there are objects."""
        if not form.has_fields:
            return None
        try:
            return values.fields(form, self._names, self._wanted)
        except Exception:  # noqa: BLE001  # of objects, it is told which record fails
            return None


def _in_arrow(where: str, what: str, way_out: str, serde: Serde[Any]) -> InArrow:
    form = serde.arrow_form()
    if form is None:
        raise Misuse(
            f"{where}: {what} has the serde {serde.name}, which says nothing about columns: pass "
            f"value_serde=serdes.json(Type) {way_out}, or use a function"
        )
    return InArrow(serde, form)


def _takes_objects(form: ArrowForm) -> TypeIs[TypedForm]:
    """Tell whether columns are made of values, and not of bytes."""
    return isinstance(form, TypedForm)


def _parts_of(whole: pa.Array, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return these fields of a column; a column without fields is each of them."""
    if not pa.types.is_struct(whole.type):
        return dict.fromkeys(names, whole)
    flat = whole.flatten()
    return {name: flat[whole.type.get_field_index(name)] for name in names}


def _types(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {one.name: one.type for one in kind} if pa.types.is_struct(kind) else {WHOLE: kind}


def _check_type(what: str, kind: pa.DataType) -> None:
    if pa.types.is_decimal256(kind) or any(
        pa.types.is_decimal256(kind.field(i).type) for i in range(kind.num_fields)
    ):
        # Polars would panic.
        raise Misuse(f"{what} is {kind}, which Polars does not have: use a function")


def _series(column: pa.Array) -> pl.Series:
    found = pl.from_arrow(column)
    assert isinstance(found, pl.Series)
    return found


def _computed(
    made: Mapping[str, pl.Expr], columns: Mapping[str, pa.Array], count: int
) -> dict[str, pl.Series]:
    """Return the results of so many rows; a literal is repeated."""
    if count != 1:
        return _evaluated(made, columns, count)
    # Polars divides one row by a literal, but multiplies more rows by its reciprocal.
    twice = {name: pa.concat_arrays([one, one]) for name, one in columns.items()}
    try:
        return {name: found.head(1) for name, found in _evaluated(made, twice, 2).items()}
    except Exception:
        _evaluated(made, columns, 1)  # It says the same of one value.
        raise


def _evaluated(
    made: Mapping[str, pl.Expr], columns: Mapping[str, pa.Array], count: int
) -> dict[str, pl.Series]:
    frame = pl.DataFrame({name: _series(one) for name, one in columns.items()})
    if not columns:
        frame = pl.DataFrame({"": pl.repeat(0, count, eager=True)})
    # By numbers, since a result may have the name of a column, which others still read.
    numbered = {f"={place}": one for place, one in enumerate(made.values())}
    found = frame.with_columns(**numbered)
    return {name: found[number] for name, number in zip(made, numbered, strict=True)}


def _failing(attempt: Callable[[int, int], object], low: int, high: int) -> Iterator[Finding]:
    """Yield the places for which `attempt` raises, given that no place depends on another one."""
    if low == high:
        return
    try:
        attempt(low, high)
    except Exception as cause:  # noqa: BLE001  # Polars and Arrow raise many kinds
        if high - low == 1:
            yield low, cause
            return
        middle = (low + high) // 2
        yield from _failing(attempt, low, middle)
        yield from _failing(attempt, middle, high)


def _own(where: str, name: str, given: Any) -> pl.Expr:
    """Return an expression whose every part is known to be computed row by row; else Misuse."""
    if not isinstance(given, pl.Expr):
        raise Misuse(
            f"{where}: {name!r} is a {type(given).__name__}, want a Polars expression: write a "
            f"column as pl.col({given!r}), and a constant as pl.lit({given!r})"
        )
    try:
        written = json.loads(given.meta.serialize(format="json"))
    except Exception as error:
        raise Misuse(f"{where}: {given} cannot be read ({error}): use a function") from error
    for part in _parts(written):
        try:
            why = _why_not(part)
        except pl.exceptions.PolarsError as error:
            why = f"has a part of which Polars says {str(error).splitlines()[0]!r}"
        if why is not None:
            raise Misuse(
                f"{where}: {given} {why}. Records come in batches of any size, so an expression "
                "must be computed row by row: use a function, or an aggregate of ss.agg"
            )
    return given


def _parts(written: Any) -> Iterator[Any]:
    """Yield the parts of an expression, itself first."""
    yield written
    match written:
        case {"Alias": [inner, _]}:
            yield from _parts(inner)
        case {"Cast": {"expr": inner}}:
            yield from _parts(inner)
        case {"BinaryExpr": {"left": left, "right": right}}:
            yield from _parts(left)
            yield from _parts(right)
        case {"Ternary": {"predicate": one, "truthy": two, "falsy": three}}:
            for inner in (one, two, three):
                yield from _parts(inner)
        case {"Function": {"input": inputs}}:
            for inner in inputs:
                yield from _parts(inner)


def _why_not(part: Any) -> str | None:
    """Return why a part is not known to be computed row by row; None: it is."""
    match part:
        case {"Column": str()} | {"Alias": _} | {"BinaryExpr": _} | {"Ternary": _}:
            return None
        case {"Literal": {"Dyn": _} | {"Scalar": _}}:
            return None
        case {"Literal": _}:
            return "has a series in it, which has rows of its own"
        case {"Cast": {"dtype": dtype}}:
            numbered = "Categorical" in json.dumps(dtype)
            return "gives texts numbers that depend on earlier texts" if numbered else None
        case {"Function": {"function": function, "input": inputs}}:
            return _why_not_function(part, function, inputs)
        case {"AnonymousFunction": _}:
            return "calls a function of Python"
        case {"Agg": _} | "Len" | {"Len": _}:
            return "aggregates rows"
        case {"Over": _} | {"Window": _}:
            return "looks at other rows"
        case {"Selector": _}:
            return "names its columns by a pattern"
    kind = next(iter(part)) if isinstance(part, dict) and part else str(part)
    return f"has a part of the kind {kind}, which is not known to be computed row by row"


def _why_not_function(part: Any, function: Any, inputs: Sequence[Any]) -> str | None:
    name = _name_of(function)
    meta = pl.Expr.deserialize(io.BytesIO(json.dumps(part).encode()), format="json").meta
    if not meta.is_row_separable() or name in _OF_BATCHES:
        return f"has the function {name}, which does not take each row by itself"
    roots = [any("Column" in p for p in _parts(i) if isinstance(p, dict)) for i in inputs]
    if not (meta.is_length_preserving() or (meta.is_scalar() and not any(roots))):
        return f"has the function {name}, which makes more or fewer rows"
    if any(roots[1:]) and name not in _OF_MANY:
        return f"has the function {name} with a column as its argument"
    return None


def _name_of(function: Any) -> str:
    """Return the name of a function: Contains of {"StringExpr": {"Contains": …}}."""
    if isinstance(function, dict) and len(function) == 1:
        outer, inner = next(iter(function.items()))
        return _name_of(inner) if outer in _FAMILIES else str(outer)
    return str(function)


def _roots(one: pl.Expr) -> list[str]:
    return list(dict.fromkeys(one.meta.root_names()))
