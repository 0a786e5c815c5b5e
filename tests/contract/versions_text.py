"""Versions in a line: time runs from left to right.

put     `a1@10 b2@12 a-@15`     key a: "1" from 10, a tombstone from 15; `a@10` has empty bytes
history `1[10,15) 3[20,`        values with their validity, oldest first
"""

import re
from collections.abc import Iterable

from statestore.model.records import PutResult, VersionedRecord

_PUT = re.compile(r"([a-z])([^@]*)@(-?\d+)")


def puts(text: str) -> list[tuple[bytes, bytes | None, int]]:
    """The puts of a line."""
    found = [_PUT.fullmatch(word) for word in text.split()]
    return [
        (m[1].encode(), None if m[2] == "-" else m[2].encode(), int(m[3]))
        for m in found
        if m is not None
    ]


def shown(versions: Iterable[VersionedRecord[bytes]]) -> str:
    """Versions, oldest first."""
    ordered = sorted(versions, key=lambda one: one.timestamp_ms)
    return " ".join(shown_one(one) for one in ordered)


def shown_one(one: VersionedRecord[bytes] | None) -> str:
    """One version, `-` for none."""
    if one is None:
        return "-"
    end = "" if one.valid_to_ms is None else f"{one.valid_to_ms})"
    return f"{one.value.decode()}[{one.timestamp_ms},{end}"


def answer(result: PutResult) -> str:
    """What a put said: `late`, `latest`, or when the version ends."""
    if not result.accepted:
        return "late"
    return "latest" if result.latest else f"to {result.valid_to_ms}"
