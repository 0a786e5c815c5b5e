"""Records grouped by key, with or without windows, on their way to a table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.modes import EmitStrategy, Span
from statestore.model.records import Serde
from statestore.stores.specs import KeyValueSpec, SessionSpec, WindowSpec
from statestore.topology.aggregates.streams import Spec, aggregated, counted
from statestore.topology.aggregates.versioned import FoldStep, aggregate_in_time
from statestore.topology.flows import Flow, TableFlow
from statestore.topology.materialized import Materialized
from statestore.topology.nodes import Build, SendOldValues
from statestore.topology.windows.closing import WindowCloses, checked_idle_ms
from statestore.topology.windows.counts import CountWindows, in_count_windows, open_windows_spec
from statestore.topology.windows.hopping import TimeWindows, in_windows, window_spec
from statestore.topology.windows.sessions import (
    COUNTED,
    SessionFold,
    SessionWindows,
    in_sessions,
    reduced,
    session_spec,
)
from statestore.topology.windows.sliding import (
    SlidingWindows,
    in_sliding_windows,
    sliding_spec,
)

AnyWindows = TimeWindows | SlidingWindows | SessionWindows | CountWindows


class Windowing(NamedTuple):
    """The windows of a grouping, when they tell results, and after which idle time they close."""

    over: AnyWindows
    emit: EmitStrategy
    close_idle_ms: int | None

    @classmethod
    def of(
        cls, windows: AnyWindows, emit: EmitStrategy | str, close_idle_ms: Span | None
    ) -> "Windowing":
        """Return what a user asked for; Misuse if idle windows are to close that tell on update."""
        when, idle_ms = EmitStrategy(emit), checked_idle_ms(close_idle_ms)
        if idle_ms is not None and when is not EmitStrategy.ON_WINDOW_CLOSE:
            raise Misuse(
                "close_idle_ms closes windows that tell their result on close: pass "
                "emit=EmitStrategy.ON_WINDOW_CLOSE, or close_idle_ms to "
                "Suppressed.until_window_closes()"
            )
        if idle_ms is not None and isinstance(windows, CountWindows):
            raise Misuse(
                "close_idle_ms closes windows of time: one of a number of records is open until it "
                "is full, so leave close_idle_ms out"
            )
        return cls(windows, when, idle_ms)


@dataclass(frozen=True)
class Grouping:
    """What stands behind a KGroupedStream and a TimeWindowedKStream.

    The repartition topic is named after `name`, or else after the store. A named one is shared by
    all aggregates of the grouping; `through` has the stream behind it, once there is one. `taker`
    is the call that was given the serdes, None if none was.
    """

    flow: Flow
    name: str | None
    taker: str | None = None
    windows: Windowing | None = None
    through: list[Flow] = field(default_factory=list)

    def windowed(self, windows: Windowing) -> "Grouping":
        """Return the same records grouped by window, too."""
        return Grouping(self.flow, self.name, self.taker, windows, self.through)

    def count(
        self, materialized: Materialized[Any, Any] | str | None, name: str | None
    ) -> TableFlow:
        """Add a node that counts."""
        if isinstance(materialized, Materialized):
            materialized = materialized.of_counts()
        step = FoldStep(COUNTED.step, COUNTED.initial)
        return self._aggregate(materialized, serdes.INT64, name, counted, COUNTED, step)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
    ) -> TableFlow:
        """Add a node that folds function(old, new) over values."""
        step = FoldStep(lambda _key, value, old: function(old, value), None)

        def fold(node: str, spec: Spec, **how: Any) -> Build:
            return aggregated(node, spec, step.fold, None, **how)

        serde = self.flow.value_serde
        return self._aggregate(materialized, serde, name, fold, reduced(function), step)

    def aggregate(
        self,
        initial: Callable[[], Any],
        function: Callable[[Any, Any, Any], Any],
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
        merger: Callable[[Any, Any, Any], Any] | None = None,
    ) -> TableFlow:
        """Add a node that folds function(key, value, aggregate) over records from initial() on.

        `merger(key, one, other)` makes one aggregate of those of two sessions.
        """
        sessions = SessionFold(initial, function, merger or function)

        def fold(node: str, spec: Spec, **how: Any) -> Build:
            return aggregated(node, spec, function, initial, **how)

        serde, step = self.flow.builder.value_serde, FoldStep(function, initial)
        return self._aggregate(materialized, serde, name, fold, sessions, step)

    def _aggregate(
        self,
        materialized: Materialized[Any, Any] | str | None,
        value_serde: Serde[Any],
        name: str | None,
        fold: Callable[..., Build],
        in_turn: SessionFold,
        step: FoldStep,
    ) -> TableFlow:
        flow, old_values, windows = self.flow, SendOldValues(), self.windows
        in_time = None if windows is not None else flow.spec_in_time(materialized, value_serde)
        if in_time is not None:
            flow.builder.keep(in_time)
            source = self.source(in_time.name, explicit=True)
            return aggregate_in_time(source, in_time, step, kind="KSTREAM-AGGREGATE", name=name)
        plain, every = flow.spec(materialized, "KSTREAM-AGGREGATE", value_serde)
        spec: Spec = plain if windows is None else _spec_of(plain, windows)
        flow.builder.keep(spec)
        more: tuple[str, ...] = ()
        if windows is not None and isinstance(windows.over, CountWindows):
            opened = open_windows_spec(windows.over, plain, windows.emit)
            flow.builder.keep(opened)
            more = (opened.name,)
        source = self.source(spec.name, explicit=materialized is not None)

        def make(node: str) -> Build:
            if windows is None:
                return fold(node, spec, every_update=every, old_values=old_values)
            return _built(node, spec, windows, fold, in_turn, every=every, old_values=old_values)

        node = source.add("KSTREAM-AGGREGATE", name, make, (spec.name, *more))
        return TableFlow.stored(flow.builder, node, spec, old_values, self._closes())

    def _closes(self) -> WindowCloses | None:
        """Return when windows close; None if there are none, or if results are final."""
        windows = self.windows
        if windows is None or windows.emit is EmitStrategy.ON_WINDOW_CLOSE:
            return None
        return None if isinstance(windows.over, CountWindows) else windows.over.closes

    def source(self, store: str, *, explicit: bool) -> Flow:
        """Return the stream that the aggregate reads, in the partitions of its keys.

        Without a name of the grouping, a repartition topic is named after the store; `explicit`:
        that is the user's.
        """
        if self.name is None:
            return self.flow.repartitioned(store, explicit=explicit, taker=self.taker)
        if not self.through:
            flow = self.flow.repartitioned(self.name, explicit=True, taker=self.taker)
            self.through.append(flow)
        return self.through[0]


def _spec_of(plain: KeyValueSpec[Any, Any], windowing: Windowing) -> Spec:
    """Return the store of an aggregate in windows."""
    over, emit, close_idle_ms = windowing
    if isinstance(over, CountWindows):
        return plain
    if isinstance(over, SessionWindows):
        return session_spec(over, plain, emit, close_idle_ms)
    if isinstance(over, SlidingWindows):
        return sliding_spec(over, plain, emit, close_idle_ms)
    return window_spec(over, plain, emit, close_idle_ms)


def _built(
    node: str,
    spec: Spec,
    windowing: Windowing,
    fold: Callable[..., Build],
    in_turn: SessionFold,
    *,
    every: bool,
    old_values: SendOldValues,
) -> Build:
    """Build an aggregate in windows: `fold` goes by rows of a batch, `in_turn` record by record."""
    over, emit, close_idle_ms = windowing
    if isinstance(over, CountWindows):
        assert isinstance(spec, KeyValueSpec)
        return in_count_windows(
            node, spec, over, emit, in_turn, every_update=every, old_values=old_values
        )
    if isinstance(over, SessionWindows):
        assert isinstance(spec, SessionSpec)
        return in_sessions(
            node,
            spec,
            over,
            emit,
            in_turn,
            every_update=every,
            old_values=old_values,
            close_idle_ms=close_idle_ms,
        )
    assert isinstance(spec, WindowSpec)
    if isinstance(over, SlidingWindows):
        return in_sliding_windows(
            node,
            spec,
            over,
            emit,
            in_turn,
            every_update=every,
            old_values=old_values,
            close_idle_ms=close_idle_ms,
        )
    return in_windows(
        node,
        spec,
        over,
        emit,
        lambda rows, told: fold(node, spec, every_update=every, old_values=told, keying=rows),
        old_values,
        close_idle_ms=close_idle_ms,
    )
