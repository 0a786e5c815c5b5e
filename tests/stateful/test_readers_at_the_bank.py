"""Random lives of stores whose readers audit a bank on other threads, all the while.

Every transfer leaves the sum of all accounts as it is, and so must every answer, of whatever size,
at whatever time it is asked for: while the owner commits, rolls back, uses savepoints, flushes,
lets history expire, closes its store and opens it again.

    STATESTORE_BANK_SEED=77 pytest tests/stateful/test_readers_at_the_bank.py    one life, again
    STATESTORE_BANK_LIVES=200                                                    more of them
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
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

SEED = os.environ.get("STATESTORE_BANK_SEED")
LIVES = int(os.environ.get("STATESTORE_BANK_LIVES", "1"))
SEEDS = [int(SEED)] if SEED else random.sample(range(10**6), LIVES)
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
ACCOUNTS = [b"a%04d" % i for i in range(1200)]
EACH = 1000
TOTAL = EACH * len(ACCOUNTS)
STEPS, LOOKS = 60, 6
HISTORY_MS = 400


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


class Auditor(threading.Thread):
    """Asks for the books again and again, in a new branch whenever the old one is closed."""

    def __init__(self, name: str, ask: Callable[[], object]) -> None:
        super().__init__(name=name)
        self._ask = ask
        self.audits = 0
        self.problem: object = None
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            while not self.stop.is_set() and self.problem is None:
                try:
                    self.problem = self._ask()
                    self.audits += 1
                except StoreClosed:
                    continue
        except BaseException as error:  # noqa: BLE001  # whatever ended it is looked at
            self.problem = error


def audited(asks: dict[str, Callable[[], object]], step: Callable[[], None], seed: int) -> None:
    """Steps of the owner while each auditor asks often enough; fails with what one found."""
    auditors = [Auditor(name, ask) for name, ask in asks.items()]
    for auditor in auditors:
        auditor.start()
    deadline, steps = time.monotonic() + 3 * DEADLINE_S, 0
    try:
        while steps < STEPS or min(one.audits for one in auditors) < LOOKS:
            if any(one.problem is not None for one in auditors):
                break
            assert time.monotonic() < deadline, {one.name: one.audits for one in auditors}
            step()
            steps += 1
    finally:
        for auditor in auditors:
            auditor.stop.set()
            auditor.join(DEADLINE_S)
    found = {one.name: one.problem for one in auditors if one.problem is not None}
    assert found == {}, f"repeat it with STATESTORE_BANK_SEED={seed}: {found}"


def sum_of(balances: list[int]) -> object:
    """What is wrong with the balances of all accounts, if anything."""
    total = sum(balances)
    return None if total == TOTAL else f"{total - TOTAL} too many, of {len(balances)} accounts"


class Branch:
    """A store that its owner may close and open again; readers ask for the one there is."""

    def __init__(self, open_one: Callable[[], Any]) -> None:
        self._open_one = open_one
        self.store = open_one()

    def reopen(self) -> None:
        self.store.rollback()
        self.store.close()
        self.store = self._open_one()

    def reader(self, level: IsolationLevel) -> Any:
        return self.store.reader(level)


def spend(chance: random.Random, balances: dict[bytes, int]) -> dict[bytes, int]:
    """Transfers among many accounts, some of them emptied; what has changed."""
    parties = chance.sample(ACCOUNTS, 2 * chance.randrange(20, 500))
    changed = {}
    for payer, payee in zip(parties[::2], parties[1::2], strict=True):
        amount = chance.choice([balances[payer], chance.randrange(balances[payer] + 1)])
        changed[payer] = balances[payer] - amount
        changed[payee] = balances[payee] + amount
    return changed


@pytest.mark.parametrize("seed", SEEDS, ids=range(len(SEEDS)))
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "in-memory"])
def test_no_answer_of_a_key_value_store_makes_or_loses_money(
    tmp_path: Path, persistent: bool, seed: int
) -> None:
    chance = random.Random(seed)
    make = ss.persistent_key_value_store if persistent else ss.in_memory_key_value_store
    branch = Branch(
        lambda: ss.open_store(make("bank"), tmp_path, settings={"statestore.wal": False})
    )
    books = dict.fromkeys(ACCOUNTS, EACH)

    def rows(changed: dict[bytes, int]) -> list[tuple[bytes, bytes | None]]:
        """An account with nothing in it is closed."""
        return [(key, b"%d" % left if left else None) for key, left in changed.items()]

    branch.store.put_all(rows(books))
    branch.store.commit()
    pending = dict(books)

    def step() -> None:
        nonlocal books, pending
        store = branch.store
        # One write of many rows, so that those who see what is pending see all of it, or nothing.
        changed = spend(chance, pending)
        store.put_all(rows(changed))
        pending |= changed
        kind = chance.random()
        if kind < 0.15:
            store.rollback()
            pending = dict(books)
        elif kind < 0.65:
            store.commit()
            books = dict(pending)
        elif kind < 0.70:
            store.staged.make_durable()
        elif kind < 0.74 and persistent:
            branch.reopen()
            pending = dict(books)

    def balances(pairs: Any) -> list[int]:
        with pairs as scan:
            return [int(value) for _, value in scan]

    def asks_of(level: IsolationLevel) -> dict[str, Callable[[], object]]:
        def many() -> object:
            found = branch.reader(level).get_many(ACCOUNTS)
            return sum_of([int(value or 0) for value in found])

        return {
            f"get_many {level}": many,
            f"all {level}": lambda: sum_of(balances(branch.reader(level).all())),
            f"range {level}": lambda: sum_of(
                balances(branch.reader(level).range(ACCOUNTS[0], ACCOUNTS[-1], reverse=True))
            ),
        }

    audited(asks_of(COMMITTED) | asks_of(UNCOMMITTED), step, seed)
    branch.store.rollback()
    branch.store.close()


class VersionedBank:
    """The owner of a bank whose balances have a history, and the questions of its auditors.

    Those who see what is pending meet puts half done, so only committed sums are audited.
    """

    def __init__(self, folder: Path, *, persistent: bool, seed: int) -> None:
        make = (
            ss.persistent_versioned_key_value_store
            if persistent
            else ss.in_memory_versioned_key_value_store
        )
        spec, settings = make("bank", HISTORY_MS, 50), {"statestore.wal": False}
        self.branch = Branch(lambda: ss.open_store(spec, folder, settings=settings))
        self._persistent = persistent
        self._chance, self._auditors_chance = random.Random(seed), random.Random(seed + 1)
        self._books, self._now = dict.fromkeys(ACCOUNTS, EACH), 0
        self.branch.store.put_all([(key, b"%d" % EACH, 0) for key in ACCOUNTS])
        self.branch.store.commit()

    def step(self) -> None:
        chance, branch = self._chance, self.branch
        pending, later = dict(self._books), self._now
        for _ in range(chance.randrange(1, 4)):
            later += chance.randrange(1, 30)
            self._transfer(pending, later)
            if chance.random() < 0.3:
                self._say_again(max(0, later - chance.randrange(HISTORY_MS // 2)))
            if chance.random() < 0.3:
                with pytest.raises(KeyError), branch.store.transaction():  # noqa: PT012  # both
                    self._transfer(dict(pending), later + 1)
                    raise KeyError
        kind = chance.random()
        if kind < 0.2:
            branch.store.rollback()
        elif kind < 0.25 and self._persistent:
            branch.reopen()
        else:
            branch.store.commit()
            self._books, self._now = pending, later
            if kind < 0.3:
                branch.store.staged.make_durable()

    def as_of(self) -> object:
        reader = self.branch.reader(COMMITTED)
        latest = reader.observed_stream_time()
        at = max(0, latest - self._auditors_chance.randrange(HISTORY_MS - 100))
        with reader.range_as_of(None, None, at) as scan:
            wrong = sum_of([int(one.value) for _, one in scan])
        # What is asked for may have expired on the way.
        gone = reader.observed_stream_time() - HISTORY_MS > at
        return None if wrong is None or gone else f"as of {at}, at {latest}: {wrong}"

    def latest(self) -> object:
        with self.branch.reader(COMMITTED).range_as_of(None, None, 2**60) as scan:
            return sum_of([int(one.value) for _, one in scan])

    def history(self) -> object:
        chance = self._auditors_chance
        reader = self.branch.reader(chance.choice([COMMITTED, UNCOMMITTED]))
        with reader.history(chance.choice(ACCOUNTS), descending=False) as scan:
            found = list(scan)
        overlapping = [
            (one, other)
            for one, other in pairwise(found)
            if one.valid_to_ms is None or one.valid_to_ms > other.timestamp_ms
        ]
        return overlapping or None

    def _transfer(self, balances: dict[bytes, int], at: int) -> None:
        changed = spend(self._chance, balances)
        rows = [(key, b"%d" % left if left else None, at) for key, left in changed.items()]
        self.branch.store.put_all(rows)
        balances |= changed

    def _say_again(self, at: int) -> None:
        """Versions that change nothing, from before the stream time."""
        store = self.branch.store
        for key in self._chance.sample(ACCOUNTS, 12):
            found = store.get(key, as_of=at)
            store.put(key, None if found is None else found.value, at)


@pytest.mark.parametrize("seed", SEEDS, ids=range(len(SEEDS)))
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "in-memory"])
def test_no_answer_of_a_versioned_store_makes_or_loses_money_at_any_time(
    tmp_path: Path, persistent: bool, seed: int
) -> None:
    bank = VersionedBank(tmp_path, persistent=persistent, seed=seed)
    asks = {"as of": bank.as_of, "latest": bank.latest, "history": bank.history}
    audited(asks, bank.step, seed)
    bank.branch.store.rollback()
    bank.branch.store.close()


@pytest.mark.parametrize("seed", SEEDS, ids=range(len(SEEDS)))
def test_no_answer_of_a_window_store_counts_one_key_more_than_another(seed: int) -> None:
    """Each commit counts every key once in each of some windows; late and expired ones included."""
    chance = random.Random(seed)
    names = [f"n{i}" for i in range(40)]
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    windows = ss.TumblingWindows(10, grace=300, retention=500)
    b.stream("in").group_by_key().windowed_by(windows).count("counts")
    now = 0

    def step() -> None:
        nonlocal now
        now += chance.randrange(40)
        times = sorted(max(0, now - chance.randrange(600)) for _ in range(chance.randrange(1, 9)))
        records = [Record(name, 0, at) for at in times for name in names]
        driver.pipe_all("in", records)

    with TopologyTestDriver(b.build()) as driver:
        step()
        reader = driver.store("counts").reader(COMMITTED)

        def everything() -> object:
            found: dict[int, list[int]] = {}
            with reader.all() as scan:
                for window, count in scan:
                    found.setdefault(window.start_ms, []).append(count)
            uneven = {
                start: sorted(set(counts))
                for start, counts in found.items()
                if len(counts) != len(names) or len(set(counts)) > 1
            }
            return uneven or None

        def fetched() -> object:
            with reader.fetch(names[-1]) as scan:
                starts = [window.start_ms for window, _ in scan]
            latest = reader.observed_stream_time() or 0
            newest = latest // 10 * 10
            fits = starts == sorted(set(starts)) and (not starts or starts[-1] <= newest)
            return None if fits else starts

        audited({"all": everything, "fetch": fetched}, step, seed)
