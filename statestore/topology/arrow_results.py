"""What a user's functions make of Arrow columns: as one array, of the type that is asked."""

from collections.abc import Callable, Sequence

import pyarrow as pa


def whole(made: object, count: int) -> pa.Array:
    """Return what a function made as one array of `count` rows; TypeError if it is none."""
    if isinstance(made, pa.RecordBatch):
        made = made.to_struct_array()
    elif isinstance(made, pa.Table):
        made = made.combine_chunks().to_struct_array()
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if isinstance(made, pa.ChunkedArray):
        made = pa.concat_arrays(made.chunks)
    if not isinstance(made, pa.Array):
        raise TypeError(f"the function returned {type(made).__name__}, want a pyarrow.Array")
    if len(made) != count:
        raise ValueError(f"the function returned {len(made)} rows for {count} records")
    return made


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


_KINDS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]]] = (
    (pa.types.is_boolean, pa.types.is_boolean),
    (pa.types.is_integer, pa.types.is_integer),
    (_is_number, pa.types.is_floating),
    (_is_text, _is_text),
    (_is_binary, _is_binary),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_date, pa.types.is_date),
    (pa.types.is_time, pa.types.is_time),
    (pa.types.is_duration, pa.types.is_duration),
)


def fitted(column: pa.Array, kind: pa.DataType, where: str = "the column") -> pa.Array:
    """Return a column as one of this type, if its values are of the same kind; else TypeError.

    Fields of structs go by their names, in any order, and none may be missing or left over.
    """
    given = column.type
    if given == kind:
        return column
    if pa.types.is_null(given):
        return pa.nulls(len(column), kind)
    if pa.types.is_dictionary(given):
        return fitted(column.dictionary_decode(), kind, where)
    if pa.types.is_struct(kind) and pa.types.is_struct(given):
        return _fitted_struct(column, kind, where)
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(given):
        fits = (kind.tz is None) == (given.tz is None)
    elif pa.types.is_nested(kind) and pa.types.is_nested(given):
        return _fitted_nested(column, kind, where)
    else:
        fits = any(takes(given) and makes(kind) for takes, makes in _KINDS)
    if not fits:
        raise TypeError(f"{where} is {given}, want {kind}")
    return column.cast(kind)


def _fitted_struct(column: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    names, wanted = [f.name for f in column.type], [f.name for f in kind]
    if sorted(names) != sorted(wanted):
        lacks = [name for name in wanted if name not in names]
        what = f"lacks the field {lacks[0]!r}" if lacks else "has a field too many"
        raise TypeError(f"{where} {what}: it has {', '.join(names)}, want {', '.join(wanted)}")
    children = dict(zip(names, column.flatten(), strict=True))
    made = [fitted(children[f.name], f.type, f"{where}.{f.name}") for f in kind]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(made, fields=list(kind), mask=mask)


def _fitted_nested(column: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    given = column.type
    if pa.types.is_map(kind) and pa.types.is_map(given):
        parts = [(given.key_type, kind.key_type), (given.item_type, kind.item_type)]
    elif _is_list(kind) and _is_list(given):
        parts = [(given.value_type, kind.value_type)]
    else:
        raise TypeError(f"{where} is {given}, want {kind}")
    for inner, wanted in parts:
        # Tells whether the types fit; an Arrow cast would drop fields that are left over.
        fitted(pa.nulls(0, inner), wanted, f"{where}[]")
    return column.cast(kind)
