"""One contract for key-value stores, persistent and in memory, in bytes and typed (S1, S13, S8)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, SerdeMismatch, StoreClosed
from tests.contract.store_worlds import WORLDS, Store, StoreWorld

# Committed, pending, and what the owner then sees. A key alone is a pending delete.
SEEN = [
    ("", "", ""),
    ("a=1 b=2", "", "a=1 b=2"),
    ("", "a=1 b=2", "a=1 b=2"),
    ("a=1", "b=2", "a=1 b=2"),
    ("b=2", "a=1", "a=1 b=2"),
    ("a=1 b=2", "a=3", "a=3 b=2"),
    ("a=1 b=2", "a", "b=2"),
    ("a=1 b=2", "a b", ""),
    ("a=1 b=2", "a a=3", "a=3 b=2"),
    ("a=1 b=2", "a=3 a", "b=2"),
    ("a=1 c=3", "absent b=2 c", "a=1 b=2"),
    ("a= b=2", "b=", "a= b="),
]
LETTERS = "a=1 b=2 c=3 d=4 e=5"
RANGES = [
    (None, None, "a=1 b=2 c=3 d=4 e=5"),
    ("b", "d", "b=2 c=3 d=4"),
    ("b", "b", "b=2"),
    (None, "b", "a=1 b=2"),
    ("d", None, "d=4 e=5"),
    ("d", "b", ""),
    ("bb", "bz", ""),
    ("aa", "cc", "b=2 c=3"),
    ("f", None, ""),
    (None, "A", ""),
]


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    with StoreWorld(*WORLDS[request.param], tmp_path) as made:
        yield made


# Reads and writes: pending over committed.


@pytest.mark.parametrize(("committed", "pending", "seen"), SEEN)
def test_the_owner_sees_pending_writes_over_committed_ones(
    world: StoreWorld, committed: str, pending: str, seen: str
) -> None:
    store = world.holding(committed, pending)
    expected = dict(world.pairs(seen))
    keys = world.keys("a b c absent")
    assert world.shown(store.all()) == seen
    assert [store.get(key) for key in keys] == [expected.get(key) for key in keys]
    assert [key in store for key in keys] == [key in expected for key in keys]
    assert store.get_many(keys) == [expected.get(key) for key in keys]
    store.commit()
    assert world.shown(store.all()) == seen
    assert store.get_many(keys) == [expected.get(key) for key in keys]


def test_get_gives_the_default_where_there_is_nothing_also_for_a_pending_delete(
    world: StoreWorld,
) -> None:
    store = world.holding("a=1 b=2", "b")
    a, b, absent = world.keys("a b absent")
    fallback = world.value("fallback")
    assert store.get(a, fallback) == world.value("1")
    assert (store.get(b, fallback), store.get(absent, fallback)) == (fallback, fallback)


def test_get_many_keeps_the_order_asked_for_repeats_and_gaps_included(world: StoreWorld) -> None:
    store = world.holding("a=1 b=2", "c=3 a=4")
    found = store.get_many(world.keys("c x a b a c"))
    texts = [value and world.shown([(world.key("k"), value)]) for value in found]
    assert texts == ["k=3", None, "k=4", "k=2", "k=4", "k=3"]
    assert store.get_many([]) == []
    assert store.get_many(iter(world.keys("a"))) == [world.value("4")]


def test_put_all_lets_the_last_of_a_key_win_and_takes_deletes(world: StoreWorld) -> None:
    store = world.holding("a=1 b=2 c=3")
    store.put_all(world.pairs("a=4 b a=5 d=6"))
    assert world.shown(store.all()) == "a=5 c=3 d=6"


def test_put_all_stages_all_or_nothing(world: StoreWorld) -> None:
    store = world.holding("a=1")
    misfit = object()
    with pytest.raises(SerdeMismatch, match=r"'prices'.*value is object.*value_serde="):
        store.put_all([*world.pairs("a=2 b=3"), (world.key("c"), misfit)])
    assert world.shown(store.all()) == "a=1"
    assert store.approximate_num_uncommitted_entries() == 0


def test_put_all_of_many_is_the_same_as_many_puts(world: StoreWorld) -> None:
    store = world.holding("k05=old k50=old", "k06=old")
    store.put_all(world.pairs(" ".join(f"k{i:02}={i}" for i in range(60))))
    assert world.shown(store.all()) == " ".join(f"k{i:02}={i}" for i in range(60))
    assert store.approximate_num_uncommitted_entries() == 60


def test_put_if_absent_writes_only_where_nothing_is_and_gives_what_was(world: StoreWorld) -> None:
    store = world.holding("a=1 b=2", "b c=3")
    found = [store.put_if_absent(key, world.value("new")) for key in world.keys("a b c d")]
    assert found == [world.value("1"), None, world.value("3"), None]
    assert world.shown(store.all()) == "a=1 b=new c=3 d=new"


def test_delete_gives_what_was_there_and_discard_nothing(world: StoreWorld) -> None:
    store = world.holding("a=1 b=2 e=5", "c=3 b")
    found = [store.delete(key) for key in world.keys("a b c d")]
    assert found == [world.value("1"), None, world.value("3"), None]
    store.discard(world.key("e"))
    store.discard(world.key("absent"))
    assert world.shown(store.all()) == ""


def test_an_empty_value_is_a_value_and_none_is_a_delete(world: StoreWorld) -> None:
    store = world.holding("a= b=2")
    assert store.get(world.key("a")) == world.value("")
    store.put(world.key("b"), world.value(""))
    store.put(world.key("a"), None)
    store.commit()
    assert world.shown(store.all()) == "b="


def test_an_empty_key_is_a_key_and_the_first(world: StoreWorld) -> None:
    store = world.holding("=0 a=1", "b=2")
    assert store.get(world.key("")) == world.value("0")
    assert world.shown(store.range(None, world.key(""))) == "=0"
    assert world.shown(store.all()) == "=0 a=1 b=2"
    assert world.shown(store.prefix_scan(world.key(""))) == "=0 a=1 b=2"


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.get(None),
        lambda s: s.put(None, None),
        lambda s: s.put_all([(None, None)]),
        lambda s: s.delete(None),
        lambda s: None in s,
        lambda s: s.get_many([None]),
        lambda s: s.prefix_scan(None),
    ],
    ids=["get", "put", "put_all", "delete", "in", "get_many", "prefix_scan"],
)
def test_a_key_of_none_is_refused(world: StoreWorld, use: Callable[[Store], object]) -> None:
    with pytest.raises(Misuse, match="'prices': the key is None"):
        use(world.open())


def test_a_key_or_value_of_another_type_is_refused_at_once(world: StoreWorld) -> None:
    store = world.open()
    with pytest.raises(SerdeMismatch, match=r"key is int.*key_serde="):
        store.put(3, world.value("1"))
    with pytest.raises(SerdeMismatch, match=r"key is int.*key_serde="):
        store.get(3)
    with pytest.raises(SerdeMismatch, match=r"value is object.*value_serde="):
        store.put(world.key("a"), object())
    assert store.approximate_num_uncommitted_entries() == 0


# Ranges and prefixes.


@pytest.mark.parametrize(("lo", "hi", "seen"), RANGES)
@pytest.mark.parametrize(
    "pending", ["", "a=1 c=3 d=4 e=5", "x y=1"], ids=["none", "over", "beside"]
)
def test_ranges_include_both_ends_and_go_both_ways(
    world: StoreWorld, lo: str | None, hi: str | None, seen: str, pending: str
) -> None:
    store = world.holding(LETTERS, pending.replace("y=1", "y=1 y"))
    low, high = (None if end is None else world.key(end) for end in (lo, hi))
    assert world.shown(store.range(low, high)) == seen
    assert world.shown(store.range(low, high, reverse=True)) == " ".join(reversed(seen.split()))


@pytest.mark.parametrize(("lo", "hi", "deleted"), RANGES)
def test_delete_range_deletes_what_range_shows_and_rollback_brings_it_back(
    world: StoreWorld, lo: str | None, hi: str | None, deleted: str
) -> None:
    store = world.holding("a=1 b=2 c=0 e=5", "c=3 d=4 gone=1 gone")
    store.delete_range(*[None if end is None else world.key(end) for end in (lo, hi)])
    left = [item for item in LETTERS.split() if item not in deleted.split()]
    assert world.shown(store.all()) == " ".join(left)
    store.rollback()
    assert world.shown(store.all()) == "a=1 b=2 c=0 e=5"


KIN = "k=1 key=2 key2=3 key20=4 keyz=5 kez=6 l=7"
PREFIXES = [
    ("key", "key=2 key2=3 key20=4 keyz=5"),
    ("key2", "key2=3 key20=4"),
    ("ke", "key=2 key2=3 key20=4 keyz=5 kez=6"),
    ("k", "k=1 key=2 key2=3 key20=4 keyz=5 kez=6"),
    ("kf", ""),
    ("", KIN),
]


@pytest.mark.parametrize(("prefix", "seen"), PREFIXES)
@pytest.mark.parametrize("pending", [False, True])
def test_prefix_scans_show_that_prefix_and_no_neighbour(
    world: StoreWorld, prefix: str, seen: str, pending: bool
) -> None:
    store = world.holding("" if pending else KIN, KIN if pending else "")
    assert world.shown(store.prefix_scan(world.key(prefix))) == seen
    backwards = world.shown(store.prefix_scan(world.key(prefix), reverse=True))
    assert backwards == " ".join(reversed(seen.split()))


@pytest.mark.parametrize(("prefix", "deleted"), PREFIXES)
def test_delete_prefix_takes_that_prefix_and_no_neighbour(
    world: StoreWorld, prefix: str, deleted: str
) -> None:
    store = world.holding(KIN, "key2=33 key2=3 kex=8 kex")
    store.delete_prefix(world.key(prefix))
    store.commit()
    left = [item for item in KIN.split() if item not in deleted.split()]
    assert world.shown(store.all()) == " ".join(left)


def test_deleting_a_key_leaves_those_that_begin_with_it(world: StoreWorld) -> None:
    store = world.holding(KIN)
    store.delete(world.key("key"))
    store.delete_range(world.key("k"), world.key("k"))
    assert world.shown(store.all()) == "key2=3 key20=4 keyz=5 kez=6 l=7"


@pytest.mark.parametrize("persistent", [True, False])
def test_prefixes_of_the_highest_bytes_have_an_end_too(tmp_path: Path, persistent: bool) -> None:
    store = StoreWorld(persistent, False, tmp_path).open()
    keys = [b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff\xff\x01"]
    store.put_all([(key, b"v") for key in keys])
    for _ in range(2):
        assert [key for key, _ in store.prefix_scan(b"\xff")] == keys[1:]
        assert [key for key, _ in store.prefix_scan(b"\xff\xff")] == keys[3:]
        assert [key for key, _ in store.prefix_scan(b"\xfe\xff")] == keys[:1]
        store.commit()
    store.delete_prefix(b"\xff\xff")
    assert [key for key, _ in store.all()] == keys[:3]
    store.close()


@pytest.mark.parametrize("persistent", [True, False])
def test_ranges_of_typed_keys_go_by_bytes_and_prefixes_need_an_ordered_serde(
    tmp_path: Path, persistent: bool
) -> None:
    make = ss.persistent_key_value_store if persistent else ss.in_memory_key_value_store
    spec = make("ints", key_serde=serdes.INT64, value_serde=serdes.STRING)
    store: Store = ss.open_store(spec, tmp_path)
    store.put_all([(number, str(number)) for number in (-1, 0, 1, 256)])
    assert [key for key, _ in store.all()] == [0, 1, 256, -1]
    assert [key for key, _ in store.range(1, 256)] == [1, 256]
    for refused in (store.prefix_scan, store.delete_prefix, store.reader().prefix_scan):
        with pytest.raises(Misuse, match="ordered key serde, not INT64"):
            refused(1)
    store.close()


# Iterators are snapshots (S13).


def write(world: StoreWorld, store: Store) -> None:
    store.delete_range(None, None)
    store.put_all(world.pairs("a=new bb=new z=new"))


def commit(_world: StoreWorld, store: Store) -> None:
    store.commit()


def roll_back(_world: StoreWorld, store: Store) -> None:
    store.rollback()


@pytest.mark.parametrize("pending", ["", "b=2 c"], ids=["none pending", "some pending"])
@pytest.mark.parametrize(
    "steps",
    [[write], [write, commit], [commit], [roll_back], [write, roll_back], [commit, write, commit]],
    ids=lambda steps: ", ".join(step.__name__ for step in steps),
)
def test_an_iterator_shows_the_moment_it_was_opened_whatever_comes_later(
    world: StoreWorld, pending: str, steps: list[Callable[[StoreWorld, Store], None]]
) -> None:
    store = world.holding("a=1 c=3 d=4", pending)
    before = world.shown(store.all())
    whole, started, backwards = store.all(), store.all(), store.all(reverse=True)
    first = [next(started)]
    for step in steps:
        step(world, store)
    assert world.shown(whole) == before
    assert world.shown([*first, *started]) == before
    assert world.shown(backwards) == " ".join(reversed(before.split()))


def test_writing_while_iterating_neither_repeats_nor_skips(world: StoreWorld) -> None:
    store = world.holding(" ".join(f"k{i:03}={i}" for i in range(0, 600, 2)), "k001=1")
    seen = []
    for i, (key, _) in enumerate(store.all()):
        seen.append(key)
        store.discard(key)
        store.put(world.key(f"k{i:03}x"), world.value("x"))
        if i % 50 == 0:
            store.commit()
    assert seen == world.keys("k000 k001 " + " ".join(f"k{i:03}" for i in range(2, 600, 2)))


def test_a_closed_iterator_says_so_every_time(world: StoreWorld) -> None:
    store = world.holding("a=1 b=2")
    with store.prefix_scan(world.key("")) as scan:
        next(scan)
    scan.close()
    for _ in range(2):
        with pytest.raises(StoreClosed, match="closed: open a new one"):
            next(scan)
    assert store.get(world.key("a")) == world.value("1")


@pytest.mark.parametrize("pending", ["", "c=3"], ids=["none pending", "some pending"])
def test_an_iterator_of_a_closed_store_says_so_every_time(world: StoreWorld, pending: str) -> None:
    store = world.holding("a=1 b=2", pending)
    scans = [store.all(), store.prefix_scan(world.key("")), store.reader().all()]
    for scan in scans:
        next(scan)
    store.close()
    for scan in [*scans, *scans]:
        with pytest.raises(StoreClosed, match=r"closed: open"):
            next(scan)
        scan.close()


def test_an_exhausted_iterator_stays_exhausted(world: StoreWorld) -> None:
    scan = world.holding("a=1").all()
    assert len(list(scan)) == 1
    assert list(scan) == []


def test_an_iterator_dropped_halfway_harms_nothing(world: StoreWorld) -> None:
    store = world.holding("a=1 b=2")
    for _ in range(50):
        next(store.all())
    store.close()
    assert not store.is_open()


def test_two_stores_in_one_process_do_not_mix(world: StoreWorld) -> None:
    other = StoreWorld(world.persistent, world.typed, world.directory / "other")
    one, two = world.holding("a=1"), other.holding("b=2")
    assert world.shown(one.all()) == "a=1"
    assert world.shown(two.all()) == "b=2"
    two.close()
    assert world.shown(one.all()) == "a=1"
