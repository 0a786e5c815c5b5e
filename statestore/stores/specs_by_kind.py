"""A function per kind of store, which describes one in RocksDB or in memory.

Kafka Streams has two names for each: `persistent_key_value_store(name)` is `key_value_store(name)`,
and `in_memory_key_value_store(name)` is `key_value_store(name, in_memory=True)`.
"""

from typing import Any, overload

from statestore import serdes
from statestore.model.modes import Span
from statestore.model.records import K, Serde, V
from statestore.stores.migration import Migrations, migrating
from statestore.stores.specs import (
    KeyValueSpec,
    SessionSpec,
    VersionedSpec,
    WindowSpec,
    key_value_spec,
    versioned_spec,
)
from statestore.stores.window_specs import session_spec, window_spec


@overload
def key_value_store(
    name: str,
    *,
    in_memory: bool = False,
    ttl: Span | None = None,
    key_serde: None = None,
    value_serde: None = None,
) -> KeyValueSpec[bytes, bytes]: ...
@overload
def key_value_store(
    name: str,
    *,
    in_memory: bool = False,
    ttl: Span | None = None,
    key_serde: Serde[K],
    value_serde: None = None,
) -> KeyValueSpec[K, bytes]: ...
@overload
def key_value_store(
    name: str,
    *,
    in_memory: bool = False,
    ttl: Span | None = None,
    key_serde: None = None,
    value_serde: Serde[V],
) -> KeyValueSpec[bytes, V]: ...
@overload
def key_value_store(
    name: str,
    *,
    in_memory: bool = False,
    ttl: Span | None = None,
    key_serde: Serde[K],
    value_serde: Serde[V],
    migrate: Migrations = None,
) -> KeyValueSpec[K, V]: ...
def key_value_store(
    name: str,
    *,
    in_memory: bool = False,
    ttl: Span | None = None,
    key_serde: Serde[Any] | None = None,
    value_serde: Serde[Any] | None = None,
    migrate: Migrations = None,
) -> KeyValueSpec[Any, Any]:
    """Describe a key-value store; without serdes its keys and values are bytes.

    `in_memory`: keep it in memory, and restore it from its changelog at every start (SEMANTICS
    S15), instead of in RocksDB. `ttl`: a row expires that long after the stream time at its last
    put, in milliseconds or as a timedelta (SEMANTICS S17). `migrate`: the serdes that wrote values
    of the store before (docs/adr/0022). Misuse if the name cannot be that of a store (SEMANTICS
    T1), or if `ttl` is not positive.
    """
    return key_value_spec(name, ttl, key_serde, value_serde, migrate, persistent=not in_memory)


@overload
def versioned_key_value_store(
    name: str,
    history_retention: Span,
    *,
    in_memory: bool = False,
    segment_interval: Span | None = None,
    key_serde: None = None,
    value_serde: None = None,
) -> VersionedSpec[bytes, bytes]: ...
@overload
def versioned_key_value_store(
    name: str,
    history_retention: Span,
    *,
    in_memory: bool = False,
    segment_interval: Span | None = None,
    key_serde: Serde[K],
    value_serde: None = None,
) -> VersionedSpec[K, bytes]: ...
@overload
def versioned_key_value_store(
    name: str,
    history_retention: Span,
    *,
    in_memory: bool = False,
    segment_interval: Span | None = None,
    key_serde: None = None,
    value_serde: Serde[V],
) -> VersionedSpec[bytes, V]: ...
@overload
def versioned_key_value_store(
    name: str,
    history_retention: Span,
    *,
    in_memory: bool = False,
    segment_interval: Span | None = None,
    key_serde: Serde[K],
    value_serde: Serde[V],
    migrate: Migrations = None,
) -> VersionedSpec[K, V]: ...
def versioned_key_value_store(
    name: str,
    history_retention: Span,
    *,
    in_memory: bool = False,
    segment_interval: Span | None = None,
    key_serde: Serde[Any] | None = None,
    value_serde: Serde[Any] | None = None,
    migrate: Migrations = None,
) -> VersionedSpec[Any, Any]:
    """Describe a versioned store (KIP-889); without serdes it has bytes.

    `history_retention` is how far back reads are exact; `segment_interval` None takes the interval
    of the store on disk, or one that suits the retention (SEMANTICS V5). Both are milliseconds or a
    timedelta. `in_memory` and `migrate`: see `key_value_store`. Misuse if the name cannot be that
    of a store, if the retention is negative, or if the interval is not positive.
    """
    spans = (history_retention, segment_interval)
    return versioned_spec(name, *spans, key_serde, value_serde, migrate, persistent=not in_memory)


@overload
def window_store(
    name: str,
    size: Span,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: None = None,
    value_serde: None = None,
) -> WindowSpec[bytes, bytes]: ...
@overload
def window_store(
    name: str,
    size: Span,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: Serde[K],
    value_serde: None = None,
) -> WindowSpec[K, bytes]: ...
@overload
def window_store(
    name: str,
    size: Span,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: None = None,
    value_serde: Serde[V],
) -> WindowSpec[bytes, V]: ...
@overload
def window_store(
    name: str,
    size: Span,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: Serde[K],
    value_serde: Serde[V],
    migrate: Migrations = None,
) -> WindowSpec[K, V]: ...
def window_store(
    name: str,
    size: Span,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: Serde[Any] | None = None,
    value_serde: Serde[Any] | None = None,
    migrate: Migrations = None,
) -> WindowSpec[Any, Any]:
    """Describe a window store for a processor; without serdes it has bytes.

    A window starts at any time and ends `size` later. It expires when the latest start that was put
    is past its own by `retention`. Both are milliseconds or a timedelta. `in_memory` and `migrate`:
    see `key_value_store`. Misuse if the name cannot be that of a store, if the size is not
    positive, or if windows would expire before they end.
    """
    values = migrating(value_serde or serdes.BYTES, migrate)
    return window_spec(name, size, retention, key_serde, values, persistent=not in_memory)


@overload
def session_store(
    name: str,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: None = None,
    value_serde: None = None,
) -> SessionSpec[bytes, bytes]: ...
@overload
def session_store(
    name: str,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: Serde[K],
    value_serde: None = None,
) -> SessionSpec[K, bytes]: ...
@overload
def session_store(
    name: str,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: None = None,
    value_serde: Serde[V],
) -> SessionSpec[bytes, V]: ...
@overload
def session_store(
    name: str,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: Serde[K],
    value_serde: Serde[V],
    migrate: Migrations = None,
) -> SessionSpec[K, V]: ...
def session_store(
    name: str,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: Serde[Any] | None = None,
    value_serde: Serde[Any] | None = None,
    migrate: Migrations = None,
) -> SessionSpec[Any, Any]:
    """Describe a session store for a processor; without serdes it has bytes.

    A session expires when the latest end that was put is past its own by more than `retention`,
    which is in milliseconds or a timedelta. `in_memory` and `migrate`: see `key_value_store`.
    Misuse if the name cannot be that of a store, or if the retention is negative.
    """
    values = migrating(value_serde or serdes.BYTES, migrate)
    return session_spec(name, retention, key_serde, values, persistent=not in_memory)
