"""What a dead letter says of itself: KIP-1034's headers."""

import traceback
from collections.abc import Mapping

from statestore.model.records import Header

_TEXT_MAX = 8_000


def error_headers(error: Exception, where: Mapping[str, str]) -> tuple[Header, ...]:
    """The error, and `where` it was met, as headers `__streams.errors.<name>`."""
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    told = {
        "exception": f"{module}{kind.__qualname__}",
        "message": str(error)[:_TEXT_MAX],
        "stacktrace": "".join(traceback.format_exception(error))[-_TEXT_MAX:],
        **where,
    }
    return tuple(
        (f"__streams.errors.{name}", text.encode(errors="replace")) for name, text in told.items()
    )
