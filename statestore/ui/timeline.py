"""The last day of an application, from the samples that its stream tasks keep.

A `Day` has a bucket for each minute, because tasks write about a sample a minute. A `Timeline` is a
span of it that people chose, in few enough buckets for a chart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from statestore.tasks.history import WorkSample

PHASES: Final = ("restore", "poll", "process", "commit")
"""What stream tasks spend their time on, in the order in which charts stack it."""
_MINUTE_MS: Final = 60_000
_MINUTES: Final = 1440
_BUCKETS_MAX: Final = 90
# The rows of what was done; after them come those of PHASES.
_RECORDS: Final = 0
_COMMITS: Final = 1
_SECONDS: Final = 2


class Span(StrEnum):
    """How far back a chart goes."""

    QUARTER = "15m"
    HOUR = "1h"
    QUARTER_DAY = "6h"
    DAY = "24h"

    @property
    def minutes(self) -> int:
        """The length of the span."""
        return {"15m": 15, "1h": 60, "6h": 360, "24h": _MINUTES}[self.value]

    @property
    def words(self) -> str:
        """The span as people say it."""
        return {"15m": "15 minutes", "1h": "60 minutes", "6h": "6 hours", "24h": "24 hours"}[self]


@dataclass(frozen=True)
class Timeline:
    """Equal buckets of the time from `begin_ms` to `end_ms`, with what all tasks did in each.

    The seconds of a phase are those of all tasks together. `lag_records` is that of all tasks at
    the end of the bucket, as they knew it; None: no task had told one yet.
    """

    begin_ms: int
    end_ms: int
    records: list[float]
    commits: list[float]
    seconds: dict[str, list[float]]
    lag_records: list[int | None]

    @property
    def bucket_ms(self) -> float:
        """The length of one bucket."""
        return (self.end_ms - self.begin_ms) / len(self.records)

    @property
    def rates(self) -> list[float]:
        """The records per second in each bucket."""
        return [records / self.bucket_ms * 1000 for records in self.records]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done in all that time."""
        return not any(self.commits) and not any(self.records)


def _nothing() -> NDArray[np.float64]:
    return np.zeros((_SECONDS + len(PHASES), _MINUTES))


def _unknown() -> NDArray[np.float64]:
    return np.full(_MINUTES, np.nan)


@dataclass(frozen=True)
class Day:
    """The minutes of the day before `end_ms`; `oldest_ms`: when the first sample began, if any."""

    end_ms: int
    oldest_ms: int | None = None
    _done: NDArray[np.float64] = field(default_factory=_nothing, repr=False)
    _lag: NDArray[np.float64] = field(default_factory=_unknown, repr=False)

    @property
    def begin_ms(self) -> int:
        """When its first minute began."""
        return self.end_ms - _MINUTES * _MINUTE_MS

    def fitting_span(self) -> Span:
        """Return the shortest span with all samples in it, six hours at most."""
        oldest_ms = self.end_ms if self.oldest_ms is None else self.oldest_ms
        for span in (Span.QUARTER, Span.HOUR):
            if oldest_ms >= self.end_ms - span.minutes * _MINUTE_MS:
                return span
        return Span.QUARTER_DAY

    def over(self, span: Span) -> Timeline:
        """Return the last minutes of the day, in equal buckets."""
        count = span.minutes // max(1, span.minutes // _BUCKETS_MAX)
        shape = (len(self._done), count, -1)
        done = self._done[:, -span.minutes :].reshape(shape).sum(axis=2)
        lag = self._lag[-span.minutes :].reshape(count, -1)[:, -1]
        phases = {name: done[_SECONDS + at].tolist() for at, name in enumerate(PHASES)}
        return Timeline(
            self.end_ms - span.minutes * _MINUTE_MS,
            self.end_ms,
            done[_RECORDS].tolist(),
            done[_COMMITS].tolist(),
            phases,
            [None if np.isnan(each) else round(each) for each in lag],
        )

    def _add(self, sample: WorkSample) -> None:
        """Share out a sample over the minutes it reaches into, in proportion."""
        if sample.until_ms < self.begin_ms or sample.since_ms >= self.end_ms:
            return
        sums = np.array(
            [
                sample.records_in,
                sample.commits,
                sample.restore_seconds,
                sample.poll_seconds,
                sample.process_seconds,
                sample.commit_seconds,
            ]
        )
        begin, end = sample.since_ms - self.begin_ms, sample.until_ms - self.begin_ms
        first = max(0, begin // _MINUTE_MS)
        last = min(_MINUTES - 1, max(first, (end - 1) // _MINUTE_MS))
        for place in range(first, last + 1):
            at = place * _MINUTE_MS
            inside = max(0, min(end, at + _MINUTE_MS) - max(begin, at))
            self._done[:, place] += sums * (1.0 if end == begin else inside / (end - begin))

    def _add_lag(self, samples: Sequence[WorkSample]) -> None:
        """Add the lag of one task, which is the last one it told until it tells another."""
        told = [(each.until_ms, each.lag_records) for each in samples]
        known = [(at_ms, lag) for at_ms, lag in told if lag is not None]
        if not known:
            return
        ends = self.begin_ms + _MINUTE_MS * np.arange(1, _MINUTES + 1)
        after = np.searchsorted([at_ms for at_ms, _ in known], ends, side="right")
        lags = np.array([np.nan, *(lag for _, lag in known)])[after]
        both = ~np.isnan(lags) & ~np.isnan(self._lag)
        self._lag[:] = np.where(both, self._lag + lags, np.fmax(self._lag, lags))


def day_of(tasks: Iterable[Sequence[WorkSample]], now_ms: int) -> Day:
    """Return what stream tasks did in the last day, from the samples of each, oldest first."""
    each = [list(samples) for samples in tasks]
    oldest_ms = min((s.since_ms for samples in each for s in samples), default=None)
    found = Day(now_ms, oldest_ms)
    for samples in each:
        for sample in samples:
            found._add(sample)  # noqa: SLF001  # it is being made here
        found._add_lag(samples)  # noqa: SLF001
    return found
