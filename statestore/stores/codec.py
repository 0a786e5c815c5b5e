"""Converts between the types of a spec and bytes: keys, values, and scans of both."""

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, Generic

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.records import K, Serde, V
from statestore.stores.reads import Pair, RowScan

_BYTES: Final = {bytes}
_BYTES_OR_NONE: Final = {bytes, type(None)}


class Codec(Generic[K, V]):
    """Converts keys and values of one store; its errors name the store and the side (rule 3).

    Many bytes at once under the serde BYTES are only checked, without a call in Python for each.
    Otherwise `put_all` and `get_many` would spend as long here as in the rest of the store.
    """

    def __init__(self, store: str, key_serde: Serde[K], value_serde: Serde[V]) -> None:
        self._store = store
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._write_key = key_serde.serialize
        self.write_value = value_serde.serialize
        self._read_key = key_serde.deserialize
        self.read_value = value_serde.deserialize
        self.plain_keys = key_serde is serdes.BYTES
        self.plain_values = value_serde is serdes.BYTES
        self.plain = self.plain_keys and self.plain_values

    def key(self, key: K) -> bytes:
        try:
            if key is not None:
                return self._write_key(key)
        except Exception as error:
            raise self._mismatch("key", key, self._key_serde, error) from error
        raise Misuse(f"store {self._store!r}: the key is None; every row needs a key")

    def value(self, value: V | None) -> bytes | None:
        return None if value is None else self.some_value(value)

    def some_value(self, value: V) -> bytes:
        try:
            return self.write_value(value)
        except Exception as error:
            raise self._mismatch("value", value, self._value_serde, error) from error

    def keys(self, keys: Iterable[K]) -> list[bytes]:
        items: list[Any] = list(keys)
        if self.plain_keys and set(map(type, items)) == _BYTES:
            return items
        return [self.key(key) for key in items]

    def writes(self, pairs: Iterable[tuple[K, V | None]]) -> dict[bytes, bytes | None]:
        items: list[tuple[Any, Any]] = pairs if isinstance(pairs, list) else list(pairs)
        if self.plain:
            writes = self._plain_writes(items)
            if writes is not None:
                return writes
        return {self.key(key): self.value(value) for key, value in items}

    def values(self, values: Iterable[V | None]) -> list[bytes | None]:
        items: list[Any] = list(values)
        if self.plain_values and set(map(type, items)) <= _BYTES_OR_NONE:
            return items
        return [self.value(value) for value in items]

    def read_key(self, data: bytes) -> K:
        return self._read_key(data)

    def read_values(self, values: list[bytes | None]) -> list[Any]:
        if self.plain_values:
            return values
        read = self.read_value
        return [None if value is None else read(value) for value in values]

    def optional_key(self, key: K | None) -> bytes | None:
        return None if key is None else self.key(key)

    def pairs(self, scan: RowScan[Pair], exclude: bytes | None = None) -> RowScan[tuple[Any, Any]]:
        """Decode the pairs of a scan, leaving out the row under the key `exclude`."""
        if exclude is not None:
            scan = scan.through(lambda rows: (row for row in rows if row[0] != exclude))
        if self.plain:
            return scan
        read_key, read_value = self._read_key, self.read_value
        return scan.through(
            lambda rows: ((read_key(key), read_value(value)) for key, value in rows)
        )

    def prefix(self, prefix: K) -> tuple[bytes, bytes | None]:
        if not self._key_serde.ordered:
            raise Misuse(
                f"store {self._store!r}: prefix_scan needs an ordered key serde, "
                f"not {self._key_serde.name}"
            )
        low = self.key(prefix)
        return low, after_prefix(low)

    def _plain_writes(self, items: list[tuple[Any, Any]]) -> dict[bytes, bytes | None] | None:
        """Return the pairs as they are; None if they are not all plain bytes."""
        try:
            writes: dict[bytes, bytes | None] = dict(items)
        except (TypeError, ValueError):
            return None
        # A pair that a later pair of its key replaced is checked too.
        rows = chain(writes, writes.values())
        every = rows if len(writes) == len(items) else chain.from_iterable(items)
        fit = set(map(type, every)) <= _BYTES_OR_NONE and None not in writes
        return writes if fit else None

    def _mismatch(self, side: str, item: object, serde: Serde[Any], error: Exception) -> Exception:
        where = f"store {self._store!r}"
        return serdes.mismatch(
            where=where, side=side, value=item, serde=serde, keyword=f"{side}_serde", cause=error
        )


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key above every key with this prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
