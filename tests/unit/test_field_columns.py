"""Fields of values are read without the values, until somebody wants these; picks of rows."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import serdes
from statestore.model.batch import Batch, Column
from statestore.model.fields_read import Wanted
from statestore.model.picks import AtPlaces, InPiece, Left, Pick, Where
from statestore.serdes.arrow_forms import TypedForm
from statestore.testing.packed import packed


class Order(msgspec.Struct):
    amount: int
    note: str | None = None


class Priced(msgspec.Struct):
    """The same field, as another type."""

    amount: float


ORDER = serdes.json(Order)
ORDERS = [Order(1), Order(2, "two"), None, Order(4), Order(5, "")]
AMOUNTS, NOTES = [1, 2, None, 4, 5], [None, "two", None, None, ""]


def form() -> TypedForm:
    found = ORDER.arrow_form()
    assert isinstance(found, TypedForm)
    return found


def stored(*, in_columns: bool = False, times: int = 1) -> Column:
    rows = [None if one is None else ORDER.serialize(one) for one in ORDERS * times]
    return Column(raw=packed(rows) if in_columns else rows, serde=ORDER)


def read(column: Column, wanted: Wanted) -> dict[str, list[Any]] | None:
    found = column.fields(form(), wanted.names, wanted)
    return None if found is None else {name: one.to_pylist() for name, one in found.items()}


@pytest.mark.parametrize("in_columns", [False, True])
def test_fields_are_those_of_the_values(in_columns: bool) -> None:
    column, wanted = stored(in_columns=in_columns), Wanted(["amount"])
    assert not column.has_fields
    assert read(column, wanted) == {"amount": AMOUNTS}
    assert read(column, Wanted(["note"])) == {"note": NOTES}
    assert wanted.names == {"amount", "note"}, "they are read together next time"
    assert not wanted.objects
    assert column.objects == ORDERS


def test_who_has_had_values_may_have_changed_them() -> None:
    column, wanted = stored(), Wanted(["amount"])
    assert read(column, wanted)
    some = column.picked(AtPlaces([3, 0]))
    assert read(some, Wanted(["amount"])) == {"amount": [4, 1]}
    column.objects[3].amount = 40
    assert read(column, wanted) is None
    assert read(some, Wanted(["amount"])) is None
    assert not some.has_fields
    assert some.objects == [Order(40), Order(1)], "they share what was changed, as always"


def test_values_that_were_wanted_are_decoded_once_from_then_on() -> None:
    wanted = Wanted(["amount"])
    few, many = stored(), stored(times=10)
    assert read(few, wanted)
    assert few.objects == ORDERS
    assert read(many, wanted), "a batch of few tells nothing of those to come"
    assert many.objects == ORDERS * 10
    assert read(stored(times=10), wanted) is None


@pytest.mark.parametrize("in_columns", [False, True])
def test_of_a_few_rows_no_other_values_are_decoded(in_columns: bool) -> None:
    column, wanted = stored(in_columns=in_columns, times=10), Wanted(["amount"])
    assert read(column, wanted)
    one, other = column.picked(AtPlaces([8, 1, 8])), column.picked(AtPlaces([1, 2]))
    assert one.objects == [Order(4), Order(2, "two"), Order(4)]
    assert one.objects[0] is one.objects[2]
    one.objects[1].amount = 20
    assert read(other, wanted) is None, "they may have been changed"
    assert read(column, wanted) is None
    assert other.objects == [Order(20, "two"), None]
    rest = column.picked(InPiece(0, 3))
    assert rest.objects[1] is one.objects[1] is other.objects[0]
    assert column.objects[8] is one.objects[0]
    assert [one for i, one in enumerate(column.objects) if i != 1] == [
        one for i, one in enumerate(ORDERS * 10) if i != 1
    ]
    assert read(stored(times=10), wanted) is None, "all were wanted in the end"


def test_values_of_few_rows_tell_nothing_of_those_to_come() -> None:
    column, wanted = stored(times=10), Wanted(["amount"])
    assert read(column, wanted)
    assert column.picked(AtPlaces([0, 1])).objects == ORDERS[:2]
    assert read(stored(times=10), wanted)


def test_values_of_picked_rows_are_those_of_the_column_whoever_asks_first() -> None:
    column, wanted = stored(), Wanted(["amount"])
    assert read(column, wanted)
    some = column.picked(Where([True, False, False, True, True])).picked(InPiece(1, 3))
    assert read(some, Wanted(["note", "amount"])) == {"note": [None, ""], "amount": [4, 5]}
    some.objects[0].amount = 40
    assert column.objects[3] is some.objects[0]
    assert read(column, wanted) is None


@pytest.mark.parametrize("in_columns", [False, True])
def test_bytes_of_picked_rows_are_theirs(in_columns: bool) -> None:
    column = stored(in_columns=in_columns)
    assert read(column, Wanted(["amount"]))
    some = column.picked(AtPlaces([1, 2]))
    assert some.encoded(ORDER) == [ORDER.serialize(Order(2, "two")), None]
    assert some.nulls() == [1]
    assert column.picked(AtPlaces([0, 1])).nulls() == []
    assert some.with_serde(serdes.BYTES).objects == some.encoded(ORDER)


@pytest.mark.parametrize("wrong", [b"{}", b"\x00", b"null"])
def test_what_cannot_be_read_leaves_the_column_as_it_was(wrong: bytes) -> None:
    column = Column(raw=[ORDER.serialize(Order(1)), wrong], serde=ORDER)
    wanted = Wanted(["amount"])
    with pytest.raises(msgspec.MsgspecError):
        column.fields(form(), ["amount"], wanted)
    assert not column.has_fields
    with pytest.raises(msgspec.MsgspecError):
        _ = column.objects
    assert not wanted.objects


def test_values_are_read_even_if_no_field_is_wanted() -> None:
    column = Column(raw=[b"\x00"], serde=ORDER)
    with pytest.raises(msgspec.MsgspecError):
        column.fields(form(), [], Wanted([]))


def test_fields_of_another_form_are_those_of_the_values() -> None:
    other = serdes.json(Priced).arrow_form()
    assert isinstance(other, TypedForm)
    column, wanted = stored(), Wanted(["amount"])
    assert read(column, wanted)
    assert column.fields(other, ["amount"], Wanted(["amount"])) is None
    assert column.picked(AtPlaces([0])).fields(other, ["amount"]) is None
    assert read(column, wanted) == {"amount": AMOUNTS}


def test_a_batch_may_pass_many_filters() -> None:
    column, count = stored(), 3_000
    assert read(column, Wanted(["amount"]))
    batch = Batch(column, column, [0] * 5, offsets=[7, 8, 9, 10, 11])
    for _ in range(count):
        batch = batch.take(range(5))
    assert batch.values.has_fields
    assert batch.offsets is not None
    assert batch.offsets[-1] == 11
    assert batch.values.objects == ORDERS
    assert batch.keys.encoded(ORDER) == column.encoded(ORDER)


def test_a_number_of_more_than_64_bits_is_none_of_arrow() -> None:
    column = Column(raw=[ORDER.serialize(Order(2**63))], serde=ORDER)
    with pytest.raises(OverflowError):
        column.fields(form(), ["amount"], Wanted(["amount"]))
    assert read(column, Wanted(["note"])) == {"note": [None]}


def test_arrays_of_types_that_arrow_does_not_pick_are_made_again() -> None:
    column = Column(raw=[b"a", b"b", b"c"])
    column.keep_arrow(pa.array(["a", "b", "c"], pa.string_view()))
    for pick in (Where([True, False, True]), AtPlaces([0, 2]), Left([1])):
        assert column.picked(pick).objects == [b"a", b"c"]


PICKS = st.lists(st.booleans(), min_size=1, max_size=30).flatmap(
    lambda mask: st.tuples(
        st.just(len(mask)),
        st.sampled_from(
            [
                Where(mask),
                Where(np.array(mask, np.bool_)),
                AtPlaces([i for i, one in enumerate(mask) if one]),
                AtPlaces([i for i, one in enumerate(mask) if one][::-1]),
                Left([i for i, one in enumerate(mask) if one]),
                InPiece(len(mask) // 3, len(mask) - 1),
            ]
        ),
    )
)


@given(PICKS)
def test_a_pick_takes_the_same_rows_of_lists_columns_and_arrays(given: tuple[int, Pick]) -> None:
    count, pick = given
    rows = [b"%d" % i for i in range(count)]
    found = pick.rows(rows)
    assert list(pick.rows(packed(rows))) == found
    assert pick.of_array(pa.array(rows)).to_pylist() == found
    keys, values, offsets = Column(raw=packed(rows)), Column(objects=list(rows)), range(100, 130)
    batch = Batch(keys, values, list(range(count)), offsets=offsets[:count])
    picked = batch._picked(pick)
    assert picked.keys.objects == picked.values.objects == found
    assert picked.offsets is not None
    assert [b"%d" % (one - 100) for one in picked.offsets] == found
    assert [b"%d" % one for one in picked.timestamps] == found
