"""Keys and values of one store: from what somebody asks with, and to what somebody is shown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statestore import serdes
from statestore.errors import Misuse
from statestore.model.records import Serde
from statestore.operations.pipelines import StoreSerdes

_SHOWN_MAX = 80


@dataclass(frozen=True)
class Decoding:
    """The serdes of a store, and what helps somebody whose bytes they do not decode.

    `in_bytes`: how to ask for the bytes instead, as words that follow "write one, or ".
    """

    store: str
    serdes: StoreSerdes
    in_bytes: str

    def key(self, item: Any, serialize: Callable[[Any, Serde[Any]], Any]) -> bytes:
        """Return the bytes of a key, as `serialize` makes them; Misuse says what was expected."""
        serde = self.serdes.key
        try:
            data = serialize(item, serde)
        except Exception as error:
            raise self._not_a_key(item, f" ({error})") from error
        if not isinstance(data, bytes):
            raise self._not_a_key(item, "")
        return data

    def decoded_key(self, data: bytes) -> Any:
        """Return a key; Misuse if its serde does not decode it."""
        return self._decoded("key", data, self.serdes.key)

    def decoded_value(self, data: bytes) -> Any:
        """Return a value; Misuse if its serde does not decode it."""
        return self._decoded("value", data, self.serdes.value)

    def _decoded(self, side: str, data: bytes, serde: Serde[Any]) -> Any:
        if serde is serdes.BYTES:
            return data
        try:
            return serde.deserialize(data)
        except Exception as error:
            shown = serdes.printable(data)
            raise Misuse(
                f"store {self.store!r}: the {side} {_short(shown)} is not a valid {serde.name} "
                f"({error}): {self.in_bytes}"
            ) from error

    def _not_a_key(self, item: Any, why: str) -> Misuse:
        return Misuse(
            f"key {_short(repr(item))} of store {self.store!r} is not a valid "
            f"{self.serdes.key.name}{why}: write one, or {self.in_bytes}"
        )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
