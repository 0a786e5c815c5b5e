"""Decoders of msgspec, which one thread at a time makes.

msgspec describes a type with fields when it makes the first decoder of it. A thread that makes one
meanwhile gets what is half described, and the process ends with SIGSEGV. So decoders come from
here, and what is converted is described here first.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from threading import RLock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_MAKING = RLock()


def json_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    """Return the decoder of JSON as values of a type of ours, which is made once."""
    wanted: Any = kind
    found: msgspec.json.Decoder[T] = _of_json(wanted)
    return found


def msgpack_decoder(kind: type[T]) -> "msgspec.msgpack.Decoder[T]":
    """Return the decoder of MessagePack as values of a type of ours, which is made once."""
    wanted: Any = kind
    found: msgspec.msgpack.Decoder[T] = _of_msgpack(wanted)
    return found


def users_decoder(
    kind: type[T], dec_hook: Callable[[type, Any], Any] | None = None
) -> "msgspec.json.Decoder[T]":
    """Make a decoder of JSON as values of a user's type.

    TypeError if msgspec has no form for the type, NameError if it cannot be resolved.
    """
    with _MAKING:
        return msgspec.json.Decoder(kind, dec_hook=dec_hook)


def users_conversion(kind: type[T], builtin_types: Iterable[type]) -> Callable[[Any], T]:
    """Make a function that converts what was decoded without a type to values of a user's type.

    `builtin_types`: those that are converted already. Raises as `users_decoder`.
    """
    users_decoder(kind)
    return partial(msgspec.convert, type=kind, builtin_types=builtin_types)


def converted(value: object, kind: type[T]) -> T:
    """Return what was decoded without a type as one of ours; ValidationError if it is none."""
    json_decoder(kind)
    return msgspec.convert(value, kind)


@cache
def _of_json(kind: Any) -> Any:
    with _MAKING:
        return msgspec.json.Decoder(kind)


@cache
def _of_msgpack(kind: Any) -> Any:
    with _MAKING:
        return msgspec.msgpack.Decoder(kind)
