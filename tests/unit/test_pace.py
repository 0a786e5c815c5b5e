"""A stream task takes about as many records at once as it can do in two seconds."""

import pytest

from statestore.tasks.pace import Pace
from tests.builders import table_rows

# Of at most 500 000: what the batches before took, and how many come next.
PACES = """
    took                      | next
    -                         | 100000
    100000 in 1               | 200000
    100000 in 0.1             | 500000
    100000 in 0               | 500000
    100000 in 4               | 50000
    100000 in 1000            | 1000
    50000 in 10               | 10000
    49999 in 10               | 100000
    100000 in 8, 25000 in 8   | 6250
    100000 in 8, 2000 in 0    | 25000
    100000 in 8, 25000 in .05 | 500000
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
