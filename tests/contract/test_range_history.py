"""Ranges of keys over a range of times (KIP-969): long histories, pending writes, many keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore.errors import Misuse, StoreClosed
from statestore.stores.versioned.store import TransactionalVersionedStore

LONG = 100
KEYS = [b"%03d" % i for i in range(600)]


@pytest.fixture(params=[True, False], ids=["persistent", "in memory"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[TransactionalVersionedStore[bytes, bytes]]:
    make = (
        ss.persistent_versioned_key_value_store
        if request.param
        else ss.in_memory_versioned_key_value_store
    )
    opened = ss.open_store(make("rates", 10_000, 700), tmp_path)
    yield opened
    opened.rollback()
    opened.close()


def fill(store: TransactionalVersionedStore[bytes, bytes]) -> None:
    """Every key begins at 1; three keys, far apart, have a version each 10 ms. Half is pending."""
    store.put_all([(key, b"first", 1) for key in KEYS])
    for key in (KEYS[0], KEYS[300], KEYS[599]):
        store.put_all([(key, b"%d" % n, 10 * n) for n in range(1, LONG // 2)])
    store.commit()
    for key in (KEYS[0], KEYS[300], KEYS[599]):
        store.put_all([(key, b"%d" % n, 10 * n) for n in range(LONG // 2, LONG)])
    store.put(KEYS[1], None, 500)
    store.put(KEYS[2], b"late", 7)


@pytest.mark.parametrize("level", ["READ_COMMITTED", "READ_UNCOMMITTED", None])
@pytest.mark.parametrize("span", [(None, None), (205, 795), (995, 5000), (300, 300), (2, 9)])
@pytest.mark.parametrize("descending", [True, False])
def test_a_range_is_the_history_of_each_of_its_keys(
    store: TransactionalVersionedStore[bytes, bytes],
    level: str | None,
    span: tuple[int | None, int | None],
    *,
    descending: bool,
) -> None:
    fill(store)
    reads = store if level is None else store.reader(level)
    expected = [
        (key, one)
        for key in KEYS
        for one in reads.history(key, from_time=span[0], to_time=span[1], descending=descending)
    ]
    assert expected
    with reads.range_history(None, None, *span, descending=descending) as found:
        assert list(found) == expected
    with reads.range_history(KEYS[250], KEYS[310], *span, descending=descending) as found:
        assert list(found) == [row for row in expected if KEYS[250] <= row[0] <= KEYS[310]]


def test_a_scan_of_versions_is_of_the_moment_it_was_opened(
    store: TransactionalVersionedStore[bytes, bytes],
) -> None:
    fill(store)
    for reads in (store, store.reader("READ_UNCOMMITTED"), store.reader("READ_COMMITTED")):
        with reads.range_history(None, None) as found:
            before = list(found)
        with reads.range_history(None, None) as found:
            first = next(found)
            store.put_all([(key, b"new", 2000) for key in KEYS])
            store.commit()
            store.put_all([(key, b"newer", 20_000) for key in KEYS])
            store.commit()  # which expires what is older than 10 000
            assert [first, *found] == before


def test_a_scan_of_versions_ends_with_its_store_and_refuses_times_that_are_swapped(
    tmp_path: Path,
) -> None:
    store = ss.open_store(ss.persistent_versioned_key_value_store("rates", 10_000), tmp_path)
    store.put(b"a", b"1", 1)
    store.commit()
    with pytest.raises(Misuse, match="swap them"):
        store.range_history(None, None, 5, 4)
    assert list(store.range_history(b"b", b"a")) == []
    found = store.range_history(None, None)
    store.close()
    with pytest.raises(StoreClosed):
        next(found)
