"""Modes a user chooses between, and times and spans as a user may give them."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Self

from statestore.errors import Misuse

Time = int | datetime
Span = int | timedelta


class _Word(StrEnum):
    """Its text will do, in capitals or not; Misuse tells what there is."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        if found := {word.lower(): word for word in cls}.get(str(value).lower()):
            return found
        raise Misuse(f"{value!r} is no {cls.__name__}: it is one of {', '.join(cls)}")


class IsolationLevel(_Word):
    """What a reader sees of a writer's pending writes (KIP-892)."""

    READ_COMMITTED = "READ_COMMITTED"
    READ_UNCOMMITTED = "READ_UNCOMMITTED"


class ProcessingGuarantee(_Word):
    """How often the effect of one input record is seen (KIP-129)."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"

    @classmethod
    def _missing_(cls, value: object) -> "ProcessingGuarantee":
        return cls.EXACTLY_ONCE if value == "exactly_once_v2" else super()._missing_(value)


class PunctuationType(_Word):
    """Which clock drives a punctuation."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


class EmitStrategy(_Word):
    """When a windowed aggregate is forwarded."""

    ON_UPDATE = "on_update"
    ON_WINDOW_CLOSE = "on_window_close"


class OnError(_Word):
    """What a handler does with a record that cannot be decoded, processed or produced."""

    FAIL = "fail"
    CONTINUE = "continue"
    DEAD_LETTER = "dead_letter"


def to_ms(time: Time) -> int:
    """Milliseconds since the epoch from an int or an aware datetime (INTERFACE rule 5)."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise Misuse(f"time {time.isoformat()} has no time zone: pass an aware datetime or ms")
        return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return time


def span_ms(span: Span) -> int:
    """Milliseconds from an int or a timedelta."""
    return span // timedelta(milliseconds=1) if isinstance(span, timedelta) else span
