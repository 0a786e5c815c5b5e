"""Times that no window can hold: each such record fails by itself, and the rest is counted."""

from collections.abc import Callable

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import RecordFailed
from statestore.testing import TopologyTestDriver
from statestore.topology.windows.closing import LATEST_MS

FAR = (2**63 - 1, 2**63 - 100, 0x74 << 56, LATEST_MS + 1)
WINDOWS: dict[str, Callable[[], object]] = {
    "tumbling": lambda: ss.TumblingWindows(10),
    "hopping": lambda: ss.HoppingWindows(10, 5),
    "sliding": lambda: ss.SlidingWindows(10),
    "sessions": lambda: ss.SessionWindows(10),
}


def counting(kind: str, emit: ss.EmitStrategy) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    windows = b.stream("in").group_by_key().windowed_by(WINDOWS[kind](), emit=emit)  # type: ignore[call-overload]  # one of those in the table
    windows.count("counts").to_stream(lambda window, _n: window.key).to(
        "out", key_serde=serdes.STRING
    )
    return b.build()


@pytest.mark.parametrize("emit", ss.EmitStrategy)
@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("far_ms", FAR)
def test_a_record_that_no_window_can_hold_is_an_error_of_that_record(
    kind: str, emit: ss.EmitStrategy, far_ms: int
) -> None:
    with TopologyTestDriver(counting(kind, emit)) as driver:
        driver.pipe("in", "k", "v", 5)
        with pytest.raises(RecordFailed, match=rf"in-0 offset 1: .*time {far_ms} is above"):
            driver.pipe("in", "k", "v", far_ms)


@pytest.mark.parametrize("emit", ss.EmitStrategy)
@pytest.mark.parametrize("kind", WINDOWS)
def test_those_beside_it_are_counted_where_such_records_are_passed_over(
    kind: str, emit: ss.EmitStrategy
) -> None:
    settings = {"processing.exception.handler": "continue"}
    times = [5, FAR[0], 6, FAR[2], 7, 1_000, FAR[3], LATEST_MS]
    records = [ss.Record("k", "v", time) for time in times]
    kept = [record for record in records if record.timestamp_ms not in FAR]
    told = []
    for piped in (records, kept):
        with TopologyTestDriver(counting(kind, emit), settings) as driver:
            driver.pipe_all("in", piped)
            told.append(driver.read("out"))
    results = [[(r.key, r.value, r.timestamp_ms) for r in found] for found in told]
    assert results[0] == results[1]
    assert max(value for _, value, _ in results[0]) == 3
