"""A stream task takes about as many records at once as it can do in two seconds."""

import pytest

from statestore.tasks.attempt import AdaptiveBatchSize
from tests.builders import table_rows

# Of at most 500 000: what the batches before took, and how many come next.
PACES = """
    took                     | next
    -                        | 40000
    40000 in 1               | 84444
    40000 in 0.2             | 500000
    40000 in 0               | 500000
    40000 in 4               | 19487
    40000 in 1000            | 1000
    20000 in 10              | 3838
    19999 in 10              | 40000
    40000 in 8, 10000 in 8   | 2405
    40000 in 8, 1000 in 0    | 9620
    40000 in 8, 10000 in .05 | 160000
"""


@pytest.mark.parametrize("row", table_rows(PACES), ids=" | ".join)
def test_the_next_batch_is_what_two_seconds_are_enough_for(row: list[str]) -> None:
    took, wanted = row
    pace = AdaptiveBatchSize(500_000)
    for step in took.split(", ") if took != "-" else ():
        records, seconds = step.split(" in ")
        pace.took(int(records), float(seconds))
    assert pace.records == int(wanted)


@pytest.mark.parametrize("most", [1, 500, 10_000])
def test_a_setting_below_it_all_is_kept(most: int) -> None:
    pace = AdaptiveBatchSize(most)
    assert pace.records == most
    for seconds in (0.0, 0.001, 100.0):
        pace.took(most, seconds)
        assert pace.records <= most
