"""The serdes whose bytes are those of Kafka's own `Serdes` in Java, under the names of `serdes`.

Numbers are big-endian, and negative integers are two's complement, so that they sort after positive
ones. A UUID is its text, in lower case. A list begins with a byte that says how its items follow:
those of a fixed size after the places of its nulls, all others each with its length.
"""

import struct
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Never

from statestore.model.records import Functions, Serde, T, plain_serde

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FLOAT32 = struct.Struct(">f")
_FLOAT64 = struct.Struct(">d")
_UUID_BYTES: Final = 36
_BOOLEANS = {b"\x00": False, b"\x01": True}
_ITEMS_OF_ONE_SIZE: Final = 0
_ITEMS_WITH_LENGTHS: Final = 1
_NULL_LENGTH: Final = -1


def _string(data: bytes) -> str:
    return data.decode()


def _number(of: struct.Struct) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        return of.unpack(data)[0]

    return read


def _write_boolean(value: bool) -> bytes:  # a serde's function
    if value is True:
        return b"\x01"
    if value is False:
        return b"\x00"
    raise TypeError("want True or False")


def _read_boolean(data: bytes) -> bool:
    if data not in _BOOLEANS:
        raise ValueError("want one byte, 0 or 1")
    return _BOOLEANS[data]


def _write_uuid(value: uuid.UUID) -> bytes:
    if not isinstance(value, uuid.UUID):
        raise TypeError("want a uuid.UUID")
    return str(value).encode()


def _read_uuid(data: bytes) -> uuid.UUID:
    if len(data) != _UUID_BYTES:
        raise ValueError(f"want the text of a UUID, of {_UUID_BYTES} bytes, not {len(data)} bytes")
    return uuid.UUID(data.decode())


def _write_void(_value: None) -> bytes:
    raise TypeError("want None")


def _read_void(_data: bytes) -> Never:
    raise ValueError("want null")


STRING: Serde[str] = plain_serde("STRING", (str.encode, _string), "large_string", ordered=True)
INT64: Serde[int] = plain_serde("INT64", (_INT64.pack, _number(_INT64)), "int64")
INT32: Serde[int] = plain_serde("INT32", (_INT32.pack, _number(_INT32)), "int32")
INT16: Serde[int] = plain_serde("INT16", (_INT16.pack, _number(_INT16)), "int16")
FLOAT64: Serde[float] = plain_serde("FLOAT64", (_FLOAT64.pack, _number(_FLOAT64)), "float64")
FLOAT32: Serde[float] = plain_serde("FLOAT32", (_FLOAT32.pack, _number(_FLOAT32)), "float32")
BOOLEAN: Serde[bool] = plain_serde("BOOLEAN", (_write_boolean, _read_boolean), "bool", ordered=True)
SCALARS = (INT64, INT32, INT16, FLOAT64, FLOAT32, BOOLEAN)
UUID: Serde[uuid.UUID] = Serde("UUID", _write_uuid, _read_uuid)
VOID: Serde[None] = Serde("VOID", _write_void, _read_void)

_SIZES = (
    (INT16, _INT16.size),
    (INT32, _INT32.size),
    (INT64, _INT64.size),
    (FLOAT32, _FLOAT32.size),
    (FLOAT64, _FLOAT64.size),
    (UUID, _UUID_BYTES),
)


@cache
def list_of(serde: Serde[T]) -> Serde[list[T | None]]:
    """Return the serde of lists of what `serde` has, and of None."""
    size = next((size for one, size in _SIZES if one is serde), None)

    def make(
        serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]
    ) -> Functions[list[T | None]]:
        def write(items: list[T | None]) -> bytes:
            if not isinstance(items, list | tuple):
                raise TypeError("want a list")
            written = [None if item is None else serialize(item) for item in items]
            return _with_lengths(written) if size is None else _of_one_size(written)

        def read(data: bytes) -> list[T | None]:
            return [None if item is None else deserialize(item) for item in _items(data, size)]

        return write, read

    return serde.around(f"LIST({serde.name})", make, list_of)


def _of_one_size(items: list[bytes | None]) -> bytes:
    nulls = [place for place, item in enumerate(items) if item is None]
    head = struct.pack(f">B{len(nulls) + 2}i", _ITEMS_OF_ONE_SIZE, len(nulls), *nulls, len(items))
    return head + b"".join(item for item in items if item is not None)


def _with_lengths(items: list[bytes | None]) -> bytes:
    parts = [struct.pack(">Bi", _ITEMS_WITH_LENGTHS, len(items))]
    for item in items:
        parts.append(_INT32.pack(_NULL_LENGTH if item is None else len(item)))
        parts.append(item or b"")
    return b"".join(parts)


def _items(data: bytes, size: int | None) -> list[bytes | None]:
    """Return the bytes of each item; ValueError if these are not the bytes of such a list."""
    form, at = data[:1], 1
    nulls: frozenset[int] = frozenset()
    if form == bytes([_ITEMS_OF_ONE_SIZE]):
        if size is None:
            raise ValueError("its items have one size, and those of the serde have not")
        many, at = _integer(data, at), at + _INT32.size
        places = _stretch(data, at, many * _INT32.size)
        nulls, at = frozenset(one for (one,) in _INT32.iter_unpack(places)), at + len(places)
    elif form == bytes([_ITEMS_WITH_LENGTHS]):
        size = None
    else:
        raise ValueError(f"want a list, which begins with 0 or 1, not with {form!r}")
    count, at = _integer(data, at), at + _INT32.size
    items: list[bytes | None] = []
    for place in range(count):
        length = size
        if length is None:
            length, at = _integer(data, at), at + _INT32.size
        if place in nulls or length == _NULL_LENGTH:
            items.append(None)
        else:
            items.append(_stretch(data, at, length))
            at += length
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the last item")
    return items


def _integer(data: bytes, at: int) -> int:
    (found,) = _INT32.unpack(_stretch(data, at, _INT32.size))
    return int(found)


def _stretch(data: bytes, at: int, length: int) -> bytes:
    if length < 0 or at + length > len(data):
        raise ValueError(f"want {length} bytes after the first {at}, of {len(data)} in all")
    return data[at : at + length]


def scalar_type(serde: Serde[Any]) -> Any:
    """Return the pyarrow.DataType of a column of numbers or truth values; None for other serdes.

    It loads Arrow.
    """
    form = serde.arrow_form() if any(serde is known for known in SCALARS) else None
    return None if form is None else form.type
