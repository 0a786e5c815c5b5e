"""Keys and values of one store, as JSON has them: typed by the deployed serdes, or raw.

    serde                 in a URL                 in JSON
    STRING                the text                 a string
    BYTES, and all raw    base64 or base64url      a string of base64
    UUID                  the text                 a string
    INT64, FLOAT64, …     JSON, such as 42         what it is; NaN and infinities are strings

Bytes within a value, as MessagePack may have them, are base64 as well.
"""

import base64
import binascii
import math
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from statestore.errors import Misuse
from statestore.model.records import Serde
from statestore.operations.deployed import Deployed
from statestore.stores import serdes

_NOT_IN_JSON = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Encoding:
    """How keys and values of one store are read from requests and written into answers."""

    store: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]

    @classmethod
    def of(cls, deployed: Deployed, store: str, *, raw: bool) -> "Encoding":
        """Take the serdes of the deployed topology; Misuse if nothing says how to decode."""
        if raw:
            return cls(store, serdes.BYTES, serdes.BYTES)
        known = deployed.stores.get(store)
        if known is None:
            raise Misuse(
                f"store {store!r} is not in the topology deployed last, so nothing says how to "
                "decode it: pass raw=true"
            )
        windows = serdes.of_windowed(known.key_serde)
        keys = known.key_serde if windows is None else windows.inner
        try:
            return cls(store, serdes.by_name(keys), serdes.by_name(known.value_serde))
        except Misuse as error:
            raise Misuse(
                f"store {store!r}: {error}: start `statestore serve` with --pipeline "
                "module:function, whose serdes it then takes, or pass raw=true"
            ) from error

    def key_of_text(self, text: str) -> bytes:
        """Return the bytes of a key as a URL has it."""
        if self.key_serde is serdes.BYTES or self.key_serde is serdes.STRING:
            return self.key(text)
        try:
            return self.key(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError):
            return self.key(text)

    def key(self, item: Any) -> bytes:
        """Return the bytes of a key as JSON has it; Misuse says what was expected."""
        try:
            if self.key_serde is serdes.BYTES:
                return _decoded(item)
            if self.key_serde is serdes.UUID:
                item = uuid.UUID(item)
            if self.key_serde is serdes.FLOAT64 or self.key_serde is serdes.FLOAT32:
                item = _NOT_IN_JSON.get(item, item) if isinstance(item, str) else item
            data = self.key_serde.serialize(item)
        except Exception as error:
            wanted = "base64" if self.key_serde is serdes.BYTES else self.key_serde.name
            raise Misuse(
                f"key {_short(item)} of store {self.store!r} is no {wanted} ({error}): pass one, "
                "or pass raw=true and the key's bytes in base64"
            ) from error
        if not isinstance(data, bytes):
            raise Misuse(f"key {_short(item)} of store {self.store!r} is no {self.key_serde.name}")
        return data

    def shown_key(self, data: bytes) -> Any:
        """Return a key as JSON can have it."""
        return self._shown("key", data, self.key_serde)

    def shown_value(self, data: bytes) -> Any:
        """Return a value as JSON can have it."""
        return self._shown("value", data, self.value_serde)

    def _shown(self, side: str, data: bytes, serde: Serde[Any]) -> Any:
        if serde is serdes.BYTES:
            return data  # JSON gets the base64 of bytes, wherever they are.
        try:
            shown = serde.deserialize(data)
        except Exception as error:
            printable = serdes.printable(data)[:80]
            raise Misuse(
                f"store {self.store!r}: the {side} {printable} is no {serde.name} ({error}): "
                "pass raw=true"
            ) from error
        if isinstance(shown, float) and not math.isfinite(shown):
            return next(
                text
                for text, number in _NOT_IN_JSON.items()
                if number == shown or (number != number and shown != shown)  # noqa: PLR0124  # NaN
            )
        return str(shown) if isinstance(shown, uuid.UUID) else shown


def to_json(answer: object) -> bytes:
    """Encode an answer; Misuse if a serde of the user's own makes what JSON cannot have."""
    try:
        return msgspec.json.encode(answer)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Misuse(f"a key or a value cannot be JSON ({error}): pass raw=true") from error


def _decoded(item: Any) -> bytes:
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} instead of a string")
    plain = item.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _short(item: Any) -> str:
    text = repr(item)
    return text if len(text) <= 80 else text[:77] + "..."
