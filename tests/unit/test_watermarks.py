"""What a commit keeps of upstream tasks: it has room in an offset's metadata, and holds time back.

Shows I42.
"""

import random

import pytest

from statestore.model.time_marks import TimeMark
from statestore.tasks.commit import CommitStamp, topic_digest
from statestore.tasks.left_out_counts import stamped
from statestore.tasks.plan import Tally
from statestore.tasks.watermarks import Watermarks

NOW_MS = 1_700_000_000_000
METADATA_MAX_BYTES = 4096
HALF_A_DAY_MS = 1 << 26


def mark(channel: int, time_ms: int, *, idle: bool = False) -> TimeMark:
    return TimeMark(channel, time_ms, time_ms, "run", idle)


def stamp_of(upstream: int, topics: int) -> CommitStamp:
    """The stamp of a task that knows all of its upstream tasks, and has much else to say."""
    names = [f"app-{number}-repartition" for number in range(topics)]
    watermarks = Watermarks(dict.fromkeys(names, upstream), {})
    for name in names:
        for channel in range(upstream):
            ahead_ms = HALF_A_DAY_MS if channel else 0
            watermarks.take(name, mark(channel, NOW_MS + ahead_ms, idle=True))
    causes = {f"dropped/{'n' * 60}-{number}/late": 10**9 for number in range(30)}
    tally = Tally(
        serving="s" * 40,
        commits=10**9,
        records_in=10**12,
        records_out=10**12,
        left_out=stamped({}, causes),
    )
    times = {topic_digest(name): NOW_MS for name in names}
    kept = {topic_digest(name): one for name, one in watermarks.stamps().items()}
    return CommitStamp(10**9, NOW_MS, tally, dict(list(times.items())[:3]), NOW_MS, kept, times)


@pytest.mark.parametrize(("upstream", "topics"), [(200, 1), (1430, 1), (200, 20), (2, 80)], ids=str)
def test_a_stamp_has_room_in_the_metadata_of_an_offset(upstream: int, topics: int) -> None:
    assert len(stamp_of(upstream, topics).text().encode()) <= METADATA_MAX_BYTES


@pytest.mark.parametrize("upstream", [2, 200, 1600])
def test_a_time_that_comes_back_from_a_stamp_is_no_later(upstream: int) -> None:
    chance = random.Random(upstream)
    before = Watermarks({"topic": upstream}, {})
    marks = [mark(n, NOW_MS + chance.randrange(HALF_A_DAY_MS)) for n in range(upstream)]
    for one in marks:
        before.take("topic", one)
    kept = before.stamps()
    assert Watermarks({"topic": upstream}, kept).bound_ms == before.bound_ms
    for one in chance.sample(marks, 2):
        # One of them goes on; all others are where the stamp says.
        after, ahead = Watermarks({"topic": upstream}, kept), mark(one.channel, 2 * NOW_MS)
        after.take("topic", ahead)
        before.take("topic", ahead)
        assert NOW_MS <= after.bound_ms <= before.bound_ms
        before.take("topic", one)


def test_a_task_that_the_stamp_did_not_know_has_said_nothing() -> None:
    before = Watermarks({"topic": 1601}, {})
    for channel in range(1601):
        before.take("topic", mark(channel, NOW_MS))
    after = Watermarks({"topic": 1602}, before.stamps())
    assert after.bound_ms < NOW_MS
