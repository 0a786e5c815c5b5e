"""Times, spans and counts as people read them."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

_YEARS_S = 100 * 365 * 86_400
_STORES_TOLD = 4


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
