"""Store specs: values that describe which store to open."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from statestore import serdes
from statestore.errors import Misuse
from statestore.layout.folders import check_store_name
from statestore.model.keywords import renamed
from statestore.model.modes import Span, span_ms
from statestore.model.records import KD, SIDES, VD, K, Serde, V, Windowed
from statestore.serdes import composed
from statestore.stores.contracts import StateStore, StoreContext
from statestore.stores.migration import Migrations, migrating
from statestore.stores.versioned import layout

S = TypeVar("S", bound=StateStore)
ANY_START: Final = 0
"""How far apart windows start that may start at any time."""
FOLLOWING: Final = b"\x80"
"""The first row in a store of windows of those that follow from its others."""


class RowsOfPartition(Protocol):
    """What an operator's own rows say of partitions, where their keys do not (docs/adr/0052).

    It is a value that travels with its spec.
    """

    def placing(self, key: bytes, value: bytes) -> bytes | None:
        """Return what decides in which partition a row lies; None: it is about the partition."""

    def joined(
        self, own: Sequence["MovedRow"], about: Sequence["MovedRow"]
    ) -> Iterable["MovedRow"]:
        """Return the rows of a new partition.

        `own`: the rows that come to lie there. `about`: what every old partition has as a whole.
        """


class MovedRow(NamedTuple):
    """A row of a store: the partition in which it lay, and its time."""

    partition: int
    key: bytes
    value: bytes
    time_ms: int


@dataclass(frozen=True)
class KeyValueSpec(Generic[K, V]):
    """A key-value store: its name, serdes, and whether it outlives the process."""

    kind: ClassVar[str] = "keyvalue"

    name: str
    key_serde: Serde[K]
    value_serde: Serde[V]
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)
    terms: tuple[str, ...] = ()
    """What else determines its rows, for the fingerprint of a topology."""
    row_times: bool = field(default=False, compare=False, repr=False)
    """Whether a stream task keeps the time of each row, as it does for tables (docs/adr/0014)."""
    ttl_ms: int | None = None
    """How long after its last put a row expires, by stream time; None: it does not."""
    apart: RowsOfPartition | None = field(default=None, compare=False, repr=False)
    """What says where rows lie; None: their keys do."""

    def __post_init__(self) -> None:
        check_store_name(self.name)
        ttl: object = self.ttl_ms
        if ttl is not None and (not isinstance(ttl, int) or ttl <= 0):
            raise Misuse(
                f"store {self.name!r}: ttl {ttl!r}: pass 1 or more milliseconds, or a "
                "timedelta, or leave it out"
            )
        _place(self, "key_serde")


@dataclass(frozen=True)
class GlobalSpec(KeyValueSpec[K, V]):
    """The store of a global table: its rows are the keys and values of a topic, in bytes."""

    topic: str = ""

    def __post_init__(self) -> None:
        check_store_name(self.name)
        for name, side in (("key_serde", SIDES[0]), ("value_serde", SIDES[1])):
            serde = getattr(self, name)
            if isinstance(serde, Serde):
                object.__setattr__(self, name, serde.at(self.topic, side))


@dataclass(frozen=True)
class VersionedSpec(Generic[K, V]):
    """A versioned store (KIP-889); reads are exact as far back as `history_retention`.

    `segment_interval_ms` None takes the interval of the store on disk, or else one that suits the
    retention (SEMANTICS V5).
    """

    kind: ClassVar[str] = layout.KIND

    name: str
    history_retention_ms: int
    key_serde: Serde[K]
    value_serde: Serde[V]
    segment_interval_ms: int | None = None
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_store_name(self.name)
        _place(self, "key_serde")
        retention, interval = self.history_retention_ms, self.segment_interval_ms
        if retention < 0:
            raise Misuse(
                f"store {self.name!r}: history retention {retention} ms is negative: "
                "0 keeps the latest versions only"
            )
        if interval is not None and not 0 < interval <= layout.TIME_MAX:
            raise Misuse(
                f"store {self.name!r}: segment interval {interval} ms: pass 1 or more, in 64 bits"
            )

    @property
    def terms(self) -> tuple[str, ...]:
        """Return what else determines its rows, for the fingerprint of a topology."""
        return (f"history {self.history_retention_ms}",)

    def interval_ms(self, stored: int | None) -> int:
        """Return the segment interval, given the stored one; Misuse if they differ."""
        asked = self.segment_interval_ms
        if stored is not None and asked is not None and asked != stored:
            raise Misuse(
                f"store {self.name!r} was made with segments of {stored} ms, not {asked} ms: leave "
                "segment_interval out, or move its folder away to restore it from its changelog"
            )
        if stored is not None:
            return stored
        if asked is not None:
            return asked
        return layout.default_segment_interval_ms(self.history_retention_ms)


@dataclass(frozen=True)
class StoreSupplier(Generic[S]):
    """A store of the user's own class, for `process(factory, supplier)` (docs/adr/0006).

    `open` makes the store for one stream task. `restore` writes changelog rows into it, where None
    deletes; the task calls `commit` after it. `persistent` is what the store's own `persistent()`
    returns.
    """

    kind: ClassVar[str] = "supplied"

    name: str
    open: Callable[[StoreContext], S]
    restore: Callable[[S, Mapping[bytes, bytes | None]], None]
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)
    terms: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_store_name(self.name)

    @property
    def key_serde(self) -> Serde[bytes]:
        """Return the serde of keys in the changelog: bytes, whatever users of the store see."""
        return serdes.BYTES

    @property
    def value_serde(self) -> Serde[bytes]:
        """Return the serde of values in the changelog: bytes, as for keys."""
        return serdes.BYTES


@dataclass(frozen=True)
class WindowRows(KeyValueSpec[bytes, bytes]):
    """The rows of a window store, in bytes; `any_start`: its windows may start at any time."""

    kind: ClassVar[str] = "window"

    any_start: bool = field(default=False, compare=False, repr=False)


def untimed_from(spec: KeyValueSpec[Any, Any]) -> bytes | None:
    """Return the first of the rows that follow from others and have no times; None: all have."""
    return FOLLOWING if isinstance(spec, WindowRows) and spec.any_start else None


@dataclass(frozen=True)
class WindowSpec(Generic[K, V]):
    """A window store: values by key and by window of `size` (SEMANTICS T2h).

    A window starts every `advance_ms`; None: every `size_ms`; ANY_START: at any time. It expires
    when stream time is past its start by `retention_ms`. `writable`: processors write it, not an
    aggregate. `includes_end`: its last moment is its end, not the one before.
    """

    kind: ClassVar[str] = "window"

    name: str
    inner: Serde[K]
    value_serde: Serde[V]
    size_ms: int
    retention_ms: int
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)
    terms: tuple[str, ...] = ()
    """What else determines its rows, for the fingerprint of a topology."""
    advance_ms: int | None = None
    writable: bool = False
    includes_end: bool = False

    def __post_init__(self) -> None:
        check_store_name(self.name)
        _place(self, "inner")

    @property
    def any_start(self) -> bool:
        """Return whether windows may start at any time."""
        return self.advance_ms == ANY_START

    @property
    def step_ms(self) -> int:
        """Return how far apart windows may start."""
        if self.any_start:
            return 1
        return self.size_ms if self.advance_ms is None else self.advance_ms

    @property
    def key_serde(self) -> Serde[Windowed[K]]:
        """Return the serde of keys in windows, as the changelog and sinks have them."""
        return serdes.windowed(self.inner, self.size_ms)

    @property
    def rows(self) -> WindowRows:
        """Return the spec of the rows in bytes, which is what is opened."""
        return WindowRows(
            self.name,
            serdes.BYTES,
            serdes.BYTES,
            self.persistent,
            self.changelog_config,
            row_times=not self.writable,
            any_start=self.any_start,
        )


@dataclass(frozen=True)
class SessionRows(KeyValueSpec[bytes, bytes]):
    """The rows of a session store, in bytes."""

    kind: ClassVar[str] = "session"


@dataclass(frozen=True)
class SessionSpec(Generic[K, V]):
    """A session store: values by key and by session, from its first record to its last one.

    A session expires once stream time has passed its end by more than `retention_ms`. `writable`:
    processors write it, not an aggregate.
    """

    kind: ClassVar[str] = "session"

    name: str
    inner: Serde[K]
    value_serde: Serde[V]
    retention_ms: int
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)
    terms: tuple[str, ...] = ()
    """What else decides about its rows, for the fingerprint of a topology."""
    writable: bool = False

    def __post_init__(self) -> None:
        check_store_name(self.name)
        _place(self, "inner")

    @property
    def key_serde(self) -> Serde[Windowed[K]]:
        """Return the serde of keys in sessions, as the changelog and sinks have them."""
        return composed.session_windowed(self.inner)

    @property
    def rows(self) -> SessionRows:
        """Return the spec of the rows in bytes, which is what is opened."""
        return SessionRows(
            self.name, serdes.BYTES, serdes.BYTES, self.persistent, self.changelog_config
        )


BuiltInSpec = KeyValueSpec[Any, Any] | VersionedSpec[Any, Any]
InWindowsSpec = WindowSpec[Any, Any] | SessionSpec[Any, Any]
"""Of stores whose keys are in windows; the rows of these are a key-value store."""


class StoreSpec(Protocol):
    """What the specs of all kinds of stores have (stores/kinds)."""

    kind: ClassVar[str]
    """What the format row of such a store says, and the deployed topology."""

    @property
    def name(self) -> str: ...
    @property
    def key_serde(self) -> Serde[Any]: ...
    @property
    def value_serde(self) -> Serde[Any]: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def changelog_config(self) -> dict[str, str]: ...
    @property
    def terms(self) -> tuple[str, ...]: ...


def _place(spec: Any, keys: str, application_id: str | None = None) -> None:
    """Have the serdes of a spec write and read the rows of its store."""
    for name, side in ((keys, SIDES[0]), ("value_serde", SIDES[1])):
        serde = getattr(spec, name)
        if isinstance(serde, Serde):
            object.__setattr__(spec, name, serde.in_store(spec.name, side, application_id))


def placed(spec: Any, keys: str, application_id: str) -> Any:
    """Return a spec whose serdes see the changelog of an application's store.

    `keys`: the field with the serde of keys.
    """
    made = replace(spec)
    _place(made, keys, application_id)
    return made


@renamed(ttl="ttl_ms")
def persistent_key_value_store(
    name: str,
    *,
    ttl: Span | None = None,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> KeyValueSpec[KD, VD]:
    """Describe a key-value store in RocksDB; without serdes its keys and values are bytes.

    `ttl` (milliseconds or a timedelta): a row expires that long after the stream time at its
    last put (SEMANTICS S17). `migrate`: the serdes that wrote values of the store before
    (docs/adr/0022). Misuse if the name cannot be that of a store (SEMANTICS T1), or if `ttl` is
    not positive.
    """
    return key_value_spec(name, ttl, key_serde, value_serde, migrate, persistent=True)


@renamed(ttl="ttl_ms")
def in_memory_key_value_store(
    name: str,
    *,
    ttl: Span | None = None,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> KeyValueSpec[KD, VD]:
    """Describe a key-value store in memory; without serdes its keys and values are bytes.

    It is restored from its changelog at every start (SEMANTICS S15). Parameters (milliseconds or a
    timedelta) and errors are those of `persistent_key_value_store`.
    """
    return key_value_spec(name, ttl, key_serde, value_serde, migrate, persistent=False)


def key_value_spec(
    name: str,
    ttl_ms: Span | None,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None,
    migrate: Migrations,
    *,
    persistent: bool,
) -> KeyValueSpec[Any, Any]:
    """Return the spec of a key-value store; see `persistent_key_value_store`."""
    ttl = None if ttl_ms is None else span_ms(ttl_ms)
    return KeyValueSpec(
        name,
        key_serde or serdes.BYTES,
        migrating(value_serde or serdes.BYTES, migrate),
        persistent,
        terms=() if ttl is None else (f"ttl {ttl}",),
        ttl_ms=ttl,
    )


@renamed(history_retention="history_retention_ms", segment_interval="segment_interval_ms")
def persistent_versioned_key_value_store(
    name: str,
    history_retention: Span,
    segment_interval: Span | None = None,
    *,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> VersionedSpec[KD, VD]:
    """Describe a versioned store in RocksDB (KIP-889); without serdes it has bytes.

    `history_retention` is how far back reads are exact; `segment_interval` None takes the
    interval of the store on disk, or one that suits the retention (SEMANTICS V5). Both are
    milliseconds or a timedelta. Misuse if the name cannot be that of a store, if the retention is
    negative, or if the interval is not positive.
    """
    spans = (history_retention, segment_interval)
    return versioned_spec(name, *spans, key_serde, value_serde, migrate, persistent=True)


@renamed(history_retention="history_retention_ms", segment_interval="segment_interval_ms")
def in_memory_versioned_key_value_store(
    name: str,
    history_retention: Span,
    segment_interval: Span | None = None,
    *,
    key_serde: Serde[KD] | None = None,
    value_serde: Serde[VD] | None = None,
    migrate: Migrations = None,
) -> VersionedSpec[KD, VD]:
    """Describe a versioned store in memory, restored from its changelog at every start (V12).

    Parameters (milliseconds or a timedelta) and errors are those of
    `persistent_versioned_key_value_store`.
    """
    spans = (history_retention, segment_interval)
    return versioned_spec(name, *spans, key_serde, value_serde, migrate, persistent=False)


def versioned_spec(
    name: str,
    history_retention: Span,
    segment_interval: Span | None,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None,
    migrate: Migrations,
    *,
    persistent: bool,
) -> VersionedSpec[Any, Any]:
    """Return the spec of a versioned store; see `persistent_versioned_key_value_store`."""
    return VersionedSpec(
        name,
        span_ms(history_retention),
        key_serde or serdes.BYTES,
        migrating(value_serde or serdes.BYTES, migrate),
        None if segment_interval is None else span_ms(segment_interval),
        persistent=persistent,
    )
