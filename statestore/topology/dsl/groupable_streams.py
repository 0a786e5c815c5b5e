"""How a stream gets other keys, and groups for aggregates; `streams` has its other methods.

KStream derives from the class of this module. The methods here name streams only as types, which is
why they are imported last.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, overload

from statestore.model.records import K2, K, K_co, Serde, V, V_co
from statestore.topology import operators as ops
from statestore.topology.aggregates.grouping import Grouping
from statestore.topology.callbacks import check_arity
from statestore.topology.dsl.given import Expression, by_columns, is_expression
from statestore.topology.flows import Flow


class GroupableStream(Generic[K_co, V_co]):
    """A stream that is grouped by its keys, or by others."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    @overload
    def select_key(
        self, function: Expression, *, key_serde: None = None, name: str | None = None
    ) -> "streams.KStream[Any, V_co]": ...
    @overload
    def select_key(
        self, function: Expression, *, key_serde: Serde[K2], name: str | None = None
    ) -> "streams.KStream[K2, V_co]": ...
    @overload
    def select_key(
        self,
        function: Callable[[K_co, V_co], K2],
        *,
        key_serde: Serde[K2] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K2, V_co]": ...
    def select_key(
        self,
        function: Callable[[K_co, V_co], Any] | Expression,
        *,
        key_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[Any, V_co]":
        """Replace each record's key with function(key, value); the value stays.

        The keys of a Polars expression, over the fields of values, have the serde of its type
        unless one is given (extra `columns`).
        """
        if is_expression(function):
            by = by_columns("select_key")
            return streams.KStream(by.keyed(self._flow, "select_key", function, key_serde, name))
        check_arity("select_key", function, 2, name)
        node = self._flow.add("KSTREAM-KEY-SELECT", name, lambda n: ops.keyed(n, function))
        flow = self._flow.keyed_anew(node, key_serde=key_serde, value_serde=self._flow.value_serde)
        return streams.KStream(flow)

    def group_by_key(
        self, *, name: str | None = None
    ) -> "grouped_streams.KGroupedStream[K_co, V_co]":
        """Group by the key; records are repartitioned only if an operator changed their keys.

        The repartition topic is named after `name`, or else after the aggregate's store.
        """
        return grouped_streams.KGroupedStream(Grouping(self._flow, name))

    @overload
    def group_by(
        self: "GroupableStream[K, V | None]",
        function: Expression,
        *,
        key_serde: None = None,
        value_serde: Serde[V] | None = None,
        name: str | None = None,
    ) -> "grouped_streams.KGroupedStream[Any, V]": ...
    @overload
    def group_by(
        self: "GroupableStream[K, V | None]",
        function: Expression,
        *,
        key_serde: Serde[K2],
        value_serde: Serde[V] | None = None,
        name: str | None = None,
    ) -> "grouped_streams.KGroupedStream[K2, V]": ...
    @overload
    def group_by(
        self: "GroupableStream[K, V | None]",
        function: Callable[[K, V], K2],
        *,
        key_serde: Serde[K2] | None = None,
        value_serde: Serde[V] | None = None,
        name: str | None = None,
    ) -> "grouped_streams.KGroupedStream[K2, V]": ...
    def group_by(
        self: "GroupableStream[K, V | None]",
        function: Callable[[K, V], Any] | Expression,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[V] | None = None,
        name: str | None = None,
    ) -> "grouped_streams.KGroupedStream[Any, V]":
        """Group by function(key, value), through a repartition topic with these serdes.

        The topic is named after `name`, or else after the aggregate's store. For a Polars
        expression, see `select_key`.
        """
        if is_expression(function):
            made = by_columns("group_by").keyed(
                self._flow, "group_by", function, key_serde, None, name
            )
            made = replace(made, value_serde=value_serde or made.value_serde)
            return grouped_streams.KGroupedStream(Grouping(made, name, "group_by()"))
        check_arity("group_by", function, 2, name)
        flow = self._flow
        node = flow.add("KSTREAM-KEY-SELECT", None, lambda n: ops.keyed(n, function))
        keyed = flow.keyed_anew(node, value_serde=value_serde or flow.value_serde)
        return grouped_streams.KGroupedStream(
            Grouping(replace(keyed, key_serde=key_serde or keyed.key_serde), name, "group_by()")
        )


from statestore.topology.dsl import grouped_streams, streams  # noqa: E402 - streams derives from it
