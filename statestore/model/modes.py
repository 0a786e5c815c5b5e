"""Modes that users choose from, and the types in which they pass times and time spans."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Self

from statestore.errors import Misuse

Time = int | datetime
Span = int | timedelta
TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999."""
EVENT_TIME_MAX_MS = 2**63 - 1
"""The latest time of a record: times have 8 bytes."""
SPAN_MAX_MS = EVENT_TIME_MAX_MS


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
        """Take the words of Quix Streams and of older Kafka Streams as well."""
        plain = value.replace("-", "_").removesuffix("_v2") if isinstance(value, str) else value
        return super()._missing_(plain)


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


class KafkaClient(_Word):
    """Which client carries the input and output of runs."""

    LIBRDKAFKA = "librdkafka"
    WIRE = "wire"


class ExportRestore(_Word):
    """What a start does about a store that it does not find and that an export has."""

    MOUNTED = "mounted"
    COPIED = "copied"
    OFF = "off"


class Optimization(_Word):
    """The optimizations of a topology that are allowed."""

    NONE = "none"
    ALL = "all"
    REUSE_SOURCE_TOPICS = "reuse.ktable.source.topics"


def parse_time(text: str) -> Time:
    """Parse epoch milliseconds, or ISO-8601 with a time zone."""
    if re.fullmatch(r"-?[0-9]+", text.strip()):
        if len(text.strip()) < 20 and abs(int(text)) <= TIME_MAX_MS:
            return int(text)
        raise Misuse(f"time {text[:40]}: after the year 9999: pass ISO-8601, or epoch ms")
    try:
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise Misuse(
            f"time {text!r} is not understood ({error}): pass ISO-8601 with a zone, or epoch ms"
        ) from error


def to_ms(time: Time) -> int:
    """Convert an int or an aware datetime to milliseconds since the epoch (INTERFACE rule 5)."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise Misuse(f"time {time.isoformat()} has no time zone: pass an aware datetime or ms")
        return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return time


def span_ms(span: Span) -> int:
    """Convert an int or a timedelta to milliseconds; Misuse if it is neither, or too long."""
    given: object = span
    if isinstance(given, timedelta):
        return given // timedelta(milliseconds=1)
    if not isinstance(given, int) or isinstance(given, bool):
        raise Misuse(
            f"{given!r:.99} is {type(given).__name__} and no span of time: pass milliseconds as "
            "int, or a timedelta"
        )
    if abs(given) > SPAN_MAX_MS:
        raise Misuse(f"{given} ms are longer than times can be apart: at most {SPAN_MAX_MS} ms")
    return given


@dataclass(frozen=True)
class AutoOffsetReset:
    """Where an input begins that an application reads for the first time (KIP-1106).

    Make one with a class method. `place_ms` None: the end of the input; `is_back`: that many
    milliseconds before the start of the first run, else a time since the epoch.
    """

    place_ms: int | None
    is_back: bool = False

    @classmethod
    def earliest(cls) -> "AutoOffsetReset":
        """Begin at the start of the input, which is the default."""
        return cls(0)

    @classmethod
    def latest(cls) -> "AutoOffsetReset":
        """Begin at the end that the input has when the first run starts."""
        return cls(None)

    @classmethod
    def by_duration(cls, span: Span) -> "AutoOffsetReset":
        """Begin at the first record that is at most as old as `span` when the first run starts.

        `span` is milliseconds or a timedelta. Misuse if it is negative.
        """
        if span_ms(span) < 0:
            raise Misuse(f"AutoOffsetReset.by_duration({span}): pass 0 or more milliseconds")
        return cls(span_ms(span), is_back=True)

    @classmethod
    def at_time(cls, time: Time) -> "AutoOffsetReset":
        """Begin at the first record with this time or a later one, else at the end.

        `time` is milliseconds since the epoch or an aware datetime. Misuse if it is negative.
        """
        if to_ms(time) < 0:
            raise Misuse(f"AutoOffsetReset.at_time({time}): pass a time since 1970")
        return cls(to_ms(time))

    def time_ms(self, now_ms: int) -> int | None:
        """Return the time of the first record wanted; None for the end of the input."""
        if self.place_ms is None:
            return None
        return max(now_ms - self.place_ms, 0) if self.is_back else self.place_ms
