"""KStream: what a pipeline is written with, with the modules beside it.

Nothing runs here. A callable that cannot work is refused with the name of its operator: Misuse if
it does not take the right number of arguments or if calling it would run nothing. Keys and values
keep their serdes until an operator changes them; from then on, the serdes of the StreamsBuilder
hold (INTERFACE rules 3, 4 and 8).

The type parameters are the types of keys and values that the serdes decode. As in Kafka Streams,
they leave out null: a record of a stream may have the key or value None, and functions given to a
KStream receive it. Functions given to a KTable never do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from typing_extensions import TypeVar as TypeVarWithDefault

from statestore.errors import InvalidTopology, Misuse
from statestore.model.modes import Time, span_ms
from statestore.model.records import K2, V2, Header, K, K_co, Record, Serde, V, V_co
from statestore.stores.specs import StoreSpec
from statestore.topology import missing_methods
from statestore.topology import operators as ops
from statestore.topology.callbacks import ArrowFunction, check_arity, check_factory, takes_key
from statestore.topology.dsl import ktables, sinks
from statestore.topology.dsl.branches import branched
from statestore.topology.dsl.given import (
    Expression,
    Expressions,
    are_expressions,
    by_columns,
    is_expression,
    joined_by_columns,
)
from statestore.topology.dsl.groupable_streams import GroupableStream
from statestore.topology.dsl.joinable_streams import JoinableStream, JoinTerms
from statestore.topology.joins import co_partitioned
from statestore.topology.joins.global_tables import (
    GlobalKTable,
    joined_with,
    refuse_key,
    selected_by,
)
from statestore.topology.joins.join_windows import require_windows
from statestore.topology.joins.joiners import Joiner
from statestore.topology.materialized import Materialized
from statestore.topology.nodes import Build
from statestore.topology.processors.fixed_keys import processed_values
from statestore.topology.processors.user_processors import (
    BatchProcessor,
    Processor,
    ProcessorContext,
    declared,
    processed,
    timed,
)

KF = TypeVarWithDefault("KF", default=Any)
VF = TypeVarWithDefault("VF", default=Any)


@missing_methods.explains(missing_methods.OF_STREAMS)
class KStream(GroupableStream[K_co, V_co], JoinableStream[K_co, V_co]):
    """A stream of records. Every method returns a new stream, and this one stays usable.

    `name` is the name of the operator in the topology; without it, one is generated.
    """

    def filter(
        self,
        predicate: Callable[[K_co, V_co], object] | Expression,
        *,
        name: str | None = None,
    ) -> "KStream[K_co, V_co]":
        """Keep the records for which predicate(key, value), or an expression, is true.

        An expression of Polars has the fields of values as its columns; null is not true (extra
        `columns`). Misuse if it does not fit the fields, or is not computed row by row.
        """
        if is_expression(predicate):
            return KStream(by_columns("filter").filtered(self._flow, "filter", predicate, name))
        check_arity("filter", predicate, 2, name)
        return self._same("KSTREAM-FILTER", name, lambda n: ops.filtered(n, predicate))

    def filter_not(
        self,
        predicate: Callable[[K_co, V_co], object] | Expression,
        *,
        name: str | None = None,
    ) -> "KStream[K_co, V_co]":
        """Drop the records for which predicate(key, value), or an expression, is true."""
        if is_expression(predicate):
            by = by_columns("filter_not")
            return KStream(by.filtered(self._flow, "filter_not", predicate, name, keeps=False))
        check_arity("filter_not", predicate, 2, name)
        return self._same("KSTREAM-FILTER", name, lambda n: ops.rejected(n, predicate))

    def map(
        self,
        function: Callable[[K_co, V_co], tuple[K2, V2]],
        *,
        key_serde: Serde[K2] | None = None,
        value_serde: Serde[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K2, V2]":
        """Replace each record's key and value with the pair that function(key, value) returns.

        As after every operator that changes them, they have these serdes, or else the builder's.
        """
        check_arity("map", function, 2, name)
        node = self._flow.add("KSTREAM-MAP", name, lambda n: ops.mapped(n, function))
        return KStream(self._flow.keyed_anew(node, key_serde=key_serde, value_serde=value_serde))

    @overload
    def map_values(
        self,
        function: Mapping[str, Expression] | Expression,
        *,
        value_serde: Serde[V2],
        name: str | None = None,
    ) -> "KStream[K_co, V2]": ...
    @overload
    def map_values(
        self,
        function: Mapping[str, Expression] | Expression,
        *,
        value_serde: None = None,
        name: str | None = None,
    ) -> "KStream[K_co, Any]": ...
    @overload
    def map_values(
        self,
        function: Callable[[V_co], V2],
        *,
        value_serde: Serde[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K_co, V2]": ...
    @overload
    def map_values(
        self,
        function: Callable[[K_co, V_co], V2],
        *,
        value_serde: Serde[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K_co, V2]": ...
    def map_values(
        self,
        function: Callable[..., Any] | Mapping[str, Expression] | Expression,
        *,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "KStream[K_co, Any]":
        """Replace each record's value with function(value) or function(key, value).

        The key stays. A dict of Polars expressions gives a value with these fields, and a single
        expression gives its result, over the fields of the old value (extra `columns`). Without
        `value_serde`, these values are JSON of the expressions' types. A record without a value
        stays without one. Misuse if an expression does not fit the fields or the serde, or is not
        computed row by row.
        """
        if are_expressions(function):
            by = by_columns("map_values")
            return KStream(by.mapped_values(self._flow, function, value_serde, name))
        with_key = takes_key("map_values", function, 1, name)
        node = self._flow.add(
            "KSTREAM-MAPVALUES", name, lambda n: ops.mapped_values(n, function, with_key=with_key)
        )
        return KStream(self._flow.revalued(node, value_serde))

    @overload
    def map_values_arrow(
        self, function: ArrowFunction, *, value_serde: Serde[V2], name: str | None = None
    ) -> "KStream[K_co, V2]": ...
    @overload
    def map_values_arrow(
        self, function: ArrowFunction, *, value_serde: None = None, name: str | None = None
    ) -> "KStream[K_co, Any]": ...
    def map_values_arrow(
        self,
        function: ArrowFunction,
        *,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "KStream[K_co, Any]":
        """Replace the values of many records at once: function(values) or function(keys, values).

        It takes and returns Arrow arrays with a row per record, in which a type with fields is a
        struct. What it returns is written in `value_serde`, or else the builder's. A record without
        a value stays without one. Batches have any size, and results must not depend on it. Misuse
        if a serde offers no Arrow.
        """
        from statestore.topology import arrow_operators as arrow

        return KStream(arrow.mapped_values(self._flow, function, value_serde, name))

    def filter_arrow(
        self, predicate: ArrowFunction, *, name: str | None = None
    ) -> "KStream[K_co, V_co]":
        """Keep the records for which predicate(values) or predicate(keys, values) has true.

        It takes Arrow arrays with a row per record and returns one of booleans; null is not true.
        Misuse if a serde offers no Arrow.
        """
        from statestore.topology import arrow_operators as arrow

        return KStream(arrow.filtered(self._flow, predicate, name))

    def flat_map(
        self,
        function: Callable[[K_co, V_co], Iterable[tuple[K2, V2]]],
        *,
        key_serde: Serde[K2] | None = None,
        value_serde: Serde[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K2, V2]":
        """Replace each record with any number of pairs that function(key, value) gives."""
        check_arity("flat_map", function, 2, name, may_yield=True)
        node = self._flow.add(
            "KSTREAM-FLATMAP", name, lambda n: ops.flattened(n, function), fans_out=True
        )
        return KStream(self._flow.keyed_anew(node, key_serde=key_serde, value_serde=value_serde))

    @overload
    def flat_map_values(
        self,
        function: Callable[[V_co], Iterable[V2]],
        *,
        value_serde: Serde[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K_co, V2]": ...
    @overload
    def flat_map_values(
        self,
        function: Callable[[K_co, V_co], Iterable[V2]],
        *,
        value_serde: Serde[V2] | None = None,
        name: str | None = None,
    ) -> "KStream[K_co, V2]": ...
    def flat_map_values(
        self,
        function: Callable[..., Iterable[Any]],
        *,
        value_serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> "KStream[K_co, Any]":
        """Replace each record with any number of values; keys stay.

        They are what function(value) or function(key, value) gives.
        """
        with_key = takes_key("flat_map_values", function, 1, name, may_yield=True)
        node = self._flow.add(
            "KSTREAM-FLATMAPVALUES",
            name,
            lambda n: ops.flattened_values(n, function, with_key=with_key),
            fans_out=True,
        )
        return KStream(self._flow.revalued(node, value_serde))

    def peek(
        self, function: Callable[[K_co, V_co], object], *, name: str | None = None
    ) -> "KStream[K_co, V_co]":
        """Call function(key, value) for each record and hand the record on unchanged."""
        check_arity("peek", function, 2, name)
        return self._same("KSTREAM-PEEK", name, lambda n: ops.peeked(n, function))

    def foreach(self, function: Callable[[K_co, V_co], object], *, name: str | None = None) -> None:
        """Call function(key, value) for each record; the stream ends here."""
        check_arity("foreach", function, 2, name)
        self._flow.add("KSTREAM-FOREACH", name, lambda n: ops.peeked(n, function))

    def filter_records(
        self, predicate: Callable[[Record[K_co, V_co]], object], *, name: str | None = None
    ) -> "KStream[K_co, V_co]":
        """Keep the records for which predicate(record) is true, as by their headers or times."""
        check_arity("filter_records", predicate, 1, name)
        return self._same("KSTREAM-FILTER", name, lambda n: ops.filtered_records(n, predicate))

    def set_timestamp(
        self, function: Callable[[Record[K_co, V_co]], Time], *, name: str | None = None
    ) -> "KStream[K_co, V_co]":
        """Give each record the time that function(record) returns.

        It is in ms since the epoch, or an aware datetime; a negative one is an error of processing.
        Windows go by these times. The stream time of processors remains that of the input.
        """
        check_arity("set_timestamp", function, 1, name)
        return self._same("KSTREAM-SETTIMESTAMP", name, lambda n: ops.retimed(n, function))

    def set_headers(
        self, function: Callable[[Record[K_co, V_co]], Iterable[Header]], *, name: str | None = None
    ) -> "KStream[K_co, V_co]":
        """Give each record the headers that function(record) returns, in place of its own.

        A header is a pair of a name and bytes, or None.
        """
        check_arity("set_headers", function, 1, name, may_yield=True)
        return self._same("KSTREAM-SETHEADERS", name, lambda n: ops.reheaded(n, function))

    def merge(
        self, *others: "KStream[K_co, V_co]", name: str | None = None
    ) -> "KStream[K_co, V_co]":
        """Return the records of this stream and the others, with the serdes of this one.

        InvalidTopology if another stream comes from another builder.
        """
        flow, flows = self._flow, [other._flow for other in others]
        if any(other.builder is not flow.builder for other in flows):
            raise InvalidTopology("merge: a stream has another builder; a topology has only one")
        parents = (flow.node, *(other.node for other in flows))
        node = flow.builder.node("KSTREAM-MERGE", name, parents, lambda _: ops.passed())
        rekeyed = flow.rekeyed or any(other.rekeyed for other in flows)
        return KStream(replace(flow, node=node, rekeyed=rekeyed))

    def branch(
        self, *predicates: Callable[[K_co, V_co], object] | Expression, name: str | None = None
    ) -> "tuple[KStream[K_co, V_co], ...]":
        """Return one stream per predicate(key, value), and a last one for the rest.

        A record goes to the stream of the first predicate that is true for it. All predicates may
        be expressions, see `filter`.
        """
        names = [*(str(i + 1) for i in range(len(predicates))), "rest"]
        return tuple(map(KStream, branched(self._flow, "branch", predicates, names, name).values()))

    def split(
        self,
        branches: Mapping[str, Callable[[K_co, V_co], object] | Expression],
        *,
        default: str | None = None,
        name: str | None = None,
    ) -> "dict[str, KStream[K_co, V_co]]":
        """Return one stream per branch, by the branch's name (KIP-418).

        A record goes to the first branch whose predicate(key, value) is true for it. If there is
        none, it goes to the branch that `default` names, or is dropped. The nodes of the branches
        are `<name>-<branch>`. All predicates may be expressions, see `filter`. Misuse if there is
        no branch or two have one name.
        """
        if not branches:
            raise Misuse("split() needs at least one branch: pass {name: predicate}")
        if default in branches:
            raise Misuse(f"split(): {default!r} is a branch and the default: give them two names")
        made = branched(self._flow, "split", [*branches.values()], [*branches, default], name)
        return {each: KStream(flow) for each, flow in made.items()}

    def repartition(
        self: "KStream[K | None, V | None]",
        name: str,
        *,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        partitions: int | None = None,
        partitioner: Callable[[str, K, V, int], int | None] | None = None,
    ) -> "KStream[K, V]":
        """Send the records through the internal topic `<application id>-<name>-repartition`.

        Each record then lies in the partition of its key, or in that which `partitioner` returns,
        as in `to`. Without `partitions`, the topic has as many as its writers have stream tasks.
        Records without a key are dropped, unless a left or outer join of a stream is below.
        InvalidTopology if the name is taken.
        """
        if partitioner is not None:
            check_arity("the partitioner of repartition", partitioner, 4, name)
        flow = self._flow.repartitioned(
            name,
            explicit=True,
            forced=True,
            key_serde=key_serde,
            value_serde=value_serde,
            partitions=partitions,
            partitioner=partitioner,
            taker=f"repartition({name!r})",
        )
        return KStream(flow)

    def to(
        self: "KStream[K | None, V | None]",
        topic: str | Callable[[Record[K, V]], str],
        *,
        topics: Sequence[str] | None = None,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        partitioner: Callable[[str, K, V, int], int | None] | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to a topic of the user's, in these serdes or the stream's.

        `topic` may be a function topic(record) that returns the topic of each record. `topics` then
        names all topics that it may return, so that a start can check them; any other is an error
        of processing (KIP-303). Misuse if one of both is missing.

        `partitioner(topic, key, value, number of partitions)` returns the partition of a record, or
        None for the one of its key. A partition that the topic lacks is an error of production.
        """
        sinks.add(
            self._flow,
            topic,
            topics=topics,
            key_serde=key_serde,
            value_serde=value_serde,
            partitioner=partitioner,
            name=name,
        )

    def to_table(
        self: "KStream[K | None, V | None]",
        materialized: Materialized[K, V] | str | None = None,
        *,
        name: str | None = None,
    ) -> "ktables.KTable[K, V]":
        """Return the table of the latest value per key.

        A null value deletes its key; records with a null key are dropped. If `materialized` sets a
        history retention, the table keeps its versions (KIP-889, KIP-914).
        """
        return ktables.KTable(self._flow.tabled(materialized, name))

    def process(
        self,
        factory: Callable[[ProcessorContext[KF, VF]], Processor[K_co, V_co]],
        *stores: StoreSpec | str,
        key_serde: Serde[KF] | None = None,
        value_serde: Serde[VF] | None = None,
        name: str | None = None,
    ) -> "KStream[KF, VF]":
        """Hand each record to a Processor, which factory(context) makes for each stream task.

        `stores` are the specs, or names, of the stores that the processor uses; a store that is
        given to several processors is shared by them. A store of timers (`timer_store`) is for one
        processor, whose `on_timer(timer)` is called as they fire. The result is what the processor
        forwards, in these serdes or the builder's.
        Misuse if the factory, or the class it is, cannot work.
        """
        return self._process("process", factory, stores, name, key_serde, value_serde)

    def process_batch(
        self,
        factory: Callable[[ProcessorContext[KF, VF]], BatchProcessor[K_co, V_co]],
        *stores: StoreSpec | str,
        key_serde: Serde[KF] | None = None,
        value_serde: Serde[VF] | None = None,
        name: str | None = None,
    ) -> "KStream[KF, VF]":
        """Hand batches of records to a BatchProcessor; all else is as for `process`."""
        return self._process("process_batch", factory, stores, name, key_serde, value_serde)

    def process_values(
        self,
        factory: Callable[[ProcessorContext[K_co, VF]], Processor[K_co, V_co]],
        *stores: StoreSpec | str,
        value_serde: Serde[VF] | None = None,
        name: str | None = None,
    ) -> "KStream[K_co, VF]":
        """Hand each record to a Processor that keeps its key (KIP-820's fixed-key processors).

        What it forwards has the key of the record that it was given, and may have another value,
        time and headers; another key is an error of processing. The keys keep their serde, and no
        repartition follows. A timer cannot forward, because it has no key. All else is as for
        `process`.
        """
        return self._process("process_values", factory, stores, name, None, value_serde)

    def _process(
        self,
        verb: str,
        factory: Callable[[ProcessorContext[Any, Any]], Any],
        stores: tuple[StoreSpec | str, ...],
        name: str | None,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
    ) -> "KStream[Any, Any]":
        check_factory(
            verb, factory, name, "process_batch" if verb == "process_batch" else "process"
        )
        names, timers = declared(self._flow.builder, verb, stores, name)
        if verb == "process_values":
            kept = self._flow.add(
                "KSTREAM-PROCESSVALUES",
                name,
                lambda n: processed_values(n, factory, names),
                names,
                fans_out=True,
            )
            return KStream(self._flow.revalued(kept, value_serde))
        node = self._flow.add(
            "KSTREAM-PROCESSOR",
            name,
            lambda n: (
                timed(n, factory, names, timers)
                if timers is not None
                else processed(n, factory, names, per_record=verb == "process")
            ),
            names,
            fans_out=verb == "process" and timers is None,
        )
        return KStream(self._flow.keyed_anew(node, key_serde=key_serde, value_serde=value_serde))

    def _joined(
        self,
        kind: co_partitioned.JoinKind,
        other: "ktables.KTable[Any, Any] | KStream[Any, Any] | GlobalKTable[Any, Any]",
        function: Callable[..., Any] | Expressions,
        terms: JoinTerms,
        name: str | None,
    ) -> "KStream[K_co, Any]":
        verb, (within, key, grace_ms, tolerance_ms, key_serde, value_serde) = kind.value, terms
        flow = self._flow.keyed_by(verb, key_serde)
        others = (within, grace_ms, tolerance_ms is not None)
        if are_expressions(function):
            if isinstance(other, KStream):
                raise Misuse(
                    f"{verb}: expressions join a stream with the rows of a table: with another "
                    "stream, use a function"
                )
            if isinstance(other, GlobalKTable):
                theirs = other._table.spec.value_serde
            else:
                theirs = ktables.table_of(verb, other, self._flow).value_serde
            columns = joined_by_columns(verb)
            by = columns.joiner(verb, name, flow.value_serde, theirs, function, value_serde)
            joiner, value_serde = by, by.value_serde
        else:
            joiner = Joiner.checked(verb, function, name)
        if isinstance(other, GlobalKTable):
            everyone = other._table
            if is_expression(key):
                columns, keys = joined_by_columns(verb), everyone.spec.key_serde
                by_key = columns.selector(verb, name, flow.value_serde, key, keys)
            else:
                by_key = selected_by(verb, key)
            join = joined_with(
                everyone, joiner, kind, key=by_key, others=others, value_serde=value_serde
            )
            return KStream(join(flow, name))
        refuse_key(verb, key)
        if isinstance(other, KStream):
            near = require_windows(verb, within, others=any(others[1:]))
            return KStream(
                co_partitioned.stream_with_stream(
                    flow,
                    other._flow.keyed_by(verb, key_serde),
                    joiner,
                    kind,
                    windows=near,
                    value_serde=value_serde,
                    name=name,
                )
            )
        table = ktables.table_of(verb, other, self._flow)
        if within is not None or kind.left_may_lack:
            raise Misuse(
                f"{verb}: a table has one row of a key at a time, and no windows: use join() or "
                "left_join(), without windows"
            )
        if key_serde is not None:
            table.check_keys(verb, name, key_serde, "the stream")
        flow = co_partitioned.stream_with_table(
            flow,
            table,
            joiner,
            left=kind.right_may_lack,
            grace_ms=span_ms(grace_ms),
            tolerance_ms=None if tolerance_ms is None else span_ms(tolerance_ms),
            value_serde=value_serde,
            name=name,
        )
        return KStream(flow)

    def _same(
        self, kind: str, name: str | None, make: Callable[[str], Build]
    ) -> "KStream[K_co, V_co]":
        return KStream(self._flow.same(self._flow.add(kind, name, make)))
