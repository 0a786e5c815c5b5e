"""The fields of a serde's values: their types, and how they are taken from a value."""

import dataclasses
import types
import typing
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec

from statestore.model.records import Serde
from statestore.serdes.typed_json import typed_json

WHOLE = None
"""What stands for the value itself among the names of fields."""


class Field(NamedTuple):
    """A field: the annotation of its type, and what takes it from a value."""

    type: Any
    take: Callable[[Any], Any]


def fields_of(serde: Serde[Any]) -> dict[str | None, Field] | None:
    """Return the fields that values have, by their names in the bytes, and the value itself.

    Values that may be None have those of their type. None if the serde does not say what its values
    are. Misuse if Arrow has no type for them.
    """
    function, arguments = serde.recipe or (None, ())
    if function is typed_json:
        return _of_type(arguments[0])
    form = serde.arrow_form()
    if form is None:
        return None
    from statestore.serdes.arrow_forms import TypedForm
    from statestore.serdes.derived_json import shape_of, type_of

    if isinstance(form, TypedForm):
        return _of_type(form.kind)
    shape = shape_of(form.type, serde.name)
    found: dict[str | None, Field] = {WHOLE: Field(type_of(shape), _itself)}
    if not isinstance(shape, str) and shape[0] == "struct":
        for name, inner in shape[1:]:
            found[name] = Field(type_of(inner) | None, _taking(name))
    return found


def _taking(name: str) -> Callable[[Any], Any]:
    """Return what takes a field of a dict or of an object."""
    return lambda value: value[name] if isinstance(value, dict) else getattr(value, name)


def _itself(value: Any) -> Any:
    return value


def _of_type(kind: Any) -> dict[str | None, Field]:
    found: dict[str | None, Field] = {WHOLE: Field(kind, _itself)}
    bare = _innermost(kind)
    if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        for one in msgspec.structs.fields(bare):
            found[one.encode_name] = Field(one.type, attrgetter(one.name))
    elif isinstance(bare, type) and dataclasses.is_dataclass(bare):
        hints = typing.get_type_hints(bare, include_extras=True)
        for each in dataclasses.fields(bare):
            found[each.name] = Field(hints[each.name], attrgetter(each.name))
    elif typing.is_typeddict(bare):
        hints = typing.get_type_hints(bare, include_extras=True)
        for name in bare.__required_keys__:
            found[name] = Field(hints[name], itemgetter(name))
    return found


def _innermost(kind: Any) -> Any:
    """Return the type of values that are not None, if it is one, without what is said of it."""
    if typing.get_origin(kind) is typing.Annotated:
        return _innermost(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        some = [one for one in typing.get_args(kind) if one is not type(None)]
        return _innermost(some[0]) if len(some) == 1 else kind
    return kind
