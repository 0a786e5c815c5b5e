"""A function per kind of store, which describes one in RocksDB or in memory.

Kafka Streams has two names for each: `persistent_key_value_store(name)` is `key_value_store(name)`,
and `in_memory_key_value_store(name)` is `key_value_store(name, in_memory=True)`.
"""

from statestore.model.modes import Span
from statestore.model.records import KD, VD, Serde
from statestore.stores.migration import Migrations
from statestore.stores.specs import (
    KeyValueSpec,
    SessionSpec,
    VersionedSpec,
    WindowSpec,
    key_value_spec,
    versioned_spec,
)
from statestore.stores.window_specs import session_spec, window_spec


def key_value_store(
    name: str,
    *,
    in_memory: bool = False,
    ttl: Span | None = None,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> KeyValueSpec[KD, VD]:
    """Describe a key-value store; without serdes its keys and values are bytes.

    `in_memory`: keep it in memory, and restore it from its changelog at every start (SEMANTICS
    S15), instead of in RocksDB. `ttl`: a row expires that long after the stream time at its last
    put, in milliseconds or as a timedelta (SEMANTICS S17). `migrate`: the serdes that wrote values
    of the store before (docs/adr/0022). Misuse if the name cannot be that of a store (SEMANTICS
    T1), or if `ttl` is not positive.
    """
    return key_value_spec(name, ttl, key_serde, value_serde, migrate, persistent=not in_memory)


def versioned_key_value_store(
    name: str,
    history_retention: Span,
    *,
    in_memory: bool = False,
    segment_interval: Span | None = None,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> VersionedSpec[KD, VD]:
    """Describe a versioned store (KIP-889); without serdes it has bytes.

    `history_retention` is how far back reads are exact; `segment_interval` None takes the interval
    of the store on disk, or one that suits the retention (SEMANTICS V5). Both are milliseconds or a
    timedelta. `in_memory` and `migrate`: see `key_value_store`. Misuse if the name cannot be that
    of a store, if the retention is negative, or if the interval is not positive.
    """
    spans = (history_retention, segment_interval)
    return versioned_spec(name, *spans, key_serde, value_serde, migrate, persistent=not in_memory)


def window_store(
    name: str,
    size: Span,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> WindowSpec[KD, VD]:
    """Describe a window store for a processor; without serdes it has bytes.

    A window starts at any time and ends `size` later. It expires when the latest start that was put
    is past its own by `retention`. Both are milliseconds or a timedelta. `in_memory` and `migrate`:
    see `key_value_store`. Misuse if the name cannot be that of a store, if the size is not
    positive, or if windows would expire before they end.
    """
    return window_spec(
        name, size, retention, key_serde, value_serde, migrate, persistent=not in_memory
    )


def session_store(
    name: str,
    retention: Span,
    *,
    in_memory: bool = False,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> SessionSpec[KD, VD]:
    """Describe a session store for a processor; without serdes it has bytes.

    A session expires when the latest end that was put is past its own by more than `retention`,
    which is in milliseconds or a timedelta. `in_memory` and `migrate`: see `key_value_store`.
    Misuse if the name cannot be that of a store, or if the retention is negative.
    """
    return session_spec(name, retention, key_serde, value_serde, migrate, persistent=not in_memory)
