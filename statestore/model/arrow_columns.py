"""Arrow arrays of columns whose values Arrow takes as they are. Loads Arrow."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

Rows = list[bytes | None]


class PlainForm:
    """The form of a serde whose values Arrow takes as they are."""

    def __init__(
        self,
        kind: pa.DataType | str,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
    ) -> None:
        """`kind` is the type of the column, or the name of a type that takes no parameters."""
        self.type = pa.type_for_alias(kind) if isinstance(kind, str) else kind
        self._read = deserialize
        self._write = serialize

    def decode(self, rows: Rows) -> pa.Array:
        """Return the values."""
        read = self._read
        return pa.array([None if row is None else read(row) for row in rows], self.type)

    def encode(self, column: pa.Array) -> Rows:
        """Return the bytes of each value."""
        write = self._write
        values = pylist(column)
        return [None if value is None else write(value) for value in values]


def pylist(column: pa.Array) -> list[Any]:
    """Return the values of a column, those of maps as dicts; KeyError if one has a key twice."""
    # Arrow takes twenty times as long if it has to look out for maps.
    found: list[Any]
    if _has_maps(column.type):
        found = column.to_pylist(maps_as_pydicts="strict")
    else:
        found = column.to_pylist()
    return found


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_maps(kind.field(i).type) for i in range(kind.num_fields))
