"""Times, spans, sizes and counts as people read and write them, on terminals and on pages."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

_YEARS_S = 100 * 365 * 86_400
_STORES_TOLD = 4
_DIGITS_MAX = 19
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_COUNTS = ("records", "records_in", "records_out", "commits", "equal", "count", "stores")


def time_text(time_ms: int) -> str:
    """A time as ISO-8601 in UTC, as the command line accepts it; in ms if no calendar has it."""
    try:
        time = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    time = time.replace(microsecond=time_ms % 1000 * 1000)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def held_text(records: int, held: Mapping[str, int] | None = None) -> str:
    """Says how many records wait in operators, which no lag tells, and in which stores."""
    what = "record" if records == 1 else "records"
    text = f"{records:,} {what} held back until later input"
    stores = stores_text(held or {})
    return f"{text} ({stores})" if stores else text


def stores_text(held: Mapping[str, int]) -> str:
    """Says how many records wait in each store; the fullest ones are named."""
    ranked = sorted((-records, store) for store, records in held.items() if records)
    told = [f"{store} {-records:,}" for records, store in ranked[:_STORES_TOLD]]
    if len(ranked) > _STORES_TOLD:
        others = -sum(records for records, _ in ranked[_STORES_TOLD:])
        told.append(f"{len(ranked) - _STORES_TOLD} other stores {others:,}")
    return ", ".join(told)


def span_text(seconds: float | None) -> str:
    """A span in its two largest units; a question mark if it is not known."""
    if seconds is None:
        return "?"
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0005 else "< 1 ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds > _YEARS_S:
        return "years"
    left, parts = math.ceil(seconds), []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])


def size_text(size: float | None) -> str:
    """A number of bytes in the largest fitting unit; a question mark if it is not known."""
    if size is None:
        return "?"
    value, units = float(size), list(_SIZES)
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} B" if units[0] == "B" else f"{value:,.1f} {units[0]}"


def whole_number(text: str) -> int | None:
    """Read a number from 0 on, written in the digits 0 to 9; None: the text is none.

    One of more than 19 digits is read as 10^19, which is above all that Kafka counts: Python itself
    raises ValueError for thousands of digits, and takes the digits of other scripts.
    """
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0")
    return int(digits or "0") if len(digits) <= _DIGITS_MAX else 10**_DIGITS_MAX


def number_text(number: float | None) -> str:
    """A number with separators, and no more digits than people compare; "?" if it is not known."""
    if number is None:
        return "?"
    if isinstance(number, int) or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def field_text(name: str, number: float) -> str | None:
    """A number of a row or a summary for people, by the name of its field; None: as it is.

    Names that end in `_ms` are times, those in `_seconds` spans, those in `_bytes` sizes. Counts
    get separators. Keys and values of stores, offsets and ids stay as programs write them.
    """
    if isinstance(number, bool):
        return None
    if name.endswith("_ms"):
        return time_text(number) if isinstance(number, int) else None
    if name.endswith("_seconds"):
        return span_text(number)
    if name == "bytes" or name.endswith("_bytes"):
        return size_text(number)
    return number_text(number) if name in _COUNTS or name.endswith("_records") else None
