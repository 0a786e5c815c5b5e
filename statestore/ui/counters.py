"""The counters of an application: how many records came in, and how many are in no result."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from statestore.model.left_out import LeftOut
from statestore.model.texts import number_text
from statestore.operations.status.left_out_sums import LeftOutStatus
from statestore.operations.status.status import Status
from statestore.ui.answers import Level

_FAILED: Final = frozenset({"deserialization", "processing", "production", "punctuation"})
"""The reasons of records at which a serde or a function of the pipeline raised an error."""


class ShownCounter(NamedTuple):
    """A counter of the last run, and in `note` that of all runs, if it is larger."""

    name: str
    words: str
    level: Level
    meaning: str
    note: str = ""


def counters_of(status: Status) -> list[ShownCounter]:
    """Return the counters; none if no run has counted yet."""
    last, every = status.last_run, status.all_runs
    if last is None or every is None:
        return []
    counted: list[tuple[str, Callable[[LeftOutStatus], int], Level, str]] = [
        ("Records in", lambda it: it.records_in, Level.UNKNOWN, "read from input topics"),
        ("Late", _late, Level.CARE, "came after their window or history was closed; dropped"),
        ("Errors", _failed, Level.BAD, "could not be decoded, processed or written; dropped"),
        ("Dropped otherwise", _otherwise, Level.CARE, "such as records without a key"),
        (
            "Dead letters",
            lambda it: it.dead_letter_records,
            Level.CARE,
            "of the dropped ones, kept in a topic of their own",
        ),
        ("No match", lambda it: it.unmatched_records, Level.UNKNOWN, "in an inner join"),
    ]
    return [
        ShownCounter(
            name,
            number_text(count(last)),
            level if count(last) else Level.UNKNOWN,
            meaning,
            f"{number_text(count(every))} in all runs" if count(every) != count(last) else "",
        )
        for name, count, level, meaning in counted
    ]


def _late(told: LeftOutStatus) -> int:
    return _sum(one for one in told.dropped if one.reason == "late")


def _failed(told: LeftOutStatus) -> int:
    return _sum(one for one in told.dropped if one.reason in _FAILED)


def _otherwise(told: LeftOutStatus) -> int:
    return told.dropped_records - _late(told) - _failed(told)


def _sum(causes: Iterable[LeftOut]) -> int:
    return sum(one.records for one in causes)
