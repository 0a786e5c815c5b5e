"""The `put` that processors call does what the one of bytes does, whatever goes before it."""

import dataclasses
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, StoreClosed
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import KeyValueSpec
from tests.builders import memory_store

Store = TransactionalKeyValueStore[Any, Any]
_SPEC: KeyValueSpec[Any, Any] = ss.in_memory_key_value_store("s", value_serde=serdes.INT64)
_TEXTS = dataclasses.replace(_SPEC, value_serde=serdes.STRING)
_KEYS = st.sampled_from([b"", b"a", b"bc", b"def"])
_PUT = st.tuples(st.just("put"), _KEYS, st.sampled_from(["", "a", "text", "a longer text"]))
_AT = st.tuples(st.just("at"), st.sampled_from([None, 0, 4, 2]))
_END = st.tuples(st.just("end"), st.booleans())
_RARE = st.one_of(
    st.tuples(st.just("put"), _KEYS, st.none()),
    st.tuples(st.just("begin")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("rollback")),
)
# Mostly such as the short way is for: no delete is pending, and no savepoint is open.
_STEPS = st.one_of(_PUT, _PUT, _PUT, _PUT, _AT, _AT, _END, _RARE)


class Undone(Exception):
    """Undoes a savepoint."""


def taken(store: Store, steps: list[tuple[Any, ...]], *, short: bool) -> list[Any]:
    """What a store shows after each step."""
    seen, open_units = [], list[Any]()
    with ExitStack() as stack:
        stack.callback(store.staged.close)
        for step in steps:
            match step:
                case ("put", key, value):
                    if short:
                        store.put(key, value)
                    else:
                        type(store).put(store, key, value)
                case ("at", now_ms):
                    assert store.table.times is not None
                    store.table.times.clock.now_ms = now_ms
                case ("begin",):
                    unit = store.staged.savepoint()
                    unit.__enter__()
                    open_units.append(unit)
                case ("end", keeps) if open_units:
                    unit, error = open_units.pop(), None if keeps else Undone()
                    with suppress(Undone):
                        unit.__exit__(error and Undone, error, None)
                case ("commit",):
                    store.table.changes(9)
                    store.table.commit({})
                case ("rollback",):
                    store.staged.rollback()
            shown = [store.get(key) for key in (b"", b"a", b"bc", b"def")]
            staged = store.staged
            pending = staged.uncommitted_bytes(), staged.uncommitted_entries()
            seen.append((shown, pending, store.table.changes(9)))
        while open_units:
            open_units.pop().__exit__(None, None, None)
    return seen


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(_TEXTS, id="most"),
        pytest.param(dataclasses.replace(_TEXTS, row_times=True), id="times are kept"),
        pytest.param(dataclasses.replace(_TEXTS, ttl_ms=3), id="rows expire"),
    ],
)
@given(st.lists(_STEPS, min_size=10, max_size=40))
def test_it_leaves_the_same_rows_times_and_sizes(
    spec: KeyValueSpec[Any, Any], steps: list[tuple[Any, ...]]
) -> None:
    ours, plain = (memory_store(spec, owned_by_task=True) for _ in range(2))
    assert "put" in vars(ours)
    assert taken(ours, steps, short=True) == taken(plain, steps, short=False)


def test_what_does_not_fit_is_misuse_that_names_the_store_and_stages_nothing() -> None:
    store: Store = memory_store(_SPEC, owned_by_task=True)
    assert store.table.times is not None
    store.table.times.clock.now_ms = 1
    for key, value in ((b"k", "text"), ("text", 1), (None, 1), (b"k", 1 << 63)):
        with pytest.raises(Misuse, match="'s'"):
            store.put(key, value)
    assert store.staged.uncommitted_entries() == store.staged.uncommitted_bytes() == 0


def test_a_closed_store_takes_nothing() -> None:
    store: Store = memory_store(_SPEC, owned_by_task=True)
    assert store.table.times is not None
    store.table.times.clock.now_ms = 1
    store.put(b"k", 1)
    store.staged.close()
    for value in (2, None):
        with pytest.raises(StoreClosed):
            store.put(b"k", value)


def test_a_store_of_its_own_has_one_too() -> None:
    store: Store = memory_store(_SPEC)
    assert "put" in vars(store)
    store.put(b"k", 1)
    assert (store.get(b"k"), store.table.changes(9).times) == (1, [9])
    store.close()
    with pytest.raises(StoreClosed):
        store.put(b"k", 2)
