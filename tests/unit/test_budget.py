"""How much may stay uncommitted: text tables of the one pure function (SEMANTICS S6)."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statestore.tasks.memory_share import (
    Growth,
    MemoryLimits,
    Step,
    Usage,
    plan_step,
    reached,
)
from tests.builders import table_rows

STEPS = """
    pending      | growth per record | waiting | share        | step
    bytes/records| bytes/records     |         | bytes/records| what, and how many

    0/0          | 0/0               | 100     | 1000/-1      | take 100
    0/0          | 10/1              | 100     | -1/-1        | take 100
    900/9        | 10/1              | 100     | -1/-1        | take 100
    0/0          | 10/1              | 99      | 1000/-1      | take 99
    0/0          | 10/1              | 100     | 1000/-1      | take 100
    0/0          | 10/1              | 101     | 1000/-1      | take 100
    0/0          | 10/1              | 250     | 1000/-1      | take 100
    500/50       | 10/1              | 50      | 1000/-1      | take 50
    500/50       | 10/1              | 51      | 1000/-1      | commit, take 51
    500/50       | 10/1              | 250     | 1000/-1      | commit, take 100
    1000/100     | 10/1              | 1       | 1000/-1      | commit, take 1
    1500/100     | 10/1              | 1       | 1000/-1      | commit, take 1
    0/0          | 5000/1            | 3       | 1000/-1      | take 1
    10/1         | 5000/1            | 3       | 1000/-1      | commit, take 1
    0/0          | 10/1              | 101     | -1/100       | take 100
    500/50       | 10/1              | 51      | -1/100       | commit, take 51
    500/50       | 10/1              | 50      | 1000/100     | take 50
    500/50       | 10/1              | 51      | 2000/100     | commit, take 51
    500/20       | 10/1              | 51      | 1000/100     | commit, take 51
    0/0          | 10/4              | 100     | 1000/100     | take 25
    0/0          | 40/1              | 100     | 1000/100     | take 25
    900/90       | -5/0              | 100     | 1000/100     | take 100
    900/90       | 0.5/0             | 200     | 1000/100     | take 200
    900/90       | 0.5/0             | 201     | 1000/100     | commit, take 201
    500/50       | 10/1              | 0       | 1000/-1      | take 0
"""
# ENTRY_COST is 96, so that these records weigh 100, 1096, or 100 096.
SIZES = """
    pending  | growth per record, weight | sizes of values      | share      | step

    0/0      | 100/1/1                   | 4 4 4 4              | 1000/-1    | take 4
    0/0      | 100/1/1                   | 4 4 1000 4           | 1000/-1    | take 2
    0/0      | 100/1/1                   | 4 4 1000 4           | 1296/-1    | take 3
    0/0      | 100/1/1                   | 100000 4 4           | 1000/-1    | take 1
    100/1    | 100/1/1                   | 100000 4 4           | 1000/-1    | commit, take 1
    800/8    | 100/1/1                   | 4 4                  | 1000/-1    | take 2
    800/8    | 100/1/1                   | 4 1000               | 1000/-1    | commit, take 1
    800/8    | 100/1/1                   | 4 1000               | -1/10      | take 2
    0/0      | 100/1/0.01                | 1000 1000 1000       | 1000/-1    | take 3
    0/0      | 5/1/0.01                  | 100000 4 4           | 1000/-1    | take 1
    0/0      | 5/1/0.01                  | 100000 4 4           | 1002/-1    | take 2
    0/0      | 0/0/0                     | 100000 100000        | 1000/-1    | take 2
    0/0      | 100/1/1                   | - - - 4              | 1000/-1    | take 4
"""
SHARES = """
    max.bytes | max.records | slots | share
    64        | -1          | 1     | 64/-1
    64        | 10          | 4     | 16/2
    -1        | -1          | 4     | -1/-1
    -1        | 100         | 3     | -1/33
    2         | 1           | 4     | 1/1
"""
REACHED = """
    pending  | share    | commit is due
    999/9    | 1000/10  | no
    1000/9   | 1000/10  | yes
    999/10   | 1000/10  | yes
    5000/50  | -1/-1    | no
    5000/50  | -1/50    | yes
    0/0      | 1/1      | no
"""
LIMITS = st.just(-1) | st.integers(1, 1000)
GROWTH = st.just(0.0) | st.floats(1e-6, 500)


def pair(text: str) -> tuple[int, int]:
    left, right = text.split("/")
    return int(left), int(right)


def grows(text: str) -> Growth:
    """Growth that does not depend on the sizes of values."""
    size_bytes, records = text.split("/")
    return Growth(float(size_bytes), float(records), 0.0)


def of_step(text: str) -> Step:
    return Step("commit" in text, int(text.rsplit(maxsplit=1)[-1]))


@pytest.mark.parametrize("row", table_rows(STEPS)[1:], ids=" | ".join)
def test_the_next_step_is_planned_as_tabled(row: list[str]) -> None:
    pending, growth, waiting, share, step = row
    values = [None] * int(waiting)
    planned = plan_step(Usage(*pair(pending)), grows(growth), values, MemoryLimits(*pair(share)))
    assert planned[:2] == of_step(step)[:2]


@pytest.mark.parametrize("row", table_rows(SIZES)[1:], ids=" | ".join)
def test_the_next_step_goes_by_the_sizes_of_the_values_that_wait(row: list[str]) -> None:
    pending, growth, sizes, share, step = row
    values = [None if size == "-" else b"x" * int(size) for size in sizes.split()]
    growing = Growth(*map(float, growth.split("/")))
    planned = plan_step(Usage(*pair(pending)), growing, values, MemoryLimits(*pair(share)))
    assert planned[:2] == of_step(step)[:2]


UNFORESEEN = """
    pending  | waiting | share           | step

    0/0      | 5000    | 67108864/-1     | take 1024
    0/0      | 500     | 67108864/-1     | take 500
    0/0      | 5000    | 1000000/-1      | take 15
    500000/9 | 5000    | 1000000/-1      | take 7
    880000/9 | 5000    | 1000000/-1      | commit, take 15
    0/0      | 5000    | 1000/-1         | take 1
    0/0      | 5000    | -1/1600         | take 100
    0/800    | 5000    | -1/1600         | take 50
    0/1500   | 5000    | -1/1600         | commit, take 100
    0/0      | 5000    | -1/-1           | take 5000
"""


@pytest.mark.parametrize("row", table_rows(UNFORESEEN)[1:], ids=" | ".join)
def test_a_step_takes_few_where_nothing_foretells_what_they_add(row: list[str]) -> None:
    pending, waiting, share, step = row
    planned = plan_step(
        Usage(*pair(pending)),
        Growth(10.0, 1.0, 0.1),
        [b"x"] * int(waiting),
        MemoryLimits(*pair(share)),
        foreseen=False,
    )
    assert planned[:2] == of_step(step)[:2]


@pytest.mark.parametrize("row", table_rows(SHARES), ids=" | ".join)
def test_a_hosts_limits_are_divided_among_its_slots(row: list[str]) -> None:
    max_bytes, max_records, slots, share = row
    assert MemoryLimits.of_slot(int(max_bytes), int(max_records), int(slots)) == MemoryLimits(
        *pair(share)
    )


@pytest.mark.parametrize("row", table_rows(REACHED), ids=" | ".join)
def test_a_commit_is_due_when_the_share_is_reached(row: list[str]) -> None:
    pending, share, due = row
    assert reached(Usage(*pair(pending)), MemoryLimits(*pair(share))) is (due == "yes")


@given(
    pending=st.builds(Usage, st.integers(0, 2000), st.integers(0, 2000)),
    growth=st.tuples(GROWTH, GROWTH),
    waiting=st.integers(1, 5000),
    share=st.builds(MemoryLimits, LIMITS, LIMITS),
)
def test_what_is_taken_keeps_the_share_unless_one_record_alone_exceeds_it(
    pending: Usage, growth: tuple[float, float], waiting: int, share: MemoryLimits
) -> None:
    step = plan_step(pending, Growth(*growth, 0.0), [None] * waiting, share)
    assert 1 <= step.take <= waiting
    start = Usage(0, 0) if step.commit_first else pending
    for used, per_record, limit in zip(start, growth, share, strict=True):
        if limit != -1 and per_record > 0 and step.take > 1:
            assert used + step.take * per_record <= limit * (1 + 1e-9)


@given(
    pending=st.builds(Usage, st.integers(0, 2000), st.integers(0, 2000)),
    growth=st.tuples(GROWTH, GROWTH),
    waiting=st.integers(1, 5000),
    share=st.builds(MemoryLimits, LIMITS, LIMITS),
)
def test_a_commit_comes_first_only_when_the_records_would_not_fit_otherwise(
    pending: Usage, growth: tuple[float, float], waiting: int, share: MemoryLimits
) -> None:
    assume(plan_step(pending, Growth(*growth, 0.0), [None] * waiting, share).commit_first)
    assert pending != (0, 0)
    assert any(
        limit != -1 and used + waiting * per_record > limit * (1 - 1e-9)
        for used, per_record, limit in zip(pending, growth, share, strict=True)
    )
