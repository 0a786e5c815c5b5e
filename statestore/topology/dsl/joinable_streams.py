"""The joins of a KStream, as they are written; `streams` has its other methods.

KStream derives from the class of this module and says how a join is added. The methods here name
streams and tables only as types, which is why they are imported last.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, overload

from statestore.model.keywords import renamed
from statestore.model.modes import Span
from statestore.model.records import K2, V2, K_co, Serde, V_co
from statestore.topology.dsl.given import Expression, Expressions
from statestore.topology.joins.co_partitioned import JoinKind
from statestore.topology.joins.global_tables import GlobalKTable, Selector
from statestore.topology.joins.join_windows import JoinWindows

R = TypeVar("R")


class JoinTerms(NamedTuple):
    """What a join was given beside the other side and the function."""

    within: JoinWindows | None = None
    key: Selector | Expression | None = None
    grace_ms: Span = 0
    tolerance_ms: Span | None = None
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None


class JoinableStream(Generic[K_co, V_co]):
    """A stream that is joined with tables and with other streams."""

    @overload
    def join(
        self,
        other: "ktables.KTable[K_co, V2]",
        function: Callable[[V_co, V2], R],
        *,
        grace: Span = 0,
        tolerance: Span | None = None,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def join(
        self,
        other: "ktables.KTable[K_co, V2]",
        function: Callable[[K_co, V_co, V2], R],
        *,
        grace: Span = 0,
        tolerance: Span | None = None,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def join(
        self,
        other: "streams.KStream[K_co, V2]",
        function: Callable[[V_co, V2], R],
        within: JoinWindows,
        *,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def join(
        self,
        other: "streams.KStream[K_co, V2]",
        function: Callable[[K_co, V_co, V2], R],
        within: JoinWindows,
        *,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, V2],
        function: Callable[[V_co, V2], R],
        *,
        key: Callable[[K_co, V_co], K2 | None] | Expression,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, V2],
        function: Callable[[K_co, V_co, V2], R],
        *,
        key: Callable[[K_co, V_co], K2 | None] | Expression,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def join(
        self,
        other: "ktables.KTable[K_co, Any]",
        function: Expressions,
        *,
        grace: Span = 0,
        tolerance: Span | None = None,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, Any]": ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, Any],
        function: Expressions,
        *,
        key: Callable[[K_co, V_co], K2 | None] | Expression,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, Any]": ...
    @renamed(grace="grace_ms", tolerance="tolerance_ms")
    def join(
        self,
        other: "ktables.KTable[Any, Any] | streams.KStream[Any, Any] | GlobalKTable[Any, Any]",
        function: Callable[..., Any] | Expressions,
        within: JoinWindows | None = None,
        *,
        key: Selector | Expression | None = None,
        grace: Span = 0,
        tolerance: Span | None = None,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, Any]":
        """Join each record with the row of a table, or with the records of another stream.

        With a global table: return function(left, right) for each record, where `right` is the row
        whose key is key(record's key, value), or the result of a Polars expression over the fields
        of the record. The stream keeps its keys, and nothing needs equal partitions. A record for
        which `key` gives None joins nothing.

        With a table: return function(left, right) for each record whose key the table has at that
        time; the function may take the key before both. If the table keeps versions, a record joins
        the version valid at its own time, after waiting for `grace` of stream time (KIP-923). A
        version that began more than `tolerance` before that time is no match (None: all are).

        With either, `function` may be a dict of Polars expressions, which gives results with these
        fields, or a single expression, which gives its result, over the fields of both (extra
        `columns`); a field that both have is called name_right where it is the row's.

        With a stream: return function(left, right) for each two records of one key whose times lie
        `within` these windows, with the later of both times. Records that are behind stream time by
        more than the windows and their grace are dropped as late.

        Records without a key or value join nothing. A stream whose keys were changed goes through a
        repartition topic named after `name`; `key_serde` is the serde of its keys, or else the
        builder's. `value_serde` is the serde of the results, or else the builder's; those of
        expressions are JSON of their types.

        Misuse if the grace is negative or longer than the table's history, if the tolerance is
        negative or the table has no history, if `within` is missing or not needed, or if an
        expression does not fit the fields or the serde, or is with a stream; SerdeMismatch
        if the keys of both have different serdes; InvalidTopology if the other has another builder.
        """
        extra = JoinTerms(within, key, grace, tolerance, key_serde, value_serde)
        return self._joined(JoinKind.INNER, other, function, extra, name)

    @overload
    def left_join(
        self,
        other: "ktables.KTable[K_co, V2]",
        function: Callable[[V_co, V2 | None], R],
        *,
        grace: Span = 0,
        tolerance: Span | None = None,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def left_join(
        self,
        other: "ktables.KTable[K_co, V2]",
        function: Callable[[K_co, V_co, V2 | None], R],
        *,
        grace: Span = 0,
        tolerance: Span | None = None,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def left_join(
        self,
        other: "streams.KStream[K_co, V2]",
        function: Callable[[V_co, V2 | None], R],
        within: JoinWindows,
        *,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def left_join(
        self,
        other: "streams.KStream[K_co, V2]",
        function: Callable[[K_co, V_co, V2 | None], R],
        within: JoinWindows,
        *,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, V2],
        function: Callable[[V_co, V2 | None], R],
        *,
        key: Callable[[K_co, V_co], K2 | None] | Expression,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, V2],
        function: Callable[[K_co, V_co, V2 | None], R],
        *,
        key: Callable[[K_co, V_co], K2 | None] | Expression,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def left_join(
        self,
        other: "ktables.KTable[K_co, Any]",
        function: Expressions,
        *,
        grace: Span = 0,
        tolerance: Span | None = None,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, Any]": ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, Any],
        function: Expressions,
        *,
        key: Callable[[K_co, V_co], K2 | None] | Expression,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, Any]": ...
    @renamed(grace="grace_ms", tolerance="tolerance_ms")
    def left_join(
        self,
        other: "ktables.KTable[Any, Any] | streams.KStream[Any, Any] | GlobalKTable[Any, Any]",
        function: Callable[..., Any] | Expressions,
        within: JoinWindows | None = None,
        *,
        key: Selector | Expression | None = None,
        grace: Span = 0,
        tolerance: Span | None = None,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, Any]":
        """Do as `join`, but return function(left, None) where there is nothing to join.

        With a stream, that result comes once the record's window and its grace have passed without
        a match. A record without a key joins None, too; with a global table, so does one for which
        `key` returns None.
        """
        extra = JoinTerms(within, key, grace, tolerance, key_serde, value_serde)
        return self._joined(JoinKind.LEFT, other, function, extra, name)

    @overload
    def outer_join(
        self,
        other: "streams.KStream[K_co, V2]",
        function: Callable[[V_co | None, V2 | None], R],
        within: JoinWindows,
        *,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    @overload
    def outer_join(
        self,
        other: "streams.KStream[K_co, V2]",
        function: Callable[[K_co, V_co | None, V2 | None], R],
        within: JoinWindows,
        *,
        key_serde: Serde[K_co] | None = None,
        value_serde: Serde[R] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, R]": ...
    def outer_join(
        self,
        other: "streams.KStream[Any, Any]",
        function: Callable[..., Any],
        within: JoinWindows,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "streams.KStream[K_co, Any]":
        """Do as `left_join` of streams, but also for records of the other stream without a match.

        Those give function(None, right).
        """
        terms = JoinTerms(within, key_serde=key_serde, value_serde=value_serde)
        return self._joined(JoinKind.OUTER, other, function, terms, name)

    @abstractmethod
    def _joined(
        self,
        kind: JoinKind,
        other: "ktables.KTable[Any, Any] | streams.KStream[Any, Any] | GlobalKTable[Any, Any]",
        function: Callable[..., Any] | Expressions,
        terms: JoinTerms,
        name: str | None,
    ) -> "streams.KStream[K_co, Any]":
        """Add a join, and return the stream of its results."""


from statestore.topology.dsl import ktables, streams  # noqa: E402 - streams derives from JoinableStream
