"""Materialized: how an aggregate or a table keeps its state."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Generic, overload

from typing_extensions import TypeVar

from statestore import serdes
from statestore.errors import InvalidTopology, Misuse
from statestore.model.keywords import renamed
from statestore.model.modes import Span, span_ms
from statestore.model.records import Serde
from statestore.stores.kinds.registry import expires, keeps_history, kind_of
from statestore.stores.migration import Migrations, migrating, migrations_in
from statestore.stores.specs import BuiltInSpec, KeyValueSpec, VersionedSpec

# A store's name alone says nothing about types: then they are those of the operator it is given to.
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, init=False)
class Materialized(Generic[K, V]):
    """How an aggregate or a table keeps its state; a store's name alone stands for one, too.

    `store` is the store's name or its spec. The serdes given here win over those of the spec, and
    those win over the serdes of the stream. `history_retention_ms` (milliseconds or a timedelta)
    makes a named table keep its versions that long (KIP-889). `caching=False` emits every update
    instead of the last one per key and commit (INTERFACE rule 6). `changelog_config` is merged into
    the configuration with which the store's changelog topic is created. `migrate` has the serdes
    that wrote values of the store before, oldest first, each as a Migration (docs/adr/0022).

    Misuse if `store` is neither a name nor the spec of a key-value or versioned store, if a spec
    comes with `history_retention_ms`, or if it has a `ttl_ms`.
    """

    store: str | KeyValueSpec[Any, Any] | VersionedSpec[Any, Any]
    history_retention_ms: Span | None
    caching: bool
    changelog_config: Mapping[str, str]
    key_serde: Serde[K] | None
    value_serde: Serde[V] | None
    migrate: Migrations

    @overload
    def __init__(
        self,
        store: str,
        *,
        history_retention: Span | None = None,
        caching: bool = True,
        changelog_config: Mapping[str, str] = NO_CONFIG,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        migrate: Migrations = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        store: KeyValueSpec[K, V] | VersionedSpec[K, V],
        *,
        caching: bool = True,
        changelog_config: Mapping[str, str] = NO_CONFIG,
        migrate: Migrations = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        store: KeyValueSpec[Any, V] | VersionedSpec[Any, V],
        *,
        caching: bool = True,
        changelog_config: Mapping[str, str] = NO_CONFIG,
        key_serde: Serde[K],
        migrate: Migrations = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        store: KeyValueSpec[K, Any] | VersionedSpec[K, Any],
        *,
        caching: bool = True,
        changelog_config: Mapping[str, str] = NO_CONFIG,
        value_serde: Serde[V],
        migrate: Migrations = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        store: KeyValueSpec[Any, Any] | VersionedSpec[Any, Any],
        *,
        caching: bool = True,
        changelog_config: Mapping[str, str] = NO_CONFIG,
        key_serde: Serde[K],
        value_serde: Serde[V],
        migrate: Migrations = None,
    ) -> None: ...
    @renamed(history_retention="history_retention_ms")
    def __init__(
        self,
        store: str | KeyValueSpec[Any, Any] | VersionedSpec[Any, Any],
        *,
        history_retention: Span | None = None,
        caching: bool = True,
        changelog_config: Mapping[str, str] = NO_CONFIG,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        migrate: Migrations = None,
    ) -> None:
        given: object = store
        if not isinstance(given, str | KeyValueSpec | VersionedSpec):
            raise Misuse(
                f"Materialized takes the name or the spec of a key-value store, not a "
                f"{type(given).__name__}: pass a store of your own to process()"
            )
        if history_retention is not None and not isinstance(given, str):
            raise Misuse(
                "Materialized takes history_retention with a store's name only: a spec itself "
                "says whether its store keeps history"
            )
        if not isinstance(given, str) and expires(given):
            raise Misuse(
                f"store {given.name!r}: rows of a table or an aggregate do not expire, as what is "
                "made of them would not learn of it: leave ttl out, or use windows"
            )
        fields = {
            "store": store,
            "history_retention_ms": history_retention,
            "caching": caching,
            "changelog_config": changelog_config,
            "key_serde": key_serde,
            "value_serde": value_serde,
            "migrate": migrations_in(migrate),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """The name of the store."""
        return self.store if isinstance(self.store, str) else self.store.name

    def spec(self, key_serde: Serde[Any], value_serde: Serde[Any]) -> KeyValueSpec[Any, Any]:
        """Return the spec of an aggregate's store, whose serdes are these unless others were given.

        InvalidTopology if the store would keep history, which windows do not.
        """
        made = self.table_spec(key_serde, value_serde)
        if keeps_history(made):
            raise InvalidTopology(
                f"store {made.name!r}: tables, aggregates by key, views and joins keep history, "
                "but not windows: leave out history_retention, or keep it in a view of them"
            )
        return made

    def table_spec(self, key_serde: Serde[Any], value_serde: Serde[Any]) -> BuiltInSpec:
        """Return the spec of a table's store, which may keep history; serdes as for `spec`."""
        own: BuiltInSpec = (
            self._named(self.store, key_serde, value_serde)
            if isinstance(self.store, str)
            else self.store
        )
        made: BuiltInSpec = replace(
            kind_of(own).kept_by_operator(own),
            key_serde=self.key_serde or own.key_serde,
            value_serde=migrating(self.value_serde or own.value_serde, self.migrate),
            changelog_config={**own.changelog_config, **self.changelog_config},
        )
        return made

    def _named(self, name: str, key_serde: Serde[Any], value_serde: Serde[Any]) -> BuiltInSpec:
        if self.history_retention_ms is None:
            return KeyValueSpec(name, key_serde, value_serde)
        return VersionedSpec(name, span_ms(self.history_retention_ms), key_serde, value_serde)

    def of_counts(self) -> "Materialized[K, int]":
        """Return the same with INT64 values, as count() writes; InvalidTopology on other values."""
        own = None if isinstance(self.store, str) else self.store.value_serde
        told: Serde[Any] = self.value_serde or own or serdes.INT64
        # A spec without a value serde has BYTES.
        if told is not serdes.INT64 and (self.value_serde or own is not serdes.BYTES):
            raise InvalidTopology(f"count() gives INT64, but the store's values are {told.name}")
        if self.migrate:
            raise InvalidTopology("count() gives INT64 and migrates nothing: leave out migrate")
        counts: Materialized[K, Any] = copy(self)
        object.__setattr__(counts, "value_serde", serdes.INT64)
        return counts


def wished(materialized: Materialized[Any, Any] | str | None) -> Materialized[Any, Any] | None:
    """Return what the user asked for; the name of a store stands for a Materialized."""
    return Materialized(materialized) if isinstance(materialized, str) else materialized
