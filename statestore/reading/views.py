"""StoreView: what a deployment says of one store, for whoever reads it.

It is made once for a store and a deployment, not for each question.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.records import OF_REGISTRY, Serde, Side
from statestore.operations.deployed import Deployed, DeployedGlobal, DeployedSchema, DeployedStore
from statestore.operations.pipelines import StoreSerdes, serdes_of
from statestore.serdes import Registry, composed
from statestore.serdes.described import by_description
from statestore.stores.kinds.kind import StoreKind, StoreTerms
from statestore.stores.kinds.registry import GLOBAL, kind_named
from statestore.stores.specs import StoreSpec
from statestore.topology.graph import Topology

_WITHOUT_CLASSES: Final = ("AVRO", "JSON")
"""The formats of a registry that need no class of the pipeline's to read."""


@dataclass(frozen=True)
class StoreView:
    """A store of an application: its kind, how to decode it, and where its rows come from.

    `known`: what the topology deployed last says of it; None: nothing, and it is taken for a
    key-value store. `inputs`: the topics that its stream tasks read. `log`: the topic that its rows
    can be made of again; empty for a global table, which has none of its own.
    """

    name: str
    application_id: str
    kind: StoreKind
    known: DeployedStore | DeployedGlobal | None
    terms: StoreTerms
    partitions: int | None
    inputs: tuple[str, ...]
    log: str = ""

    @classmethod
    def of(cls, deployed: Deployed, application_id: str, store: str) -> "StoreView":
        """Describe a store as deployed."""
        shared = deployed.global_stores.get(store)
        if shared is not None:
            return cls(store, application_id, GLOBAL, shared, StoreTerms(), None, ())
        known = deployed.stores.get(store)
        inputs = tuple(
            topic
            for part in deployed.sub_topologies
            if known is not None and part.ordinal == known.sub_topology
            for topic in part.topics(application_id)
        )
        return cls(
            store,
            application_id,
            kind_named(deployed.kind(store)),
            known,
            StoreTerms() if known is None else known.terms,
            deployed.partitions(store),
            inputs,
            deployed.log_of(application_id, store),
        )

    @property
    def is_global(self) -> bool:
        """Whether it is the store of a global table, which belongs to no stream task."""
        return self.kind is GLOBAL

    @property
    def is_source(self) -> bool:
        """Whether that log is the topic that the table is made of, not a changelog of its own."""
        return isinstance(self.known, DeployedStore) and self.known.source_topic is not None

    @property
    def sub_topology(self) -> int | None:
        """Whose stream tasks have it; None: all that were found with it, or none."""
        return self.known.sub_topology if isinstance(self.known, DeployedStore) else None

    @property
    def cannot_be_read(self) -> str | None:
        """Why nobody but its owner can read it; None: others can."""
        if not self.kind.is_readable:
            return "it is of a class of your own: only that can read its files"
        if isinstance(self.known, DeployedStore) and not self.known.persistent:
            return "it is in memory: it has no files to look into"
        return None

    @cached_property
    def in_bytes(self) -> StoreSpec:
        """How to read it in bytes; Misuse if only its own class can."""
        return self.spec(serdes.BYTES, serdes.BYTES)

    def spec(self, key_serde: Serde[Any], value_serde: Serde[Any]) -> StoreSpec:
        """How to read it with these serdes; of a store with windows, `key_serde` is of their keys.

        Where no retention was recorded, nothing expires. Misuse if only its own class can read it.
        """
        if not self.kind.is_readable:
            raise Misuse(f"store {self.name!r} cannot be read: {self.cannot_be_read}")
        return self.kind.spec_at_rest(self.name, key_serde, value_serde, self.terms)

    @property
    def key_serde(self) -> str | None:
        """The name of the serde of its keys, without their windows; None: it was not deployed."""
        if self.known is None:
            return None
        windows = composed.of_windowed(self.known.key_serde)
        return self.known.key_serde if windows is None else windows.inner

    def serdes(
        self,
        way_out: str,
        *,
        raw: bool = False,
        topology: Topology | None = None,
        registry: Registry | None = None,
    ) -> StoreSerdes:
        """Return the serdes of its keys and values: those of `topology`, or those deployed.

        A schema that was recorded helps where a name is not enough, as of Avro; `registry` has
        those with which the rows of a registry's serdes were written. Misuse if the library does
        not have them, with what the caller may do about it.
        """
        if raw:
            return StoreSerdes(serdes.BYTES, serdes.BYTES)
        if topology is not None:
            return serdes_of(topology, self.name, self.application_id)
        if self.known is None or self.key_serde is None:
            raise Misuse(
                f"store {self.name!r} is not in the topology deployed last, so nothing says how to "
                f"decode it: {way_out}"
            )
        return StoreSerdes(
            self._of_registry(registry, "key", self.key_serde, self._key_schema)
            or self._serde(self.key_serde, self._key_schema, way_out),
            self._of_registry(registry, "value", self.known.value_serde, self._value_schema)
            or self._serde(self.known.value_serde, self._value_schema, way_out),
        )

    def _of_registry(
        self,
        registry: Registry | None,
        side: Side,
        name: str,
        schema: DeployedSchema | None,
    ) -> Serde[Any] | None:
        """Return the serde of a registry, if that is what was deployed and it reads dicts."""
        known = None if schema is None else schema.schema()
        if registry is None or known is None or not name.startswith(OF_REGISTRY):
            return None
        if known.kind not in _WITHOUT_CLASSES:
            return None
        made = registry.serde(known.kind, known.text, None)
        return made.in_store(self.name, side, self.application_id)

    def spec_with(
        self, key_serde: Serde[Any] | None = None, value_serde: Serde[Any] | None = None
    ) -> StoreSpec:
        """How to read it; serdes not given are those deployed, or bytes if nothing was.

        Misuse names the keyword to pass where the library does not have a serde.
        """
        if key_serde is None:
            key_serde = self._or_bytes(self.key_serde, self._key_schema, "key_serde")
        if value_serde is None:
            value_name = None if self.known is None else self.known.value_serde
            value_serde = self._or_bytes(value_name, self._value_schema, "value_serde")
        return self.spec(key_serde, value_serde)

    def _or_bytes(
        self, name: str | None, schema: DeployedSchema | None, keyword: str
    ) -> Serde[Any]:
        if name is None or not self.kind.is_readable:
            return serdes.BYTES
        return self._serde(name, schema, f"pass {keyword}=")

    def _serde(self, name: str, schema: DeployedSchema | None, way_out: str) -> Serde[Any]:
        try:
            return by_description(name, None if schema is None else schema.schema())
        except Misuse as error:
            raise Misuse(f"store {self.name!r}: {error}: {way_out}") from error

    @property
    def _key_schema(self) -> DeployedSchema | None:
        return self.known.key_schema if isinstance(self.known, DeployedStore) else None

    @property
    def _value_schema(self) -> DeployedSchema | None:
        """The schema by which all values are read; None if there are several, or none."""
        if not isinstance(self.known, DeployedStore):
            return None
        writers = self.known.writers()
        schemas = [one.schema for one in writers if one.serde == self.known.value_serde]
        return schemas[0] if len(schemas) == 1 == len(writers) else None
