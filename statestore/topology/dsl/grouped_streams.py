"""Grouped streams: what the aggregates of a pipeline are written with, beside `streams`."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, overload

from statestore.errors import Misuse
from statestore.model.keywords import renamed
from statestore.model.modes import EmitStrategy, Span
from statestore.model.records import K_co, V_co, Windowed
from statestore.topology import missing_methods
from statestore.topology.aggregates.cogroups import Cogroup
from statestore.topology.aggregates.declared import (
    Aggregate,
    AggregatePlan,
    Given,
    check_alone,
    is_aggregate,
)
from statestore.topology.aggregates.grouping import Grouping
from statestore.topology.callbacks import check_arity
from statestore.topology.dsl import cogrouped_streams, ktables
from statestore.topology.dsl.given import given
from statestore.topology.materialized import Materialized
from statestore.topology.windows.counts import CountWindows
from statestore.topology.windows.fold import Windowing
from statestore.topology.windows.hopping import TimeWindows
from statestore.topology.windows.session_windows import SessionWindows
from statestore.topology.windows.sliding import SlidingWindows

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
KR_co = TypeVar("KR_co", covariant=True)


class Initializer(Protocol[A_co]):
    """Makes the first aggregate of a key: a function or a class without arguments."""

    def __call__(self) -> A_co: ...


@missing_methods.explains(missing_methods.OF_GROUPS)
class _Counted(Generic[K_co, KR_co, V_co]):
    """The count and the reduce of records grouped by K, in tables with keys of KR."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping

    def count(
        self,
        materialized: Materialized[K_co, int] | Materialized[K_co, bytes] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[KR_co, int]":
        """Return the number of records per key, as INT64.

        Records with a null key are dropped. Those with a null value are dropped, too, except in
        windows, as in Kafka Streams. InvalidTopology if the store's values are not INT64, or if
        another operator keeps its rows in that store.
        """
        return ktables.KTable(self._grouping.count(materialized, name))

    def reduce(
        self,
        function: Callable[[V_co, V_co], V_co | None],
        materialized: Materialized[K_co, V_co] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[KR_co, V_co]":
        """Return function(old, new) folded over the values of each key.

        The first value stands as it is, and None deletes the key. Null keys and values are treated
        as by `count`; in windows, the function receives null values. InvalidTopology if another
        operator keeps its rows in that store.
        """
        check_arity("reduce", function, 2, name)
        return ktables.KTable(self._grouping.reduce(function, materialized, name))


class _Grouped(_Counted[K_co, KR_co, V_co]):
    """The aggregates of records grouped by K, in tables with keys of KR."""

    @overload
    def aggregate(
        self,
        initial: Aggregate[A],
        *,
        materialized: Materialized[K_co, Any] | str | None = None,
        name: str | None = None,
    ) -> "ktables.KTable[KR_co, A]": ...
    @overload
    def aggregate(
        self,
        initial: Mapping[str, Aggregate[Any]],
        *,
        materialized: Materialized[K_co, Any] | str | None = None,
        name: str | None = None,
    ) -> "ktables.KTable[KR_co, Any]": ...
    @overload
    def aggregate(
        self,
        initial: Initializer[A],
        function: Callable[[K_co, V_co, A], A | None],
        materialized: Materialized[K_co, A] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[KR_co, A]": ...
    def aggregate(
        self,
        initial: Initializer[Any] | Aggregate[Any] | Mapping[str, Aggregate[Any]],
        function: Callable[[K_co, V_co, Any], Any] | None = None,
        materialized: Materialized[K_co, Any] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[KR_co, Any]":
        """Return function(key, value, aggregate) folded over the records of each key.

        The first aggregate of a key is initial(), and None deletes the key. Null keys and values
        are treated as by `reduce`. Without a serde in `materialized`, aggregates have the builder's
        value serde. InvalidTopology if another operator keeps its rows in that store.

        An aggregate of `ss.agg`, or a dict of several, stands for both functions. The store then
        has their states, as JSON, and the table their results: of a dict, values with its names.
        """
        if is_aggregate(initial):
            return _named(self._grouping, initial, materialized, name, function)
        step = given(function)
        check_arity("aggregate initial", initial, 0, name)
        check_arity("aggregate", step, 3, name)
        return ktables.KTable(self._grouping.aggregate(initial, step, materialized, name))


def _named(
    grouping: Grouping,
    aggregates: Given,
    materialized: Materialized[Any, Any] | str | None,
    name: str | None,
    *functions: object,
) -> "ktables.KTable[Any, Any]":
    """Return the table of aggregates of `ss.agg`; Misuse if there are functions, too."""
    where = "aggregate" if name is None else f"aggregate {name!r}"
    check_alone(where, *functions)
    plan = AggregatePlan(where, (grouping.flow.value_serde, aggregates))
    states = plan.checked(where, materialized)
    made = grouping.folded(plan.fold(), plan.states, states, name)
    return ktables.KTable(plan.told(made, name))


class TimeWindowedKStream(_Grouped[K_co, Windowed[K_co], V_co]):
    """Records grouped by key and window, to be aggregated; the tables' keys are `Windowed`."""


class CountWindowedKStream(_Grouped[K_co, K_co, V_co]):
    """Records grouped by key and number, to be aggregated; the tables have a row for each key.

    That row is the key's last result: of the window that was filled last or, with results on
    update, of the oldest one that is open. Each window that is full sends its result. Records
    with a null value are dropped, and an aggregate of None begins anew with the next record.
    """


class SessionWindowedKStream(_Counted[K_co, Windowed[K_co], V_co]):
    """Records grouped by key and session, to be aggregated; the tables' keys are `Windowed`.

    When a record merges sessions, or makes one longer, the tables tell a null value for each that
    is gone, and then the new one, as in Kafka Streams. Every result has its session's end as its
    time.
    """

    @overload
    def aggregate(
        self,
        initial: Aggregate[A],
        *,
        materialized: Materialized[K_co, Any] | str | None = None,
        name: str | None = None,
    ) -> "ktables.KTable[Windowed[K_co], A]": ...
    @overload
    def aggregate(
        self,
        initial: Mapping[str, Aggregate[Any]],
        *,
        materialized: Materialized[K_co, Any] | str | None = None,
        name: str | None = None,
    ) -> "ktables.KTable[Windowed[K_co], Any]": ...
    @overload
    def aggregate(
        self,
        initial: Initializer[A],
        function: Callable[[K_co, V_co, A], A | None],
        merger: Callable[[K_co, A, A], A],
        materialized: Materialized[K_co, A] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[Windowed[K_co], A]": ...
    def aggregate(
        self,
        initial: Initializer[Any] | Aggregate[Any] | Mapping[str, Aggregate[Any]],
        function: Callable[[K_co, V_co, Any], Any] | None = None,
        merger: Callable[[K_co, Any, Any], Any] | None = None,
        materialized: Materialized[K_co, Any] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[Windowed[K_co], Any]":
        """Return function(key, value, aggregate) folded over the records of each session.

        A record begins with initial(), takes in the aggregates of the sessions that it merges by
        merger(key, one, other), in the order of their ends, and is then added by the function. None
        deletes the session. All else is as for the aggregates of other windows, those of `ss.agg`,
        too, which know how to merge.
        """
        if is_aggregate(initial):
            return _named(self._grouping, initial, materialized, name, function, merger)
        step, merge = given(function), given(merger)
        check_arity("aggregate initial", initial, 0, name)
        check_arity("aggregate", step, 3, name)
        check_arity("aggregate merger", merge, 3, name)
        made = self._grouping.aggregate(initial, step, materialized, name, merge)
        return ktables.KTable(made)


class KGroupedStream(_Grouped[K_co, K_co, V_co]):
    """Records grouped by key, to be aggregated."""

    @overload
    def cogroup(self, function: Aggregate[A]) -> "cogrouped_streams.CogroupedKStream[K_co, A]": ...
    @overload
    def cogroup(
        self, function: Mapping[str, Aggregate[Any]]
    ) -> "cogrouped_streams.CogroupedKStream[K_co, Any]": ...
    @overload
    def cogroup(
        self, function: Callable[[K_co, V_co, A], A | None]
    ) -> "cogrouped_streams.CogroupedKStream[K_co, A]": ...
    def cogroup(
        self, function: Callable[[K_co, V_co, Any], Any] | Given
    ) -> "cogrouped_streams.CogroupedKStream[K_co, Any]":
        """Begin an aggregate of several streams, with function(key, value, aggregate) for this one.

        See `CogroupedKStream` (KIP-150).
        """
        if not is_aggregate(function):
            check_arity("cogroup", function, 3)
        return cogrouped_streams.CogroupedKStream(Cogroup(((self._grouping, function),)))

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows,
        *,
        emit: EmitStrategy | str = ...,
        close_idle: Span | None = ...,
    ) -> TimeWindowedKStream[K_co, V_co]: ...
    @overload
    def windowed_by(
        self,
        windows: SessionWindows,
        *,
        emit: EmitStrategy | str = ...,
        close_idle: Span | None = ...,
    ) -> SessionWindowedKStream[K_co, V_co]: ...
    @overload
    def windowed_by(
        self, windows: CountWindows, *, emit: EmitStrategy | str = ...
    ) -> CountWindowedKStream[K_co, V_co]: ...
    @renamed(close_idle="close_idle_ms")
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows | SessionWindows | CountWindows,
        *,
        emit: EmitStrategy | str = EmitStrategy.ON_UPDATE,
        close_idle: Span | None = None,
    ) -> (
        TimeWindowedKStream[K_co, V_co]
        | SessionWindowedKStream[K_co, V_co]
        | CountWindowedKStream[K_co, V_co]
    ):
        """Group by window, by session, or by a number of records, too.

        ON_UPDATE emits a result whenever a window's aggregate changed. ON_WINDOW_CLOSE emits one
        result per window, when no record of it can follow any more (KIP-825). With `close_idle`
        all windows close, too, once the operator has had no input for that long by the wall clock,
        while its stream task is open; what comes for them after that is late.

        Misuse if `close_idle` is not positive, if results are emitted on update, or if windows
        are of a number of records: these close when they are full.
        """
        grouping = self._grouping.windowed(Windowing.of(windows, emit, close_idle))
        if isinstance(windows, CountWindows):
            return CountWindowedKStream(grouping)
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(grouping)
        return TimeWindowedKStream(grouping)


def grouping_of(verb: str, grouped: KGroupedStream[Any, Any]) -> Grouping:
    """Return the records of an operator's argument; Misuse if it is not a grouped stream."""
    given: object = grouped
    if not isinstance(given, KGroupedStream):
        raise Misuse(
            f"{verb} needs a grouped stream, not a {type(given).__name__}: "
            "call group_by_key() or group_by(function) first, and windowed_by() last"
        )
    return grouped._grouping  # noqa: SLF001  # its module
