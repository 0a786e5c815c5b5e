"""Every operator, as a text table, through the TopologyTestDriver."""

import pytest

from statestore.model.records import Record
from statestore.testing.driver import TopologyTestDriver
from tests.contract.operator_cases import CASES, follow_table, seen, topology
from tests.contract.operator_tables import by_key


@pytest.mark.parametrize("crash", [False, True], ids=["", "crashing after each record"])
@pytest.mark.parametrize("name", CASES)
def test_each_record_brings_out_what_its_row_says(name: str, crash: bool) -> None:
    follow_table(name, topology(name), crashing=crash)


@pytest.mark.parametrize("name", CASES)
def test_many_records_in_one_batch_bring_out_the_same_for_each_key(name: str) -> None:
    rows, races = CASES[name].rows(), CASES[name].races
    built = topology(name)
    with TopologyTestDriver(built) as driver:
        start = 0
        while start < len(rows):
            stop = start
            while stop < len(rows) and rows[stop][0].topic == rows[start][0].topic:
                stop += 1
            records = [Record(key, value, time) for (_, key, value, time), _ in rows[start:stop]]
            driver.pipe_all(f"{name}.{rows[start][0].topic}", records)
            start = stop
        expected = [seen for _, out in rows for seen in out]
        assert by_key(seen(driver, built, name), races=races) == by_key(expected, races=races)
