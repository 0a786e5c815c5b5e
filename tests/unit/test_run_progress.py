"""The line that a run shows."""

import signal

from click.testing import CliRunner

from statestore.cli import cli
from statestore.commands.progress import RunProgress
from statestore.tasks.plan import Standing
from tests.builders import ManualClock


def note(progress: RunProgress, *standings: Standing) -> None:
    """One for each stream task."""
    for number, standing in enumerate(standings):
        progress.note(standing._replace(stream_task=f"0_{number}"))


def standing(records: int, lag: int | None = 0, commit_ms: int | None = None) -> Standing:
    return Standing("", records, lag, commit_ms)


def test_the_rate_is_of_the_last_seconds_over_all_stream_tasks() -> None:
    clock = ManualClock()
    progress = RunProgress(clock)
    assert progress.line() == "opening and restoring stores"
    for second in range(30):
        # Slow at first, then a thousand a second by each of two.
        each = second if second < 15 else 14 + (second - 14) * 1000
        note(progress, standing(each, 7, clock.now_ms()), standing(each, 5))
        clock.advance(1000)
    assert progress.line().startswith("1,8"), "the second that has passed since counts too"
    assert progress.line().endswith("records/s, 12 records behind, last commit 1.0 s ago")


def test_a_run_that_stands_still_is_seen_to() -> None:
    clock = ManualClock()
    progress = RunProgress(clock)
    note(progress, standing(0))
    clock.advance(1000)
    note(progress, standing(5000, 3, clock.now_ms()))
    clock.advance(4000)
    assert progress.line() == "1,000 records/s, 3 records behind, last commit 4.0 s ago"
    clock.advance(60_000)
    assert progress.line() == "0 records/s, 3 records behind, last commit 1 min 4 s ago"


def test_what_is_not_known_is_said_to_be_and_what_is_held_back_is_told() -> None:
    clock = ManualClock()
    progress = RunProgress(clock)
    note(progress, standing(10, 3), standing(10, None))
    clock.advance(1000)
    note(progress, standing(4, None), Standing("", 4, 0, None, 1200))
    assert progress.line() == (
        "0 records/s, lag not known, no commit yet, 1,200 records held back until later input"
    ), "a task that goes back to its last commit has no rate below 0"


def test_event_time_and_what_is_dropped_are_of_all_stream_tasks() -> None:
    clock = ManualClock()
    progress = RunProgress(clock)
    first = Standing("", 10, 0, None, 0, 1_700_000_000_000, {"dropped/late/n": 3})
    second = Standing(
        "",
        10,
        0,
        None,
        0,
        1_700_000_001_000,
        {"dropped/late/n": 2, "dropped/null_key/n": 1, "unmatched/no_match/n": 9},
    )
    note(progress, first, second, Standing("", 0, 0))
    assert progress.line().endswith(
        "event time 2023-11-14T22:13:21.000Z, no commit yet, dropped: 5 late, 1 null key"
    )


def test_a_bounded_run_tells_what_is_done_as_its_stream_tasks_begin_one_by_one() -> None:
    clock = ManualClock()
    progress = RunProgress(clock, bounded=True)
    note(progress, standing(1000, 5000))
    clock.advance(1000)
    note(progress, standing(3000, 0), standing(500, 9000))
    assert progress.line() == "2,500 records/s, 3,500 records so far, no commit yet"


def test_a_run_within_a_process_gives_its_signals_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    done = CliRunner().invoke(cli, ["run", "--pipeline=no.such:thing", "--application-id=a"])
    assert done.exit_code != 0
    assert [signal.getsignal(number) for number in numbers] == before
