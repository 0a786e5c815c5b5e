"""Bytes of keys, values and headers as text that a page can show, whatever is in them."""

from contextlib import suppress
from typing import Any, Final

from statestore import serdes
from statestore.commands.printing import text_of
from statestore.model.records import Serde

SHOWN_MAX: Final = 2000
"""How many characters of a key, a value or a header are shown."""


def decoded(data: bytes, serde: Serde[Any]) -> str:
    """The value as text, or its beginning; bytes that the serde refuses are shown as they are."""
    text = None
    if serde is not serdes.BYTES:
        with suppress(Exception, SystemExit):  # a serde may raise anything
            text = text_of(serde.deserialize(data))
    return shortened(serdes.printable(data) if text is None else text)


def readable(data: bytes) -> str:
    """The bytes as text where they are plain UTF-8, which most topics hold; else as they are."""
    with suppress(UnicodeDecodeError):
        text = data.decode()
        # Characters that are not printable could hide or turn round what stands beside them.
        if all(each.isprintable() or each in "\n\t" for each in text[: 2 * SHOWN_MAX]):
            return shortened(text)
    return shortened(serdes.printable(data))


def shortened(text: str) -> str:
    """The beginning of a long text, and how long it is."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text):,} characters)"
