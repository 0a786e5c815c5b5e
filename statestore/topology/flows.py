"""What stands behind a KStream and a KTable: a node, its serdes, and how other nodes follow it.

Internal; `streams` has what users see.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from statestore import serdes
from statestore.errors import SerdeMismatch
from statestore.model.records import Serde
from statestore.stores.kinds.registry import keeps_history, kind_of
from statestore.stores.migration import outside
from statestore.stores.specs import BuiltInSpec, KeyValueSpec, StoreSpec, VersionedSpec
from statestore.stores.staged_table import StagedTable
from statestore.stores.versioned.table import VersionedTable
from statestore.topology.collector import Collector
from statestore.topology.joins.grace import Waiter
from statestore.topology.materialized import Materialized, wished
from statestore.topology.nodes import (
    Build,
    NodeContext,
    Partitioner,
    SendOldValues,
    SinkNode,
    TopicName,
    check_serdes,
    check_topic,
)
from statestore.topology.tables import from_streams
from statestore.topology.tables.from_streams import History
from statestore.topology.windows.closing import WindowCloses

Look = Callable[[list[bytes]], list[Any]]
"""From keys under the table's key serde to their values; None where there is none."""
LookInBytes = Callable[[list[bytes]], list[bytes | None]]
"""As Look, but to the bytes of the values."""
Stamp = Callable[[list[bytes], list[int]], list[int]]
"""From keys with a value, and times, to the later of each time and that of the key's row."""


@dataclass(frozen=True)
class Flow:
    """A stream as far as it is written; `rekeyed`: its keys are no longer those of its topic."""

    builder: Collector
    node: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    rekeyed: bool = False

    def add(
        self,
        kind: str,
        name: str | None,
        make: Callable[[str], Build],
        stores: tuple[str, ...] = (),
        *,
        copartitioned: bool = False,
        keeps: bool = False,
        terms: tuple[str, ...] = (),
        fans_out: bool = False,
        says: str = "",
    ) -> str:
        """Add an operator that reads this stream; return the operator's name."""
        return self.builder.node(
            kind,
            name,
            (self.node,),
            make,
            stores,
            copartitioned=copartitioned,
            keeps=keeps,
            terms=terms,
            fans_out=fans_out,
            says=says,
        )

    def same(self, node: str) -> "Flow":
        """Return the stream that goes on from `node` with the same keys and values."""
        return replace(self, node=node)

    def revalued(self, node: str, value_serde: Serde[Any] | None = None) -> "Flow":
        """Return the stream with other values, in that serde or the builder's (INTERFACE rule 3).

        Misuse if what was given is not a serde of a topic.
        """
        value = self.builder.value_serde if value_serde is None else value_serde
        check_serdes(f"node {node}", self.key_serde, value)
        return replace(self, node=node, value_serde=value)

    def keyed_anew(
        self,
        node: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
    ) -> "Flow":
        """Return the stream with other keys and values, in these serdes or the builder's.

        Misuse if what was given is not a serde of a topic.
        """
        builder = self.builder
        key = builder.key_serde if key_serde is None else key_serde
        value = builder.value_serde if value_serde is None else value_serde
        check_serdes(f"node {node}", key, value)
        return Flow(builder, node, key, value, rekeyed=True)

    def keyed_by(self, verb: str, key_serde: Serde[Any] | None) -> "Flow":
        """Return the stream with this serde for keys that an operator has changed.

        SerdeMismatch if they are as the topic has them, in another serde.
        """
        if key_serde is None:
            return self
        check_serdes(verb, key_serde, self.value_serde)
        if self.rekeyed or serdes.alike(key_serde, self.key_serde):
            return replace(self, key_serde=key_serde)
        raise SerdeMismatch(
            f"{verb}: the keys of node {self.node} are {self.key_serde.name} in their topic, not "
            f"{key_serde.name}: leave out key_serde=…, or pass it to a repartition() before"
        )

    def repartitioned(
        self,
        name: str,
        *,
        explicit: bool,
        forced: bool = False,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        partitions: int | None = None,
        partitioner: Partitioner | None = None,
        taker: str | None = None,
    ) -> "Flow":
        """Return the stream behind a repartition topic if keys changed or `forced`, else itself.

        `taker`: which call gives the topic its serdes; None: none does, a repartition() could.
        """
        if not (self.rekeyed or forced):
            return self
        key, value = key_serde or self.key_serde, value_serde or self.value_serde
        source = self.builder.repartition(
            self.node,
            name,
            explicit=explicit,
            key_serde=key,
            value_serde=value,
            partitions=partitions,
            partitioner=partitioner,
            taker=taker or f"a repartition() before {name!r}",
        )
        return Flow(self.builder, source, key, value)

    def sink(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        partitioner: Partitioner | None,
        name: str | None,
    ) -> None:
        """Add a sink that writes this stream to a topic of the user's."""
        check_topic("to()", topic)
        self.builder.add(
            SinkNode(
                name or self.builder.number("KSTREAM-SINK"),
                (self.node,),
                TopicName(topic),
                key_serde or self.key_serde,
                value_serde or self.value_serde,
                taker=f"`to({topic!r})`",
                partitioner=partitioner,
            )
        )

    def spec(
        self, materialized: Materialized[Any, Any] | str | None, kind: str, value_serde: Serde[Any]
    ) -> tuple[KeyValueSpec[Any, Any], bool]:
        """Return the store of an aggregate, and whether every update is emitted."""
        wanted = wished(materialized) or Materialized(self.builder.store_name(kind))
        return wanted.spec(self.key_serde, value_serde), not wanted.caching

    def spec_in_time(
        self, materialized: Materialized[Any, Any] | str | None, value_serde: Serde[Any]
    ) -> VersionedSpec[Any, Any] | None:
        """Return the store of an aggregate that keeps its history; None if it is to keep none."""
        wanted = wished(materialized)
        spec = None if wanted is None else wanted.table_spec(self.key_serde, value_serde)
        return spec if keeps_history(spec) else None

    def tabled(
        self, materialized: Materialized[Any, Any] | str | None, name: str | None
    ) -> "TableFlow":
        """Add the table of the latest value per key."""
        wanted = wished(materialized) or Materialized(self.builder.store_name("KSTREAM-TOTABLE"))
        explicit = name is not None or materialized is not None
        source = self.repartitioned(name or wanted.name, explicit=explicit)
        spec = wanted.table_spec(source.key_serde, source.value_serde)
        self.builder.keep(spec)
        old_values = SendOldValues()
        waiters, followers = list[Waiter](), list[str]()

        def make(node: str) -> Build:
            if keeps_history(spec):
                return from_streams.with_history(
                    node, spec, old_values=old_values, waiters=waiters, followers=followers
                )
            return from_streams.latest(node, spec, old_values=old_values)

        node = source.add("KSTREAM-TOTABLE", name, make, (spec.name,), keeps=True)
        table = TableFlow.stored(self.builder, node, spec, old_values)
        if keeps_history(spec):
            table = replace(table, history=from_streams.history_of(spec, node, waiters, followers))
        return table


@dataclass(frozen=True)
class TableFlow:
    """A table as far as it is written: `node` makes its updates, and `look` reads its rows.

    `stamp` reads the times of its rows, `look_stored` the bytes of those that are in a store.
    `stores` are the stores that a look-up reads. `store` is the table's own store; None: its rows
    are computed from those of other tables. `send_old_values` asks that its updates carry the
    values that they replace. `closes` says when the windows of its keys close; None: its keys are
    in no windows, or its updates are final. `clocks` are the aggregates in these windows, whose
    updates tell what time it is, also where a view between shows none of them.
    """

    builder: Collector
    node: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    stores: tuple[str, ...]
    look: Callable[[NodeContext], Look]
    stamp: Callable[[NodeContext], Stamp]
    send_old_values: Callable[[], None]
    store: str | None = None
    history: History | None = None
    look_stored: Callable[[NodeContext], LookInBytes] | None = None
    closes: WindowCloses | None = None
    clocks: tuple[str, ...] = ()

    @classmethod
    def stored(
        cls,
        builder: Collector,
        node: str,
        spec: StoreSpec,
        old_values: SendOldValues,
        closes: WindowCloses | None = None,
    ) -> "TableFlow":
        """Return a table with a store of its own."""
        return cls(
            builder,
            node,
            spec.key_serde,
            outside(spec.value_serde),
            (spec.name,),
            partial(_look_of, spec=spec),
            partial(_stamp_of, spec=spec),
            old_values.enable,
            spec.name,
            look_stored=_look_stored(spec),
            closes=closes,
            clocks=() if closes is None else (node,),
        )

    def kept_in(self, spec: KeyValueSpec[Any, Any]) -> "TableFlow":
        """Return this table as it is looked up in the store that keeps it."""
        return replace(
            self,
            key_serde=spec.key_serde,
            value_serde=outside(spec.value_serde),
            stores=(spec.name,),
            look=partial(_look_of, spec=spec),
            stamp=partial(_stamp_of, spec=spec),
            store=spec.name,
            history=None,
            look_stored=_look_stored(spec),
        )

    def with_history(self, history: History) -> "TableFlow":
        """Return this table with a history, which streams are joined with."""
        return replace(self, history=history)

    def values_in(self, store: str) -> Serde[Any]:
        """Return the serde of the values that `look_in_bytes` gives to what has this store."""
        if self.look_stored is not None:
            return self.value_serde
        return self.value_serde.in_store(store, "value")

    def look_in_bytes(self, context: NodeContext, value_serde: Serde[Any]) -> LookInBytes:
        """Return the look-up of values in bytes, which `value_serde` reads; see `values_in`.

        They are those of the table's store, if it has one.
        """
        if self.look_stored is not None:
            return self.look_stored(context)
        look, write = self.look(context), value_serde.serialize
        return lambda keys: [None if value is None else write(value) for value in look(keys)]

    def add(
        self,
        kind: str,
        name: str | None,
        make: Callable[[str], Build],
        kept: BuiltInSpec | None,
    ) -> str:
        """Add an operator that takes this table's updates; return the operator's name."""
        stores = () if kept is None else (kept.name,)
        return self.builder.node(kind, name, (self.node,), make, stores)

    def keep(
        self, materialized: Materialized[Any, Any] | str | None, value_serde: Serde[Any]
    ) -> BuiltInSpec | None:
        """Declare the store of a table computed from this one; None if it is to have no store."""
        wanted = wished(materialized)
        if wanted is None:
            return None
        spec = wanted.table_spec(self.key_serde, value_serde)
        self.builder.keep(spec)
        return spec

    def looked_up_by(self, key_serde: Serde[Any]) -> "TableFlow":
        """Return this table as it is looked up with the bytes of keys under another serde.

        Equal keys have equal bytes under both, unless the serdes see in which store the keys are.
        """
        mine = self.key_serde
        if mine is key_serde or not (mine.contextual or key_serde.contextual):
            return self

        def own(keys: list[bytes]) -> list[bytes]:
            return [mine.serialize(key_serde.deserialize(key)) for key in keys]

        def look(context: NodeContext) -> Look:
            found = self.look(context)
            return lambda keys: found(own(keys))

        def stamp(context: NodeContext) -> Stamp:
            later = self.stamp(context)
            return lambda keys, times: later(own(keys), times)

        return replace(self, look=look, stamp=stamp)

    def check_keys(self, verb: str, node: str | None, key_serde: Serde[Any], whose: str) -> None:
        """Raise SerdeMismatch if these keys and the table's cannot meet in one partition."""
        if not serdes.alike(key_serde, self.key_serde):
            raise SerdeMismatch(
                f"{verb}{f' {node}' if node else ''}: the keys of {whose} are {key_serde.name}, "
                f"those of the table of node {self.node} are {self.key_serde.name}: equal keys "
                "would have other bytes and lie in other partitions; pass the same key_serde=… to "
                f"both stream() and table(), or key_serde={self.key_serde.name} to a repartition() "
                "of the stream"
            )


def _look_stored(spec: StoreSpec) -> Callable[[NodeContext], LookInBytes] | None:
    """Return the look-up of a store's rows; None if they are not as they leave the store."""
    if outside(spec.value_serde) is not spec.value_serde:
        return None
    return partial(_stored_rows, spec=spec)


def _look_of(context: NodeContext, spec: StoreSpec) -> Look:
    """Return the look-up of a store's rows."""
    stored, read = _stored_rows(context, spec), spec.value_serde.deserialize
    plain = spec.value_serde is serdes.BYTES

    def look(keys: list[bytes]) -> list[Any]:
        rows = stored(keys)
        return rows if plain else [None if data is None else read(data) for data in rows]

    return look


def _stored_rows(context: NodeContext, spec: StoreSpec) -> LookInBytes:
    """Return the look-up of the values of a store's rows, in bytes."""
    return kind_of(spec).look_up(_table_of(context, spec))


def _stamp_of(context: NodeContext, spec: StoreSpec) -> Stamp:
    """Return the look-up of the times of a store's rows."""
    return kind_of(spec).later(_table_of(context, spec))


def _table_of(context: NodeContext, spec: StoreSpec) -> StagedTable | VersionedTable:
    if kind_of(spec).keeps_history:
        return context.versions(spec.name)
    return context.table(spec.name)
