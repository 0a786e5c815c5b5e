"""The stores under contract: persistent and in memory, bytes and typed, in one vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from statestore import serdes
from statestore.model.modes import IsolationLevel
from statestore.runtime.public import open_store
from statestore.settings import Settings
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import (
    KeyValueSpec,
    in_memory_key_value_store,
    persistent_key_value_store,
)

Store = TransactionalKeyValueStore[Any, Any]
NAME = "prices"


@dataclass
class StoreWorld:
    """One kind of store: opens it, and says keys and values in its types."""

    persistent: bool
    typed: bool
    directory: Path
    opened: list[Store] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self.opened:
            store.close()

    @property
    def folder(self) -> Path:
        """Where a persistent store's files are."""
        return self.directory / NAME

    @property
    def spec(self) -> KeyValueSpec[Any, Any]:
        make = persistent_key_value_store if self.persistent else in_memory_key_value_store
        if self.typed:
            return make(NAME, key_serde=serdes.STRING, value_serde=serdes.JSON)
        return make(NAME)

    def open(
        self,
        *,
        isolation_level: IsolationLevel | str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Store:
        """As a user opens it, but without a synced log: that has tests of its own."""
        store = open_store(
            self.spec,
            self.directory,
            isolation_level=isolation_level,
            settings=Settings.from_mapping({"statestore.wal": False} | dict(settings or {})),
        )
        self.opened.append(store)
        return store

    def reopened(self) -> Store:
        """The last one closed, then opened again."""
        self.opened[-1].close()
        return self.open()

    def key(self, text: str) -> Any:
        return text if self.typed else text.encode()

    def value(self, text: str) -> Any:
        return {"v": text} if self.typed else text.encode()

    def pairs(self, text: str) -> list[tuple[Any, Any]]:
        """`a=1 b=2` as pairs; `a=` has the empty text, `a` alone is a delete."""
        made = []
        for item in text.split():
            key, equals, value = item.partition("=")
            made.append((self.key(key), self.value(value) if equals else None))
        return made

    def keys(self, text: str) -> list[Any]:
        return [self.key(name) for name in text.split()]

    def shown(self, pairs: Any) -> str:
        """The inverse of `pairs`."""
        found = []
        for key, value in pairs:
            name = key if self.typed else key.decode()
            found.append(f"{name}={value['v'] if self.typed else value.decode()}")
        return " ".join(found)

    def holding(self, committed: str, pending: str = "") -> Store:
        """A store with these rows committed and these pending."""
        store = self.open()
        store.put_all(self.pairs(committed))
        store.commit()
        for key, value in self.pairs(pending):
            store.put(key, value)
        return store


WORLDS = {
    f"{'persistent' if persistent else 'in-memory'}-{'typed' if typed else 'bytes'}": (
        persistent,
        typed,
    )
    for persistent in (True, False)
    for typed in (False, True)
}
