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
from typing import Any, Final

import msgspec

from statestore import serdes
from statestore.errors import UNREADABLE, Misuse
from statestore.model.records import Serde
from statestore.reading.decoding import Decoding

_NOT_IN_JSON = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


IN_BYTES: Final = "pass raw=true, which has them as base64"
WAYS_OUT: Final = (
    "start `statestore serve` with --pipeline module:function, whose serdes it then takes, or pass "
    "raw=true"
)


@dataclass(frozen=True)
class Encoding:
    """How keys and values of one store are read from requests and written into answers."""

    decoding: Decoding

    @property
    def store(self) -> str:
        """The store."""
        return self.decoding.store

    @property
    def key_serde(self) -> Serde[Any]:
        """The serde of its keys, without their windows."""
        return self.decoding.serdes.key

    @property
    def value_serde(self) -> Serde[Any]:
        """The serde of its values."""
        return self.decoding.serdes.value

    def key_of_text(self, text: str) -> bytes:
        """Return the bytes of a key as a URL has it."""
        if self.key_serde is serdes.BYTES or self.key_serde is serdes.STRING:
            return self.key(text)
        try:
            return self.key(msgspec.json.decode(text))
        except UNREADABLE:
            return self.key(text)

    def key(self, item: Any) -> bytes:
        """Return the bytes of a key as JSON has it; Misuse says what was expected."""
        return self.decoding.key(item, _serialized)

    def shown_key(self, data: bytes) -> Any:
        """Return a key as JSON can have it."""
        return _in_json(self.decoding.decoded_key(data))

    def shown_value(self, data: bytes) -> Any:
        """Return a value as JSON can have it; JSON gets the base64 of bytes, wherever they are."""
        return _in_json(self.decoding.decoded_value(data))


def _serialized(item: Any, serde: Serde[Any]) -> Any:
    if serde is serdes.BYTES:
        return _decoded(item)
    if serde is serdes.UUID:
        item = uuid.UUID(item)
    if (serde is serdes.FLOAT64 or serde is serdes.FLOAT32) and isinstance(item, str):
        item = _NOT_IN_JSON.get(item, item)
    return serde.serialize(item)


def _in_json(shown: Any) -> Any:
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
    except (TypeError, ValueError, *UNREADABLE) as error:
        raise Misuse(f"a key or a value cannot be JSON ({error}): pass raw=true") from error


def _decoded(item: Any) -> bytes:
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} instead of a string")
    plain = item.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
