"""The serdes that come with statestore, and the conversion of their failures to SerdeMismatch.

A serde of the user's own is `Serde(name, serialize, deserialize, ordered)`. Register it with
`register`, so that tools find it by name.
"""

import functools
import importlib
import re
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, overload

import msgspec

from statestore.errors import ABOUT_A_RECORD, Misuse, SerdeMismatch, StateStoreError
from statestore.extras import needed
from statestore.model.modes import PunctuationType
from statestore.model.records import (
    AT_TIME_BYTES,
    SESSION_BYTES,
    WINDOW_BYTES,
    Functions,
    K,
    KeyAtTime,
    Serde,
    SerdeContext,
    Subscription,
    T,
    TimerRow,
    Windowed,
)
from statestore.model.records import BYTES as PLAIN_BYTES
from statestore.stores import java_serdes, typed_json

_AT_TIME = re.compile(r"KEY_AT_TIME\((.+)\)")
_WINDOWED = re.compile(r"WINDOWED\((\d+),(.+)\)")
_SESSION = re.compile(r"SESSION\((.+)\)")
_LIST = re.compile(r"LIST\((.+)\)")
_TYPED_JSON = re.compile(r"JSON\(.+\)")
_MIGRATED = re.compile(r"MIGRATED\[\d+\]\(")
WAITING: Final = "WAITING-"
"""What the name of the serde of values that wait begins with."""
_COUNT_WINDOWS = re.compile(r"COUNT_WINDOWS\((.+)\)")
_SUBSCRIPTION = re.compile(r"SUBSCRIPTION\((.+)\)")
_TIMER = re.compile(r"TIMER\((.+)\)")
_BY_KEY = b"k"
_TIMER_TAGS = {PunctuationType.STREAM_TIME: b"e", PunctuationType.WALL_CLOCK_TIME: b"w"}
_TIMER_KINDS = {tag: kind for kind, tag in _TIMER_TAGS.items()}
_KEY_END = b"\x00\x00"
_TIME = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_SPAN = struct.Struct(">qq")
_INT64 = struct.Struct(">q")
_TIME_AND_NUMBER = struct.Struct(">QQ")
_TIME_BIAS = 1 << 63
_msgpack = msgspec.msgpack.Encoder(order="deterministic")
_count_windows = msgspec.msgpack.Decoder(list[tuple[int, int, int, bytes | None]])

BYTES: Serde[bytes] = PLAIN_BYTES
STRING: Serde[str] = java_serdes.STRING
INT64: Serde[int] = java_serdes.INT64
INT32: Serde[int] = java_serdes.INT32
INT16: Serde[int] = java_serdes.INT16
FLOAT64: Serde[float] = java_serdes.FLOAT64
FLOAT32: Serde[float] = java_serdes.FLOAT32
BOOLEAN: Serde[bool] = java_serdes.BOOLEAN
UUID: Serde[uuid.UUID] = java_serdes.UUID
VOID: Serde[None] = java_serdes.VOID


JSON: Serde[Any] = Serde("JSON", typed_json.plain_json, msgspec.json.decode)
MSGPACK: Serde[Any] = Serde("MSGPACK", typed_json.plain_msgpack, msgspec.msgpack.decode)

_UNCHANGED: tuple[tuple[Serde[Any], frozenset[type]], ...] = (
    (BYTES, frozenset({bytes, type(None)})),
    (STRING, frozenset({str, type(None)})),
    (INT64, frozenset({int, type(None)})),
    (INT32, frozenset({int, type(None)})),
    (INT16, frozenset({int, type(None)})),
    (FLOAT64, frozenset({float, type(None)})),
    (FLOAT32, frozenset({type(None)})),  # It rounds what it is given.
    (BOOLEAN, frozenset({bool, type(None)})),
    (UUID, frozenset({uuid.UUID, type(None)})),
    (VOID, frozenset({type(None)})),
    # Floats are not among them, because JSON has no infinity.
    (JSON, frozenset({str, int, bool, type(None)})),
    (MSGPACK, frozenset({str, bytes, int, float, bool, type(None)})),
)

_BUILT_IN: dict[str, Serde[Any]] = {serde.name: serde for serde, _ in _UNCHANGED}
_known: dict[str, Serde[Any]] = dict(_BUILT_IN)


def json(kind: type[T]) -> Serde[T]:
    """Return the serde of JSON that has the fields of a type.

    The type is a msgspec.Struct, a dataclass, a pydantic model, a TypedDict, a NamedTuple, or made
    of such types and of what JSON has, as list[Order]. Bytes without a field that the type requires
    cannot be decoded; fields that it does not know are passed over. A value is refused as it is
    written if it could not be read back. Misuse if JSON cannot have the type.
    """
    asked: Any = kind
    return typed_json.typed_json(asked)


def list_of(serde: Serde[T]) -> Serde[list[T | None]]:
    """Return the serde of lists whose items `serde` has, or are None, as Kafka's ListSerde in Java.

    Items of INT16, INT32, INT64, FLOAT32, FLOAT64 and UUID follow each other; others have lengths.
    """
    return java_serdes.list_of(serde)


class Registry(Protocol):
    """Where serdes of a schema registry come from: an `ss.SchemaRegistry`."""

    def serde(self, form: str, schema: Any, kind: Any) -> Serde[Any]:
        """Return the serde of a format: AVRO, JSON or PROTOBUF."""


@overload
def avro(schema: Any = None, *, registry: Registry | None = None) -> Serde[Any]: ...
@overload
def avro(
    schema: Any = None, kind: type[T] = ..., *, registry: Registry | None = None
) -> Serde[T]: ...
def avro(schema: Any = None, kind: Any = None, *, registry: Registry | None = None) -> Serde[Any]:
    """Return the serde of Avro data, as dicts or as objects of a type (extra `avro`).

    `schema` is text, a dict or a list. Without `registry`, the bytes are the datum alone. With it,
    they begin with the id of the schema that wrote them, and are read as `schema` says; without
    `schema`, they are read as they were written, and written with the subject's latest schema.
    Misuse if it is no Avro schema, or there is neither.
    """
    if registry is not None:
        return registry.serde("AVRO", schema, kind)
    if schema is None:
        raise Misuse("serdes.avro: without a schema, a registry has to know it: pass either")
    module = _extra("avro", "statestore.stores.avro")
    made: Serde[Any] = module.avro_serde(module.avro_text(schema), kind)
    return made


def protobuf(message: type[T], *, registry: Registry | None = None) -> Serde[T]:
    """Return the serde of a message class that protoc made (extra `protobuf`).

    Misuse if it is none.
    """
    made: Serde[T]
    if registry is not None:
        made = registry.serde("PROTOBUF", message, message)
    else:
        made = _extra("protobuf", "statestore.stores.protobuf").protobuf_serde(message)
    return made


@overload
def json_schema(schema: Any = None, *, registry: Registry | None = None) -> Serde[Any]: ...
@overload
def json_schema(
    schema: Any = None, kind: type[T] = ..., *, registry: Registry | None = None
) -> Serde[T]: ...
def json_schema(
    schema: Any = None, kind: Any = None, *, registry: Registry | None = None
) -> Serde[Any]:
    """Return the serde of JSON that a schema allows, as dicts or as objects of a type.

    It is checked both as it is written and as it is read (extra `json-schema`). Without `schema`,
    it is that of `kind`, or the latest one of the registry. Misuse if it is no JSON Schema, or if
    nothing says what it is.
    """
    if schema is None and kind is not None:
        schema = typed_json.schema_of(kind)
    if registry is not None:
        return registry.serde("JSON", schema, kind)
    if schema is None:
        raise Misuse("serdes.json_schema: pass a schema, a type, or a registry that knows it")
    module = _extra("json-schema", "statestore.stores.json_schema")
    made: Serde[Any] = module.json_schema_serde(module.json_schema_text(schema), kind)
    return made


def _extra(extra: str, module: str) -> Any:
    """Import the module of an extra; Misuse names the extra if it is not installed."""
    with needed(extra, "this serde"):
        return importlib.import_module(module)


def register(serde: Serde[T]) -> Serde[T]:
    """Make a serde known by its name. Misuse if a different one already has that name."""
    if _known.setdefault(serde.name, serde) is not serde:
        raise Misuse(f"serde name {serde.name!r} is taken: choose another")
    return serde


def by_name(name: str) -> Serde[Any]:
    """Return the serde of that name; Misuse lists the known ones.

    JSON of a type is read as any other JSON, because the type is the pipeline's.
    """
    keys = of_windowed(name)
    if keys is not None:
        inner = by_name(keys.inner)
        return session_windowed(inner) if keys.size_ms is None else windowed(inner, keys.size_ms)
    at_time = _AT_TIME.fullmatch(name)
    if at_time is not None:
        return key_at_time(by_name(at_time[1]))
    items = _LIST.fullmatch(name)
    if items is not None:
        return list_of(by_name(items[1]))
    if _TYPED_JSON.fullmatch(name) is not None:
        return JSON
    if _MIGRATED.match(name):
        raise Misuse(f"several serdes wrote the rows of {name}, and only the pipeline has them")
    timers = _TIMER.fullmatch(name)
    if timers is not None:
        return timer(by_name(timers[1]))
    names = _of_subscription(name)
    if names is not None:
        return subscription(*map(by_name, names))
    counted = _COUNT_WINDOWS.fullmatch(name)
    if counted is not None:
        return count_windows(by_name(counted[1]))
    if name.startswith(WAITING) and name not in _known:
        return BYTES
    try:
        return _known[name]
    except KeyError:
        known = ", ".join(sorted(_known))
        raise Misuse(f"no serde named {name!r}; known: {known}") from None


def alike(one: Serde[Any], other: Serde[Any]) -> bool:
    """Tell whether equal keys have equal bytes under both, as under serdes of one name.

    A serde of the user's own with the name of a built-in serde is not like that serde.
    """
    if one is other:
        return True
    built_in = _BUILT_IN.get(one.name)
    return one.name == other.name and one is not built_in and other is not built_in


class KeysInWindows(NamedTuple):
    """What the name of a serde of keys in windows says.

    `inner` is the name of the serde of the keys themselves, `span_bytes` how many bytes of a key
    its window takes. `size_ms` None: the windows are sessions, which have no size.
    """

    inner: str
    span_bytes: int
    size_ms: int | None


def of_windowed(name: str) -> KeysInWindows | None:
    """Return what a serde's name says of the windows of keys; None if it has no windows."""
    found = _WINDOWED.fullmatch(name)
    if found is not None:
        return KeysInWindows(found[2], WINDOW_BYTES, int(found[1]))
    found = _SESSION.fullmatch(name)
    return None if found is None else KeysInWindows(found[1], SESSION_BYTES, None)


def placing(serde: Serde[Any], keys: list[bytes | None]) -> list[bytes | None] | None:
    """Return the bytes that place keys under `serde`; None if these are the keys themselves.

    A key in a window is placed by the key alone, so that all windows of a key lie where the key
    does, as with Kafka Streams.
    """
    place = placed_by(serde.name)
    return None if place is None else [None if key is None else place(key) for key in keys]


def placed_by(name: str) -> Callable[[bytes], bytes] | None:
    """Return what gives the bytes that place a key under the serde of that name.

    None: these are the key itself.
    """
    found = of_windowed(name)
    if found is not None:
        return functools.partial(without_last, count=found.span_bytes)
    if _AT_TIME.fullmatch(name) is not None:
        return functools.partial(without_last, count=AT_TIME_BYTES)
    timers = _TIMER.fullmatch(name)
    if timers is not None:
        return functools.partial(_placed_timer, place=placed_by(timers[1]))
    names = _of_subscription(name)
    return None if names is None else functools.partial(_placed_foreign, place=placed_by(names[0]))


def without_last(key: bytes, count: int) -> bytes:
    """Return a key without its last bytes."""
    return key[:-count]


def _placed_foreign(row: bytes, place: Callable[[bytes], bytes] | None) -> bytes:
    foreign, _ = _two_keys(row)
    return foreign if place is None else place(foreign)


@functools.cache
def windowed(key_serde: Serde[T], size_ms: int) -> Serde[Windowed[T]]:
    """Return the serde of keys in windows: the key's bytes, then the window's start.

    The start is in ms since the epoch, in 8 bytes, big-endian. The keys of a windowed table written
    by `to()` have this form, and so have those of its changelog.
    """

    def make(
        serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]
    ) -> Functions[Windowed[T]]:
        def write(window: Windowed[T]) -> bytes:
            key, start_ms, _ = window
            return serialize(key) + _INT64.pack(start_ms)

        def read(data: bytes) -> Windowed[T]:
            if len(data) < _INT64.size:
                raise ValueError(
                    f"expected a key and {_INT64.size} bytes, found {len(data)} bytes in all"
                )
            start_ms = _INT64.unpack(data[-_INT64.size :])[0]
            key = deserialize(data[: -_INT64.size])
            return Windowed(key, start_ms, start_ms + size_ms)

        return write, read

    name = f"WINDOWED({size_ms},{key_serde.name})"
    return key_serde.around(name, make, windowed, size_ms)


@functools.cache
def key_at_time(key_serde: Serde[T]) -> Serde[KeyAtTime[T]]:
    """Return the serde of keys in the stores of a join of streams.

    The key's bytes come first, then the time in ms since the epoch plus 2^63, so that bytes sort as
    times do, and then the number; both have 8 bytes, big-endian.
    """

    def make(
        serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]
    ) -> Functions[KeyAtTime[T]]:
        def write(at: KeyAtTime[T]) -> bytes:
            key, time_ms, number = at
            return serialize(key) + _TIME_AND_NUMBER.pack(time_ms + _TIME_BIAS, number)

        def read(data: bytes) -> KeyAtTime[T]:
            if len(data) < AT_TIME_BYTES:
                raise ValueError(f"want a key and {AT_TIME_BYTES} bytes, not {len(data)} in all")
            time, number = _TIME_AND_NUMBER.unpack(data[-AT_TIME_BYTES:])
            return KeyAtTime(deserialize(data[:-AT_TIME_BYTES]), time - _TIME_BIAS, number)

        return write, read

    return key_serde.around(f"KEY_AT_TIME({key_serde.name})", make, key_at_time)


@functools.cache
def subscription(foreign_serde: Serde[T], key_serde: Serde[K]) -> Serde[Subscription[K, T]]:
    """Return the serde of keys in the store of a join by foreign key.

    The length of the foreign key's bytes comes first, in 4 bytes, big-endian, then the foreign key,
    then the key of the left row.
    """
    name = f"SUBSCRIPTION({foreign_serde.name},{key_serde.name})"
    if foreign_serde.contextual or key_serde.contextual:

        def write_in(one: Subscription[K, T], context: SerdeContext) -> bytes:
            foreign, key = foreign_serde.write(one[0], context), key_serde.write(one[1], context)
            return subscription_row(foreign, key)

        def read_in(data: bytes, context: SerdeContext) -> Subscription[K, T]:
            foreign, key = _two_keys(data)
            return Subscription(foreign_serde.read(foreign, context), key_serde.read(key, context))

        return Serde(name, write_in, read_in).made_by(subscription, foreign_serde, key_serde)

    def write(one: Subscription[K, T]) -> bytes:
        return subscription_row(foreign_serde.serialize(one[0]), key_serde.serialize(one[1]))

    def read(data: bytes) -> Subscription[K, T]:
        foreign, key = _two_keys(data)
        return Subscription(foreign_serde.deserialize(foreign), key_serde.deserialize(key))

    return Serde(name, write, read).made_by(subscription, foreign_serde, key_serde)


def _two_keys(row: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of the foreign key and of the key of a subscription."""
    ends = _LENGTH.size + (_LENGTH.unpack_from(row)[0] if len(row) >= _LENGTH.size else 0)
    if len(row) < ends or len(row) < _LENGTH.size:
        raise ValueError(f"want two keys, of which one ends at byte {ends}, not {len(row)} in all")
    return row[_LENGTH.size : ends], row[ends:]


def subscription_row(foreign_key: bytes, key: bytes) -> bytes:
    """Return the bytes of a Subscription, given those of both keys."""
    return _LENGTH.pack(len(foreign_key)) + foreign_key + key


def _of_subscription(name: str) -> tuple[str, str] | None:
    """Return the names of the serdes of both keys, from that of a serde of subscriptions."""
    found = _SUBSCRIPTION.fullmatch(name)
    if found is None:
        return None
    depth, inner = 0, found[1]
    for place, letter in enumerate(inner):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            return inner[:place], inner[place + 1 :]
    return None


@functools.cache
def timer(key_serde: Serde[T]) -> Serde[TimerRow[T]]:
    """Return the serde of keys in a store of timers; `stores/timer_specs.py` has their bytes."""

    def make(
        serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]
    ) -> Functions[TimerRow[T]]:
        def write(row: TimerRow[T]) -> bytes:
            of_timer = timer_id(serialize(row.key), row.name)
            if row.kind is None or row.time_ms is None:
                return _BY_KEY + of_timer
            return timer_time(row.kind, row.time_ms) + of_timer

        def read(data: bytes) -> TimerRow[T]:
            key, name = key_and_name(data)
            kind = _TIMER_KINDS.get(data[:1])
            time_ms = None if kind is None else _TIME.unpack_from(data, 1)[0] - _TIME_BIAS
            return TimerRow(deserialize(key), name.decode(), time_ms, kind)

        return write, read

    return key_serde.around(f"TIMER({key_serde.name})", make, timer)


def timer_id(key: bytes, name: str) -> bytes:
    """Return how the rows of a timer end: with its key and name."""
    return key.replace(b"\x00", b"\x00\xff") + _KEY_END + name.encode()


def timer_time(kind: PunctuationType, time_ms: int) -> bytes:
    """Return how the row of a timer by its time, in ms, begins; struct.error beyond 64 bits."""
    return _TIMER_TAGS[kind] + _TIME.pack(time_ms + _TIME_BIAS)


def time_in(row: bytes) -> int:
    """Return the time of a timer, given the row by its time, or the beginning of it."""
    found: int = _TIME.unpack_from(row, 1)[0]
    return found - _TIME_BIAS


def timer_kind(row: bytes) -> PunctuationType:
    """Return the kind of a timer, given the row by its time, or the beginning of it."""
    return _TIMER_KINDS[row[:1]]


def key_and_name(row: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of the key and of the name in a row of a timer."""
    start = len(_BY_KEY) if row[:1] == _BY_KEY else len(_BY_KEY) + _TIME.size
    end = row.find(_KEY_END, start)
    if end < 0 or (row[:1] != _BY_KEY and row[:1] not in _TIMER_KINDS):
        raise ValueError(f"want a row of a timer, not {printable(row[:40])}")
    return row[start:end].replace(b"\x00\xff", b"\x00"), row[end + len(_KEY_END) :]


def _placed_timer(row: bytes, place: Callable[[bytes], bytes] | None) -> bytes:
    key, _ = key_and_name(row)
    return key if place is None else place(key)


@functools.cache
def session_windowed(key_serde: Serde[T]) -> Serde[Windowed[T]]:
    """Return the serde of keys in sessions: the key's bytes, then the session's end and its start.

    Both are in ms since the epoch, in 8 bytes, big-endian, as Kafka Streams writes them. The end is
    the time of the last record.
    """

    def make(
        serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]
    ) -> Functions[Windowed[T]]:
        def write(session: Windowed[T]) -> bytes:
            key, start_ms, end_ms = session
            return serialize(key) + _SPAN.pack(end_ms, start_ms)

        def read(data: bytes) -> Windowed[T]:
            if len(data) < SESSION_BYTES:
                raise ValueError(f"want a key and {SESSION_BYTES} bytes, not {len(data)} in all")
            end_ms, start_ms = _SPAN.unpack(data[-SESSION_BYTES:])
            return Windowed(deserialize(data[:-SESSION_BYTES]), start_ms, end_ms)

        return write, read

    return key_serde.around(f"SESSION({key_serde.name})", make, session_windowed)


class CountWindow(NamedTuple):
    """A count window that is open: of how many records it is to be, and how many it has.

    `time_ms` is the latest time of these, and `value` their aggregate; None: there is none.
    """

    size: int
    records: int
    time_ms: int
    value: Any


@functools.cache
def count_windows(value_serde: Serde[Any]) -> Serde[list[CountWindow]]:
    """Return the serde of the open count windows of a key, the oldest first, in MessagePack.

    Its schema is that of the values, which are bytes in it.
    """

    def make(
        serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]
    ) -> Functions[list[CountWindow]]:
        def write(windows: list[CountWindow]) -> bytes:
            return _msgpack.encode(
                [(*of, None if value is None else serialize(value)) for *of, value in windows]
            )

        def read(data: bytes) -> list[CountWindow]:
            return [
                CountWindow(size, records, time_ms, None if value is None else deserialize(value))
                for size, records, time_ms, value in _count_windows.decode(data)
            ]

        return write, read

    name = f"COUNT_WINDOWS({value_serde.name})"
    return value_serde.around(name, make, count_windows, with_schema=True)


@functools.cache
def waiting(value_serde: Serde[Any]) -> Serde[bytes]:
    """Return the serde of rows in which values wait as bytes that `value_serde` wrote.

    Its name and schema say so, because another serde could not read what waits. Nothing in such a
    row says with which schema it was written, except what the bytes themselves say.
    """
    made = Serde(
        f"{WAITING}{value_serde.name}",
        BYTES.serialize,
        BYTES.deserialize,
        schema=value_serde.schema,
        resolve=(lambda _writer: BYTES.deserialize) if value_serde.resolving else None,
    )
    return made.made_by(waiting, value_serde)


def unchanged(serde: Serde[Any]) -> frozenset[type]:
    """Return the immutable types whose values `serde` reads back as equal values."""
    return next((kinds for one, kinds in _UNCHANGED if one is serde), frozenset({type(None)}))


def printable(data: bytes) -> str:
    r"""Return printable ASCII as it is, and all other bytes and the backslash as \xNN."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in data
    )


def mismatch(
    *,
    where: str,
    side: str,
    value: object,
    serde: Serde[Any],
    keyword: str,
    cause: Exception,
    taker: str = "",
) -> SerdeMismatch:
    """Return the error for a value that does not fit its serde (INTERFACE rule 3).

    `where` is empty if the caller names the place. `taker`: what takes the keyword, if unclear. If
    `cause` is an error of this library that is about no record, it is raised as it is.
    """
    if isinstance(cause, StateStoreError) and not isinstance(cause, ABOUT_A_RECORD):
        raise cause
    place = f"{where}: " if where else ""
    where_to = f" to {taker}" if taker else ""
    wanted = cause.wanted if isinstance(cause, typed_json.TypeNotKept) else "…"
    return SerdeMismatch(
        f"{place}the {side} is {type(value).__name__} but its serde is {serde.name} ({cause}): "
        f"pass {keyword}={wanted}{where_to}"
    )
