"""Grouped streams that are folded into one aggregate, each by a function of its own (KIP-150).

A node per stream says of each value which stream it is of. One node then folds all of them, with
the code of the aggregates of one stream. So there is one store, and in windows one clock, whichever
stream a record is of.

Keeps I24.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, SerdeMismatch
from statestore.model.batch import Batch, Column
from statestore.model.records import Serde
from statestore.topology.aggregates.declared import AggregatePlan, Given, is_aggregate
from statestore.topology.aggregates.folds import Fold, Step
from statestore.topology.aggregates.grouping import Grouping
from statestore.topology.failures import decoded
from statestore.topology.flows import Flow, TableFlow
from statestore.topology.materialized import Materialized, wished
from statestore.topology.nodes import Build, Forward, NodeContext, Push
from statestore.topology.operators import passed
from statestore.topology.windows.fold import Windowing

_KIND: Final = "COGROUPKSTREAM-AGGREGATE"


class _CogroupInput(NamedTuple):
    """A value, and the place of its stream among those of the cogroup."""

    stream: int
    value: Any


@dataclass(frozen=True)
class Cogroup:
    """What stands behind a CogroupedKStream: groupings, each with its function or aggregates."""

    parts: tuple[tuple[Grouping, Step | Given], ...]
    windows: Windowing | None = None

    def __post_init__(self) -> None:
        # The dicts are the user's, who may change them before the cogroup is folded.
        kept = ((one, dict(of) if isinstance(of, Mapping) else of) for one, of in self.parts)
        object.__setattr__(self, "parts", tuple(kept))

    def and_of(self, grouping: Grouping, function: Step | Given) -> "Cogroup":
        """Return these and another one; InvalidTopology if it has another builder."""
        if is_aggregate(function) is not self.is_named:
            raise Misuse(
                "cogroup: one stream has a function and another one aggregates of ss.agg: pass "
                "functions for all streams, or aggregates for all"
            )
        if grouping.flow.builder is not self.parts[0][0].flow.builder:
            raise InvalidTopology(
                "cogroup: the other stream has another builder; a topology has only one"
            )
        return replace(self, parts=(*self.parts, (grouping, function)))

    @property
    def is_named(self) -> bool:
        """Whether the streams have aggregates of `ss.agg`."""
        return is_aggregate(self.parts[0][1])

    def windowed(self, windows: Windowing) -> "Cogroup":
        """Return the same records grouped by window, too."""
        return replace(self, windows=windows)

    def aggregate(
        self,
        initial: Callable[[], Any],
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
        merger: Step | None = None,
    ) -> TableFlow:
        """Add the nodes that fold the records of all streams; see `Grouping.aggregate`.

        SerdeMismatch if their keys have different serdes.
        """
        steps: list[Any] = [function for _, function in self.parts]

        def step(key: Any, one: _CogroupInput, aggregate: Any) -> Any:
            return steps[one.stream](key, one.value, aggregate)

        serde = self.parts[0][0].flow.builder.value_serde
        return self._folded(Fold(initial, step, merger or step), serde, materialized, name)

    def aggregate_named(
        self, materialized: Materialized[Any, Any] | str | None, name: str | None
    ) -> TableFlow:
        """Do the same with aggregates of `ss.agg`; Misuse if streams do not share them."""
        where = "cogroup" if name is None else f"cogroup {name!r}"
        streams: list[Any] = [(grouping.flow.value_serde, given) for grouping, given in self.parts]
        plan = AggregatePlan(where, *streams)
        states = plan.checked(where, materialized)
        return plan.told(self._folded(plan.fold_of_streams(), plan.states, states, name), name)

    def _folded(
        self,
        fold: Fold,
        serde: Serde[Any],
        materialized: Materialized[Any, Any] | str | None,
        name: str | None,
    ) -> TableFlow:
        builder = self.parts[0][0].flow.builder
        wanted = wished(materialized) or Materialized(builder.store_name(_KIND))
        flows = self._sources(wanted.name, explicit=materialized is not None)
        told = tuple(
            flow.add(
                "COGROUPKSTREAM-TELL", None, _telling_of(stream, nulls=self.windows is not None)
            )
            for stream, flow in enumerate(flows)
        )
        merged = builder.node(
            "COGROUPKSTREAM-MERGE", None, told, lambda _: passed(), copartitioned=True
        )
        grouping = Grouping(flows[0].same(merged), None, windows=self.windows)
        return grouping.folded(fold, serde, wanted, name)

    def _sources(self, store: str, *, explicit: bool) -> list[Flow]:
        """Return the streams behind repartition topics, where their keys changed.

        A grouping without a name has a topic named after the store and, but for the first stream,
        its place.
        """
        flows = [
            grouping.source(store if place == 0 else f"{store}-{place + 1}", explicit=explicit)
            for place, (grouping, _) in enumerate(self.parts)
        ]
        first = flows[0]
        for flow in flows[1:]:
            if not serdes.alike(flow.key_serde, first.key_serde):
                raise SerdeMismatch(
                    f"cogroup: the keys of the streams are {first.key_serde.name} and "
                    f"{flow.key_serde.name}: equal keys would have other bytes and lie in other "
                    "partitions; pass the same key_serde=… to both streams, or to group_by()"
                )
        return flows


def _telling_of(stream: int, *, nulls: bool) -> Callable[[str], Build]:
    """Return what builds the node that says of values which stream they are of.

    Without `nulls`, a null stays one.
    """

    def made(node: str) -> Build:
        def build(_context: NodeContext, forward: Forward) -> Push:
            def push(batch: Batch) -> None:
                told = [
                    None if value is None and not nulls else _CogroupInput(stream, value)
                    for value in decoded(node, batch, "value")
                ]
                forward(batch.with_columns(values=Column(objects=told)), None)

            return push

        return build

    return made
