"""Counts and sums by numpy are those of one step for each record, or none at all."""

import operator
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statestore import serdes
from statestore.model.batch import Column, MadeColumn
from statestore.model.picks import InPiece
from statestore.serdes.arrow_forms import TypedForm
from statestore.topology.aggregates import totals
from statestore.topology.aggregates.folds import Values

END = 1 << 63
INTS = st.integers(-10, 10) | st.integers(-END, END - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


class Order(msgspec.Struct):
    amount: int
    price: float
    note: str | None = None


class Other(msgspec.Struct):
    amount: int


ORDER = serdes.json(Order)


def one_by_one(rows: list[int], amounts: list[Any], states: list[Any]) -> list[Any]:
    found = list(states)
    for row, amount in zip(rows, amounts, strict=True):
        found[row] = operator.add(found[row], amount)
    return found


def rows_of(states: list[Any], draw: Callable[[Any], Any], numbers: st.SearchStrategy[Any]) -> Any:
    rows = draw(st.lists(st.integers(0, len(states) - 1), min_size=1, max_size=20))
    return rows, draw(st.lists(numbers, min_size=len(rows), max_size=len(rows)))


@given(st.data(), st.lists(INTS, min_size=1, max_size=6))
def test_sums_of_ints_are_exact_or_left_to_python(data: st.DataObject, states: list[int]) -> None:
    rows, amounts = rows_of(states, data.draw, INTS)
    found = totals.sums_of_ints(np.array(rows), np.array(amounts, np.int64), states)
    wanted = one_by_one(rows, amounts, states)
    assert found in (None, wanted)
    if max(map(abs, (*states, *amounts))) <= 10:
        assert found == wanted
        assert {type(one) for one in found or ()} == {int}


@given(st.data(), st.lists(FLOATS, min_size=1, max_size=6))
def test_sums_of_floats_are_added_in_the_order_of_records(
    data: st.DataObject, states: list[float]
) -> None:
    rows, amounts = rows_of(states, data.draw, FLOATS)
    found = totals.sums_of_floats(np.array(rows), np.array(amounts), states)
    wanted = one_by_one(rows, amounts, states)
    if np.isfinite(wanted).all():
        assert list(map(repr, found or ())) == list(map(repr, wanted))
    else:
        assert found is None


@given(st.data(), st.lists(st.integers(0, END), min_size=1, max_size=6))
@example(None, [END - 1])
def test_counts_are_exact_or_left_to_python(data: Any, states: list[int]) -> None:
    rows = [0] if data is None else rows_of(states, data.draw, st.just(1))[0]
    found = totals.counts(np.array(rows), None, states)
    wanted = one_by_one(rows, [1] * len(rows), states)
    assert found in (None, wanted)
    assert found is not None or max(wanted) >= END - 20


@pytest.mark.parametrize("most", [END - 1, END, -END - 1])
def test_a_total_beyond_64_bits_is_left_to_python(most: int) -> None:
    one = np.array([1 if most > 0 else -1], np.int64)
    assert totals.sums_of_ints(np.array([0]), one, [most]) is None


def test_a_state_that_is_an_integer_is_no_sum_of_floats() -> None:
    assert totals.sums_of_floats(np.array([0]), np.array([0.5]), [0]) is None


ORDERS = [Order(1, 0.5), Order(2, 1.5, "two"), Order(3, 2.5)]


def made(orders: list[Order]) -> MadeColumn:
    form = ORDER.arrow_form()
    assert isinstance(form, TypedForm)
    column = form.decode([ORDER.serialize(one) for one in orders])
    return MadeColumn(column, form.objects, ORDER, form)


@pytest.mark.parametrize(
    "column", [made(ORDERS), Column(objects=list(ORDERS))], ids=["made", "read"]
)
@pytest.mark.parametrize("places", [None, [0, 2], []])
def test_numbers_are_those_of_the_objects(column: Column, places: list[int] | None) -> None:
    some = ORDERS if places is None else [ORDERS[at] for at in places]
    values = Values(column, places)
    assert values.objects == some
    for name, kind in (("amount", int), ("price", float)):
        take = operator.attrgetter(name)
        found = values.numbers(ORDER, name, take, kind)
        if some:
            assert found is not None
            assert found.dtype == (np.int64 if kind is int else np.float64)
            assert found.tolist() == list(map(take, some))
        assert values.numbers(ORDER, "note", operator.attrgetter("note"), kind) is None


def test_numbers_of_rows_that_were_picked_are_theirs() -> None:
    column = made(ORDERS).picked(InPiece(1, 3))
    found = Values(column).numbers(ORDER, "amount", operator.attrgetter("amount"), int)
    assert found is not None
    assert found.tolist() == [2, 3]


def test_numbers_are_those_of_objects_that_somebody_had_or_of_another_serde() -> None:
    column, take = made(ORDERS), operator.attrgetter("amount")
    assert column.unread(ORDER) is not None
    assert column.unread(serdes.json(Other)) is None
    for one in column.objects:
        one.amount += 10
    assert column.unread(ORDER) is None
    found = Values(column).numbers(ORDER, "amount", take, int)
    assert found is not None
    assert found.tolist() == [11, 12, 13]


@pytest.mark.parametrize(
    "amounts", [[1, None], [1, 2.0], [1, True], [1, END], [1.0, 2.0], ["1", 2], [np.int64(1), 2]]
)
def test_what_is_no_column_of_integers_is_none(amounts: list[Any]) -> None:
    objects = [Order(one, 0.0) for one in amounts]
    take = operator.attrgetter("amount")
    assert Values(Column(objects=objects)).numbers(ORDER, "amount", take, int) is None
    assert Values(Column(objects=[*ORDERS, None])).numbers(ORDER, "amount", take, int) is None


def test_a_column_with_nulls_or_of_another_type_is_none() -> None:
    form = ORDER.arrow_form()
    assert form is not None
    for column in (pa.array([1, None]), pa.array([1], pa.int32()), pa.array([1.0])):
        whole = MadeColumn(column, list, serdes.INT64, form)
        assert Values(whole).numbers(serdes.INT64, None, lambda value: value, int) is None
    whole = MadeColumn(pa.array([1, 2]), list, serdes.INT64, form)
    found = Values(whole).numbers(serdes.INT64, None, lambda value: value, int)
    assert found is not None
    assert found.tolist() == [1, 2]
