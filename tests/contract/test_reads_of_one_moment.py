"""Every answer of a reader is of one moment, whatever its size: many keys, commits all the while.

What the owner writes follows a rule that holds at each moment and at no mixture of two. Rolled back
rounds, savepoints and a close come between.

Shows I26.
"""

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import StoreClosed
from statestore.model.modes import IsolationLevel
from statestore.model.records import Record
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from tests.builders import DEADLINE_S
from tests.contract.versioned_worlds import Open

LEVELS = [IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED]
# Whether a store is persistent, and at which level it is read.
WORLDS = [
    pytest.param(True, LEVELS[0], id="persistent-committed"),
    pytest.param(False, LEVELS[1], id="in-memory-uncommitted"),
    pytest.param(True, LEVELS[1], id="persistent-uncommitted", marks=pytest.mark.thorough),
    pytest.param(False, LEVELS[0], id="in-memory-committed", marks=pytest.mark.thorough),
]
LOOKS = 25
TURNS = 60
COUNT = 3000
KEYS = [b"k%05d" % i for i in range(COUNT)]


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


class Looker(threading.Thread):
    """Asks one question again and again; keeps the first answer that breaks the rule."""

    def __init__(self, name: str, ask: Callable[[], Any], wrong: Callable[[Any], object]) -> None:
        super().__init__(name=name)
        self._ask, self._wrong = ask, wrong
        self.looks = 0
        self.problem: object = None
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            while not self.stop.is_set() and not self.problem:
                self.problem = self._wrong(self._ask())
                self.looks += 1
        except BaseException as error:  # noqa: BLE001  # whatever ended it is looked at
            self.problem = error


def watched(lookers: list[Looker], turn: Callable[[int], object]) -> dict[str, object]:
    """Turns of the owner until each looker has looked often enough; what they found wrong."""
    for looker in lookers:
        looker.start()
    deadline = time.monotonic() + 2 * DEADLINE_S
    number = 0
    try:
        while number < TURNS or min(looker.looks for looker in lookers) < LOOKS:
            if any(looker.problem for looker in lookers):
                break
            assert time.monotonic() < deadline, {one.name: one.looks for one in lookers}
            number += 1
            turn(number)
    finally:
        for looker in lookers:
            looker.stop.set()
            looker.join(DEADLINE_S)
    return {one.name: one.problem for one in lookers if one.problem}


# Key-value stores.

Numbers = list[int | None]


def mixed(numbers: Numbers, level: IsolationLevel) -> object:
    """What is wrong with these numbers, of KEYS in order, None where a key is not there.

    The owner raises all one by one, from the first on; and deletes some from the first on, which it
    undoes at once.
    """
    gone = numbers.count(None)
    there = [number for number in numbers[gone:] if number is not None]
    if len(there) != COUNT - gone:
        return "a delete undone in part"
    distinct = sorted(set(there), reverse=True)
    if level is IsolationLevel.READ_COMMITTED:
        return (gone, distinct) if gone or len(distinct) != 1 else None
    # Those written so far, then those of the last commit.
    fits = sorted(there, reverse=True) == there and len(distinct) <= (1 if gone else 2)
    return None if fits else distinct


def in_order(pairs: Any) -> Numbers:
    with pairs as scan:
        found = {key: int(value) for key, value in scan}
    return [found.get(key) for key in KEYS]


def asks_of(reader: Any) -> dict[str, Callable[[], Numbers]]:
    """All keys, in every way a reader can be asked."""
    return {
        "get_many": lambda: [None if v is None else int(v) for v in reader.get_many(KEYS)],
        "all": lambda: in_order(reader.all()),
        "range backwards": lambda: in_order(reader.range(None, KEYS[-1], reverse=True)),
        "prefix_scan": lambda: in_order(reader.prefix_scan(b"k")),
    }


@pytest.mark.parametrize(("persistent", "level"), WORLDS)
def test_many_keys_are_read_as_of_one_moment(
    tmp_path: Path, persistent: bool, level: IsolationLevel
) -> None:
    make = ss.persistent_key_value_store if persistent else ss.in_memory_key_value_store
    chance = random.Random(5)
    with ss.open_store(make("bank"), tmp_path, settings={"statestore.wal": False}) as store:
        store.put_all([(key, b"0") for key in KEYS])
        store.commit()

        def turn(number: int) -> None:
            for key in KEYS:
                store.put(key, b"%d" % number)
            kind = chance.random()
            if kind < 0.2:
                store.rollback()
                return
            if kind < 0.5:
                with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # both are needed
                    store.put_all([(key, None) for key in KEYS[: chance.randrange(COUNT)]])
                    raise KeyError
            store.commit()

        asks = asks_of(store.reader(level))
        lookers = [
            Looker(name, ask, lambda found: mixed(found, level)) for name, ask in asks.items()
        ]
        assert watched(lookers, turn) == {}


# Window stores.

SIZE_MS, KEPT = 10, 300


def windowed(persistent: bool) -> TopologyTestDriver:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    span = SIZE_MS * KEPT
    windows = ss.TumblingWindows(SIZE_MS, grace=span - SIZE_MS, retention=span)
    make = ss.persistent_key_value_store if persistent else ss.in_memory_key_value_store
    kept = ss.Materialized(make("counts", key_serde=serdes.STRING))
    b.stream("in").group_by_key().windowed_by(windows).count(kept)
    return TopologyTestDriver(b.build())


def staggered(found: list[tuple[int, int]]) -> object:
    """What is wrong with (start, count) of a key's windows: each commit counts once in all there
    are, and begins one more."""
    starts, counts = [start for start, _ in found], [count for _, count in found]
    newest = starts[-1]
    oldest = max(0, newest - SIZE_MS * (KEPT - 1))
    if starts != list(range(oldest, newest + 1, SIZE_MS)):
        return f"not all windows: {len(starts)} from {starts[0]} to {newest}"
    if counts != [(newest - start) // SIZE_MS + 1 for start in starts]:
        return f"counts of several commits: {counts[:3]}, {counts[-3:]}"
    return None


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "in-memory"])
def test_many_windows_are_read_as_of_one_moment(persistent: bool) -> None:
    """The newest as well, and no more of those that expire than their moment has."""
    names = ["a", "b"]

    def turn(number: int) -> None:
        newest = SIZE_MS * (number + KEPT // 2)
        starts = range(newest, max(-1, newest - SIZE_MS * KEPT), -SIZE_MS)
        driver.pipe_all("in", [Record(name, 0, start) for start in starts for name in names])

    with windowed(persistent) as driver:
        for number in range(-(KEPT // 2), 1):
            turn(number)
        reader = driver.store("counts").reader("READ_COMMITTED")

        def fetched() -> list[tuple[int, int]]:
            with reader.fetch("a") as scan:
                return [(window.start_ms, count) for window, count in scan]

        def of_each(pairs: Any) -> list[list[tuple[int, int]]]:
            with pairs as scan:
                found = list(scan)
            return [[(w.start_ms, n) for w, n in found if w.key == name] for name in names]

        def wrong_with_any(found: list[list[tuple[int, int]]]) -> object:
            if found[0] != found[1]:
                return "keys of several commits"
            return staggered(found[0])

        lookers = [
            Looker("fetch", fetched, staggered),
            Looker("all", lambda: of_each(reader.all()), wrong_with_any),
        ]
        assert watched(lookers, turn) == {}


# Versioned stores.

STEP_MS, HISTORY_MS = 10, 12_000


def chained(found: list[Any]) -> object:
    """What is wrong with a key's history: a version each STEP_MS, from the newest back."""
    begins = [one.timestamp_ms for one in found]
    newest = begins[0]
    if begins != [newest - STEP_MS * i for i in range(len(begins))]:
        return f"not each version: {begins[:3]}, {begins[-3:]}"
    if [one.valid_to_ms for one in found] != [None, *begins[:-1]]:
        return "a gap, or an overlap"
    # A pending version after the newest of these may have moved the bound of history by a round.
    if len(found) < min(newest, HISTORY_MS) // STEP_MS - 2:
        return f"{len(found)} versions at {newest}"
    return None


@pytest.mark.parametrize(("opened", "level"), WORLDS, indirect=["opened"])
def test_long_histories_and_many_versions_are_read_as_of_one_moment(
    opened: Open, level: IsolationLevel
) -> None:
    """Versions come in order and late, segments expire, some rounds are rolled back."""
    store = opened(retention=HISTORY_MS, interval=STEP_MS * 100)
    chance = random.Random(7)
    many = KEYS[:1000]
    whole = level is IsolationLevel.READ_COMMITTED

    def put_round(at: int) -> None:
        # The last but one comes late, so that each round is two versions of each key.
        store.put_all([(b"long", b"%d" % at, at)])
        store.put_all([(b"long", b"%d" % (at - STEP_MS), at - STEP_MS)])
        store.put_all([(key, b"%d" % at, at) for key in many])

    at = 0
    for _ in range(HISTORY_MS // STEP_MS // 2):
        at += 2 * STEP_MS
        store.put_all([(b"long", b"%d" % t, t) for t in (at - STEP_MS, at)])
    put_round(at)
    store.commit()
    reader = store.reader(level)

    def turn(_number: int) -> None:
        nonlocal at
        put_round(at + 2 * STEP_MS)
        if chance.random() < 0.2:
            store.rollback()
            return
        at += 2 * STEP_MS
        store.commit()

    def history() -> list[Any]:
        with reader.history(b"long") as scan:
            return list(scan)

    def without_half_a_round(found: list[Any]) -> object:
        """Between the two puts of a round the late one is missing."""
        if not whole and found[0].timestamp_ms - found[1].timestamp_ms == 2 * STEP_MS:
            found = [found[1]._replace(valid_to_ms=None), *found[2:]]
        return chained(found)

    def as_of(time_ms: int | None) -> list[int]:
        until = (reader.observed_stream_time() or 0) if time_ms is None else time_ms
        with reader.range_as_of(many[0], many[-1], until) as scan:
            return [one.timestamp_ms for _, one in scan]

    def through_a_range() -> list[int]:
        until = reader.observed_stream_time() or 0
        with reader.range_history(many[0], many[-1], until, until) as scan:
            return [one.timestamp_ms for _, one in scan]

    def of_two_rounds(found: list[int]) -> object:
        fits = len(found) == len(many) and (not whole or len(set(found)) == 1)
        ordered = sorted(found, reverse=True) == found and len(set(found)) <= 2
        return None if fits and ordered else (len(found), sorted(set(found)))

    lookers = [
        Looker("history", history, without_half_a_round),
        Looker("range_as_of", lambda: as_of(None), of_two_rounds),
        Looker("range_history", through_a_range, of_two_rounds),
        Looker("range_as_of the end of time", lambda: as_of(2**60), of_two_rounds),
        Looker(
            "get as_of",
            lambda: reader.get(b"long", as_of=(reader.observed_stream_time() or 0) - 500),
            lambda found: found is None and "nothing",
        ),
    ]
    assert watched(lookers, turn) == {}


def test_a_read_under_way_when_its_store_closes_is_whole_or_refused(tmp_path: Path) -> None:
    for _ in range(8):
        store = ss.open_store(
            ss.persistent_key_value_store("bank"), tmp_path, settings={"statestore.wal": False}
        )
        store.put_all([(key, b"1") for key in KEYS])
        store.commit()
        store.put_all([(key, b"2") for key in KEYS])
        lookers = [
            Looker(f"{name} {level}", ask, lambda found, level=level: mixed(found, level))  # type: ignore[misc]
            for level in LEVELS
            for name, ask in asks_of(store.reader(level)).items()
        ]
        found: dict[str, object] = {}
        closes = threading.Event()

        def turn(number: int, store: Any = store, closes: threading.Event = closes) -> None:
            if number == 50 and not closes.is_set():
                closes.set()
                store.close()

        for looker in lookers:
            looker.start()
        deadline = time.monotonic() + DEADLINE_S
        while any(looker.looks < 2 and not looker.problem for looker in lookers):
            assert time.monotonic() < deadline
        turn(50)
        for looker in lookers:
            looker.join(DEADLINE_S)
            assert not looker.is_alive()
            if not isinstance(looker.problem, StoreClosed):
                found[looker.name] = looker.problem
        assert found == {}
