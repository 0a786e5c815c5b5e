"""Aggregates that are named instead of written (`statestore.agg`): their states and results.

Each keeps a state apart from its result, takes values in one by one, and leaves out those that are
null. A state is never changed in place, and its JSON gives an equal state back. So it does not pass
through its serde from record to record, and results do not depend on where batches end.
"""

import datetime as dt
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray
from typing_extensions import TypeIs

from statestore.errors import Misuse
from statestore.model.nulls import any_none
from statestore.model.records import BYTES, Serde
from statestore.serdes.fields import Field, fields_of
from statestore.serdes.typed_json import typed_json
from statestore.serdes.value_types import name_of
from statestore.topology.aggregates import sketches, totals
from statestore.topology.aggregates.folds import Fold, Step, Values, nothing
from statestore.topology.aggregates.tables import RowChange
from statestore.topology.flows import TableFlow
from statestore.topology.materialized import Materialized
from statestore.topology.tables.computed_tables import results_table

R_co = TypeVar("R_co", covariant=True)
_FEW: Final = 32
"""Fewer records take less time one by one than as columns."""
_ORDERED: Final = (int, float, str, bytes, bool, dt.datetime, dt.date, dt.time, dt.timedelta)


@dataclass(frozen=True)
class Aggregate(Generic[R_co]):
    """One aggregate, whose results are of the type R: made by the functions of `ss.agg`.

    `field` None: it takes the value itself or, of a count, each record.
    """

    kind: str
    field: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}({'' if self.field is None else repr(self.field)})"


Given = Aggregate[Any] | Mapping[str, Aggregate[Any]]
"""An aggregate, or several by their names."""


class Mean(msgspec.Struct, frozen=True, gc=False):
    """What a mean keeps of values that are floats, or integers and floats."""

    sum: float = 0.0
    count: int = 0


class MeanOfInts(msgspec.Struct, frozen=True, gc=False):
    """What a mean keeps of integers, whose sum is exact."""

    sum: int = 0
    count: int = 0


def is_aggregate(given: object) -> TypeIs[Given]:
    """Tell whether aggregates are given, rather than a function."""
    return isinstance(given, Aggregate | Mapping)


def check_alone(where: str, *functions: object) -> None:
    """Raise Misuse if there are functions, or a store in their place, beside aggregates."""
    if any(one is not None for one in functions):
        raise Misuse(
            f"{where}: aggregates of ss.agg need no functions: pass the store as materialized=…"
        )


class _Rule(NamedTuple):
    """What an aggregate of values of one type does. `result` None: the state is the result."""

    state: Any
    results: Any
    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    subtract: Callable[[Any, Any], Any] | None = None
    result: Callable[[Any], Any] | None = None
    totals: Callable[[NDArray[np.intp], Any, list[Any]], list[Any] | None] | None = None
    """What does it for many rows, given numbers as a column (`totals`)."""


class _Part(NamedTuple):
    """An aggregate of a stream: what it is called, what it does, and what takes its values.

    `source` is the serde of the stream, which calls what is taken `field`.
    """

    name: str
    rule: _Rule
    take: Callable[[Any], Any] | None
    source: Serde[Any]
    field: str | None = None

    def adding(self) -> Callable[[Any, Any], Any]:
        """Return what makes the state with a record more; null values of fields are left out."""
        take, add = self.take, self.rule.add
        if take is None:
            return add

        def added(state: Any, value: Any) -> Any:
            found = None if value is None else take(value)
            return state if found is None else add(state, found)

        return added

    def folded(self, rows: NDArray[np.intp], values: Values, states: list[Any]) -> list[Any]:
        """Return the states of rows, changed here, with these records more (`folds.Many`)."""
        initial, take, add = self.rule.initial, self.take, self.rule.add
        if any_none(states):
            states = [initial() if state is None else state for state in states]
        made = self._totals(rows, values, states)
        if made is not None:
            return made
        numbers = rows.tolist()
        if take is None:
            for row in numbers:
                states[row] = add(states[row], None)
            return states
        some = values.objects
        if any_none(some):
            pairs = [pair for pair in zip(numbers, some, strict=True) if pair[1] is not None]
            numbers, some = [row for row, _ in pairs], [value for _, value in pairs]
        for row, found in zip(numbers, map(take, some), strict=True):
            if found is not None:
                states[row] = add(states[row], found)
        return states

    def _totals(
        self, rows: NDArray[np.intp], values: Values, states: list[Any]
    ) -> list[Any] | None:
        """Return the same of columns of numbers; None: they are none, or it would not be exact."""
        rule, amounts = self.rule, None
        if rule.totals is None or len(rows) < _FEW:
            return None
        if self.take is not None:
            amounts = values.numbers(self.source, self.field, self.take, rule.state)
            if amounts is None:
                return None
        return rule.totals(rows, amounts, states)

    def subtracted(self, state: Any, value: Any) -> Any:
        """Return the state without a record that it has."""
        assert self.rule.subtract is not None
        if self.take is None:
            return self.rule.subtract(state, None)
        found = None if value is None else self.take(value)
        return state if found is None else self.rule.subtract(state, found)


class AggregatePlan:
    """Aggregates of values of one serde, or of several streams: how they fold, and their serdes.

    Streams share the aggregates that have the same name in them.
    """

    def __init__(self, where: str, *streams: tuple[Serde[Any], Given]) -> None:
        """`streams`: the serde of the values of each, and its aggregates.

        Misuse, naming `where`, if there is no such field, if one has values of another kind, or if
        streams do not share what has the same name.
        """
        self.whole = all(isinstance(given, Aggregate) for _, given in streams)
        if not self.whole and any(isinstance(given, Aggregate) for _, given in streams):
            raise Misuse(f"{where}: pass one aggregate for each stream, or a dict for each")
        recipe = tuple((source, _named_of(where, given)) for source, given in streams)
        self._asked: dict[str, Aggregate[Any]] = {}
        self._streams: list[dict[str, _Part]] = []
        named: dict[str, _Part] = {}
        for source, asked in recipe:
            parts = {name: _part(where, source, name, one) for name, one in asked}
            for name, one in asked:
                known = named.setdefault(name, parts[name])
                first = self._asked.setdefault(name, one)
                if (one.kind, parts[name].rule.state) != (first.kind, known.rule.state):
                    raise Misuse(
                        f"{where}: {f'{name!r} is ' if name else ''}{first} of one stream and "
                        f"{one} of another, whose states differ: give them values of one type"
                        + (", or two names" if name else "")
                    )
            self._streams.append(parts)
        self._parts = list(named.values())
        self.states = _states(recipe, self.whole)
        self.results = self.states if self.is_result else _results(recipe, self.whole)
        # Structs of the parts; of an aggregate alone there is no Struct around it.
        self._kinds = None if self.whole else (_kind_of(self.states), _kind_of(self.results))

    @property
    def is_result(self) -> bool:
        """Whether the states are the results."""
        return all(part.rule.result is None for part in self._parts)

    def checked(
        self, where: str, materialized: Materialized[Any, Any] | str | None
    ) -> Materialized[Any, Any] | str | None:
        """Return how the store is kept; Misuse if its values are to have another serde."""
        if not isinstance(materialized, Materialized):
            return materialized
        own = None if isinstance(materialized.store, str) else materialized.store.value_serde
        if materialized.value_serde is not None or own not in (None, BYTES):
            raise Misuse(
                f"{where}: the store has the states of the aggregates, in a serde of their own: "
                "leave out value_serde, and pass one to what the table is written with"
            )
        found = copy(materialized)
        object.__setattr__(found, "value_serde", self.states)
        return found

    def told(self, table: TableFlow, name: str | None) -> TableFlow:
        """Return the table of the results."""
        if self.is_result:
            return table
        return results_table(
            table, self.result, self.results, None if name is None else f"{name}-results"
        )

    def fold(self) -> Fold:
        """Return how records of a stream fold."""
        parts = self._parts
        if self.whole:
            (one,) = parts
            add = one.adding()
            return Fold(
                one.rule.initial,
                lambda _key, value, state: add(state, value),
                self._merged,
                stable=True,
                # A minimum of nulls is no aggregate: the step knows when there is none.
                many=None if one.rule.initial() is None else one.folded,
            )
        kind = self._kind()
        add_all = [part.adding() for part in parts]

        def step(_key: Any, value: Any, state: Any) -> Any:
            before = astuple(state)
            return kind(*[add(one, value) for add, one in zip(add_all, before, strict=True)])

        def many(rows: NDArray[np.intp], values: Values, before: list[Any]) -> list[Any]:
            first = astuple(self._initial())
            states = [first if state is None else astuple(state) for state in before]
            after = [
                part.folded(rows, values, list(column))
                for part, column in zip(parts, zip(*states, strict=True), strict=True)
            ]
            return list(map(kind, *after))

        return Fold(self._initial, step, self._merged, stable=True, many=many)

    def fold_of_streams(self) -> Fold:
        """Return how records of several streams fold: pairs of the stream's place and the value."""
        names = [part.name for part in self._parts]
        adding = [
            [parts[name].adding() if name in parts else None for name in names]
            for parts in self._streams
        ]
        if self.whole:
            return Fold(
                self._initial,
                lambda _key, one, state: adding[one[0]][0](state, one[1]),
                self._merged,
                stable=True,
            )
        kind = self._kind()

        def step(_key: Any, one: tuple[int, Any], state: Any) -> Any:
            place, value = one
            pairs = zip(adding[place], astuple(state), strict=True)
            return kind(*[s if add is None else add(s, value) for add, s in pairs])

        return Fold(self._initial, step, self._merged, stable=True)

    def step_of_changes(self, where: str) -> Step:
        """Return how changes of a table's groups fold; Misuse if one cannot be taken out again."""
        for part, asked in zip(self._parts, self._asked.values(), strict=True):
            if part.rule.subtract is None:
                raise Misuse(
                    f"{where}: {asked} cannot take out a row that changes or leaves its group: "
                    f"use {_ABLE}, or collect({asked.field!r}) and compute it of the list"
                )
        initial, added = self._initial, self.fold().step
        parts, kinds = self._parts, self._kinds

        def subtracted(state: Any, value: Any) -> Any:
            if kinds is None:
                return parts[0].subtracted(state, value)
            pairs = zip(parts, astuple(state), strict=True)
            return kinds[0](*[part.subtracted(one, value) for part, one in pairs])

        def step(key: Any, change: RowChange, state: Any) -> Any:
            if change.old is not None and state is not None:
                state = subtracted(state, change.old)
            if change.new is not None:
                state = added(key, change.new, initial() if state is None else state)
            return state

        return step

    def fold_of_changes(self, where: str) -> Fold:
        """Return `step_of_changes` as a fold."""
        step = self.step_of_changes(where)
        return Fold(nothing, step, step, stable=True)

    def result(self, state: Any) -> Any:
        """Return the result of a state."""
        parts = self._parts
        if self._kinds is None:
            return _result(parts[0], state)
        return self._kinds[1](*map(_result, parts, astuple(state)))

    def _kind(self) -> Any:
        """Return the Struct of the states."""
        assert self._kinds is not None
        return self._kinds[0]

    def _merged(self, _key: Any, one: Any, other: Any) -> Any:
        parts = self._parts
        if self._kinds is None:
            return parts[0].rule.merge(one, other)
        pairs = zip(parts, astuple(one), astuple(other), strict=True)
        return self._kinds[0](*[part.rule.merge(*both) for part, *both in pairs])

    def _initial(self) -> Any:
        firsts = [part.rule.initial() for part in self._parts]
        return firsts[0] if self._kinds is None else self._kinds[0](*firsts)


def _result(part: _Part, state: Any) -> Any:
    return state if part.rule.result is None else part.rule.result(state)


def _kind_of(serde: Serde[Any]) -> Any:
    fields = fields_of(serde)
    assert fields is not None
    return fields[None].type


def _named_of(where: str, given: Given) -> tuple[tuple[str, Any], ...]:
    named = {"": given} if isinstance(given, Aggregate) else dict(given)
    if not named:
        raise Misuse(f"{where}: the dict has no aggregates: pass {{name: ss.agg.count()}}")
    for name in named:
        if not isinstance(name, str):
            raise Misuse(f"{where}: the name of an aggregate is {name!r:.99}, want a str")
    return tuple(named.items())


_Recipe = tuple[tuple[Serde[Any], tuple[tuple[str, Any], ...]], ...]
"""Of each stream, the serde of its values and its aggregates by their names."""


@cache
def _states(recipe: _Recipe, whole: bool) -> Serde[Any]:  # noqa: FBT001 - a recipe has no keywords
    """Return the serde of states."""
    return _serde("Aggregates", recipe, whole, "state").made_by(_states, recipe, whole)


@cache
def _results(recipe: _Recipe, whole: bool) -> Serde[Any]:  # noqa: FBT001 - a recipe has no keywords
    """Return the serde of results."""
    return _serde("Results", recipe, whole, "results").made_by(_results, recipe, whole)


def _serde(title: str, recipe: _Recipe, whole: bool, attribute: str) -> Serde[Any]:  # noqa: FBT001 - as above
    from statestore.serdes.derived_json import struct_of

    made: dict[str, Any] = {}
    for source, named in recipe:
        for name, one in named:
            made.setdefault(name, getattr(_part("", source, name, one).rule, attribute))
    return typed_json(made[""] if whole else struct_of(title, list(made.items())))


def _part(where: str, source: Serde[Any], name: str, asked: Any) -> _Part:
    """Return what an aggregate does with values of a serde; Misuse if it cannot."""
    if not isinstance(asked, Aggregate):
        raise Misuse(
            f"{where}: {name!r} is {asked!r:.99}, want an aggregate: write ss.agg.sum('field') or "
            "one of its siblings"
        )
    if asked.kind == "count" and asked.field is None:
        counting = _RULES["count"](int)._replace(totals=totals.counts)
        return _Part(name, counting, None, source)
    fields = fields_of(source)
    if fields is None:
        raise Misuse(
            f"{where}: the value has the serde {source.name}, which does not say what fields it "
            "has: pass value_serde=serdes.json(Type) to the source, or use a function"
        )
    found = fields.get(asked.field)
    if found is None:
        there = ", ".join(str(one) for one in fields if one is not None)
        raise Misuse(
            f"{where}: {asked}: there is no field {asked.field!r} in {source.name}, which has "
            f"{there or 'none'}"
        )
    return _Part(name, _rule(where, asked, found, source), found.take, source, asked.field)


def _rule(where: str, asked: Aggregate[Any], found: Field, source: Serde[Any]) -> _Rule:
    kind, bare = _without_none(found.type), _bare(found.type)
    wants = _WANTS.get(asked.kind)
    if wants is not None and not (bare and all(issubclass(one, wants[0]) for one in bare)):
        what = "the value" if asked.field is None else f"the field {asked.field!r}"
        raise Misuse(
            f"{where}: {asked}: {what} of {source.name} is {name_of(found.type)}, want {wants[1]}"
        )
    if asked.kind in ("sum", "mean"):
        kind = int if bare == {int} else float if bare == {float} else int | float
        if bool in bare:
            raise Misuse(f"{where}: {asked}: booleans have no {asked.kind}: cast them to integers")
    elif asked.kind in ("min", "max") and len(bare) > 1 and not bare <= {int, float}:
        raise Misuse(f"{where}: {asked}: values of {name_of(found.type)} have no common order")
    return _RULES[asked.kind](kind)


def _without_none(kind: Any) -> Any:
    """Return a type without None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        some = [one for one in typing.get_args(kind) if one is not type(None)]
        return typing.Union[tuple(some)] if some else kind  # noqa: UP007 - of a tuple
    return kind


def _bare(kind: Any) -> set[type]:
    """Return the classes of a type's values but None; none for what has no class."""
    if typing.get_origin(kind) is typing.Annotated:
        return _bare(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        found = [_bare(one) for one in typing.get_args(kind) if one is not type(None)]
        return set() if set() in found else set().union(*found)
    return {kind} if isinstance(kind, type) and typing.get_origin(kind) is None else set()


def _finite(number: Any) -> Any:
    """Return a number; ValueError if it is a float that JSON does not have."""
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{number} is no number that a state can keep")
    return number


def _sum(kind: Any) -> _Rule:
    zero = 0.0 if kind is float else 0
    if kind is int:
        add = operator.add
        return _Rule(int, int, int, add, add, operator.sub, totals=totals.sums_of_ints)
    return _Rule(
        state=kind,
        results=kind,
        initial=lambda: zero,
        add=lambda state, value: _finite(state + value),
        merge=lambda one, other: _finite(one + other),
        subtract=lambda state, value: _finite(state - value),
        totals=totals.sums_of_floats if kind is float else None,
    )


def _mean(kind: Any) -> _Rule:
    of: Any = MeanOfInts if kind is int else Mean

    def changed(total: Any, count: int) -> Any:
        state = of(_finite(total), count)
        _quotient(state)
        return state

    return _Rule(
        state=of,
        results=float | None,
        initial=of,
        add=lambda state, value: changed(state.sum + value, state.count + 1),
        merge=lambda one, other: changed(one.sum + other.sum, one.count + other.count),
        subtract=lambda state, value: changed(state.sum - value, state.count - 1),
        result=_quotient,
    )


def _quotient(state: Any) -> float | None:
    return None if state.count == 0 else state.sum / state.count


def _chosen(kind: Any, choose: Callable[[Any, Any], Any]) -> _Rule:
    """The rule of an aggregate that keeps one of its values: choose(so far, value)."""

    def add(state: Any, value: Any) -> Any:
        return _finite(value) if state is None else choose(state, _finite(value))

    return _Rule(
        state=kind | None,
        results=kind | None,
        initial=nothing,
        add=add,
        merge=lambda one, other: one if other is None else add(one, other),
    )


def _collected(kind: Any) -> _Rule:
    def subtract(state: list[Any], value: Any) -> list[Any]:
        place = state.index(value)
        return [*state[:place], *state[place + 1 :]]

    return _Rule(
        state=list[kind],
        results=list[kind],
        initial=list,
        add=lambda state, value: [*state, _finite(value)],
        merge=lambda one, other: [*one, *other],
        subtract=subtract,
    )


_RULES: Final[dict[str, Callable[[Any], _Rule]]] = {
    "count": lambda _kind: _Rule(
        state=int,
        results=int,
        initial=int,
        add=lambda n, _value: n + 1,
        merge=lambda one, other: one + other,
        subtract=lambda n, _value: n - 1,
    ),
    "sum": _sum,
    "mean": _mean,
    "min": lambda kind: _chosen(kind, min),
    "max": lambda kind: _chosen(kind, max),
    "first": lambda kind: _chosen(kind, lambda so_far, _value: so_far),
    "last": lambda kind: _chosen(kind, lambda _so_far, value: value),
    "collect": _collected,
    "approx_distinct": lambda _kind: _Rule(
        state=sketches.Sketch,
        results=int,
        initial=sketches.Sketch,
        add=sketches.with_value,
        merge=sketches.merged,
        result=sketches.estimate,
    ),
}
_ABLE: Final = "count(), sum(…), mean(…) and collect(…)"
_WANTS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "sum": ((int, float), "numbers"),
    "mean": ((int, float), "numbers"),
    "min": (_ORDERED, "numbers, texts, bytes or times"),
    "max": (_ORDERED, "numbers, texts, bytes or times"),
}
