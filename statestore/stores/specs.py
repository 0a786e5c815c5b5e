"""Store specs: values that say which store to open, not stores (INTERFACE)."""

from dataclasses import dataclass, field
from typing import Any, Generic

from statestore.layout import check_store_name
from statestore.model import K, Serde, V
from statestore.stores import serdes


@dataclass(frozen=True)
class KeyValueSpec(Generic[K, V]):
    """A key-value store: its name, serdes, and whether it outlives the process."""

    name: str
    key_serde: Serde[K]
    value_serde: Serde[V]
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_store_name(self.name)


StoreSpec = KeyValueSpec[Any, Any]


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
