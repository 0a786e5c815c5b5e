"""Specs of stores of windows and of sessions that processors write."""

from typing import Any

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.keywords import renamed
from statestore.model.modes import Span, span_ms
from statestore.model.records import KD, VD, Serde
from statestore.stores.migration import Migrations, migrating
from statestore.stores.specs import ANY_START, SessionSpec, WindowSpec


@renamed(size="size_ms", retention="retention_ms")
def persistent_window_store(
    name: str,
    size: Span,
    retention: Span,
    *,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> WindowSpec[KD, VD]:
    """Describe a window store in RocksDB for a processor; without serdes it has bytes.

    A window starts at any time and ends `size` later. It expires when the latest start that was
    put is past its own by `retention`. Both are milliseconds or a timedelta. Misuse if the name
    cannot be that of a store, if the size is not positive, or if windows would expire before they
    end.
    """
    return window_spec(name, size, retention, key_serde, value_serde, migrate, persistent=True)


@renamed(size="size_ms", retention="retention_ms")
def in_memory_window_store(
    name: str,
    size: Span,
    retention: Span,
    *,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> WindowSpec[KD, VD]:
    """Describe a window store in memory, restored from its changelog at every start (S15).

    Parameters (milliseconds or a timedelta) and errors are those of `persistent_window_store`.
    """
    return window_spec(name, size, retention, key_serde, value_serde, migrate, persistent=False)


@renamed(retention="retention_ms")
def persistent_session_store(
    name: str,
    retention: Span,
    *,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> SessionSpec[KD, VD]:
    """Describe a session store in RocksDB for a processor; without serdes it has bytes.

    A session expires when the latest end that was put is past its own by more than `retention`,
    which is in milliseconds or a timedelta. Misuse if the name cannot be that of a store, or if the
    retention is negative.
    """
    return session_spec(name, retention, key_serde, value_serde, migrate, persistent=True)


@renamed(retention="retention_ms")
def in_memory_session_store(
    name: str,
    retention: Span,
    *,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> SessionSpec[KD, VD]:
    """Describe a session store in memory, restored from its changelog at every start (S15).

    Parameters (milliseconds or a timedelta) and errors are those of `persistent_session_store`.
    """
    return session_spec(name, retention, key_serde, value_serde, migrate, persistent=False)


def window_spec(
    name: str,
    size_ms: Span,
    retention_ms: Span,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None,
    migrate: Migrations,
    *,
    persistent: bool,
) -> WindowSpec[Any, Any]:
    """Return the spec of a window store that processors write; see `persistent_window_store`."""
    size, retention = span_ms(size_ms), span_ms(retention_ms)
    if size <= 0:
        raise Misuse(f"store {name!r}: windows of {size} ms: the size must be positive")
    if retention < size:
        raise Misuse(
            f"store {name!r}: windows of {size} ms that are kept for {retention} ms would expire "
            f"before they end: pass a retention of at least {size}"
        )
    return WindowSpec(
        name,
        key_serde or serdes.BYTES,
        migrating(value_serde or serdes.BYTES, migrate),
        size,
        retention,
        persistent,
        terms=("any start", f"retention {retention}"),
        advance_ms=ANY_START,
        writable=True,
    )


def session_spec(
    name: str,
    retention_ms: Span,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None,
    migrate: Migrations,
    *,
    persistent: bool,
) -> SessionSpec[Any, Any]:
    """Return the spec of a session store that processors write; see `persistent_session_store`."""
    retention = span_ms(retention_ms)
    if retention < 0:
        raise Misuse(f"store {name!r}: retention {retention} ms is negative: pass 0 or more")
    return SessionSpec(
        name,
        key_serde or serdes.BYTES,
        migrating(value_serde or serdes.BYTES, migrate),
        retention,
        persistent,
        terms=(f"retention {retention}",),
        writable=True,
    )
