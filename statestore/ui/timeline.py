"""The last hours of an application, from the samples that its stream tasks keep."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from statestore.tasks.history import WorkSample

HOURS_MS: Final = 6 * 3_600_000
_LEAST_MS: Final = 600_000
BUCKETS: Final = 72


@dataclass(frozen=True)
class Timeline:
    """Equal parts of the time from `begin_ms` to `end_ms`, with what all tasks did in each.

    The seconds of a phase are those of all tasks together. `lag_records` is that of all tasks at
    the end of the part, as they knew it; None: no task had told one yet.
    """

    begin_ms: int
    end_ms: int
    records: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    commits: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    poll_seconds: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    process_seconds: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    commit_seconds: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    restore_seconds: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    lag_records: list[int | None] = field(default_factory=lambda: [None] * BUCKETS)

    @property
    def bucket_ms(self) -> float:
        """The length of one part."""
        return (self.end_ms - self.begin_ms) / BUCKETS

    @property
    def rates(self) -> list[float]:
        """The records per second in each part."""
        return [records / self.bucket_ms * 1000 for records in self.records]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done in all that time."""
        return not any(self.commits) and not any(self.records)


def timeline_of(tasks: Iterable[Sequence[WorkSample]], now_ms: int) -> Timeline:
    """Return what stream tasks did lately, from the samples of each, oldest first.

    It goes back to the oldest sample, at least ten minutes and at most six hours.
    """
    each = [list(samples) for samples in tasks]
    first = min((s.since_ms for samples in each for s in samples), default=now_ms)
    begin_ms = max(now_ms - HOURS_MS, min(first, now_ms - _LEAST_MS))
    found = Timeline(begin_ms, now_ms)
    for samples in each:
        for sample in samples:
            _spread(found, sample)
        _add_lag(found, samples)
    return found


def _spread(found: Timeline, sample: WorkSample) -> None:
    """Share out a sample over the parts it reaches into, in proportion."""
    width, span = found.bucket_ms, max(1, sample.until_ms - sample.since_ms)
    if sample.until_ms < found.begin_ms or sample.since_ms >= found.end_ms:
        return
    first = max(0, int((sample.since_ms - found.begin_ms) // width))
    last = min(BUCKETS - 1, max(first, int((sample.until_ms - 1 - found.begin_ms) // width)))
    for place in range(first, last + 1):
        begin = found.begin_ms + place * width
        inside = min(sample.until_ms, begin + width) - max(sample.since_ms, begin)
        share = 1.0 if sample.until_ms == sample.since_ms else max(0.0, inside) / span
        found.records[place] += share * sample.records_in
        found.commits[place] += share * sample.commits
        found.poll_seconds[place] += share * sample.poll_seconds
        found.process_seconds[place] += share * sample.process_seconds
        found.commit_seconds[place] += share * sample.commit_seconds
        found.restore_seconds[place] += share * sample.restore_seconds


def _add_lag(found: Timeline, samples: Sequence[WorkSample]) -> None:
    known: int | None = None
    waiting = iter([s for s in samples if s.lag_records is not None])
    following = next(waiting, None)
    for place in range(BUCKETS):
        end = found.begin_ms + (place + 1) * found.bucket_ms
        while following is not None and following.until_ms <= end:
            known, following = following.lag_records, next(waiting, None)
        if known is not None:
            found.lag_records[place] = (found.lag_records[place] or 0) + known
