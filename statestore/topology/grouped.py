"""Records grouped by key, with or without windows, about to become a table.

Generic over the table they make, so that they need not know `streams`.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from statestore.model.modes import EmitStrategy
from statestore.model.records import Serde
from statestore.stores import serdes
from statestore.stores.specs import WindowSpec
from statestore.topology.aggregates import Before, Spec, aggregated, counted
from statestore.topology.callbacks import check_arity
from statestore.topology.collector import Materialized
from statestore.topology.flows import Flow, Table
from statestore.topology.graph import Build
from statestore.topology.windows import TumblingWindows, in_windows

TableT = TypeVar("TableT")


class _Grouped(Generic[TableT]):
    """What both have; the repartition topic is named after `name`, else after the store.

    One that was named is shared by all aggregates of one grouping, in `through` once it is there.
    """

    def __init__(
        self,
        flow: Flow,
        name: str | None,
        table: Callable[[Table], TableT],
        windows: tuple[TumblingWindows, EmitStrategy] | None = None,
        through: list[Flow] | None = None,
    ) -> None:
        self._flow = flow
        self._name = name
        self._table = table
        self._windows = windows
        self._through: list[Flow] = [] if through is None else through

    def count(
        self, materialized: Materialized | str | None = None, *, name: str | None = None
    ) -> TableT:
        """Records per key, as INT64. Those with a null key are dropped, null values not counted.

        In windows null values count too, as in Kafka Streams.
        """
        if isinstance(materialized, Materialized):
            materialized = materialized.of_counts()
        return self._made(materialized, serdes.INT64, name, counted)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> TableT:
        """function(old, new) per key; the first value stands as it is.

        Records with a null key are dropped, and those with a null value too; in windows the
        function is given null values, as in Kafka Streams.
        """
        check_arity("reduce", function, 2, name)

        def fold(node: str, spec: Spec, **how: Any) -> Build:
            return aggregated(
                node, spec, lambda _key, value, old: function(old, value), None, **how
            )

        return self._made(materialized, self._flow.value_serde, name, fold)

    def aggregate(
        self,
        initial: Callable[[], Any],
        function: Callable[[Any, Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> TableT:
        """function(key, value, aggregate) from initial(); None deletes the key.

        Null keys and values as in `reduce`.
        """
        check_arity("aggregate initial", initial, 0, name)
        check_arity("aggregate", function, 3, name)

        def fold(node: str, spec: Spec, **how: Any) -> Build:
            return aggregated(node, spec, function, initial, **how)

        return self._made(materialized, self._flow.builder.value_serde, name, fold)

    def _made(
        self,
        materialized: Materialized | str | None,
        value_serde: Serde[Any],
        name: str | None,
        fold: Callable[..., Build],
    ) -> TableT:
        flow, before, windows = self._flow, Before(), self._windows
        plain, every = flow.spec(materialized, "KSTREAM-AGGREGATE", value_serde)
        spec: Spec = plain if windows is None else windows[0].spec(plain, windows[1])
        flow.builder.keep(spec)
        source = self._source(spec.name, explicit=materialized is not None)

        def make(node: str) -> Build:
            if windows is None:
                return fold(node, spec, every_update=every, before=before)
            assert isinstance(spec, WindowSpec)
            return in_windows(
                node,
                spec,
                *windows,
                lambda rows: fold(node, spec, every_update=every, before=before, keying=rows),
                before,
            )

        node = source.add("KSTREAM-AGGREGATE", name, make, (spec.name,))
        return self._table(Table.kept(flow.builder, node, spec, before))

    def _source(self, store: str, *, explicit: bool) -> Flow:
        """Where the aggregate reads; the topic in between is the user's to name."""
        if self._name is None:
            return self._flow.repartitioned(store, explicit=explicit)
        if not self._through:
            self._through.append(self._flow.repartitioned(self._name, explicit=True))
        return self._through[0]


class TimeWindowedKStream(_Grouped[TableT]):
    """Records grouped by key and window; the tables' keys are `Windowed`."""


class KGroupedStream(_Grouped[TableT]):
    """Records grouped by key; the repartition topic is named after `name`, else after the store."""

    def windowed_by(
        self, windows: TumblingWindows, *, emit: EmitStrategy | str = EmitStrategy.ON_UPDATE
    ) -> TimeWindowedKStream[TableT]:
        """Group by window too. ON_WINDOW_CLOSE: one result a window, when no record can follow."""
        told = (windows, EmitStrategy(emit))
        return TimeWindowedKStream(self._flow, self._name, self._table, told, self._through)
