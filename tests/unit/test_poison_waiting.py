"""What waits in an operator is judged by itself (SEMANTICS E8a).

A record that waits for its table, or a window that closes, fails long after it came; the record
that woke it has nothing to do with it.

Shows I23.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import RecordFailed
from statestore.model.records import Record
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.streams import KStream
from statestore.topology.graph import Topology
from tests.unit.poison_rig import GUARANTEES, POISON, dropped, settings, texts, value_of

COUNT, FEW = 250, 140
GRACE_MS = 10


def show(left: Any, right: Any) -> str:
    return f"{value_of(left)}+{right}"


class Whole:
    """Takes batches whole, so it never says which record it was."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context = context

    def process_batch(self, records: Iterable[Record[Any, Any]]) -> None:
        for record in list(records):
            self._context.forward(record.replace(key=str(record.key), value=value_of(record.value)))


def text_of(left: Any, right: Any) -> str:
    return f"{left}+{right}" if left != POISON else POISON


def latest(_key: Any, value: Any, _old: Any) -> Any:
    return value_of(value)


def counted(stream: KStream[Any, Any]) -> KStream[Any, Any]:
    return stream.group_by_key().aggregate(lambda: "", lambda _k, v, _o: v, "passed").to_stream()


BELOW: dict[str, Callable[[KStream[Any, Any]], KStream[Any, Any]]] = {
    "the join's function": lambda s: s,
    "a function behind": lambda s: s.map_values(value_of),
    "a function behind two": lambda s: s.filter(lambda _k, _v: True).map_values(value_of),
    "an aggregate behind": lambda s: (
        s.group_by_key().aggregate(lambda: "", latest, "latest").to_stream()
    ),
    "a function behind an aggregate": lambda s: counted(s).map_values(value_of),
    "a processor of batches behind": lambda s: s.process_batch(Whole),
}


def waiting(below: str, *, from_table: bool = False) -> Topology:
    """Records of `in` wait for the table; counted beside, where nobody waits."""
    b = texts()
    table = b.table("table", materialized=ss.Materialized("rates", history_retention=10_000))
    stream = b.stream("in")
    stream.group_by_key().count("counts")
    function = show if below == "the join's function" else text_of
    joined = stream.left_join(table, function, grace=GRACE_MS, name="priced")
    BELOW[below](joined).to("out")
    return b.build()


def orders(poison: Iterable[int], count: int = COUNT) -> list[Record[Any, Any]]:
    bad = set(poison)
    return [
        Record(f"k{i}", POISON if i in bad else f"v{i}", i, (("trace", b"%d" % i),))
        for i in range(count)
    ]


# A commit each costs most.
COMMITS = [
    pytest.param("continue", True, id="continue-one commit"),
    pytest.param("dead_letter", True, id="dead_letter-one commit"),
    pytest.param("dead_letter", False, id="dead_letter-a commit each"),
    pytest.param("continue", False, id="continue-a commit each", marks=pytest.mark.thorough),
]


def came_out(driver: TopologyTestDriver) -> list[str]:
    return [record.value.partition("+")[0] for record in driver.read("out")]


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize(("handler", "at_once"), COMMITS)
def test_only_the_waiting_record_is_passed_over(below: str, handler: str, *, at_once: bool) -> None:
    poison = [20, 21, 130]
    with TopologyTestDriver(waiting(below), settings(handler)) as driver:
        count = COUNT if at_once else FEW
        rows = orders(poison, count)
        for lot in [rows] if at_once else [[row] for row in rows]:
            driver.pipe_all("in", lot)
        driver.pipe("in", "end", "v", 10_000)
        assert dropped(driver) == len(poison)
        wanted = [f"v{i}" for i in range(count) if i not in poison]
        assert came_out(driver) == wanted
        assert len(list(driver.store("counts").all())) == count + 1, "every record is counted"
        dead = driver.read("dead") if handler == "dead_letter" else []
        assert [record.key for record in dead] == [
            b"k%d" % i for i in poison if handler == "dead_letter"
        ]
        for record, i in zip(dead, poison, strict=False):
            headers = dict(record.headers)
            assert (record.value, headers["trace"]) == (POISON.encode(), b"%d" % i)
            assert headers["__streams.errors.topic"] == b"in"
            assert headers["__streams.errors.offset"] == b"%d" % i
            assert headers["__streams.errors.exception"] == b"ValueError"
            assert headers["__streams.errors.store"] == b"priced-buffer"


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_with_fail_the_error_names_the_record_that_waited(below: str, guarantee: str) -> None:
    with TopologyTestDriver(waiting(below), settings("fail", guarantee)) as driver:
        message = r"in-0 offset 20, which waited in store 'priced-buffer': ValueError: no poison"
        with pytest.raises(RecordFailed, match=message):
            driver.pipe_all("in", orders([20]))


@pytest.mark.parametrize("below", BELOW)
def test_a_table_update_that_wakes_a_record_is_not_blamed_for_it(below: str) -> None:
    with TopologyTestDriver(waiting(below), settings("continue")) as driver:
        driver.pipe_all("in", orders([1], 3))
        driver.pipe("table", "k2", "new", 1000)
        driver.pipe("in", "k2", "later", 2000)
        driver.pipe("in", "end", "v", 10_000)
        out = [record.value for record in driver.read("out")]
        assert out == ["v0+None", "v2+None", "later+new"]
        assert dropped(driver) == 1


def test_twins_that_wait_are_passed_over_one_by_one() -> None:
    """Two records alike in all but their offsets: the second fails where the first did not."""
    seen: list[str] = []

    def once(value: str) -> str:
        if value in seen:
            raise ValueError(f"{value} again")
        seen.append(value)
        return value

    b = texts()
    table = b.table("table", materialized=ss.Materialized("rates", history_retention=10_000))

    def latest_once(_key: Any, value: str, old: list[str]) -> list[str]:
        if value in old:
            raise ValueError(f"{value} again")
        return [*old, value]

    joined = b.stream("in").flat_map_values(lambda v: [v, v])
    joined = joined.left_join(table, lambda left, _: left, grace=GRACE_MS, name="priced")
    made = ss.Materialized("all", value_serde=serdes.JSON, caching=False)
    joined.group_by_key().aggregate(list, latest_once, made).to_stream().to("out")
    with TopologyTestDriver(b.build(), settings("continue")) as driver:
        driver.pipe_all("in", [Record("k", "a", 1), Record("k", "b", 2), Record("k", "c", 99)])
        assert driver.store("all").get("k") == ["a", "b"]
        assert dropped(driver) == 2


# Windows.


STORES = {"on close": "finals", "suppressed": "held-store"}


def closing(below: str, how: str = "on close") -> Topology:
    """Final results of windows, and records counted beside."""
    b = texts()
    stream = b.stream("in")
    windows = ss.TumblingWindows(10, retention=100_000)
    emit = "on_window_close" if how == "on close" else "on_update"
    grouped = stream.group_by_key().windowed_by(windows, emit=emit)
    finals = grouped.reduce(lambda _old, new: new, "finals")
    if how == "suppressed":
        finals = finals.suppress(ss.Suppressed.until_window_closes(), name="held")
    BELOW[below](finals.to_stream()).to("out")
    stream.group_by_key().count("counts")
    return b.build()


@pytest.mark.parametrize("below", [name for name in BELOW if name != "the join's function"])
@pytest.mark.parametrize(("handler", "at_once"), COMMITS)
@pytest.mark.parametrize("how", STORES)
def test_only_the_result_of_a_window_is_passed_over(
    below: str, handler: str, how: str, *, at_once: bool
) -> None:
    poison = [20, 21, 130]
    topology = closing(below, how)
    with TopologyTestDriver(topology, settings(handler)) as driver:
        count = COUNT if at_once else FEW
        rows = orders(poison, count)
        for lot in [rows] if at_once else [[row] for row in rows]:
            driver.pipe_all("in", lot)
        driver.pipe("in", "end", "v", 10_000)
        assert sorted(came_out(driver)) == sorted(f"v{i}" for i in range(count) if i not in poison)
        assert len(list(driver.store("counts").all())) == count + 1
        assert dropped(driver) == len(poison)
        if handler == "dead_letter":
            dead = {record.key: record for record in driver.read("dead")}
            starts = {b"k%d" % i + (i // 10 * 10).to_bytes(8, "big") for i in poison}
            assert set(dead) == starts
            for record in dead.values():
                assert record.value == POISON.encode()
                assert dict(record.headers)["__streams.errors.store"] == STORES[how].encode()


def test_with_fail_the_error_names_the_window() -> None:
    message = (
        r"the result of key b'k20'.* in store 'finals' \(from in\): ValueError: no poison here"
    )
    with (
        TopologyTestDriver(closing("a function behind"), settings("fail")) as driver,
        pytest.raises(RecordFailed, match=message),
    ):
        driver.pipe_all("in", orders([20]))


def test_a_thousand_results_that_fail_cost_no_search_each() -> None:
    with TopologyTestDriver(closing("a function behind two"), settings("continue")) as driver:
        driver.pipe_all("in", [Record(f"k{i}", POISON if i % 2 else "v", 1) for i in range(2000)])
        driver.pipe("in", "end", "v", 10_000)
        assert len(driver.read("out")) == 1000
        assert dropped(driver) == 1000
        assert sum(task.report.rewinds for task in driver._tasks.values()) < 5
