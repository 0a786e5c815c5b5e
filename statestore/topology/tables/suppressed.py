"""Suppressed: when a table hands on its updates, which `KTable.suppress` takes."""

from dataclasses import dataclass

from statestore.errors import Misuse
from statestore.model.keywords import renamed
from statestore.model.modes import Span, span_ms
from statestore.topology.windows.closing import checked_idle_ms, idle_terms


@dataclass(frozen=True)
class Suppressed:
    """When `KTable.suppress` hands updates on; made by one of the two class methods.

    `limit_ms` None: when the window of their key closes.
    """

    limit_ms: int | None
    max_records: int | None
    max_bytes: int | None
    shut_down_when_full: bool
    close_idle_ms: int | None = None

    @classmethod
    @renamed(close_idle="close_idle_ms")
    def until_window_closes(
        cls,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        close_idle: Span | None = None,
    ) -> "Suppressed":
        """Hand on one result for each window: the last one, when no record can change it any more.

        The run ends with BufferFull if more than `max_records` results wait, or if their keys and
        values have more than `max_bytes`. Without these bounds the buffer takes what comes, which
        is on disk. With `close_idle` all that waits goes out, too, once there was no update for
        that long by the wall clock, while the stream task is open; updates of these windows after
        that are late. Misuse if a bound or `close_idle` is less than 1.
        """
        bounds = _bounds(max_records, max_bytes)
        idle_ms = checked_idle_ms(close_idle)
        return cls(None, *bounds, shut_down_when_full=True, close_idle_ms=idle_ms)

    @classmethod
    @renamed(limit="limit_ms")
    def until_time_limit(
        cls,
        limit: Span,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        shut_down_when_full: bool = False,
    ) -> "Suppressed":
        """Hand on the latest update of a key once its first one has waited for `limit`.

        That is event time: stream time has to pass the time of the first update by as much. If more
        than `max_records` updates wait, or if their keys and values have more than `max_bytes`, the
        oldest ones are handed on early; with `shut_down_when_full` the run ends with BufferFull
        instead. Misuse if the limit is negative, or a bound is less than 1.
        """
        limit = span_ms(limit)
        if limit < 0:
            raise Misuse(f"until_time_limit: limit is {limit}, but it must be 0 or more")
        if shut_down_when_full and max_records is None and max_bytes is None:
            raise Misuse(
                "until_time_limit: shut_down_when_full needs a buffer that can be full: pass "
                "max_records, max_bytes or both"
            )
        bounds = _bounds(max_records, max_bytes)
        return cls(limit, *bounds, shut_down_when_full=shut_down_when_full)

    @property
    def terms(self) -> tuple[str, ...]:
        """What decides about the rows of the buffer, for the fingerprint of a topology."""
        until = "until window closes" if self.limit_ms is None else f"until limit {self.limit_ms}"
        full = "shut down" if self.shut_down_when_full else "emit early"
        bounds = (("records", self.max_records), ("bytes", self.max_bytes))
        most = tuple(f"max {what} {most}" for what, most in bounds if most is not None)
        bounded = (*most, f"when full {full}") if most else ()
        return (until, *bounded, *idle_terms(self.close_idle_ms))


def _bounds(max_records: int | None, max_bytes: int | None) -> tuple[int | None, int | None]:
    for name, most in (("max_records", max_records), ("max_bytes", max_bytes)):
        if most is not None and (type(most) is not int or most < 1):
            raise Misuse(
                f"{name} is {most!r}, but it must be at least 1, and an int: leave it out for no "
                "bound"
            )
    return max_records, max_bytes
