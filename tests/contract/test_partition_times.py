"""Timestamp extractors that are given the time of their partition, as in Kafka Streams."""

from collections.abc import Sequence
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse
from statestore.model.ids import TopicPartition
from statestore.ports import GroupOffset
from statestore.tasks.commit import CommitStamp, partition_times_in
from statestore.testing.driver import TopologyTestDriver


def own_or_previous(record: ss.Record[str, str], previous_ms: int | None) -> int:
    """The time in the value; if there is none, the partition's, and -1 before the first."""
    if record.value == "raise":
        raise ValueError("no time")
    if record.value:
        return int(record.value)
    return -1 if previous_ms is None else previous_ms


def timed() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("in", timestamp_extractor=own_or_previous).to("out")
    b.stream("plain", timestamp_extractor=lambda record: int(record.value)).to("plainly")
    return b.build()


def times(
    values: Sequence[str], sizes: Sequence[int], *, crash: bool, **settings: Any
) -> list[int]:
    rows = [("k", value, 7) for value in values]
    given = {"processing.exception.handler": "continue", **settings}
    with TopologyTestDriver(timed(), given) as driver:
        for size in sizes:
            driver.pipe_all("in", rows[:size])
            rows = rows[size:]
            if crash:
                driver.commit()
                driver.crash()
        assert not rows
        return [record.timestamp_ms for record in driver.read("out")]


@pytest.mark.parametrize("crash", [False, True], ids=["", "crashing"])
@pytest.mark.parametrize("sizes", [[9], [1] * 9, [2, 3, 4]])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_it_is_the_latest_time_of_earlier_records_wherever_batches_end_and_whatever_dies(
    sizes: list[int], guarantee: str, *, crash: bool
) -> None:
    values = ["", "30", "", "50", "", "40", "", "raise", ""]
    settings = {"processing.guarantee": guarantee}
    assert times(values, sizes, crash=crash, **settings) == [30, 30, 50, 50, 40, 50, 50]


def test_each_input_has_its_own() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream(["one", "two"], timestamp_extractor=own_or_previous).to("out")
    with TopologyTestDriver(b.build(), partitions=2) as driver:
        for topic, partition, value in (
            ("one", 0, "10"), ("one", 1, "20"), ("two", 0, "30"), ("one", 0, ""), ("one", 1, ""),
            ("two", 0, ""), ("two", 1, "5"), ("two", 1, ""),
        ):  # fmt: skip
            driver.pipe(topic, "k", value, 7, partition=partition)
            driver.crash()
        found = sorted(record.timestamp_ms for record in driver.read("out"))
    assert found == [5, 5, 10, 10, 20, 20, 30, 30]


def test_records_of_a_read_ahead_that_are_not_committed_do_not_count() -> None:
    settings = {"statestore.batch.max.records": 1, "statestore.uncommitted.max.records": 1}
    values = ["10", "", "90", "", "20", ""]
    for sizes in ([6], [1, 5]):
        assert times(values, sizes, crash=True, **settings) == [10, 10, 90, 90, 20, 90]


def test_metadata_without_it_is_read_and_its_size_does_not_depend_on_names() -> None:
    old = '{"number":3,"stream_time_ms":5}'
    tp = TopicPartition("in", 0)
    assert partition_times_in({tp: GroupOffset(4, old)}) == {}
    assert partition_times_in({tp: GroupOffset(4, "of another tool")}) == {}
    assert CommitStamp.latest({tp: GroupOffset(4, old)}) == CommitStamp(3, 5)
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    for number in range(101):
        b.stream(f"in{number}", timestamp_extractor=own_or_previous).to("out")
        if number == 99:
            b.build()
    with pytest.raises(InvalidTopology, match=r"101 topics .* room for 100"):
        b.build()


def test_an_extractor_of_three_arguments_is_refused() -> None:
    b = ss.StreamsBuilder()
    wrong: Any = lambda record, previous, more: 1  # noqa: E731  # for its arguments
    with pytest.raises(Misuse, match=r"timestamp_extractor.*nor 2"):
        b.stream("in", timestamp_extractor=wrong)
