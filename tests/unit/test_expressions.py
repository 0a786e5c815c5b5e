"""Expressions that cannot work are refused where the pipeline is written, and say why."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import polars as pl
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, RecordFailed, SerdeMismatch
from statestore.testing import TopologyTestDriver
from tests.unit.poison_rig import settings as poison_settings


class Order(msgspec.Struct):
    customer: str
    amount: int
    note: str | None = None


class Total(msgspec.Struct):
    customer: str
    cents: int


AMOUNT, NOTE = pl.col("amount"), pl.col("note")
Orders = ss.KStream[str, Order]


def orders(builder: ss.StreamsBuilder | None = None) -> Orders:
    builder = builder or ss.StreamsBuilder(key_serde=serdes.STRING)
    return builder.stream("orders", value_serde=serdes.json(Order))


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda s: s.filter(pl.col("sum") > 1), "no column 'sum' in JSON.Order., which has cust"),
        (lambda s: s.filter(AMOUNT), "is Int64, want Boolean"),
        (lambda s: s.filter(AMOUNT > "x", name="large"), "filter 'large': .* does not fit"),
        (lambda s: s.filter(AMOUNT.str.contains("x")), "does not fit the columns .amount Int64"),
        (lambda s: s.filter_not(AMOUNT.mean() < AMOUNT), "filter_not: .* aggregates rows"),
        (lambda s: s.filter(AMOUNT.shift(1) > 1), "the function Shift, which does not take each"),
        (lambda s: s.filter(AMOUNT.set_sorted() > 1), "SetSorted.*, which does not take each"),
        (lambda s: s.filter(AMOUNT.is_in(AMOUNT)), "IsIn with a column as its argument"),
        (lambda s: s.filter(pl.lit(pl.Series([True, False]))), "has a series in it"),
        (lambda s: s.filter(pl.col("^amount$") > 1), "names its columns by a pattern"),
        (lambda s: s.filter(pl.all() > 1), "cs.all.* names its columns"),
        (lambda s: s.filter((AMOUNT > 1).filter(AMOUNT > 2)), "of the kind Filter"),
        (lambda s: s.filter(NOTE.drop_nulls() == "x"), "drop_nulls.* row by row"),
        (lambda s: s.filter(pl.len() > 1), "aggregates rows"),
        (lambda s: s.map_values({"n": AMOUNT.sum().over("customer")}), "looks at other rows"),
        (lambda s: s.map_values({"n": NOTE.cast(pl.Categorical)}), "depend on earlier texts"),
        (lambda s: s.map_values({"n": NOTE.str.to_datetime()}), "does not take each row by itself"),
        (lambda s: s.map_values({"n": NOTE.str.split(",").explode()}), "row by row"),
        (
            lambda s: s.map_values({"n": AMOUNT.reinterpret(signed=False)}),
            "Polars says .*a function",
        ),
        (
            lambda s: s.map_values({"n": AMOUNT.map_elements(abs, return_dtype=pl.Int64)}),
            "calls a function of Python",
        ),
        (lambda s: s.map_values({"n": "amount"}), "'n' is a str, want .* pl.col.'amount'."),
        (lambda s: s.map_values({}), "the dict has no expressions"),
        (lambda s: s.map_values({1: AMOUNT}), "the name of an expression is 1, want a str"),
        (lambda s: s.map_values({"n": pl.lit(None)}), "map_values.n is null, for which JSON has"),
        (
            lambda s: s.map_values({"cents": AMOUNT}, value_serde=serdes.json(Total)),
            "the value lacks the field 'customer'",
        ),
        (
            lambda s: s.map_values(
                {"customer": AMOUNT, "cents": AMOUNT}, value_serde=serdes.json(Total)
            ),
            "the value.customer is int64, want large_string",
        ),
        (
            lambda s: s.map_values({"cents": AMOUNT}, value_serde=serdes.JSON),
            "the serde JSON has no columns: leave out value_serde",
        ),
        (lambda s: s.map_values({"n": AMOUNT.cast(pl.Int128)}), "n is Int128, which Arrow lacks"),
        (lambda s: s.group_by(NOTE, key_serde=serdes.INT64), "is String, which is not INT64"),
        (lambda s: s.select_key(pl.struct("note")), "pass key_serde"),
        (
            lambda s: s.map_values(lambda one: one, value_serde=serdes.JSON).filter(AMOUNT > 1),
            "the serde JSON, which says nothing about columns",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
def test_an_expression_that_cannot_work_is_refused(
    write: Callable[[Orders], object], told: str
) -> None:
    with pytest.raises(Misuse, match=told):
        write(orders())


def test_an_expression_of_every_common_kind_is_taken() -> None:
    for one in (
        pl.when(AMOUNT > 1).then(pl.lit("a")).otherwise(NOTE) == "a",
        NOTE.str.contains("x") | NOTE.is_null(),
        pl.coalesce(NOTE, pl.col("customer")).str.len_chars() > 2,
        AMOUNT.is_between(1, 2) & ~AMOUNT.is_in([3, 4]),
        pl.concat_str("customer", "note", separator="-").str.to_uppercase() != "A",
        (AMOUNT // 7 % 3).abs().cast(pl.Float64).round(1).clip(0, 2) < 1,
        NOTE.str.to_datetime("%Y-%m-%d", strict=False).dt.hour() == 3,
        pl.max_horizontal(AMOUNT, AMOUNT * 2) > 1,
        NOTE.replace({"a": "b"}) == "b",
        pl.struct("customer", "note").struct.field("note") == "x",
        NOTE.str.split(",").list.get(0, null_on_oob=True) == "x",
        NOTE.str.json_decode(pl.Struct({"q": pl.Int64})).struct.field("q") > 1,
    ):
        orders().filter(one)


def test_values_of_expressions_are_typed_json_that_later_operators_know() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    made = orders(builder).map_values({"who": pl.col("customer"), "cents": AMOUNT * 100})
    made.filter(pl.col("cents") > 100).map_values(pl.col("cents") + 1).to("cents")
    made.map_values(lambda bill: bill and bill.who, value_serde=serdes.STRING).to("who")
    made.group_by(pl.col("cents")).count("counts").to_stream().to("counts")
    with TopologyTestDriver(builder.build()) as driver:
        for amount in (1, 2, 2):
            driver.pipe("orders", "k", Order("a", amount))
        driver.pipe("orders", "k", None)
        assert [one.value for one in driver.read("cents")] == [201, 201]
        assert driver.read("counts")[-1][:2] == (200, 2)


def test_fields_may_have_any_names_and_lists_are_made_of_columns() -> None:
    names = ["__x", "class", "f0", "f1", "", "a b", "_"]
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    made = orders(builder).map_values({name: AMOUNT + place for place, name in enumerate(names)})
    made.to("out")
    orders(builder).map_values({"both": pl.concat_list("amount", "amount")}).to("lists")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("orders", "k", Order("a", 1))
        assert msgspec.to_builtins(driver.read("out")[0].value) == {
            name: 1 + place for place, name in enumerate(names)
        }
        assert driver.read("lists")[0].value.both == [1, 1]


def test_only_the_record_that_cannot_be_computed_fails() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    orders(builder).map_values({"n": NOTE.cast(pl.Int64)}, name="numbers").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        rows = [("k", Order("a", n, "x" if n == 3 else "1"), n) for n in range(8)]
        with pytest.raises(RecordFailed, match=r"node numbers, orders-0 offset 3: .*conversion"):
            driver.pipe_all("orders", rows)


def test_the_error_of_a_record_tells_of_its_value_alone() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    orders(builder).map_values(NOTE.cast(pl.Int64)).to("out")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(RecordFailed, match=r'for 1 out of 1 values: \["x"\]'),
    ):
        driver.pipe_all("orders", [("k", Order("a", 1, note), 0) for note in ("1", "x")])


def test_integers_of_more_than_64_bits_fail_where_a_column_is_made_of_them() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    orders(builder).filter(pl.col("customer") == "a").to("all")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("orders", "k", Order("a", 2**70))
        assert driver.read("all")[0].value.amount == 2**70
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    orders(builder).filter(AMOUNT > 1).to("all")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(RecordFailed, match="offset 0"),
    ):
        driver.pipe("orders", "k", Order("a", 2**70))


def test_results_without_a_place_in_64_bits_fail_their_records_alone() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    double = AMOUNT.cast(pl.UInt64) * 2
    orders(builder).map_values({"double": double}, name="doubles").to("out")
    rows = [("k", Order("a", amount), amount) for amount in (1, 2**62, 3)]
    with TopologyTestDriver(builder.build(), poison_settings("continue")) as driver:
        driver.pipe_all("orders", rows)
        assert [one.value.double for one in driver.read("out")] == [2, 6]
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(SerdeMismatch, match=r"node doubles, orders-0 offset 1: .* not in range"),
    ):
        driver.pipe_all("orders", rows)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("asked_before", [True, False])
def test_what_a_function_does_to_a_value_reaches_no_topic_wherever_batches_end(
    together: bool, asked_before: bool
) -> None:
    def spoil(_key: str, value: Any) -> None:
        value.n = -value.n

    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    made = orders(builder).map_values({"n": AMOUNT, "note": NOTE}).peek(spoil)
    if asked_before:
        made.to("all")
    made.filter(lambda key, _value: key == "k").to("some")
    rows = [(key, Order("a", amount), amount) for amount, key in enumerate("klk", start=1)]
    with TopologyTestDriver(builder.build()) as driver:
        for piped in [rows] if together else [[row] for row in rows]:
            driver.pipe_all("orders", piped)
        assert [one.value.n for one in driver.read("some")] == [1, 3]


def test_a_description_shows_expressions_and_a_fingerprint_leaves_them_out() -> None:
    found: list[ss.Topology] = []
    for predicate in (AMOUNT > 1, AMOUNT > 2):
        builder = ss.StreamsBuilder(key_serde=serdes.STRING)
        orders(builder).filter(predicate, name="large").to("out")
        found.append(builder.build())
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    orders(builder).filter(lambda _key, one: one.amount > 1, name="large").to("out")
    found.append(builder.build())
    assert 'Processor: large (stores: [], [(col("amount")) > (dyn int: 2)])' in found[1].describe()
    assert len({one.fingerprint() for one in found}) == 1


def test_derived_serdes_travel() -> None:
    made = orders().map_values({"n": AMOUNT, "inner": pl.struct(note=NOTE), "a b": pl.lit(1.5)})
    serde = made._flow.value_serde
    again: ss.Serde[Any] = pickle.loads(pickle.dumps(serde))
    data = b'{"n":1,"inner":{"note":null},"a b":0.5}'
    assert again.serialize(again.deserialize(data)) == data
    assert again.schema == serde.schema


def test_polars_is_not_loaded_unless_an_expression_is_given() -> None:
    code = (
        "import sys, statestore as ss\n"
        "b = ss.StreamsBuilder()\n"
        "b.stream('in').filter(lambda k, v: True).group_by_key().count('n')\n"
        "b.build()\n"
        "assert 'polars' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
