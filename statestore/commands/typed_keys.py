"""Keys of stores as they are typed on a command line."""

import re
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from statestore import serdes
from statestore.model.records import Serde


def serialized(text: str, serde: Serde[Any]) -> bytes:
    r"""Convert a key to bytes.

    Under BYTES the text is the key, with \xNN for other bytes; under STRING it is the key itself.
    Under UUID it is that text; under all other serdes it is JSON, or else a text. A serde with a
    JSON schema reads the JSON itself, so that the key is of its type. The error is that of the
    first attempt.
    """
    if serde is serdes.BYTES:
        return _unescaped(text)
    if serde is serdes.STRING:
        return serde.serialize(text)
    attempts: list[Callable[[], Any]] = [lambda: msgspec.json.decode(text), lambda: text]
    if serde is serdes.UUID:
        attempts = [lambda: uuid.UUID(text)]
    if serde.schema is not None and serde.schema.kind == "JSON":
        attempts = [lambda: serde.deserialize(text.encode())]
    first: Exception | None = None
    for attempt in attempts:
        try:
            return serde.serialize(attempt())
        except Exception as error:  # noqa: BLE001  # a user's serde may raise anything
            first = first or error
    assert first is not None
    raise first


def _unescaped(text: str) -> bytes:
    return re.sub(rb"\\x([0-9a-fA-F]{2})", lambda found: bytes([int(found[1], 16)]), text.encode())
