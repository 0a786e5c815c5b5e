"""KGroupedStream: records grouped by key, about to become a table.

Generic over the table it makes, so that it need not know `streams`.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from statestore.model import Serde
from statestore.stores import serdes
from statestore.stores.specs import KeyValueSpec
from statestore.topology import aggregates
from statestore.topology.aggregates import Before
from statestore.topology.collector import Materialized, check_arity
from statestore.topology.flows import Flow, Table, wished
from statestore.topology.graph import Build

TableT = TypeVar("TableT")


class KGroupedStream(Generic[TableT]):
    """Records grouped by key; the repartition topic is named after `name`, else after the store."""

    def __init__(self, flow: Flow, name: str | None, table: Callable[[Table], TableT]) -> None:
        self._flow = flow
        self._name = name
        self._table = table

    def count(
        self, materialized: Materialized | str | None = None, *, name: str | None = None
    ) -> TableT:
        """Records per key, as INT64; records with a null key are dropped."""
        return self._aggregate(
            materialized.of_counts() if isinstance(materialized, Materialized) else materialized,
            serdes.INT64,
            name,
            lambda node, spec, every, before: aggregates.counted(
                node, spec, every_update=every, before=before
            ),
        )

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> TableT:
        """function(old, new) per key; the first value stands as it is."""
        check_arity("reduce", function, 2, name)
        return self._aggregate(
            materialized,
            self._flow.value_serde,
            name,
            lambda node, spec, every, before: aggregates.aggregated(
                node,
                spec,
                lambda _key, value, old: function(old, value),
                None,
                every_update=every,
                before=before,
            ),
        )

    def aggregate(
        self,
        initial: Callable[[], Any],
        function: Callable[[Any, Any, Any], Any],
        materialized: Materialized | str | None = None,
        *,
        name: str | None = None,
    ) -> TableT:
        """function(key, value, aggregate) from initial(); None deletes the key."""
        check_arity("aggregate initial", initial, 0, name)
        check_arity("aggregate", function, 3, name)
        return self._aggregate(
            materialized,
            self._flow.builder.value_serde,
            name,
            lambda node, spec, every, before: aggregates.aggregated(
                node, spec, function, initial, every_update=every, before=before
            ),
        )

    def _aggregate(
        self,
        materialized: Materialized | str | None,
        value_serde: Serde[Any],
        name: str | None,
        make: Callable[[str, KeyValueSpec[Any, Any], bool, Before], Build],
    ) -> TableT:
        flow, before = self._flow, Before()
        spec, every = flow.spec(materialized, "KSTREAM-AGGREGATE", value_serde)
        source = flow.repartitioned(
            self._name or spec.name,
            explicit=self._name is not None or wished(materialized) is not None,
        )
        node = source.add(
            "KSTREAM-AGGREGATE", name, lambda n: make(n, spec, every, before), (spec.name,)
        )
        return self._table(Table.kept(flow.builder, node, spec, before))
