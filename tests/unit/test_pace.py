"""A stream task takes about as many records at once as it can do in two seconds."""

import pytest

from statestore.tasks.pace import Pace
from tests.builders import table_rows

# Of at most 500 000: what the batches before took, and how many come next.
PACES = """
    took                     | next
    -                        | 50000
    50000 in 1               | 100000
    50000 in 0.1             | 500000
    50000 in 0               | 500000
    50000 in 4               | 25000
    50000 in 1000            | 1000
    25000 in 10              | 5000
    24999 in 10              | 50000
    50000 in 8, 12500 in 8   | 3125
    50000 in 8, 1000 in 0    | 12500
    50000 in 8, 12500 in .04 | 500000
"""


@pytest.mark.parametrize("row", table_rows(PACES), ids=" | ".join)
def test_the_next_batch_is_what_two_seconds_are_enough_for(row: list[str]) -> None:
    took, wanted = row
    pace = Pace(500_000)
    for step in took.split(", ") if took != "-" else ():
        records, seconds = step.split(" in ")
        pace.took(int(records), float(seconds))
    assert pace.records == int(wanted)


@pytest.mark.parametrize("most", [1, 500, 10_000])
def test_a_setting_below_it_all_is_kept(most: int) -> None:
    pace = Pace(most)
    assert pace.records == most
    for seconds in (0.0, 0.001, 100.0):
        pace.took(most, seconds)
        assert pace.records <= most
