"""The serdes that are made of others: keys in windows, of joins and timers, values that wait.

Each says at its end what its name tells: see serde_names.py.
"""

import functools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from statestore.model.decoders import msgpack_decoder
from statestore.model.encoders import msgpack_of
from statestore.model.modes import PunctuationType
from statestore.model.records import (
    AT_TIME_BYTES,
    BYTES,
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
from statestore.model.texts import whole_number
from statestore.serdes import java_serdes
from statestore.serdes.serde_names import Constructor, KeysInWindows, Place, define, parsed

WAITING: Final = "WAITING-"
"""What the name of the serde of values that wait begins with."""
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
_count_windows = msgpack_decoder(list[tuple[int, int, int, bytes | None]]).decode


def placed_by(name: str) -> Place | None:
    """Return what gives the bytes that place a key under the serde of that name.

    None: these are the key itself. A key in a window is placed by the key alone, so that all
    windows of a key lie where the key does, as with Kafka Streams.
    """
    found = parsed(name)
    return None if found is None else found.place()


def placing(serde: Serde[Any], keys: list[bytes | None]) -> list[bytes | None] | None:
    """Return the bytes that place keys under `serde`; None if these are the keys themselves."""
    place = placed_by(serde.name)
    if place is None:
        return None
    if all(keys):
        return list(map(place, cast("list[bytes]", keys)))
    return [None if key is None else place(key) for key in keys]


def of_windowed(name: str) -> KeysInWindows | None:
    """Return what a serde's name says of the windows of keys; None if it has no windows."""
    found = parsed(name)
    return None if found is None else found.windows()


def without_last(count: int) -> Place:
    """Return what gives a key without so many last bytes, and is no function of Python."""
    return operator.itemgetter(slice(None, -count))


def _key_and(count: int, data: bytes) -> tuple[bytes, bytes]:
    """Cut off so many last bytes. ValueError if there are fewer."""
    if len(data) < count:
        raise ValueError(f"expected a key and {count} bytes, found {len(data)} bytes in all")
    return data[:-count], data[-count:]


def _placed_foreign(row: bytes, place: Place | None) -> bytes:
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
            key, rest = _key_and(_INT64.size, data)
            (start_ms,) = _INT64.unpack(rest)
            return Windowed(deserialize(key), start_ms, start_ms + size_ms)

        return write, read

    name = f"WINDOWED({size_ms},{key_serde.name})"
    return key_serde.around(name, make, windowed, size_ms)


def _is_int64(text: str) -> bool:
    number = whole_number(text)
    return number is not None and number < 1 << 63


def _size_and_inner(arguments: Sequence[str]) -> KeysInWindows:
    size_ms, inner = arguments
    return KeysInWindows(inner, WINDOW_BYTES, int(size_ms))


define(
    Constructor(
        "WINDOWED",
        arity=2,
        make=lambda arguments, by_name: windowed(by_name(arguments[1]), int(arguments[0])),
        place=lambda _: without_last(WINDOW_BYTES),
        windows=_size_and_inner,
        accepts=lambda arguments: _is_int64(arguments[0]) and arguments[1] != "",
    )
)


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
            key, rest = _key_and(AT_TIME_BYTES, data)
            time, number = _TIME_AND_NUMBER.unpack(rest)
            return KeyAtTime(deserialize(key), time - _TIME_BIAS, number)

        return write, read

    return key_serde.around(f"KEY_AT_TIME({key_serde.name})", make, key_at_time)


define(
    Constructor(
        "KEY_AT_TIME",
        arity=1,
        make=lambda arguments, by_name: key_at_time(by_name(*arguments)),
        place=lambda _: without_last(AT_TIME_BYTES),
    )
)


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
        raise ValueError(
            f"expected two keys, of which one ends at byte {ends}, found {len(row)} bytes in all"
        )
    return row[_LENGTH.size : ends], row[ends:]


def subscription_row(foreign_key: bytes, key: bytes) -> bytes:
    """Return the bytes of a Subscription, given those of both keys."""
    return _LENGTH.pack(len(foreign_key)) + foreign_key + key


define(
    Constructor(
        "SUBSCRIPTION",
        arity=2,
        make=lambda arguments, by_name: subscription(*map(by_name, arguments)),
        place=lambda arguments: functools.partial(_placed_foreign, place=placed_by(arguments[0])),
    )
)


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
        raise ValueError(f"expected a row of a timer, found {row[:40]!r}")
    return row[start:end].replace(b"\x00\xff", b"\x00"), row[end + len(_KEY_END) :]


def _placed_timer(row: bytes, place: Place | None) -> bytes:
    key, _ = key_and_name(row)
    return key if place is None else place(key)


define(
    Constructor(
        "TIMER",
        arity=1,
        make=lambda arguments, by_name: timer(by_name(*arguments)),
        place=lambda arguments: functools.partial(_placed_timer, place=placed_by(*arguments)),
    )
)


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
            key, rest = _key_and(SESSION_BYTES, data)
            end_ms, start_ms = _SPAN.unpack(rest)
            return Windowed(deserialize(key), start_ms, end_ms)

        return write, read

    return key_serde.around(f"SESSION({key_serde.name})", make, session_windowed)


define(
    Constructor(
        "SESSION",
        arity=1,
        make=lambda arguments, by_name: session_windowed(by_name(*arguments)),
        place=lambda _: without_last(SESSION_BYTES),
        windows=lambda arguments: KeysInWindows(arguments[0], SESSION_BYTES, None),
    )
)


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
            return msgpack_of(
                [(*of, None if value is None else serialize(value)) for *of, value in windows]
            )

        def read(data: bytes) -> list[CountWindow]:
            return [
                CountWindow(size, records, time_ms, None if value is None else deserialize(value))
                for size, records, time_ms, value in _count_windows(data)
            ]

        return write, read

    name = f"COUNT_WINDOWS({value_serde.name})"
    return value_serde.around(name, make, count_windows, with_schema=True)


define(
    Constructor(
        "COUNT_WINDOWS",
        arity=1,
        make=lambda arguments, by_name: count_windows(by_name(*arguments)),
    )
)
define(
    Constructor(
        "LIST",
        arity=1,
        make=lambda arguments, by_name: java_serdes.list_of(by_name(*arguments)),
    )
)


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
