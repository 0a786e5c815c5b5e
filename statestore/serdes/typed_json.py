"""JSON of one type: of a msgspec.Struct, a dataclass, a pydantic model, or another annotation."""

import copyreg
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from itertools import repeat
from typing import Any, Final

import msgspec

from statestore.errors import Misuse
from statestore.model.decoders import users_decoder
from statestore.model.encoders import json_lines, json_of, msgpack_of, sorted_json
from statestore.model.records import ArrowForm, Functions, Schema, Serde
from statestore.serdes.value_types import checked, name_of

_PLAIN: Final = frozenset({dict, list, tuple, str, bytes, int, float, bool})
"""Types that have no fields, as one look tells."""
_WITH_FIELDS: Final = (
    *("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__"),
    *("__pydantic_validator__", "_fields"),
)
"""What the types have of whose values a serde of the type keeps the fields."""
_AT_ONCE: Final = 1_000
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def plain_json(value: Any) -> bytes:
    """Return a value as JSON; equal values give equal bytes, so a dict may be a key.

    TypeNotKept if the value is an object with fields.
    """
    if type(value) not in _PLAIN:
        check_type_is_kept(value, "JSON")
    return json_of(value)


def plain_json_of_all(values: list[Any]) -> list[bytes]:
    """Return values as JSON, as `plain_json` does."""
    if _PLAIN.issuperset(map(type, values)):
        found = json_lines(values).split(b"\n")[:-1]
        if len(found) == len(values):  # JSON of a user's own may have several lines.
            return found
    return list(map(plain_json, values))


def plain_msgpack(value: Any) -> bytes:
    """Return a value as MessagePack, as `plain_json` does."""
    if type(value) not in _PLAIN:
        check_type_is_kept(value, "MSGPACK")
    return msgpack_of(value)


@cache
def typed_json(kind: Any) -> Serde[Any]:
    """Return the serde of values of this type; the same object whenever it is asked for."""
    is_pydantic = hasattr(kind, "__pydantic_validator__")
    name, arrow = f"JSON({name_of(kind)})", partial(_arrow_form, kind)
    made: Serde[Any]
    if is_pydantic:
        schema, functions = _by_pydantic(kind)
        made = Serde(name, *functions, schema=schema, arrow=arrow)
    else:
        schema, functions, write_all = _by_msgspec(kind)
        made = Serde(name, *functions, schema=schema, arrow=arrow).writing_all(write_all)
    return made.made_by(typed_json, kind)


@cache
def _arrow_form(kind: Any) -> ArrowForm:
    from statestore.serdes.arrow_forms import TypedForm

    return TypedForm(kind, typed_json(kind).deserialize)


def _again(meta: msgspec.Meta) -> tuple[Callable[[], msgspec.Meta], tuple[()]]:
    return partial(msgspec.Meta, **dict(meta.__rich_repr__())), ()


# Types with constraints travel to workers, and msgspec does not say how.
copyreg.pickle(msgspec.Meta, _again)


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, with the type itself at its top; Misuse if it has none."""
    made = typed_json(kind).schema
    assert made is not None
    schema: dict[str, Any] = msgspec.json.decode(made.text)
    name = schema.get("$ref", "").rpartition("/")[2]
    return {"$schema": _DRAFT, **schema.get("$defs", {}).get(name, {}), **_without_ref(schema)}


class TypeNotKept(TypeError):
    """A value has a type that its serde would not give back; `wanted`: a serde that would."""

    def __init__(self, message: str, wanted: str) -> None:
        super().__init__(message)
        self.wanted: Final = wanted

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.wanted)


def check_type_is_kept(value: object, serde: str) -> None:
    """Raise TypeNotKept for an object with fields: plain JSON would give back a dict or a list.

    It is one of a msgspec.Struct, a dataclass, attrs, a pydantic model or a NamedTuple.
    """
    kind = type(value)
    if any(hasattr(kind, mark) for mark in _WITH_FIELDS):
        back = "a list" if isinstance(value, tuple) else "a dict"
        raise TypeNotKept(f"plain {serde} would give back {back}", f"serdes.json({name_of(kind)})")


def _without_ref(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "$ref"}


def _by_msgspec(
    kind: Any,
) -> tuple[Schema, Functions[Any], Callable[[list[Any]], list[bytes]]]:
    try:
        schema = Schema("JSON", sorted_json(msgspec.json.schema(kind)).decode())
        decoder = users_decoder(kind)
    except (TypeError, ValueError, NameError) as error:
        why = str(error).splitlines()[-1]
        raise Misuse(
            f"serdes.json({name_of(kind)}): {why}; pass a msgspec.Struct, a dataclass, a "
            "pydantic model, or a type made of these and of what JSON has"
        ) from error
    klass, name, decode = checked(kind), name_of(kind), decoder.decode

    def write(value: Any) -> bytes:
        if not isinstance(value, klass):
            raise TypeError(f"want {name}")
        try:
            data = json_of(value)
        except TypeError:
            # Only keys that are texts can be sorted.
            data = json_of(msgspec.to_builtins(value, str_keys=True))
        # What could not be read back must not be written: no constructor checks the fields.
        decode(data)
        return data

    def write_all(values: list[Any]) -> list[bytes]:
        found = list[bytes]()
        # Not more, as what is decoded is held until all is.
        for start in range(0, len(values), _AT_ONCE):
            found += write_some(values[start : start + _AT_ONCE])
        return found

    def write_some(values: list[Any]) -> list[bytes]:
        if all(map(isinstance, values, repeat(klass))):
            with suppress(Exception):
                lines = json_lines(values)
                found = lines.split(b"\n")[:-1]
                # JSON of a user's own may have several lines, or be empty.
                one_each = len(found) == len(values) == len(decoder.decode_lines(lines))
                if one_each and all(map(bytes.strip, found)):
                    return found
        return list(map(write, values))

    return schema, (write, decode), write_all


def _by_pydantic(kind: Any) -> tuple[Schema, Functions[Any]]:
    from pydantic import TypeAdapter

    adapter = TypeAdapter(kind)
    schema = Schema("JSON", sorted_json(adapter.json_schema()).decode())
    name, dump, read = name_of(kind), adapter.dump_python, adapter.validate_json

    def write(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise TypeError(f"want {name}")
        data = json_of(dump(value, mode="json", by_alias=True, warnings="error"))
        # Assignments, `model_construct` and fields that are left out may have made it unreadable.
        read(data)
        return data

    return schema, (write, read)
