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
from typing_extensions import TypeIs

from statestore.errors import Misuse
from statestore.model.records import BYTES, Serde
from statestore.serdes.fields import Field, fields_of
from statestore.serdes.typed_json import typed_json
from statestore.serdes.value_types import name_of
from statestore.topology.aggregates import sketches
from statestore.topology.aggregates.folds import Fold, Step, nothing
from statestore.topology.aggregates.tables import RowChange
from statestore.topology.flows import TableFlow
from statestore.topology.materialized import Materialized
from statestore.topology.tables.computed_tables import results_table

R_co = TypeVar("R_co", covariant=True)
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


class _Part(NamedTuple):
    """An aggregate of a stream: what it is called, what it does, and what takes its values."""

    name: str
    rule: _Rule
    take: Callable[[Any], Any] | None

    def added(self, state: Any, value: Any) -> Any:
        """Return the state with a record more; null values of fields are left out."""
        if self.take is None:
            return self.rule.add(state, None)
        found = None if value is None else self.take(value)
        return state if found is None else self.rule.add(state, found)

    def subtracted(self, state: Any, value: Any) -> Any:
        """Return the state without a record that it has."""
        assert self.rule.subtract is not None
        if self.take is None:
            return self.rule.subtract(state, None)
        found = None if value is None else self.take(value)
        return state if found is None else self.rule.subtract(state, found)


class AggregatePlan:
    """Aggregates of values of one serde: how they fold, and the serdes of states and results."""

    def __init__(self, where: str, source: Serde[Any], given: Given) -> None:
        """Misuse, naming `where`, if there is no such field, or one has values of another kind."""
        named = {"": given} if isinstance(given, Aggregate) else dict(given)
        if not named:
            raise Misuse(f"{where}: the dict has no aggregates: pass {{name: ss.agg.count()}}")
        self.whole = isinstance(given, Aggregate)
        self._parts = [_part(where, source, name, one) for name, one in named.items()]
        self._asked = named
        recipe = (source, tuple(named.items()), self.whole)
        self.states = _states(*recipe)
        self.results = self.states if self.is_result else _results(*recipe)

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
            add, take = one.rule.add, one.take

            def add_one(_key: Any, value: Any, state: Any) -> Any:
                # As `added` does, with a call less for each record.
                if take is None:
                    return add(state, None)
                found = None if value is None else take(value)
                return state if found is None else add(state, found)

            return Fold(
                one.rule.initial,
                add_one,
                lambda _key, a, b: one.rule.merge(a, b),
                stable=True,
            )
        kind = _kind_of(self.states)
        names = kind.__struct_fields__

        def step(_key: Any, value: Any, state: Any) -> Any:
            return kind(
                *[p.added(getattr(state, n), value) for p, n in zip(parts, names, strict=True)]
            )

        def merge(_key: Any, one: Any, other: Any) -> Any:
            return kind(
                *[
                    p.rule.merge(getattr(one, n), getattr(other, n))
                    for p, n in zip(parts, names, strict=True)
                ]
            )

        return Fold(self._initial, step, merge, stable=True)

    def step_of_changes(self, where: str) -> Step:
        """Return how changes of a table's groups fold; Misuse if one cannot be taken out again."""
        for part, asked in zip(self._parts, self._asked.values(), strict=True):
            if part.rule.subtract is None:
                raise Misuse(
                    f"{where}: {asked} cannot take out a row that changes or leaves its group: "
                    f"use {_ABLE}, or collect({asked.field!r}) and compute it of the list"
                )
        parts, whole, initial = self._parts, self.whole, self._initial
        kind = None if whole else _kind_of(self.states)

        def one_by_one(state: Any, change: Callable[[_Part, Any], Any]) -> Any:
            if kind is None:
                return change(parts[0], state)
            names = kind.__struct_fields__
            return kind(*[change(p, getattr(state, n)) for p, n in zip(parts, names, strict=True)])

        def step(_key: Any, change: RowChange, state: Any) -> Any:
            if change.old is not None and state is not None:
                state = one_by_one(state, lambda part, one: part.subtracted(one, change.old))
            if change.new is not None:
                state = initial() if state is None else state
                state = one_by_one(state, lambda part, one: part.added(one, change.new))
            return state

        return step

    def fold_of_changes(self, where: str) -> Fold:
        """Return `step_of_changes` as a fold."""
        step = self.step_of_changes(where)
        return Fold(nothing, step, step, stable=True)

    def result(self, state: Any) -> Any:
        """Return the result of a state."""
        parts = self._parts
        if self.whole:
            return _result(parts[0], state)
        names = _kind_of(self.states).__struct_fields__
        return _kind_of(self.results)(
            *[_result(p, getattr(state, n)) for p, n in zip(parts, names, strict=True)]
        )

    def _initial(self) -> Any:
        firsts = [part.rule.initial() for part in self._parts]
        return firsts[0] if self.whole else _kind_of(self.states)(*firsts)


def _result(part: _Part, state: Any) -> Any:
    return state if part.rule.result is None else part.rule.result(state)


def _kind_of(serde: Serde[Any]) -> Any:
    fields = fields_of(serde)
    assert fields is not None
    return fields[None].type


@cache
def _states(source: Serde[Any], named: tuple[tuple[str, Any], ...], whole: bool) -> Serde[Any]:  # noqa: FBT001 - a recipe has no keywords
    """Return the serde of states."""
    return _serde("Aggregates", source, named, whole, "state").made_by(
        _states, source, named, whole
    )


@cache
def _results(source: Serde[Any], named: tuple[tuple[str, Any], ...], whole: bool) -> Serde[Any]:  # noqa: FBT001 - a recipe has no keywords
    """Return the serde of results."""
    return _serde("Results", source, named, whole, "results").made_by(
        _results, source, named, whole
    )


def _serde(
    title: str,
    source: Serde[Any],
    named: tuple[tuple[str, Any], ...],
    whole: bool,  # noqa: FBT001 - as above
    attribute: str,
) -> Serde[Any]:
    from statestore.serdes.derived_json import struct_of

    made: list[Any] = []
    for name, one in named:
        made.append((name, getattr(_part("", source, name, one).rule, attribute)))
    return typed_json(made[0][1] if whole else struct_of(title, made))


def _part(where: str, source: Serde[Any], name: str, asked: Any) -> _Part:
    """Return what an aggregate does with values of a serde; Misuse if it cannot."""
    if not isinstance(asked, Aggregate):
        raise Misuse(
            f"{where}: {name!r} is {asked!r:.99}, want an aggregate: write ss.agg.sum('field') or "
            "one of its siblings"
        )
    if asked.kind == "count" and asked.field is None:
        return _Part(name, _RULES["count"](int), None)
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
    return _Part(name, _rule(where, asked, found, source), found.take)


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
        return _Rule(int, int, int, operator.add, operator.add, operator.sub)
    return _Rule(
        state=kind,
        results=kind,
        initial=lambda: zero,
        add=lambda state, value: _finite(state + value),
        merge=lambda one, other: _finite(one + other),
        subtract=lambda state, value: _finite(state - value),
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
