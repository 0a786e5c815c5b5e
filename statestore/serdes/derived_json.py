"""JSON whose type is made of an Arrow type, for values that a pipeline computes by columns.

The type travels to other processes as a `Shape`, a plain value, because a class that is made at
run time does not. Loads Arrow.
"""

import datetime as dt
import keyword
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from statestore.errors import Misuse
from statestore.model.records import Serde
from statestore.serdes.typed_json import typed_json

Shape = str | tuple[Any, ...]
"""A type as a value: its name, ("list", shape), or ("struct", (name, shape), …)."""

_PLAIN: Final[dict[str, Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "date": dt.date,
    "time": Annotated[dt.time, msgspec.Meta(tz=False)],
    "datetime": Annotated[dt.datetime, msgspec.Meta(tz=False)],
    "datetime with a zone": Annotated[dt.datetime, msgspec.Meta(tz=True)],
    "timedelta": dt.timedelta,
}
_KINDS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "bool"),
    (pa.types.is_integer, "int"),
    (pa.types.is_floating, "float"),
    (pa.types.is_string, "str"),
    (pa.types.is_large_string, "str"),
    (pa.types.is_string_view, "str"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
    (pa.types.is_binary_view, "bytes"),
    (pa.types.is_fixed_size_binary, "bytes"),
    (pa.types.is_date32, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "timedelta"),
)


def shape_of(kind: pa.DataType, where: str) -> Shape:
    """Return the type of what an Arrow type has; Misuse, naming `where`, if JSON has no such."""
    for holds, name in _KINDS:
        if holds(kind):
            return name
    if pa.types.is_timestamp(kind):
        return "datetime" if kind.tz is None else "datetime with a zone"
    if pa.types.is_dictionary(kind):
        return shape_of(kind.value_type, where)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return ("list", shape_of(kind.value_type, f"{where}[]"))
    if pa.types.is_struct(kind):
        return ("struct", *((one.name, shape_of(one.type, f"{where}.{one.name}")) for one in kind))
    raise Misuse(
        f"{where} is {kind}, for which JSON has no type: cast it to another one, or pass "
        "value_serde=…, a serde that has it"
    )


@cache
def derived_json(shape: Shape) -> Serde[Any]:
    """Return the serde of JSON of this type, in which each field may be null."""
    made = typed_json(type_of(shape))
    return made.made_by(derived_json, shape)


@cache
def type_of(shape: Shape, title: str = "Columns") -> Any:
    """Return the type; that of a struct is a msgspec.Struct of this name, made once.

    A schema tells types by their names, so a struct within one has another.
    """
    if isinstance(shape, str):
        return _PLAIN[shape]
    kind, *parts = shape
    if kind == "list":
        return list[_nullable(parts[0], f"{title}_0")]  # type: ignore[misc]  # a type made here
    return struct_of(
        title,
        [
            (name, _nullable(inner, f"{title}_{place}"), None)
            for place, (name, inner) in enumerate(parts)
        ],
    )


def _nullable(shape: Shape, title: str) -> Any:
    kind = type_of(shape, title)
    return kind | None


def struct_of(title: str, fields: list[tuple[str, Any] | tuple[str, Any, Any]]) -> Any:
    """Return a msgspec.Struct with these fields, their types and, if given, defaults.

    Its attributes have the names of the fields, if these can be written in Python.
    """
    attributes = dict(zip((one[0] for one in fields), _attributes(fields), strict=True))
    return msgspec.defstruct(
        title,
        [(attributes[name], *rest) for name, *rest in fields],
        rename={attribute: name for name, attribute in attributes.items()},
        gc=False,
    )


def _attributes(fields: list[tuple[str, Any] | tuple[str, Any, Any]]) -> Iterator[str]:
    taken = {one[0] for one in fields}
    for place, (name, *_) in enumerate(fields):
        fits = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
        attribute = name if fits else f"f{place}"
        while not fits and attribute in taken:
            attribute += "_"
        taken.add(attribute)
        yield attribute
