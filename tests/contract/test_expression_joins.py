"""Joins by expressions do what joins by functions do, failures included, wherever batches end."""

from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.model.ids import TopicPartition
from statestore.testing import TopologyTestDriver
from tests.contract.task_rig import TaskRig
from tests.unit.poison_rig import dropped
from tests.unit.poison_rig import settings as poison_settings

LONG = 2**63
AVRO = {
    "type": "record",
    "name": "Customer",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "level", "type": ["null", "long"], "default": None},
        {"name": "amount", "type": "long"},
    ],
}


class Order(msgspec.Struct):
    amount: int
    note: str | None = None


class Customer(msgspec.Struct):
    """`amount` is a field of orders, too."""

    name: str
    level: int | None
    amount: int


class Rate(msgspec.Struct):
    currency: str
    rate: float


class Twice(msgspec.Struct):
    amount: int
    amount_right: int


class Sale(msgspec.Struct):
    amount: int | None
    name: str | None
    total: int | None
    is_large: bool | None


SALE = serdes.json(Sale)
TABLES: dict[str, ss.Serde[Any]] = {
    "json": serdes.json(Customer),
    "json or null": serdes.json(cast("Any", Customer | None)),
    "avro": serdes.avro(AVRO),
    "avro of a type": serdes.avro(AVRO, Customer),
}
AMOUNT, THEIRS = pl.col("amount"), pl.col("amount_right")
COLUMNS = {
    "amount": AMOUNT,
    "name": pl.col("name"),
    "total": AMOUNT + THEIRS,
    "is_large": pl.col("level") < AMOUNT,
}


def in_64_bits(number: int) -> int:
    if not -LONG <= number < LONG:
        raise OverflowError("a column has 64 bits")
    return number


def sold(order: Order, row: Any) -> Sale:
    """What the expressions say, of one record; a row of plain Avro is a dict."""
    amount = in_64_bits(order.amount)
    if row is None:
        return Sale(amount, None, None, None)
    theirs = row if isinstance(row, dict) else msgspec.structs.asdict(row)
    total = (amount + in_64_bits(theirs["amount"]) + LONG) % (2 * LONG) - LONG
    level = theirs["level"]
    return Sale(amount, theirs["name"], total, None if level is None else amount > level)


def topology(table: ss.Serde[Any], how: Any, *, history: bool, grace: int) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    kept: Any = "customers"
    if history:
        kept = ss.Materialized("customers", history_retention=1_000)
    customers = builder.table("customers", value_serde=table, materialized=kept)
    orders = builder.stream("orders", value_serde=serdes.json(Order))
    inner = orders.join(customers, how, grace=grace, value_serde=SALE, name="join")
    inner.to("inner")
    left = orders.left_join(customers, how, grace=grace, value_serde=SALE, name="left")
    left.to("left")
    return builder.build()


AMOUNTS = st.integers(-5, 5) | st.sampled_from([LONG - 1, -LONG, LONG, 2**64 + 1])
KEYS = st.sampled_from(["a", "b", "c", None])
ORDERS = st.tuples(
    st.just("orders"),
    KEYS,
    st.builds(Order, AMOUNTS) | st.sampled_from([None, b"{}", b"\x00poison"]),
)
CUSTOMERS = st.tuples(
    st.just("customers"),
    st.sampled_from(["a", "b"]),
    st.builds(Customer, st.sampled_from(["ann", ""]), st.none() | st.integers(-5, 5), AMOUNTS)
    | st.none(),
)


def data_of(table: str, value: Any) -> bytes | None:
    if isinstance(value, Order):
        return msgspec.json.encode(value)
    if not isinstance(value, Customer):
        return value  # type: ignore[no-any-return]  # bytes or None
    if table.startswith("avro"):
        number = (value.amount + LONG) % (2 * LONG) - LONG
        value = msgspec.structs.replace(value, amount=number)
    return TABLES[table].serialize(msgspec.structs.asdict(value) if table == "avro" else value)


def results(driver: TopologyTestDriver) -> tuple[Any, ...]:
    letters = [
        (one.key, one.value, one.timestamp_ms, [v for n, v in one.headers if n.endswith("offset")])
        for one in driver.read("dead")
    ]
    told = [[one[:4] for one in driver.read(topic)] for topic in ("inner", "left")]
    return told, dropped(driver), letters


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("history", "grace"), [(False, 0), (True, 0), (True, 3)])
@settings(max_examples=15, deadline=None)
@given(piped=st.lists(st.one_of(CUSTOMERS, ORDERS, ORDERS), min_size=1, max_size=14))
def test_joins_by_expressions_do_what_joins_by_functions_do(
    table: str, history: bool, grace: int, piped: list[Any]
) -> None:
    found = []
    for how, together in ((sold, True), (COLUMNS, True), (COLUMNS, False)):
        made = topology(TABLES[table], how, history=history, grace=grace)
        with TopologyTestDriver(made, poison_settings("dead_letter")) as driver:
            for time, (topic, key, value) in enumerate(piped):
                data = key.encode() if isinstance(key, str) else key
                driver._produce(topic, ss.Record(data, data_of(table, value), time))
                if not together:
                    driver._drain()
            driver._drain()
            found.append(results(driver))
    assert found[0] == found[1] == found[2]


NOTES = st.sampled_from(["a", "b", "c", None])
NOTED = st.tuples(
    st.just("orders"),
    KEYS,
    st.builds(Order, AMOUNTS, NOTES) | st.sampled_from([None, b"{}", b"\x00poison"]),
)


def with_everyone(table: ss.Serde[Any], how: Any, key: Any) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    everyone = builder.global_table("customers", value_serde=table)
    orders = builder.stream("orders", value_serde=serdes.json(Order))
    orders.join(everyone, how, key=key, value_serde=SALE, name="join").to("inner")
    orders.left_join(everyone, how, key=key, value_serde=SALE, name="left").to("left")
    return builder.build()


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=15, deadline=None)
@given(piped=st.lists(st.one_of(CUSTOMERS, NOTED, NOTED), min_size=1, max_size=14))
def test_joins_with_global_tables_do_what_joins_by_functions_do(
    table: str, piped: list[Any]
) -> None:
    found = []
    by_name = pl.col("note")
    for how, key in (
        (sold, lambda _key, order: order.note),
        (sold, by_name),
        (COLUMNS, by_name),
        (COLUMNS, lambda _key, order: order.note),
    ):
        made = with_everyone(TABLES[table], how, key)
        with TopologyTestDriver(made, poison_settings("dead_letter")) as driver:
            for time, (topic, name, value) in enumerate(piped):
                data = None if name is None else name.encode()
                driver._produce(topic, ss.Record(data, data_of(table, value), time))
            driver._drain()
            found.append(results(driver))
    assert all(one == found[0] for one in found)


def test_records_meet_the_rows_of_a_file_by_expressions(tmp_path: Path) -> None:
    rates_file = tmp_path / "rates.jsonl"
    lines = ('{"currency":"EUR","rate":1.5}', '{"currency":"USD","rate":2}')
    rates_file.write_text("\n".join(lines), "utf-8")

    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    rates = builder.lookup(
        str(rates_file),
        key="currency",
        key_serde=serdes.STRING,
        value_serde=serdes.json(Rate),
    )
    orders = builder.stream("orders", value_serde=serdes.json(Order))
    prices = orders.filter(AMOUNT > 0).join(
        rates, {"price": AMOUNT * pl.col("rate")}, key=pl.col("note"), name="price"
    )
    prices.to("prices")
    made = builder.build()
    assert 'key=col("note")' in str(made.describe())
    with TopologyTestDriver(made) as driver:
        for amount, note in ((2, "EUR"), (0, "EUR"), (3, "GBP"), (4, None), (5, "USD")):
            driver.pipe("orders", "k", Order(amount, note))
        assert [one.value.price for one in driver.read("prices")] == [3.0, 10.0]


def test_results_are_json_of_their_types_and_go_on_as_columns() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    customers = builder.table("customers", value_serde=serdes.json(Customer))
    orders = builder.stream("orders", value_serde=serdes.json(Order))
    sales = orders.filter(AMOUNT > 1).join(
        customers, {"amount": AMOUNT + THEIRS, "name": pl.col("name")}, name="join"
    )
    sales.to("sales")
    names = sales.group_by(pl.col("name"), name="by-name")
    totals = names.aggregate(
        {"n": ss.agg.count(), "sum": ss.agg.sum("amount")}, materialized="totals"
    )
    totals.to_stream().to("totals")
    sales.map_values(lambda sale: sale.amount, value_serde=serdes.INT64).to("amounts")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("customers", "a", Customer("ann", 1, 10))
        for amount in (1, 2, 3):
            driver.pipe("orders", "a", Order(amount))
        driver.pipe("orders", "b", Order(7))
        assert [msgspec.to_builtins(one.value) for one in driver.read("sales")] == [
            {"amount": 12, "name": "ann"},
            {"amount": 13, "name": "ann"},
        ]
        assert msgspec.to_builtins(driver.read("totals")[-1].value) == {"n": 2, "sum": 25}
        assert [one.value for one in driver.read("amounts")] == [12, 13]


def test_only_a_record_whose_row_has_too_large_a_number_fails() -> None:
    made = topology(TABLES["json"], COLUMNS, history=False, grace=0)
    with TopologyTestDriver(made, poison_settings("dead_letter")) as driver:
        driver.pipe("customers", "a", Customer("ann", 1, LONG))
        driver.pipe("customers", "b", Customer("bob", 1, 1))
        several = [(key, Order(amount), amount) for amount, key in enumerate("bbabab")]
        driver.pipe_all("orders", several)
        assert [one.value.total for one in driver.read("inner")] == [1, 2, 4, 6]
        assert len(driver.read("dead")) == 2


@pytest.mark.parametrize("how", [sold, COLUMNS], ids=["function", "expressions"])
def test_what_meets_no_row_is_counted(tmp_path: Path, how: Any) -> None:
    rig = TaskRig(topology(TABLES["json"], how, history=False, grace=0), tmp_path)
    row = TABLES["json"].serialize(Customer("ann", 1, 1))
    rig.broker.produce(TopicPartition("customers", 0), ss.Record(b"a", row, 0))
    order = serdes.json(Order).serialize(Order(1))
    for time, key in enumerate([b"a", b"b", b"c", None]):
        rig.broker.produce(TopicPartition("orders", 0), ss.Record(key, order, 1 + time))
    rig.broker.produce(TopicPartition("orders", 0), ss.Record(b"a", None, 9))
    task = rig.start()
    while task.step(0):
        rig.clock.advance(2_000)
    assert task.report.left_out == {
        "unmatched/no_match/join": 2,
        "dropped/null_key_or_value/join": 2,
        "dropped/null_key_or_value/left": 1,
    }
    rig.end()


def test_one_expression_gives_its_result() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    numbers = builder.table("numbers", value_serde=serdes.json(int))
    builder.stream("in", value_serde=serdes.json(int)).left_join(
        numbers, pl.col("value") + pl.col("value_right").fill_null(100)
    ).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("numbers", "a", 5)
        driver.pipe("in", "a", 1)
        driver.pipe("in", "b", 1)
        assert [one.value for one in driver.read("out")] == [6, 101]


def test_what_cannot_be_read_fails_where_only_fields_of_rows_are_named() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    customers = builder.table("customers", value_serde=serdes.json(Customer))
    orders = builder.stream("orders", value_serde=serdes.json(Order))
    orders.join(customers, {"name": pl.col("name")}, name="join").to("names")
    orders.map_values({"one": pl.lit(1)}).to("ones")
    with TopologyTestDriver(builder.build(), poison_settings("dead_letter")) as driver:
        driver.pipe("customers", "a", Customer("ann", 1, 1))
        for value in (b'{"amount":1}', b"poison", b"{}"):
            driver._produce("orders", ss.Record(b"a", value, 0))
        driver._drain()
        assert [one.value.name for one in driver.read("names")] == ["ann"]
        assert len(driver.read("ones")) == 1
        assert [one.value for one in driver.read("dead")] == [b"poison", b"{}"]


def test_rows_that_may_be_null_have_fields() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    maybe: ss.Serde[Any] = serdes.json(cast("Any", Customer | None))
    customers = builder.table("customers", value_serde=maybe)
    orders = builder.stream("orders", value_serde=serdes.json(cast("Any", Order | None)))
    orders.filter(AMOUNT > 0).left_join(customers, pl.col("name"), name="join").to("names")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("customers", "a", Customer("ann", 1, 1))
        for key, amount in (("a", 1), ("a", 0), ("b", 2)):
            driver.pipe("orders", key, Order(amount))
        assert [one.value for one in driver.read("names")] == ["ann", None]


def test_expressions_take_the_place_of_a_function_that_is_deployed() -> None:
    json = TABLES["json"]
    deployed = topology(json, sold, history=True, grace=3)
    anew = topology(json, COLUMNS, history=True, grace=3)
    assert anew.fingerprint() == deployed.fingerprint()


def test_the_description_says_how_rows_are_joined() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    customers = builder.table("customers", value_serde=serdes.json(Customer))
    orders = builder.stream("orders", value_serde=serdes.json(Order))
    orders.join(customers, {"total": AMOUNT + THEIRS}, name="join").to("out")
    assert 'total=[(col("amount")) + (col("amount_right"))]' in str(builder.build().describe())


def test_what_cannot_be_joined_by_expressions_is_refused_with_the_way_out() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.json(Order))
    orders, plain = builder.stream("orders"), builder.table("plain", value_serde=serdes.JSON)
    customers = builder.table("customers", value_serde=serdes.json(Customer))
    everyone = builder.global_table("everyone", value_serde=serdes.json(Customer))
    twice: Any = builder.table("twice", value_serde=serdes.json(Twice))
    more, join = builder.stream("more"), cast("Any", orders.join)
    cases: list[tuple[Any, str]] = [
        (
            lambda: join(customers, {"x": pl.col("nname")}, name="join"),
            r"join 'join': .* no column 'nname' in JSON\(Order\) and JSON\(Customer\), which",
        ),
        (lambda: join(customers, {"x": pl.col("name_right")}), "no column 'name_right'"),
        (lambda: join(customers, {"x": pl.col("name") + 1}), "does not fit the columns"),
        (lambda: join(twice, {"x": THEIRS}), "'amount_right' could be a field of either side"),
        (lambda: join(customers, {}), "the dict has no expressions"),
        (lambda: join(customers, {"x": THEIRS.sum()}), "row by row"),
        (
            lambda: join(plain, {"x": AMOUNT}),
            r"the table's value has the serde JSON.*to the table, or use a function",
        ),
        (lambda: join(everyone, {"x": AMOUNT}), "pass key="),
        (
            lambda: join(everyone, {"x": AMOUNT}, key=AMOUNT, name="join"),
            r"key of join 'join': col\(\"amount\"\) is Int64, which is not STRING",
        ),
        (lambda: join(everyone, sold, key=pl.col("nname")), "key of join: .* no column 'nname'"),
        (lambda: join(customers, sold, key=pl.col("note")), "only a global table is joined by key"),
        (
            lambda: join(more, {"x": AMOUNT}, ss.JoinWindows(5)),
            "rows of a table.*function",
        ),
        (
            lambda: join(customers, {"amount": AMOUNT}, value_serde=SALE),
            "lacks the field",
        ),
    ]
    for attempt, message in cases:
        with pytest.raises(Misuse, match=message):
            attempt()
