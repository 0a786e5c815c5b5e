"""One contract for key-value stores: commits, rollbacks, units, closing, offsets, reopening.

Shows I8.
"""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statestore.errors import (
    Misuse,
    StoreClosed,
    UncommittedWrites,
)
from statestore.model.ids import Position, TopicPartition
from statestore.stores.pending import ENTRY_COST
from tests.builders import eventually
from tests.contract.store_worlds import WORLDS, Store, StoreWorld

LOG = TopicPartition("shop-prices-changelog", 0)
OTHER = TopicPartition("shop-prices-changelog", 1)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    with StoreWorld(*WORLDS[request.param], tmp_path) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["bytes", "typed"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    """Persistent stores only."""
    with StoreWorld(True, request.param, tmp_path) as made:
        yield made


# Commit and rollback (S2, S3).


def test_a_rollback_drops_the_pending_writes_and_nothing_else(world: StoreWorld) -> None:
    store = world.holding("a=1 b=2", "a=3 b c=4")
    store.rollback()
    assert world.shown(store.all()) == "a=1 b=2"
    assert store.approximate_num_uncommitted_bytes() == 0
    store.put(world.key("c"), world.value("5"))
    store.commit()
    store.rollback()
    assert world.shown(store.all()) == "a=1 b=2 c=5"


def test_pending_bytes_and_entries_grow_with_writes_and_are_nothing_after_a_commit(
    world: StoreWorld,
) -> None:
    store = world.holding("a=1")
    for text in ("b=22", "b=333", "a", "a=4444"):
        (pair,) = world.pairs(text)
        store.put(*pair)
    pending = sum(len(text) for text in ("a", "b")) + 2 * ENTRY_COST
    values = [store.spec.value_serde.serialize(world.value(text)) for text in ("333", "4444")]
    assert store.approximate_num_uncommitted_entries() == 2
    assert store.approximate_num_uncommitted_bytes() == pending + sum(map(len, values))
    assert store.metrics()["uncommitted-bytes"] == store.approximate_num_uncommitted_bytes()
    store.commit()
    assert store.approximate_num_uncommitted_entries() == 0
    assert store.approximate_num_uncommitted_bytes() == 0


def test_the_count_of_entries_knows_rows_and_never_offsets(world: StoreWorld) -> None:
    store = world.open()
    store.commit({LOG: 5, OTHER: 6}, position=Position.of({"in": {0: 3}}))
    assert store.approximate_num_entries() == 0
    store.put_all(world.pairs("a=1 b=2"))
    store.commit({LOG: 7})
    assert store.approximate_num_entries() == 2
    assert store.reader().approximate_num_entries() == 2


def test_offset_rows_are_in_no_scan_and_under_no_key(world: StoreWorld) -> None:
    store = world.holding("a=1 z=2")
    store.commit({LOG: 5}, position=Position.of({"in": {0: 3}}))
    store.delete_prefix(world.key("o"))
    store.delete_prefix(world.key("p"))
    store.delete_prefix(world.key("f"))
    store.commit()
    assert world.shown(store.all()) == "a=1 z=2"
    assert world.shown(store.prefix_scan(world.key(""))) == "a=1 z=2"
    if world.persistent:
        assert store.committed_offset(LOG) == 5
        assert world.reopened().committed_offset(LOG) == 5


# Offsets and position (S4, S14, S15).


@pytest.mark.parametrize("offset", [0, 1, 41, 2**40, 2**63 - 1])
def test_an_offset_is_the_number_given(durable: StoreWorld, offset: int) -> None:
    store = durable.open()
    assert store.committed_offset(LOG) is None
    store.commit({LOG: offset})
    assert store.committed_offset(LOG) == offset
    assert durable.reopened().committed_offset(LOG) == offset


@pytest.mark.parametrize("offset", [-1, -(2**40), 2**63, 1.5, "3"], ids=repr)
def test_a_commit_with_what_is_no_offset_is_refused_and_leaves_all_pending(
    world: StoreWorld, offset: Any
) -> None:
    store = world.holding("a=1")
    store.commit({LOG: 5}, position=Position.of({"in": {0: 1}}))
    store.put(world.key("b"), world.value("2"))
    with pytest.raises(Misuse, match=r"shop-prices-changelog.*pass the offset NEXT to read"):
        store.commit({OTHER: 7, LOG: offset}, position=Position.of({"in": {0: 9}}))
    assert world.shown(store.reader("READ_COMMITTED").all()) == "a=1"
    assert store.position() == Position.of({"in": {0: 1}})
    store.commit({OTHER: 8})
    assert world.shown(store.reader("READ_COMMITTED").all()) == "a=1 b=2"
    if store.persistent():
        assert (store.committed_offset(LOG), store.committed_offset(OTHER)) == (5, 8)


def test_none_clears_the_offset_of_that_partition_and_no_other(durable: StoreWorld) -> None:
    store = durable.open()
    store.commit({LOG: 5, OTHER: 6})
    store.commit({LOG: None})
    for _ in range(2):
        assert (store.committed_offset(LOG), store.committed_offset(OTHER)) == (None, 6)
        store = durable.reopened()


def test_a_commit_without_offsets_keeps_them(durable: StoreWorld) -> None:
    store = durable.open()
    store.commit({LOG: 5})
    store.put(durable.key("a"), durable.value("1"))
    store.commit()
    assert durable.reopened().committed_offset(LOG) == 5


def test_a_rollback_keeps_offsets_and_position_of_the_last_commit(durable: StoreWorld) -> None:
    store = durable.open()
    store.commit({LOG: 5}, position=Position.of({"in": {0: 3}}))
    store.put(durable.key("a"), durable.value("1"))
    store.rollback()
    assert store.committed_offset(LOG) == 5
    assert store.position() == Position.of({"in": {0: 3}})


def test_an_in_memory_store_has_no_committed_offset_but_takes_one(tmp_path: Path) -> None:
    store = StoreWorld(False, False, tmp_path).open()
    store.commit({LOG: 5})
    assert (store.committed_offset(LOG), store.durable_offset(LOG)) == (None, None)
    assert not store.persistent()
    assert StoreWorld(True, False, tmp_path).open().persistent()


def test_positions_of_commits_are_merged(world: StoreWorld) -> None:
    store = world.open()
    assert store.position() == Position()
    store.commit(position=Position.of({"in": {0: 3, 1: 7}}))
    store.commit(position=Position.of({"in": {0: 5, 1: 6}, "more": {0: 1}}))
    store.commit()
    assert store.position() == Position.of({"in": {0: 5, 1: 7}, "more": {0: 1}})


def test_the_durable_offset_is_never_ahead_and_catches_up_at_close(durable: StoreWorld) -> None:
    store = durable.open(settings={"statestore.flush.lag.max.records": 5})
    for offset in range(1, 13):
        store.put(durable.key(f"k{offset}"), durable.value("v"))
        store.commit({LOG: offset})
        reached = offset - offset % 5
        # The commit that reaches the limit does not wait for the flush, the next one does.
        assert (store.durable_offset(LOG) or 0) <= reached
        eventually(lambda: (store.durable_offset(LOG) or 0) == reached, "the flush is done")  # noqa: B023  # called at once
    assert durable.reopened().durable_offset(LOG) == 12


# Units: transaction() (S8).


def test_a_unit_left_normally_merges_into_the_pending_writes_and_commits_nothing(
    world: StoreWorld,
) -> None:
    store = world.holding("a=1", "b=2")
    with store.transaction():
        store.put_all(world.pairs("a=3 c=4"))
        assert world.shown(store.all()) == "a=3 b=2 c=4"
    assert world.shown(store.all()) == "a=3 b=2 c=4"
    assert world.shown(store.reader("READ_COMMITTED").all()) == "a=1"
    store.rollback()
    assert world.shown(store.all()) == "a=1"


def test_a_unit_left_by_an_exception_leaves_nothing_and_keeps_what_was_pending(
    world: StoreWorld,
) -> None:
    store = world.holding("a=1 z=9", "b=2 c=3 z")
    size = store.approximate_num_uncommitted_bytes()
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # the block is the point
        store.put_all(world.pairs("a=4 b c=5 d=6 z=8"))
        raise KeyError
    assert world.shown(store.all()) == "a=1 b=2 c=3"
    assert store.approximate_num_uncommitted_bytes() == size
    assert store.approximate_num_uncommitted_entries() == 3


def test_units_nest(world: StoreWorld) -> None:
    store = world.holding("a=1")
    with store.transaction():
        store.put_all(world.pairs("a=2 b=2"))
        with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # the block is the point
            store.put_all(world.pairs("a=3 b=3 c=3"))
            with store.transaction():
                store.put_all(world.pairs("a=4 d=4"))
            assert world.shown(store.all()) == "a=4 b=3 c=3 d=4"
            raise KeyError
        assert world.shown(store.all()) == "a=2 b=2"
        with store.transaction():
            store.discard(world.key("b"))
    store.commit()
    assert world.shown(store.all()) == "a=2"


def test_an_outer_exception_undoes_inner_units_that_ended_well(world: StoreWorld) -> None:
    store = world.holding("a=1")
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # the block is the point
        store.put_all(world.pairs("a=2 b=2"))
        with store.transaction():
            store.put_all(world.pairs("a=3 b=3 c=3"))
        raise KeyError
    assert world.shown(store.all()) == "a=1"
    assert store.approximate_num_uncommitted_entries() == 0


def test_a_commit_in_a_unit_stays_and_an_exception_undoes_what_came_after(
    world: StoreWorld,
) -> None:
    store = world.holding("a=1")
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # the block is the point
        store.put_all(world.pairs("a=2"))
        store.commit()
        store.put_all(world.pairs("a=3 b=3"))
        raise KeyError
    assert world.shown(store.all()) == "a=2"
    assert store.approximate_num_uncommitted_entries() == 0


def test_a_rollback_in_a_unit_drops_all_that_is_pending(world: StoreWorld) -> None:
    store = world.holding("a=1", "b=2")
    with store.transaction():
        store.put_all(world.pairs("c=3"))
        store.rollback()
        assert world.shown(store.all()) == "a=1"
        store.put_all(world.pairs("d=4"))
    assert world.shown(store.all()) == "a=1 d=4"


def test_closing_the_store_in_a_unit_rolls_back_and_leaving_it_says_so(world: StoreWorld) -> None:
    store = world.holding("a=1")
    with pytest.raises(StoreClosed, match="'prices' is closed"), store.transaction():  # noqa: PT012  # the block is the point
        store.put_all(world.pairs("a=2"))
        store.close()
    if world.persistent:
        assert world.shown(world.open().all()) == "a=1"


# Leaving a store (INTERFACE rule 1).


def test_a_with_block_left_cleanly_with_pending_writes_raises_and_drops_them(
    world: StoreWorld,
) -> None:
    message = re.escape("3 writes to 'prices' not committed: call commit() or rollback()")
    with pytest.raises(UncommittedWrites, match=message) as caught, world.open() as store:
        store.put_all(world.pairs("a=1 b=2 c=3"))
    assert isinstance(caught.value, ValueError)
    assert not world.opened[-1].is_open()
    assert world.shown(world.open().all()) == ""


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_with_block_that_commits_or_rolls_back_is_left_in_peace(
    world: StoreWorld, ending: str
) -> None:
    with world.open() as store:
        store.put_all(world.pairs("a=1"))
        getattr(store, ending)()
    assert not store.is_open()


def test_a_with_block_left_by_an_exception_drops_pending_writes_and_lets_it_pass(
    world: StoreWorld,
) -> None:
    with pytest.raises(ZeroDivisionError), world.open() as store:  # noqa: PT012  # the block is the point
        store.put_all(world.pairs("a=1"))
        store.commit()
        store.put_all(world.pairs("a=2"))
        raise ZeroDivisionError
    assert not world.opened[-1].is_open()
    if world.persistent:
        assert world.shown(world.open().all()) == "a=1"


def test_a_with_block_whose_store_was_closed_inside_is_left_in_peace(world: StoreWorld) -> None:
    with world.open() as store:
        store.put_all(world.pairs("a=1"))
        store.close()


def test_close_drops_pending_writes_with_a_warning_and_may_be_called_twice(
    world: StoreWorld, caplog: pytest.LogCaptureFixture
) -> None:
    store = world.holding("a=1", "b=2 c=3")
    with caplog.at_level(logging.WARNING):
        store.close()
        store.close()
    assert [r.getMessage() for r in caplog.records] == [
        "store 'prices' closed with 2 writes not committed: dropped"
    ]
    if world.persistent:
        assert world.shown(world.open().all()) == "a=1"


def test_a_clean_close_warns_of_nothing(
    world: StoreWorld, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        world.holding("a=1").close()
    assert caplog.records == []


USES: dict[str, Callable[[Store, Any, Any], object]] = {
    "get": lambda s, k, v: s.get(k),
    "in": lambda s, k, v: k in s,
    "get_many": lambda s, k, v: s.get_many([k]),
    "get_many of none": lambda s, k, v: s.get_many([]),
    "range": lambda s, k, v: s.range(k, k),
    "all": lambda s, k, v: s.all(),
    "prefix_scan": lambda s, k, v: s.prefix_scan(k),
    "approximate_num_entries": lambda s, k, v: s.approximate_num_entries(),
    "put": lambda s, k, v: s.put(k, v),
    "put_all": lambda s, k, v: s.put_all([(k, v)]),
    "put_all of none": lambda s, k, v: s.put_all([]),
    "put_if_absent": lambda s, k, v: s.put_if_absent(k, v),
    "delete": lambda s, k, v: s.delete(k),
    "discard": lambda s, k, v: s.discard(k),
    "delete_range": lambda s, k, v: s.delete_range(k, k),
    "delete_prefix": lambda s, k, v: s.delete_prefix(k),
    "commit": lambda s, k, v: s.commit(),
    "rollback": lambda s, k, v: s.rollback(),
    "transaction": lambda s, k, v: s.transaction().__enter__(),
    "reader": lambda s, k, v: s.reader(),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_after_close_is_refused_naming_store_and_way_out(
    world: StoreWorld, use: str
) -> None:
    store = world.holding("a=1")
    store.close()
    with pytest.raises(StoreClosed, match="store 'prices' is closed: open it again") as caught:
        USES[use](store, world.key("a"), world.value("2"))
    assert isinstance(caught.value, ValueError)


def test_flush_is_deprecated_and_commits_nothing(world: StoreWorld) -> None:
    store = world.holding("a=1", "b=2")
    with pytest.warns(DeprecationWarning, match=r"flush\(\) does nothing"):
        store.flush()
    assert store.approximate_num_uncommitted_entries() == 1
    store.rollback()
    assert world.shown(store.all()) == "a=1"
