"""Arrow arrays of whole columns, for serdes that know the type of their values.

Rows are decoded by the serde's own functions, because these are the quickest that read them exactly
(docs/adr/0036). What Arrow saves is the user's code per record, and the objects that it makes.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, cast

import msgspec
import msgspec.inspect as mi
import pyarrow as pa
import pyarrow.compute

from statestore.errors import Misuse
from statestore.model.arrow_columns import Rows, pylist
from statestore.model.decoders import users_decoder
from statestore.model.encoders import json_lines
from statestore.model.nulls import any_none
from statestore.serdes.value_types import name_of

# What Arrow takes as it is.
_LEFT = (bytes, dt.datetime, dt.date, dt.time, dt.timedelta)
_AT_ONCE = 1_000


class JsonText(str):
    """JSON within a column whose type says nothing about it: Arrow has it as text."""

    __slots__ = ()


class _Field(NamedTuple):
    """A field of objects: how Arrow names it, its type, and how it is taken from an object.

    `is_plain`: Arrow takes its values as they are.
    """

    name: str
    type: pa.DataType
    take: Callable[[Any], Any]
    is_plain: bool


class TypedForm:
    """The form of a serde of objects of a type, whose fields have the names that JSON has.

    `write` makes the bytes of objects, each of which has what its type asks for, because it was
    read from JSON.
    """

    def __init__(
        self,
        kind: Any,
        deserialize: Callable[[bytes], Any],
        write: Callable[[list[Any]], list[bytes]] | None = None,
    ) -> None:
        """`write` None: the bytes are the JSON itself."""
        info = mi.type_info(kind)
        self.kind = kind
        self.type = _type_of(info, name_of(kind), ())
        self._read = deserialize
        self._write = write
        self._decoder = users_decoder(kind)
        self._fields = _fields_of(info, self.type)
        self._parts = self._fields or _fields_of(_innermost(info), self.type)
        self._sure = write is None and _says_all(info)
        self._required = _required(info)
        self._row: Callable[..., Any] | None = None
        if self._fields:
            names = [(f"f{i}", Any) for i in range(len(self._fields))]
            renamed = {f"f{i}": field.name for i, field in enumerate(self._fields)}
            self._row = msgspec.defstruct("Row", names, rename=renamed, gc=False)

    def decode(self, rows: Rows) -> pa.Array:
        """Return the values, of a type with fields as a struct array."""
        known = [row for row in rows if row is not None]
        if self._fields:
            columns = self.read(self._read, known, {field.name for field in self._fields})
            found = pa.StructArray.from_arrays(list(columns.values()), fields=list(self.type))
        else:
            found = pa.array(builtins_of(list(map(self._read, known))), self.type)
        return found if len(known) == len(rows) else _spread(found, rows)

    @property
    def has_fields(self) -> bool:
        """Whether the values have fields."""
        return bool(self._fields)

    def read(
        self, decode: Callable[[bytes], Any], rows: Sequence[bytes | None], names: set[str]
    ) -> dict[str, pa.Array]:
        """Return the columns of these fields of values, of which none is kept; of null, null.

        They are in the order of the type.
        """
        taken = {field: list[Any]() for field in self._fields if field.name in names}
        if len(taken) == 1 and all(rows):
            (only,) = taken
            take = only.take
            known = cast("list[bytes]", rows)
            return {only.name: _array(only, [take(decode(row)) for row in known])}
        # Values of a few rows are still in the processor's cache when they are freed.
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            full = all(some)
            values = [None if row is None else decode(row) for row in some]
            for field, found in taken.items():
                found.extend(map(field.take, values) if full else _taken(field, values))
        return {field.name: _array(field, found) for field, found in taken.items()}

    def columns(self, values: list[Any], names: list[str], whole: str) -> dict[str, pa.Array]:
        """Return the columns of these fields, of values that were read; null where there is none.

        Values without fields are the column `whole`.
        """
        if not self._parts:
            return {
                name: pa.array(builtins_of(values), self.type) for name in names if name == whole
            }
        return {
            field.name: _array(field, _taken(field, values))
            for field in self._parts
            if field.name in names
        }

    def is_exact(self, column: pa.Array) -> bool:
        """Tell whether each value can be written, and `objects` are what reading it would give."""
        return not column.null_count and self._sure and self._has_all(column)

    def objects(self, column: pa.Array) -> list[Any]:
        """Return the objects of a column that `is_exact`."""
        return list(map(self.kind, *map(pylist, column.flatten())))

    def encode(self, column: pa.Array) -> Rows:
        """Return the bytes of each value: JSON is made of it, and objects of the type of that."""
        known = column.drop_null() if column.null_count else column
        if self._row is None:
            plain = pylist(known)
        else:
            # Much quicker than dicts; fields that are null in the array are null in JSON.
            plain = list(map(self._row, *map(pylist, known.flatten())))
        written = self._written(known, json_lines(plain))
        if len(written) == len(column):
            return list(written)
        one_by_one = iter(written)
        return [next(one_by_one) if valid else None for valid in pylist(column.is_valid())]

    def _written(self, column: pa.Array, lines: bytes) -> list[bytes]:
        """Return the bytes of values without nulls, given JSON of each of them in a line."""
        if self._sure and self._has_all(column):
            return lines.split(b"\n")[:-1]
        # Errors name the field of the one row that is tried alone.
        decode, alone = self._decoder.decode, len(column) == 1
        objects = [decode(lines)] if alone else self._decoder.decode_lines(lines)
        if self._write is not None:
            return self._write(objects)
        exact = json_lines(objects)
        if exact != lines:
            # What could not be read back must not be written.
            self._decoder.decode_lines(exact)
        return exact.split(b"\n")[:-1]

    def _has_all(self, column: pa.Array) -> bool:
        """Tell whether a column lacks nothing that JSON of the type must have."""
        for part, required in zip(column.flatten(), self._required, strict=True):
            if required and part.null_count:
                return False
            if pa.types.is_floating(part.type) and not _is_finite(part):
                return False
        return True


def _taken(field: _Field, values: list[Any]) -> list[Any]:
    take = field.take
    if any_none(values):
        return [None if value is None else take(value) for value in values]
    return list(map(take, values))


def _array(field: _Field, taken: list[Any]) -> pa.Array:
    return pa.array(taken if field.is_plain else builtins_of(taken), field.type)


def builtins_of(values: list[Any]) -> Any:
    """Return values with fields as dicts; what Arrow takes as it is stays."""
    return msgspec.to_builtins(values, builtin_types=_LEFT, enc_hook=str)


def _is_finite(column: pa.Array) -> bool:
    found = pyarrow.compute.all(pyarrow.compute.is_finite(column)).as_py()
    return found is not False  # None: there is no value.


def _spread(known: pa.Array, rows: Sequence[object]) -> pa.Array:
    """Return the values of the rows that have one, and null for each row without."""
    places = iter(range(len(known)))
    return known.take(pa.array([None if row is None else next(places) for row in rows], pa.int64()))


# The types of typed JSON.

_PLAIN: dict[type, pa.DataType] = {
    mi.StrType: pa.large_string(),
    mi.BoolType: pa.bool_(),
    mi.IntType: pa.int64(),
    mi.FloatType: pa.float64(),
    mi.BytesType: pa.large_binary(),
    mi.DateType: pa.date32(),
    mi.TimeDeltaType: pa.duration("us"),
    mi.UUIDType: pa.large_string(),
}
_TAKEN = {*_PLAIN, mi.NoneType, mi.DateTimeType, mi.TimeType} - {mi.UUIDType}
_FREE = (mi.StrType(), mi.BoolType(), mi.IntType(), mi.FloatType(), mi.NoneType())
_LISTS = (mi.ListType, mi.VarTupleType, mi.SetType, mi.FrozenSetType, mi.CollectionType)
_OBJECTS = (mi.StructType, mi.DataclassType, mi.TypedDictType)


def _fields_of(info: mi.Type, kind: pa.DataType) -> list[_Field]:
    if not isinstance(info, _OBJECTS):
        return []
    take = itemgetter if isinstance(info, mi.TypedDictType) else attrgetter
    return [
        _Field(field.encode_name, arrow.type, take(field.name), _is_plain(field.type))
        for field, arrow in zip(info.fields, kind, strict=True)
    ]


def _innermost(info: mi.Type) -> mi.Type:
    """Return the type of values that are not None, without what is said of it."""
    if isinstance(info, mi.UnionType):
        (info,) = (one for one in info.types if not isinstance(one, mi.NoneType))
    return _innermost(info.type) if isinstance(info, mi.Metadata) else info


def _says_all(info: mi.Type) -> bool:
    """Tell whether the Arrow type says all that JSON of a type must be, except for what is null.

    Then the JSON of its fields in order is that of the object, and can be read back.
    """
    if not isinstance(info, mi.StructType | mi.DataclassType):
        return False
    config = getattr(info.cls, "__struct_config__", None)
    if hasattr(info.cls, "__post_init__") or (config and (config.omit_defaults or config.tag)):
        return False
    return all(map(_is_free, (one.type for one in info.fields)))


def _is_free(info: mi.Type) -> bool:
    if isinstance(info, mi.UnionType):
        return all(map(_is_free, info.types))
    return info in _FREE


def _required(info: mi.Type) -> list[bool]:
    """Tell of each field whether it must not be null."""
    if not isinstance(info, _OBJECTS):
        return []
    return [
        not (isinstance(one.type, mi.UnionType) and one.type.includes_none) for one in info.fields
    ]


def _is_plain(info: mi.Type) -> bool:
    if isinstance(info, mi.UnionType):
        return all(map(_is_plain, info.types))
    return type(info) in _TAKEN


def _type_of(info: mi.Type, where: str, above: tuple[Any, ...]) -> pa.DataType:
    """Return the Arrow type of a type; Misuse if it has none."""
    found = _PLAIN.get(type(info))
    if found is not None:
        return found
    if isinstance(info, _LISTS):
        return pa.large_list(_type_of(info.item_type, f"{where}[]", above))
    if isinstance(info, _OBJECTS):
        return _of_fields(info, where, above)
    if isinstance(info, mi.UnionType):
        some = [one for one in info.types if not isinstance(one, mi.NoneType)]
        if len(some) == 1:
            return _type_of(some[0], where, above)
        raise no_form(where, "a union of several types")
    if isinstance(info, mi.Metadata):
        return _type_of(info.type, where, above)
    if isinstance(info, mi.DictType) and isinstance(info.key_type, mi.StrType):
        return pa.map_(pa.large_string(), _type_of(info.value_type, f"{where}[…]", above))
    return _of_others(info, where)


def _of_others(info: mi.Type, where: str) -> pa.DataType:
    match info:
        case mi.DateTimeType(tz=None) | mi.TimeType(tz=None):
            raise no_form(
                where, "a time with or without a zone: annotate it with msgspec.Meta(tz=…)"
            )
        case mi.DateTimeType(tz=zoned):
            return pa.timestamp("us", tz="UTC" if zoned else None)
        case mi.TimeType(tz=False):
            return pa.time64("us")
        case mi.EnumType(cls=members):
            return _of_values([member.value for member in members], where)
        case mi.LiteralType(values=values):
            return _of_values(list(values), where)
        case mi.CustomType(cls=text) if text is JsonText:
            return pa.large_string()
        case mi.CustomType():
            raise no_form(where, "not a type of msgspec's: use a Struct or a dataclass")
    raise no_form(where, type(info).__name__.removesuffix("Type").lower())


def _of_fields(info: Any, where: str, above: tuple[Any, ...]) -> pa.DataType:
    if info.cls in above:
        raise no_form(where, "a type that contains itself")
    if getattr(info, "array_like", False):
        raise no_form(where, "written as an array")
    if not info.fields:
        raise no_form(where, "a type without fields")
    optional = [f.name for f in info.fields if not f.required]
    if optional and isinstance(info, mi.TypedDictType):
        raise no_form(f"{where}.{optional[0]}", "a key that may be missing")
    return pa.struct(
        [
            pa.field(one.encode_name, _type_of(one.type, f"{where}.{one.name}", (*above, info.cls)))
            for one in info.fields
        ]
    )


def _of_values(values: list[Any], where: str) -> pa.DataType:
    if all(type(value) is int for value in values):
        return pa.int64()
    if all(isinstance(value, str) for value in values):
        return pa.large_string()
    raise no_form(where, "made of values of several types")


def no_form(where: str, what: str) -> Misuse:
    """Return the error for a type that Arrow does not have; `what` says why."""
    return Misuse(
        f"Arrow has no type for {where}, which is {what}: give it another type, or use operators "
        "that take one record at a time"
    )
