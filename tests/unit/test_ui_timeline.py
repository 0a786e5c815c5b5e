"""The last hours of an application, as the page draws them."""

import pytest

from statestore.tasks.history import WorkSample
from statestore.ui.timeline import BUCKETS, HOURS_MS, timeline_of

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def sample(begin_min: float, end_min: float, records: int, **fields: float | None) -> WorkSample:
    """A sample of so many minutes before now."""
    since, until = (round(NOW_MS - minutes * MINUTE_MS) for minutes in (begin_min, end_min))
    return WorkSample(since, until, records_in=records, **fields)  # type: ignore[arg-type]


def test_nothing_done_is_ten_minutes_of_nothing() -> None:
    found = timeline_of([[], []], NOW_MS)
    assert (found.end_ms - found.begin_ms, found.is_empty) == (10 * MINUTE_MS, True)
    assert found.lag_records == [None] * BUCKETS


def test_all_that_was_done_is_shared_out_over_the_time_it_took() -> None:
    tasks = [
        [sample(60, 30, 3000, commit_seconds=3.0), sample(30, 0, 600)],
        [sample(45, 45, 7), sample(12, 11, 100)],
    ]
    found = timeline_of(tasks, NOW_MS)
    assert sum(found.records) == pytest.approx(3707)
    assert sum(found.commit_seconds) == pytest.approx(3.0)
    assert found.records[0] == pytest.approx(3000 / (BUCKETS / 2))
    assert found.rates[0] == pytest.approx(3000 / 1800)
    assert found.commit_seconds[BUCKETS // 2 + 1] == 0


def test_what_lies_before_the_last_six_hours_is_left_out() -> None:
    long_ago = WorkSample(NOW_MS - 2 * HOURS_MS, NOW_MS, records_in=1200)
    found = timeline_of([[long_ago]], NOW_MS)
    assert found.end_ms - found.begin_ms == HOURS_MS
    assert sum(found.records) == pytest.approx(600)
    older = WorkSample(NOW_MS - 3 * HOURS_MS, NOW_MS - 2 * HOURS_MS, records_in=5)
    assert timeline_of([[older]], NOW_MS).is_empty


def test_a_sample_of_the_future_breaks_nothing() -> None:
    ahead = WorkSample(NOW_MS + MINUTE_MS, NOW_MS + 2 * MINUTE_MS, records_in=5, lag_records=3)
    assert timeline_of([[ahead]], NOW_MS).is_empty


def test_the_lag_is_that_of_all_tasks_as_each_last_knew_it() -> None:
    tasks = [
        [sample(60, 50, 1, lag_records=100), sample(30, 20, 1, lag_records=40)],
        [sample(60, 40, 1, lag_records=7), sample(35, 34, 1, lag_records=None)],
    ]
    lags = timeline_of(tasks, NOW_MS).lag_records
    assert lags[0] is None
    assert [lags[place] for place in (BUCKETS * 15 // 60, BUCKETS * 30 // 60, -1)] == [100, 107, 47]
