"""The last day of an application, as the page draws it."""

import pytest

from statestore.tasks.history import WorkSample
from statestore.ui.timeline import Span, day_of

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
DAY_MS = 1440 * MINUTE_MS


def sample(begin_min: float, end_min: float, records: int, **fields: float | None) -> WorkSample:
    """A sample of so many minutes before now."""
    since, until = (round(NOW_MS - minutes * MINUTE_MS) for minutes in (begin_min, end_min))
    return WorkSample(since, until, records_in=records, **fields)  # type: ignore[arg-type]


def test_nothing_done_is_a_quarter_of_an_hour_of_nothing() -> None:
    day = day_of([[], []], NOW_MS)
    assert day.fitting_span() is Span.QUARTER
    found = day.over(Span.QUARTER)
    assert (found.end_ms - found.begin_ms, found.is_empty) == (15 * MINUTE_MS, True)
    assert found.lag_records == [None] * 15


def test_all_that_was_done_is_shared_out_over_the_time_it_took() -> None:
    tasks = [
        [sample(60, 30, 3000, commit_seconds=3.0), sample(30, 0, 600)],
        [sample(45, 45, 7), sample(12, 11, 100)],
    ]
    day = day_of(tasks, NOW_MS)
    assert day.fitting_span() is Span.HOUR
    found = day.over(Span.HOUR)
    assert sum(found.records) == pytest.approx(3707)
    assert sum(found.seconds["commit"]) == pytest.approx(3.0)
    assert found.records[0] == pytest.approx(100)
    assert found.rates[0] == pytest.approx(100 / 60)
    assert found.records[15] == pytest.approx(107), "what took no time is whole in its minute"
    assert found.seconds["commit"][30] == 0


@pytest.mark.parametrize("span", Span)
def test_a_span_has_its_length_and_few_enough_buckets(span: Span) -> None:
    day = day_of([[sample(2 * 1440, 0, 2 * 1440 * 60, poll_seconds=2 * 1440)]], NOW_MS)
    found = day.over(span)
    assert found.end_ms - found.begin_ms == span.minutes * MINUTE_MS
    assert len(found.records) <= 90
    assert sum(found.records) == pytest.approx(span.minutes * 60)
    assert found.rates == pytest.approx([1.0] * len(found.records))
    assert sum(found.seconds["poll"]) == pytest.approx(span.minutes)
    assert day.fitting_span() is Span.QUARTER_DAY


def test_what_lies_before_the_last_day_is_left_out() -> None:
    older = WorkSample(NOW_MS - 3 * DAY_MS, NOW_MS - 2 * DAY_MS, records_in=5)
    assert day_of([[older]], NOW_MS).over(Span.DAY).is_empty


def test_a_sample_of_the_future_breaks_nothing() -> None:
    ahead = WorkSample(NOW_MS + MINUTE_MS, NOW_MS + 2 * MINUTE_MS, records_in=5, lag_records=3)
    assert day_of([[ahead]], NOW_MS).over(Span.DAY).is_empty


def test_the_lag_is_that_of_all_tasks_as_each_last_knew_it() -> None:
    tasks = [
        [sample(59, 50, 1, lag_records=100), sample(30, 20, 1, lag_records=40)],
        [sample(59, 40, 1, lag_records=7), sample(35, 34, 1, lag_records=None)],
    ]
    lags = day_of(tasks, NOW_MS).over(Span.HOUR).lag_records
    assert lags[0] is None
    assert [lags[place] for place in (15, 30, -1)] == [100, 107, 47]
