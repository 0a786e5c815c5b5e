"""One contract for readers: isolation, bounds, and threads that read while the owner goes on."""

import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from statestore.errors import NotUpToBound, StoreClosed
from statestore.model.ids import Position, PositionBound
from statestore.model.modes import IsolationLevel
from statestore.stores.keyvalue import KeyValueReader
from tests.builders import DEADLINE_S, eventually
from tests.contract.store_worlds import WORLDS, Store, StoreWorld

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
Reader = KeyValueReader[Any, Any]
ROUNDS = 150
STATES = 10
KEYS = [f"k{i}" for i in range(6)]


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    with StoreWorld(*WORLDS[request.param], tmp_path) as made:
        yield made


@pytest.fixture
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def everything(world: StoreWorld, reader: Reader) -> list[str]:
    """The same rows in every way a reader can be asked."""
    keys = world.keys("a b c d x")
    gets = [(key, reader.get(key)) for key in keys]
    many = zip(keys, reader.get_many(keys), strict=True)
    contained = [key for key in keys if key in reader]
    shown = [
        world.shown(reader.all()),
        world.shown(reader.range()),
        world.shown(reader.prefix_scan(world.key(""))),
        world.shown(reversed(list(reader.all(reverse=True)))),
        world.shown((key, value) for key, value in gets if value is not None),
        world.shown((key, value) for key, value in many if value is not None),
    ]
    assert [text.partition("=")[0] for text in shown[0].split()] == [
        key if world.typed else key.decode() for key in contained
    ]
    return shown


# Isolation (S2).

VIEWS = [
    # committed, pending, what each level sees
    ("a=1 b=2", "", "a=1 b=2", "a=1 b=2"),
    ("a=1 b=2", "c=3 a=4 b", "a=1 b=2", "a=4 c=3"),
    ("", "a=1", "", "a=1"),
    ("a=1", "a", "a=1", ""),
    ("a=1 c=3", "b=2 x d=4 d", "a=1 c=3", "a=1 b=2 c=3"),
]


@pytest.mark.parametrize(("committed", "pending", "seen_committed", "seen_uncommitted"), VIEWS)
def test_each_level_sees_its_own_in_every_way_of_asking(
    world: StoreWorld, committed: str, pending: str, seen_committed: str, seen_uncommitted: str
) -> None:
    store = world.holding(committed, pending)
    assert set(everything(world, store.reader(COMMITTED))) == {seen_committed}
    assert set(everything(world, store.reader(UNCOMMITTED))) == {seen_uncommitted}
    store.commit()
    assert set(everything(world, store.reader(COMMITTED))) == {seen_uncommitted}


def test_a_reader_follows_the_store_through_writes_commits_and_rollbacks(
    world: StoreWorld,
) -> None:
    store = world.holding("a=1")
    committed, uncommitted = store.reader(COMMITTED), store.reader(UNCOMMITTED)

    def seen() -> tuple[str, str]:
        return world.shown(committed.all()), world.shown(uncommitted.all())

    store.put_all(world.pairs("a=2 b=2"))
    assert seen() == ("a=1", "a=2 b=2")
    store.rollback()
    assert seen() == ("a=1", "a=1")
    store.put_all(world.pairs("b=3"))
    store.commit()
    assert seen() == ("a=1 b=3", "a=1 b=3")
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # the block is the point
        store.discard(world.key("a"))
        assert seen() == ("a=1 b=3", "b=3")
        raise KeyError
    assert seen() == ("a=1 b=3", "a=1 b=3")


def test_a_reader_gives_defaults_and_takes_its_level_as_text(world: StoreWorld) -> None:
    store = world.holding("a=1", "b=2 a")
    fallback = world.value("fallback")
    reader = store.reader("READ_UNCOMMITTED")
    assert reader.get(world.key("a"), fallback) == fallback
    assert reader.get(world.key("b"), fallback) == world.value("2")
    assert store.reader("READ_COMMITTED").get(world.key("b"), fallback) == fallback
    assert reader.name == "prices"
    with pytest.raises(ValueError, match="SERIALIZABLE"):
        store.reader("SERIALIZABLE")


@pytest.mark.parametrize(
    ("settings", "argument", "expected"),
    [
        ({}, None, UNCOMMITTED),
        ({"processing.guarantee": "exactly_once"}, None, COMMITTED),
        ({"default.state.isolation.level": "READ_COMMITTED"}, None, COMMITTED),
        (
            {
                "processing.guarantee": "exactly_once",
                "default.state.isolation.level": "READ_UNCOMMITTED",
            },
            None,
            UNCOMMITTED,
        ),
        ({"default.state.isolation.level": "READ_COMMITTED"}, "READ_UNCOMMITTED", UNCOMMITTED),
        ({}, COMMITTED, COMMITTED),
    ],
    ids=range(6),
)
def test_a_readers_default_level_is_the_stores_then_the_settings_then_the_guarantees(
    tmp_path: Path,
    settings: dict[str, object],
    argument: IsolationLevel | str | None,
    expected: IsolationLevel,
) -> None:
    world = StoreWorld(False, False, tmp_path)
    store = world.open(isolation_level=argument, settings=settings)
    store.put(b"a", b"pending")
    assert (store.reader().get(b"a") is not None) is (expected is UNCOMMITTED)
    for level in IsolationLevel:
        assert (store.reader(level).get(b"a") is not None) is (level is UNCOMMITTED)


@pytest.mark.parametrize("level", IsolationLevel)
def test_a_readers_iterator_is_a_snapshot(world: StoreWorld, level: IsolationLevel) -> None:
    store = world.holding("a=1 c=3", "b=2")
    reader = store.reader(level)
    before = world.shown(reader.all())
    whole, started = reader.all(), reader.all()
    first = [next(started)]
    store.delete_range(None, None)
    store.put_all(world.pairs("aa=9 c=9"))
    store.commit()
    assert world.shown(whole) == before
    assert world.shown([*first, *started]) == before


# Bounds (S14).


def test_a_reader_with_a_bound_is_refused_until_its_copy_has_got_there(world: StoreWorld) -> None:
    store = world.holding("a=1")
    bound = PositionBound.at(Position.of({"in": {0: 5}}))
    readers = [store.reader(level, bound) for level in IsolationLevel]
    uses: list[Callable[[Reader], object]] = [
        lambda r: r.get(world.key("a")),
        lambda r: r.get_many([world.key("a")]),
        lambda r: world.key("a") in r,
        lambda r: r.all(),
        lambda r: r.range(),
        lambda r: r.prefix_scan(world.key("")),
    ]
    store.commit(position=Position.of({"in": {0: 4, 1: 9}}))
    for reader in readers:
        for use in uses:
            with pytest.raises(NotUpToBound, match=r"'prices' has processed .*asked for .*5"):
                use(reader)
    store.commit(position=Position.of({"in": {0: 5}}))
    for reader in readers:
        for use in uses:
            use(reader)


# Closing.


def test_a_closed_reader_says_so_and_leaves_the_store_open(world: StoreWorld) -> None:
    store = world.holding("a=1")
    with store.reader() as reader:
        assert reader.is_open()
    assert not reader.is_open()
    reader.close()
    with pytest.raises(StoreClosed, match="reader of 'prices' is closed: ask for a new one"):
        reader.get(world.key("a"))
    assert store.get(world.key("a")) == world.value("1")


@pytest.mark.parametrize("level", IsolationLevel)
def test_a_reader_of_a_closed_store_says_so(world: StoreWorld, level: IsolationLevel) -> None:
    store = world.holding("a=1", "b=2")
    reader = store.reader(level)
    store.close()
    assert not reader.is_open()
    for use in (reader.get, reader.prefix_scan, lambda key: reader.get_many([key]), reader.range):
        with pytest.raises(StoreClosed, match="store 'prices' is closed"):
            use(world.key("a"))
    with pytest.raises(StoreClosed, match="store 'prices' is closed"):
        reader.approximate_num_entries()


# Threads.


class Crowd:
    """Threads that read until told to stop or refused; what they saw, without repeats, and why
    they ended."""

    def __init__(self, looks: list[Callable[[], object]]) -> None:
        self.seen: list[list[Any]] = [[] for _ in looks]
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, args=(look, seen))
            for look, seen in zip(looks, self.seen, strict=True)
        ]

    def have_seen(self, count: int) -> bool:
        """Whether each has seen so many different things, or one has ended."""
        return bool(self.errors) or all(len(seen) >= count for seen in self.seen)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.have_seen(1), "every reader has read")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def _read(self, look: Callable[[], object], seen: list[object]) -> None:
        try:
            while not self._stop.is_set():
                found = look()
                if seen[-1:] != [found]:
                    seen.append(found)
        except BaseException as error:  # noqa: BLE001  # whatever ended it is looked at
            self.errors.append(error)


def looks_at(world: StoreWorld, store: Store, level: IsolationLevel) -> list[Callable[[], object]]:
    """All rows of KEYS, at one moment, in three ways; and the last one alone."""
    keys = world.keys(" ".join(KEYS))
    reader = store.reader(level)

    def backwards() -> tuple[str, ...]:
        pairs = list(reader.range(keys[0], keys[-1], reverse=True))
        return tuple(repr(value) for _, value in reversed(pairs))

    return [
        lambda: tuple(map(repr, reader.get_many(keys))),
        lambda: tuple(repr(value) for _, value in reader.all()),
        backwards,
        lambda: repr(reader.get(keys[-1])),
    ]


def is_in_order(seen: list[Any], history: list[Any]) -> bool:
    """Whether all that was seen was, and in this order."""
    moments = iter(history)
    return all(any(moment == look for moment in moments) for look in seen)


@pytest.mark.usefixtures("_threads_take_turns_often")
@pytest.mark.parametrize("level", IsolationLevel)
def test_readers_see_only_moments_that_were_while_the_owner_writes_commits_and_rolls_back(
    world: StoreWorld, level: IsolationLevel
) -> None:
    """Each read is one state the store had at that level: none is torn, none goes back in time."""
    chance = random.Random(4711)
    keys = world.keys(" ".join(KEYS))
    store = world.open()
    committed = dict.fromkeys(keys, world.value("0"))
    store.put_all(committed.items())
    store.commit()
    history = [tuple(map(repr, committed.values()))]
    with Crowd(looks_at(world, store, level)) as crowd:
        deadline = time.monotonic() + DEADLINE_S
        for number in itertools.count(1):
            if number > ROUNDS and crowd.have_seen(STATES):
                break
            assert time.monotonic() < deadline, "the readers see nothing change"
            pending = dict(committed)
            for key in keys:
                pending[key] = world.value(str(number))
                if level is UNCOMMITTED:
                    history.append(tuple(map(repr, pending.values())))
                store.put(key, pending[key])
            if chance.random() < 0.6:
                committed = pending
                history.append(tuple(map(repr, committed.values())))
                store.commit()
            else:
                history.append(tuple(map(repr, committed.values())))
                store.rollback()
    assert crowd.errors == []
    *rows, last_rows = crowd.seen
    for seen in rows:
        assert is_in_order(seen, history)
    assert is_in_order(last_rows, [state[-1] for state in history])


@pytest.mark.usefixtures("_threads_take_turns_often")
@pytest.mark.parametrize("level", IsolationLevel)
def test_readers_end_with_a_clear_error_when_the_owner_closes_under_them(
    world: StoreWorld, level: IsolationLevel
) -> None:
    store = world.open()
    store.put_all((world.key(f"k{i:04}"), world.value(str(i))) for i in range(2000))
    store.commit()
    store.put_all((world.key(f"k{i:04}"), world.value("new")) for i in range(0, 2000, 7))
    reader = store.reader(level)
    keys = world.keys("k0001 k0700 absent")
    looks: list[Callable[[], object]] = [
        lambda: len(list(reader.all())),
        lambda: len(list(reader.range(keys[0], None, reverse=True))),
        lambda: len(reader.get_many(keys * 20)),
        lambda: reader.get(keys[0]) is None,
    ]
    with Crowd(looks) as crowd:
        store.close()
        eventually(lambda: len(crowd.errors) == len(looks), "every reader was refused")
    assert {type(error) for error in crowd.errors} == {StoreClosed}
    assert crowd.seen == [[2000], [1999], [60], [False]]
    with pytest.raises(StoreClosed):
        reader.get(keys[0])


def test_an_iterator_held_by_another_thread_survives_commits_and_ends_with_the_store(
    world: StoreWorld,
) -> None:
    store = world.open()
    store.put_all((world.key(f"k{i:04}"), world.value("old")) for i in range(1000))
    store.commit()
    scan = store.reader(COMMITTED).all()
    found: list[Any] = []
    halfway, changed, closed = threading.Event(), threading.Event(), threading.Event()

    def walk() -> None:
        try:
            for number, (_, value) in enumerate(scan):
                found.append(value)
                if number == 300:
                    halfway.set()
                    changed.wait(DEADLINE_S)
                if number == 600:
                    halfway.set()
                    closed.wait(DEADLINE_S)
        except StoreClosed as error:
            found.append(error)

    walker = threading.Thread(target=walk)
    walker.start()
    assert halfway.wait(DEADLINE_S)
    halfway.clear()
    store.put_all((world.key(f"k{i:04}"), world.value("new")) for i in range(1000))
    store.commit()
    store.delete_range(None, None)
    store.commit()
    changed.set()
    assert halfway.wait(DEADLINE_S)
    store.close()
    closed.set()
    walker.join(DEADLINE_S)
    assert found[:601] == [world.value("old")] * 601
    assert isinstance(found[-1], StoreClosed)
