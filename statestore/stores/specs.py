"""Store specs: values that say which store to open, not stores (INTERFACE)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from statestore.layout.folders import check_store_name
from statestore.model import K, Serde, V, Windowed
from statestore.stores import serdes
from statestore.stores.contracts import StateStore, StoreContext

S = TypeVar("S", bound=StateStore)


@dataclass(frozen=True)
class KeyValueSpec(Generic[K, V]):
    """A key-value store: its name, serdes, and whether it outlives the process."""

    kind: ClassVar[str] = "keyvalue"

    name: str
    key_serde: Serde[K]
    value_serde: Serde[V]
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_store_name(self.name)


@dataclass(frozen=True)
class StoreSupplier(Generic[S]):
    """A store of the user's own class, for `process(factory, supplier)` (docs/adr/0006).

    `open` makes it for one stream task. `restore` writes changelog rows into it, None deletes; the
    task calls `commit` after it. `persistent` is what the store's own `persistent()` says.
    """

    kind: ClassVar[str] = "supplied"

    name: str
    open: Callable[[StoreContext], S]
    restore: Callable[[S, Mapping[bytes, bytes | None]], None]
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_store_name(self.name)

    @property
    def key_serde(self) -> Serde[bytes]:
        """Of the changelog: bytes, whatever the store's users see."""
        return serdes.BYTES

    @property
    def value_serde(self) -> Serde[bytes]:
        """Of the changelog: bytes, whatever the store's users see."""
        return serdes.BYTES


@dataclass(frozen=True)
class WindowRows(KeyValueSpec[bytes, bytes]):
    """The rows of a window store, in bytes."""

    kind: ClassVar[str] = "window"


@dataclass(frozen=True)
class WindowSpec(Generic[K, V]):
    """A window store: values by key and window of `size_ms` (SEMANTICS section 6).

    A window goes once stream time has passed its start by `retention_ms`.
    """

    kind: ClassVar[str] = "window"

    name: str
    inner: Serde[K]
    value_serde: Serde[V]
    size_ms: int
    retention_ms: int
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_store_name(self.name)

    @property
    def key_serde(self) -> Serde[Windowed[K]]:
        """Of keys in windows, as the changelog and sinks have them."""
        return serdes.windowed(self.inner, self.size_ms)

    @property
    def rows(self) -> WindowRows:
        """What is opened: rows of bytes."""
        return WindowRows(
            self.name, serdes.BYTES, serdes.BYTES, self.persistent, self.changelog_config
        )


StoreSpec = KeyValueSpec[Any, Any] | WindowSpec[Any, Any] | StoreSupplier[Any]


def persistent_key_value_store(
    name: str, *, key_serde: Serde[Any] | None = None, value_serde: Serde[Any] | None = None
) -> KeyValueSpec[Any, Any]:
    """A key-value store in RocksDB; without serdes keys and values are bytes."""
    return KeyValueSpec(name, key_serde or serdes.BYTES, value_serde or serdes.BYTES)


def in_memory_key_value_store(
    name: str, *, key_serde: Serde[Any] | None = None, value_serde: Serde[Any] | None = None
) -> KeyValueSpec[Any, Any]:
    """A key-value store in memory, restored from its changelog at every start (SEMANTICS S15)."""
    return KeyValueSpec(
        name, key_serde or serdes.BYTES, value_serde or serdes.BYTES, persistent=False
    )
