"""Cogrouped streams: what an aggregate of several streams is written with (KIP-150)."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from statestore.errors import Misuse
from statestore.model.keywords import renamed
from statestore.model.modes import EmitStrategy, Span
from statestore.model.records import K_co, V, Windowed
from statestore.topology import missing_methods
from statestore.topology.aggregates.cogroups import Cogroup
from statestore.topology.aggregates.declared import Given, check_alone, is_aggregate
from statestore.topology.callbacks import check_arity
from statestore.topology.dsl import grouped_streams, ktables
from statestore.topology.dsl.given import given
from statestore.topology.materialized import Materialized
from statestore.topology.windows.counts import CountWindows
from statestore.topology.windows.fold import Windowing
from statestore.topology.windows.hopping import TimeWindows
from statestore.topology.windows.session_windows import SessionWindows
from statestore.topology.windows.sliding import SlidingWindows

A = TypeVar("A")
KR_co = TypeVar("KR_co", covariant=True)


@missing_methods.explains(missing_methods.OF_GROUPS)
class _Cogrouped(Generic[K_co, KR_co, A]):
    """Records of several streams grouped by K, to be aggregated in a table with keys of KR."""

    def __init__(self, cogroup: Cogroup) -> None:
        self._cogroup = cogroup


class _Folded(_Cogrouped[K_co, KR_co, A]):
    """Those whose aggregates are never merged."""

    def aggregate(
        self,
        initial: "grouped_streams.Initializer[A] | None" = None,
        materialized: Materialized[K_co, A] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[KR_co, A]":
        """Return the functions of all streams folded over the records of each key.

        The first aggregate of a key is initial(), and None deletes the key. All else is as for the
        aggregate of one stream. A stream whose keys changed goes through a repartition topic with
        the name of its grouping; without one, it is named after the store, and from the second
        stream on its place. SerdeMismatch if the keys of the streams have different serdes.

        Aggregates of `ss.agg` need no initial(). Streams share those that have the same name, and
        Misuse tells if the states of these differ.
        """
        if self._cogroup.is_named:
            return _named(self._cogroup, materialized, name, initial)
        first = given(initial)
        check_arity("aggregate initial", first, 0, name)
        return ktables.KTable(self._cogroup.aggregate(first, materialized, name))


def _named(
    cogroup: Cogroup,
    materialized: Materialized[Any, Any] | str | None,
    name: str | None,
    *functions: object,
) -> "ktables.KTable[Any, Any]":
    """Return the table of aggregates of `ss.agg`; Misuse if there are functions, too."""
    check_alone("aggregate" if name is None else f"aggregate {name!r}", *functions)
    return ktables.KTable(cogroup.aggregate_named(materialized, name))


class TimeWindowedCogroupedKStream(_Folded[K_co, Windowed[K_co], A]):
    """Records of several streams grouped by key and window; the tables' keys are `Windowed`."""


class SessionWindowedCogroupedKStream(_Cogrouped[K_co, Windowed[K_co], A]):
    """Records of several streams grouped by key and session; the tables' keys are `Windowed`."""

    def aggregate(
        self,
        initial: "grouped_streams.Initializer[A] | None" = None,
        merger: Callable[[K_co, A, A], A] | None = None,
        materialized: Materialized[K_co, A] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[Windowed[K_co], A]":
        """Return the functions of all streams folded over the records of each session.

        merger(key, one, other) makes one aggregate of those of two sessions. All else is as for the
        sessions of one stream. Aggregates of `ss.agg` need neither function.
        """
        if self._cogroup.is_named:
            return _named(self._cogroup, materialized, name, initial, merger)
        first, merge = given(initial), given(merger)
        check_arity("aggregate initial", first, 0, name)
        check_arity("aggregate merger", merge, 3, name)
        return ktables.KTable(self._cogroup.aggregate(first, materialized, name, merge))


class CogroupedKStream(_Folded[K_co, K_co, A]):
    """Records of several streams, each with a function that adds them to one aggregate."""

    def cogroup(
        self,
        grouped: "grouped_streams.KGroupedStream[K_co, V]",
        function: Callable[[K_co, V, A], A | None] | Given,
    ) -> "CogroupedKStream[K_co, A]":
        """Add another grouped stream, whose records function(key, value, aggregate) adds.

        In place of functions, all streams may have an aggregate of `ss.agg`, or dicts of several.

        Misuse if it is none; InvalidTopology if it has another builder.
        """
        if not is_aggregate(function):
            check_arity("cogroup", function, 3)
        grouping = grouped_streams.grouping_of("cogroup", grouped)
        return CogroupedKStream(self._cogroup.and_of(grouping, function))

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows,
        *,
        emit: EmitStrategy | str = ...,
        close_idle: Span | None = ...,
    ) -> TimeWindowedCogroupedKStream[K_co, A]: ...
    @overload
    def windowed_by(
        self,
        windows: SessionWindows,
        *,
        emit: EmitStrategy | str = ...,
        close_idle: Span | None = ...,
    ) -> SessionWindowedCogroupedKStream[K_co, A]: ...
    @renamed(close_idle="close_idle_ms")
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows | SessionWindows,
        *,
        emit: EmitStrategy | str = EmitStrategy.ON_UPDATE,
        close_idle: Span | None = None,
    ) -> TimeWindowedCogroupedKStream[K_co, A] | SessionWindowedCogroupedKStream[K_co, A]:
        """Group the records of all streams by window or by session, too.

        Stream time is that of all streams. For `emit` and `close_idle`, see
        `KGroupedStream.windowed_by`. Misuse if windows are of a number of records.
        """
        given: object = windows
        if isinstance(given, CountWindows):
            raise Misuse(
                "cogroup: windows of a number of records are of one stream: merge() the streams, "
                "and then group and count them, or pass windows of time"
            )
        cogroup = self._cogroup.windowed(Windowing.of(windows, emit, close_idle))
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(cogroup)
        return TimeWindowedCogroupedKStream(cogroup)
