"""Modes that users choose from, and the types in which they pass times and time spans."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Self

from statestore.errors import Misuse

Time = int | datetime
Span = int | timedelta


class _Word(StrEnum):
    """An enum that also accepts its text in any case; Misuse lists the allowed values."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        if found := {word.lower(): word for word in cls}.get(str(value).lower()):
            return found
        raise Misuse(f"{value!r} is not a valid {cls.__name__}: use one of {', '.join(cls)}")


class IsolationLevel(_Word):
    """Whether a reader sees a writer's uncommitted writes (KIP-892)."""

    READ_COMMITTED = "READ_COMMITTED"
    READ_UNCOMMITTED = "READ_UNCOMMITTED"


class ProcessingGuarantee(_Word):
    """How often the effects of one input record become visible (KIP-129)."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"

    @classmethod
    def _missing_(cls, value: object) -> "ProcessingGuarantee":
        return cls.EXACTLY_ONCE if value == "exactly_once_v2" else super()._missing_(value)


class PunctuationType(_Word):
    """The clock that drives a punctuation."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


class EmitStrategy(_Word):
    """The moment at which a windowed aggregate is forwarded."""

    ON_UPDATE = "on_update"
    ON_WINDOW_CLOSE = "on_window_close"


class OnError(_Word):
    """The action of a handler on a record that cannot be decoded, processed or produced."""

    FAIL = "fail"
    CONTINUE = "continue"
    DEAD_LETTER = "dead_letter"


def to_ms(time: Time) -> int:
    """Convert an int or an aware datetime to milliseconds since the epoch (INTERFACE rule 5)."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise Misuse(f"time {time.isoformat()} has no time zone: pass an aware datetime or ms")
        return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return time


def span_ms(span: Span) -> int:
    """Convert an int or a timedelta to milliseconds."""
    return span // timedelta(milliseconds=1) if isinstance(span, timedelta) else span
