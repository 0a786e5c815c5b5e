"""Objects of a type from dicts and lists, and back, for formats that have only these."""

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from statestore.model.decoders import users_conversion
from statestore.serdes.value_types import checked, name_of

# What Avro's logical types are in Python; they are left as they are.
_LEFT = (bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, uuid.UUID)


class Objects(NamedTuple):
    """`dump(value)` gives dicts and lists, and `load(found)` an object of the type."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def objects_of(kind: Any) -> Objects:
    """Return the conversions of a type; None leaves dicts and lists as they are."""
    if kind is None:
        return Objects(_same, _same)
    klass, name = checked(kind), name_of(kind)
    if hasattr(kind, "__pydantic_validator__"):
        from pydantic import TypeAdapter

        adapter = TypeAdapter(kind)

        def to_dict(value: Any) -> Any:
            return adapter.dump_python(value, by_alias=True, warnings="error")

        load: Callable[[Any], Any] = adapter.validate_python
    else:

        def to_dict(value: Any) -> Any:
            return msgspec.to_builtins(value, builtin_types=_LEFT)

        load = users_conversion(kind, _LEFT)

    def dump(value: Any) -> Any:
        if not isinstance(value, klass):
            raise TypeError(f"want {name}")
        return to_dict(value)

    return Objects(dump, load)


def _same(value: Any) -> Any:
    return value
