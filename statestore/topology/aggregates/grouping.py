"""Records grouped by key, in windows or not, or changes of groups, on their way to a table."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from statestore import serdes
from statestore.model.records import Serde
from statestore.topology.aggregates.folds import COUNTED, Aggregation, Fold, Step, reduced
from statestore.topology.aggregates.stream_aggregates import by_key
from statestore.topology.aggregates.versioned import aggregate_in_time
from statestore.topology.flows import Flow, TableFlow
from statestore.topology.materialized import Materialized
from statestore.topology.nodes import Build, SendOldValues
from statestore.topology.windows.fold import Windowing


@dataclass(frozen=True)
class Grouping:
    """What stands behind grouped streams, with and without windows, and behind grouped tables.

    The repartition topic is named after `name`, or else after the store. A named one is shared by
    all aggregates of the grouping; `through` has the stream behind it, once there is one. `taker`
    is the call that was given the serdes, None if none was. `kind` begins the names of its nodes.
    """

    flow: Flow
    name: str | None
    taker: str | None = None
    windows: Windowing | None = None
    kind: str = "KSTREAM-AGGREGATE"
    through: list[Flow] = field(default_factory=list)

    def windowed(self, windows: Windowing) -> "Grouping":
        """Return the same records grouped by window, too."""
        return replace(self, windows=windows)

    def count(
        self, materialized: Materialized[Any, Any] | str | None, name: str | None
    ) -> TableFlow:
        """Add a node that counts."""
        if isinstance(materialized, Materialized):
            materialized = materialized.of_counts()
        return self.folded(COUNTED, serdes.INT64, materialized, name)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
    ) -> TableFlow:
        """Add a node that folds function(old, new) over values."""
        return self.folded(reduced(function), self.flow.value_serde, materialized, name)

    def aggregate(
        self,
        initial: Callable[[], Any],
        function: Step,
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
        merger: Step | None = None,
    ) -> TableFlow:
        """Add a node that folds function(key, value, aggregate) over records from initial() on.

        `merger(key, one, other)` makes one aggregate of those of two sessions.
        """
        fold = Fold(initial, function, merger or function)
        return self.folded(fold, self.flow.builder.value_serde, materialized, name)

    def folded(
        self,
        fold: Fold,
        value_serde: Serde[Any],
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
    ) -> TableFlow:
        """Add a node that does with each record what `fold` says."""
        flow, old_values, windows = self.flow, SendOldValues(), self.windows
        in_time = None if windows is not None else flow.spec_in_time(materialized, value_serde)
        if in_time is not None:
            flow.builder.keep(in_time)
            source = self.source(in_time.name, explicit=True)
            return aggregate_in_time(source, in_time, fold, kind=self.kind, name=name)
        plain, every = flow.spec(materialized, self.kind, value_serde)
        specs = (plain,) if windows is None else windows.rule.specs(plain, windows.terms)
        for spec in specs:
            flow.builder.keep(spec)
        kept = specs[0]
        source = self.source(kept.name, explicit=materialized is not None)

        def make(node: str) -> Build:
            how: Aggregation[Any] = Aggregation(node, kept, fold, every, old_values)
            return by_key(how) if windows is None else windows.rule.build(how, windows)

        node = source.add(self.kind, name, make, tuple(spec.name for spec in specs))
        closes = None if windows is None else windows.closes
        return TableFlow.stored(flow.builder, node, kept, old_values, closes)

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
