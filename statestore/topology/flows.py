"""What stands behind a KStream and a KTable: a node, its serdes, and how others go on from it.

Internal: `streams` and `grouped` are what users see.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from statestore.errors import SerdeMismatch
from statestore.model.records import Serde
from statestore.stores import serdes
from statestore.stores.specs import KeyValueSpec, VersionedSpec, WindowSpec
from statestore.stores.windows import row_of
from statestore.topology.aggregates import Before, Spec
from statestore.topology.collector import Collector, Materialized
from statestore.topology.grace import Waiter
from statestore.topology.graph import Build, NodeContext
from statestore.topology.tables import tabled
from statestore.topology.versions import History, history_of, latest_of, versioned

Look = Callable[[list[bytes]], list[Any]]
"""Keys under the table's key serde -> their values, None where there is none."""
Stamp = Callable[[list[bytes], list[int]], list[int]]
"""Keys that have a value, and times -> the later of each time and that of the key's row."""


@dataclass(frozen=True)
class Flow:
    """A stream as far as it is written; `rekeyed`: its keys are not those of its topic any more."""

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
    ) -> str:
        """Add an operator that reads this stream; its name."""
        return self.builder.node(
            kind, name, (self.node,), make, stores, copartitioned=copartitioned, keeps=keeps
        )

    def same(self, node: str) -> "Flow":
        """The stream that goes on from `node`, keys and values unchanged."""
        return replace(self, node=node)

    def revalued(self, node: str) -> "Flow":
        """With other values: the builder's default serde holds (INTERFACE rule 3)."""
        return replace(self, node=node, value_serde=self.builder.value_serde)

    def keyed_anew(self, node: str, *, value_serde: Serde[Any] | None = None) -> "Flow":
        """With other keys, and other values unless `value_serde` says that they stayed."""
        builder = self.builder
        return Flow(
            builder, node, builder.key_serde, value_serde or builder.value_serde, rekeyed=True
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
    ) -> "Flow":
        """Through a repartition topic if the keys changed, or `forced`."""
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
        )
        return Flow(self.builder, source, key, value)

    def spec(
        self, materialized: Materialized | str | None, kind: str, value_serde: Serde[Any]
    ) -> tuple[KeyValueSpec[Any, Any], bool]:
        """The store of an aggregate or table, and whether every update is emitted."""
        wanted = wished(materialized) or Materialized(self.builder.store_name(kind))
        return wanted.spec(self.key_serde, value_serde), not wanted.caching

    def tabled(self, materialized: Materialized | str | None, name: str | None) -> "Table":
        """The table of the latest value per key."""
        wanted = wished(materialized) or Materialized(self.builder.store_name("KSTREAM-TOTABLE"))
        explicit = name is not None or materialized is not None
        source = self.repartitioned(name or wanted.name, explicit=explicit)
        spec = wanted.table_spec(source.key_serde, source.value_serde)
        self.builder.keep(spec)
        before = Before()
        waiters: list[Waiter] = []

        def make(node: str) -> Build:
            if isinstance(spec, VersionedSpec):
                return versioned(node, spec, before=before, waiters=waiters)
            return tabled(node, spec, before=before)

        node = source.add("KSTREAM-TOTABLE", name, make, (spec.name,), keeps=True)
        table = Table.kept(self.builder, node, spec, before)
        if isinstance(spec, VersionedSpec):
            table = replace(table, history=history_of(spec, node, waiters))
        return table


def wished(materialized: Materialized | str | None) -> Materialized | None:
    """A store's name alone is a Materialized too."""
    return Materialized(materialized) if isinstance(materialized, str) else materialized


@dataclass(frozen=True)
class Table:
    """A table as far as it is written: whose updates come from `node`, whose rows `look` reads.

    `stores`: those a look-up reads. `store`: its own; None: it is computed from those of others.
    """

    builder: Collector
    node: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    stores: tuple[str, ...]
    look: Callable[[NodeContext], Look]
    stamp: Callable[[NodeContext], Stamp]
    want_before: Callable[[], None]
    store: str | None = field(default=None)
    history: History | None = None

    @classmethod
    def kept(
        cls, builder: Collector, node: str, spec: Spec | VersionedSpec[Any, Any], before: Before
    ) -> "Table":
        """One with a store of its own, whose updates carry what they replace once asked."""
        return cls(
            builder,
            node,
            spec.key_serde,
            spec.value_serde,
            (spec.name,),
            latest_of(spec) if isinstance(spec, VersionedSpec) else partial(stored, spec=spec),
            partial(stamped, spec=spec),
            before.want,
            spec.name,
        )

    def kept_in(self, spec: KeyValueSpec[Any, Any]) -> "Table":
        """This table, looked up in the store that keeps it."""
        return replace(
            self,
            value_serde=spec.value_serde,
            stores=(spec.name,),
            look=lambda context: stored(context, spec),
            stamp=lambda context: stamped(context, spec),
            store=spec.name,
            history=None,
        )

    def add(
        self,
        kind: str,
        name: str | None,
        make: Callable[[str], Build],
        kept: KeyValueSpec[Any, Any] | None,
    ) -> str:
        """Add an operator that answers this table's updates; its name."""
        stores = () if kept is None else (kept.name,)
        return self.builder.node(kind, name, (self.node,), make, stores)

    def keep(
        self, materialized: Materialized | str | None, value_serde: Serde[Any]
    ) -> KeyValueSpec[Any, Any] | None:
        """The store of a table computed from this one, declared; None if it is to have none."""
        wanted = wished(materialized)
        if wanted is None:
            return None
        spec = wanted.spec(self.key_serde, value_serde)
        self.builder.keep(spec)
        return spec

    def check_keys(self, verb: str, node: str | None, key_serde: Serde[Any], whose: str) -> None:
        """SerdeMismatch if these keys and the table's cannot meet in one partition."""
        if not serdes.alike(key_serde, self.key_serde):
            raise SerdeMismatch(
                f"{verb}{f' {node}' if node else ''}: the keys of {whose} are {key_serde.name}, "
                f"those of the table of node {self.node} are {self.key_serde.name}: equal keys "
                "would have other bytes and lie in other partitions; pass the same key_serde=… to "
                f"both stream() and table(), or key_serde={self.key_serde.name} to a repartition() "
                "of the stream"
            )


def stored(context: NodeContext, spec: Spec) -> Look:
    """How the rows of a store are looked up."""
    table, read = context.table(spec.name), spec.value_serde.deserialize
    windowed, plain = isinstance(spec, WindowSpec), spec.value_serde is serdes.BYTES

    def look(keys: list[bytes]) -> list[Any]:
        if windowed:
            keys = list(map(row_of, keys))
        rows = table.get_many(keys)
        return rows if plain else [None if data is None else read(data) for data in rows]

    return look


def stamped(context: NodeContext, spec: Spec | VersionedSpec[Any, Any]) -> Stamp:
    """How the times of the rows of a store are looked up."""
    if isinstance(spec, VersionedSpec):
        return context.versions(spec.name).later
    table = context.table(spec.name)
    if not isinstance(spec, WindowSpec):
        return table.later
    return lambda keys, times: table.later(list(map(row_of, keys)), times)
