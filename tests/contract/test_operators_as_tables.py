"""Every operator, as a text table, through the TopologyTestDriver."""

import pytest

from statestore.model.records import Record
from statestore.testing.driver import TopologyTestDriver
from tests.contract.operator_cases import CASES, topology
from tests.contract.operator_tables import Seen, by_key, shown


def read(driver: TopologyTestDriver, name: str) -> list[Seen]:
    """What came out of a case since the last look, its topics in order of name."""
    prefix = f"{name}."
    _, written = topology(name).topics()
    return [
        Seen(topic.removeprefix(prefix), shown(record.key), record.value, record.timestamp_ms)
        for topic in sorted(written)
        for record in driver.read(topic)
    ]


@pytest.mark.parametrize("crash", [False, True], ids=["", "crashing after each record"])
@pytest.mark.parametrize("name", CASES)
def test_each_record_brings_out_what_its_row_says(name: str, crash: bool) -> None:
    with TopologyTestDriver(topology(name)) as driver:
        for row, (record, expected) in enumerate(CASES[name].rows()):
            if crash:
                driver.crash()
            topic = f"{name}.{record.topic}"
            driver.pipe(topic, record.key, record.value, record.timestamp_ms)
            assert read(driver, name) == expected, f"row {row + 1}: {record}"


@pytest.mark.parametrize("name", CASES)
def test_many_records_in_one_batch_bring_out_the_same_for_each_key(name: str) -> None:
    rows, races = CASES[name].rows(), CASES[name].races
    with TopologyTestDriver(topology(name)) as driver:
        start = 0
        while start < len(rows):
            stop = start
            while stop < len(rows) and rows[stop][0].topic == rows[start][0].topic:
                stop += 1
            records = [Record(key, value, time) for (_, key, value, time), _ in rows[start:stop]]
            driver.pipe_all(f"{name}.{rows[start][0].topic}", records)
            start = stop
        expected = [seen for _, out in rows for seen in out]
        assert by_key(read(driver, name), races=races) == by_key(expected, races=races)
