"""Readers of versioned stores on other threads: every answer is of one moment (V6, S2)."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from statestore.model.modes import IsolationLevel
from statestore.stores.versioned.table import VersionedTable
from tests.builders import DEADLINE_S
from tests.contract.versioned_worlds import Open, Store
from tests.contract.versions_text import puts, shown, shown_one

KEYS = [b"k%d" % i for i in range(6)]
ROUNDS = 120
EVER = 10**9


@pytest.fixture
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Watcher(threading.Thread):
    """Asks in every way until told to stop; notes what cannot be of one commit."""

    def __init__(self, store: Store, level: IsolationLevel) -> None:
        super().__init__()
        self.whole = level is IsolationLevel.READ_COMMITTED
        self.reader = store.reader(level)
        self.problems: list[Any] = []
        self.looks = 0
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            while not self.stop.is_set() and not self.problems:
                self.look()
        except BaseException as error:  # noqa: BLE001  # whatever ended it is looked at
            self.problems.append(error)

    def look(self) -> None:
        now = self.reader.observed_stream_time() or 0
        with self.reader.range_as_of(None, None, max(0, now - 3)) as rows:
            seen = [(one.value, one.timestamp_ms) for _, one in rows]
        if self.whole and len(set(seen)) > 1:
            self.problems.append(("torn between keys", seen))
        with self.reader.range_as_of(None, None, EVER) as rows:
            numbers = [int(one.value) for _, one in rows]
        # All are put in each round, the first first.
        if numbers != sorted(numbers, reverse=True) or (numbers and numbers[0] > numbers[-1] + 1):
            self.problems.append(("a later put seen, one before it not", numbers))
        history = list(self.reader.history(KEYS[0]))
        ends = [one.valid_to_ms for one in history]
        begins = [one.timestamp_ms for one in history]
        if ends != [None, *begins][: len(ends)]:
            self.problems.append(("gap or overlap", history))
        self.looks += 1


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_readers_meet_whole_commits_while_versions_come_in_and_out_of_order(opened: Open) -> None:
    """Each commit writes the same versions of all keys, one of them late, and some rolled back."""
    store = opened(retention=100_000, interval=7)
    chance = random.Random(11)
    watchers = [Watcher(store, IsolationLevel.READ_COMMITTED) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    deadline = time.monotonic() + DEADLINE_S
    number = 0
    while number < ROUNDS or min(w.looks for w in watchers) < 20:
        assert time.monotonic() < deadline, "the readers do not get on"
        number += 1
        for at in (10 * number, 10 * number - 15):
            for key in KEYS:
                store.put(key, b"%d" % number, at)
        if chance.random() < 0.2:
            store.rollback()
        else:
            store.commit()
        if any(w.problems for w in watchers):
            break
    for watcher in watchers:
        watcher.stop.set()
        watcher.join(DEADLINE_S)
    assert [w.problems for w in watchers] == [[], []]


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_who_sees_pending_versions_sees_no_history_with_a_gap(opened: Open) -> None:
    """Versions in order, whose predecessors are looked up later, and some late."""
    store = opened(retention=300, interval=70)
    watcher = Watcher(store, IsolationLevel.READ_UNCOMMITTED)
    watcher.start()
    deadline = time.monotonic() + DEADLINE_S
    number = 0
    while number < ROUNDS or watcher.looks < 20:
        assert time.monotonic() < deadline, "the reader does not get on"
        number += 1
        for key in KEYS:
            store.put(key, b"%d" % number, 10 * number)
            if number % 3 == 0:
                store.get(KEYS[1], as_of=10 * number - 1)
        if number % 7 == 0:
            store.put(KEYS[0], b"late", 10 * number - 25)
        if number % 40 == 0:
            store.commit()
        if watcher.problems:
            break
    watcher.stop.set()
    watcher.join(DEADLINE_S)
    assert watcher.problems == []


def test_what_is_put_and_settled_after_a_reader_has_looked_is_not_in_its_answer(
    opened: Open,
) -> None:
    store = opened()
    store.put_all(puts("a1@10 b1@10"))

    def meanwhile(frame: FrameType, event: str, _arg: object) -> None:
        """What the owner does when the reader has copied what is pending, and no more."""
        if event == "return" and frame.f_code is VersionedTable.pending_now.__code__:
            sys.setprofile(None)
            store.put_all(puts("a2@20 c2@20"))
            assert shown_one(store.get(b"a", as_of=15)) == "1[10,20)"

    sys.setprofile(meanwhile)
    try:
        with store.reader(IsolationLevel.READ_UNCOMMITTED).range_as_of(None, None, 30) as rows:
            assert shown(one for _, one in rows) == "1[10, 1[10,"
    finally:
        sys.setprofile(None)
