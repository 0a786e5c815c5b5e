"""Windows of a number of records: what they may be, and what other deployments do to them."""

from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse
from statestore.serdes.composed import CountWindow
from statestore.testing import TopologyTestDriver
from tests.contract.task_rig import TaskRig

CLOSE = "on_window_close"


def topology(
    windows: Any, emit: str = "on_update", *, caching: bool = True, store: str = "made"
) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    opened = builder.stream("in").group_by_key().windowed_by(windows, emit=emit)
    kept = ss.Materialized[str, Any](store, caching=caching)
    made = opened.aggregate(list, lambda _key, value, seen: [*seen, value], kept)
    made.to_stream().to("out")
    return builder.build()


def told(driver: TopologyTestDriver) -> list[Any]:
    return [record.value for record in driver.read("out")]


@pytest.mark.parametrize(
    ("size", "advance", "message"),
    [
        (0, 0, "the size is 0: pass 1 record or more"),
        (True, 1, "the size is True"),
        (2.0, 1, "the size is 2.0"),
        (
            1 << 63,
            1 << 63,
            "the size is 9223372036854775808: pass at most",
        ),
        (3, -1, "the advance is -1"),
        (3, 4, "records between two windows would count in none: advance by 3 at most"),
        (5000, 1, "each record would count in 5,000 open windows .* advance by 5 at least"),
    ],
)
def test_windows_that_cannot_be_are_refused(size: Any, advance: Any, message: str) -> None:
    with pytest.raises(Misuse, match=message):
        ss.CountWindows.of(size).advance_by(advance)


def test_what_goes_by_time_does_not_go_with_them() -> None:
    by_key = ss.StreamsBuilder().stream("in").group_by_key()
    windows: Any = ss.CountWindows.of(3)
    with pytest.raises(Misuse, match="one of a number of records is open until it is full"):
        by_key.windowed_by(windows, emit=CLOSE, close_idle=1000)
    cogrouped = by_key.cogroup(lambda _key, value, _made: value)
    with pytest.raises(Misuse, match=r"windows of a number of records .* merge\(\) the streams"):
        cogrouped.windowed_by(windows)
    counts = by_key.windowed_by(windows).count("made")
    with pytest.raises(InvalidTopology, match="no windows that are open"):
        counts.suppress(ss.Suppressed.until_window_closes(), name="held")


def test_other_windows_are_other_topologies_and_other_stores_are_refused() -> None:
    few = ss.CountWindows.of(3)
    made = [topology(few), topology(few.advance_by(1)), topology(ss.CountWindows.of(4))]
    made.append(topology(few, CLOSE))
    assert len({one.fingerprint() for one in made}) == 4
    assert set(made[0].stores) == {"made", "made-windows"}
    builder = ss.StreamsBuilder()
    builder.table("other", materialized="made-windows")
    with pytest.raises(InvalidTopology, match="'made-windows'"):
        builder.stream("in").group_by_key().windowed_by(few).count("made")


@pytest.mark.parametrize("emit", ["on_update", CLOSE])
def test_each_full_window_is_told_whatever_comes_in_one_batch(emit: str) -> None:
    with TopologyTestDriver(topology(ss.CountWindows.of(2), emit)) as driver:
        driver.pipe_all("in", [("a", number, 10) for number in range(5)])
        assert told(driver) == [[0, 1], [2, 3], *([[4]] if emit == "on_update" else [])]
        driver.pipe_all("in", [("a", 5, 10)])
        assert told(driver) == [[4, 5]]


def test_records_without_a_key_or_a_value_are_dropped() -> None:
    with TopologyTestDriver(topology(ss.CountWindows.of(2), CLOSE)) as driver:
        driver.pipe_all("in", [("a", 1, 1), (None, 2, 1), ("a", None, 1), ("", 3, 1), ("", 0, 1)])
        driver.pipe("in", "a", "", 1)
        assert told(driver) == [[3, 0], [1, ""]]


def test_functions_may_change_what_they_are_given() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    lasts = ss.CountWindows.of(2).advance_by(1)

    def both(old: list[int], new: list[int]) -> list[int]:
        old += new
        return old

    stream = builder.stream("in")
    made = stream.group_by_key().windowed_by(lasts, emit=CLOSE).reduce(both, "made")
    made.to_stream().to("out")
    stream.to("again")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe_all("in", [("a", [number], 1) for number in range(4)])
        assert told(driver) == [[0, 1], [1, 2], [2, 3]]
        assert [record.value for record in driver.read("again")] == [[0], [1], [2], [3]]


def test_an_open_window_keeps_the_size_with_which_it_began(tmp_path: Path) -> None:
    rig = TaskRig(topology(ss.CountWindows.of(4), CLOSE), tmp_path)
    deployed = [(4, 4, 2), (2, 2, 3), (3, 1, 4)]
    number = 0
    for size, advance, count in deployed:
        windows = ss.CountWindows.of(size).advance_by(advance)
        rig.topology = topology(windows, CLOSE)
        rig.start()
        for _ in range(count):
            rig.send("in", [("a", str(number))])
            number += 1
        while rig.running[0].step(0):
            pass
        rig.running[0].step_commit()
        rig.crash()
    found = [record.value for record in rig.broker.records("out")]
    # The next window begins as far after the last one as is deployed now: at 2, 4, 5 and 6.
    assert found == [b"[0,1,2,3]", b"[2,3]", b"[4,5]", b"[5,6,7]", b"[6,7,8]"]


def test_what_is_open_is_a_list_that_tools_read() -> None:
    made = topology(ss.CountWindows.of(3).advance_by(2))
    spec: Any = made.stores["made-windows"]
    with TopologyTestDriver(made) as driver:
        driver.pipe_all("in", [("a", 1, 30), ("a", 2, 20), ("a", 3, 40)])
        open_now = [CountWindow(3, 1, 40, [3])]
        assert driver.store("made-windows").get("a") == open_now
        read = serdes.by_name(spec.value_serde.name)
        assert read.deserialize(spec.value_serde.serialize(open_now)) == open_now
        assert driver.store("made").get("a") == [1, 2, 3]


def test_a_key_has_no_row_of_windows_between_two_of_them() -> None:
    with TopologyTestDriver(topology(ss.CountWindows.of(2))) as driver:
        driver.pipe_all("in", [("a", 1, 1), ("b", 1, 1), ("a", 2, 2)])
        with driver.store("made-windows").all() as rows:
            assert [key for key, _ in rows] == ["b"]
