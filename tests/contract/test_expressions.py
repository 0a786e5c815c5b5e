"""Expressions do what functions do, failures included, wherever batches end."""

import datetime as dt
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.testing import TopologyTestDriver
from tests.unit.poison_rig import dropped
from tests.unit.poison_rig import settings as poison_settings

LONG = 2**63


class Order(msgspec.Struct):
    customer: str
    amount: int
    price: float
    at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    note: str | None = None
    paid: bool | None = None


class Bill(msgspec.Struct):
    customer: str | None
    number: int | None
    large: bool | None


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "paid", "type": ["null", "boolean"], "default": None},
    ],
}
SERDES: dict[str, ss.Serde[Any]] = {
    "json": serdes.json(Order),
    "json or null": serdes.json(cast("Any", Order | None)),
    "avro": serdes.avro(AVRO),
    "avro of a type": serdes.avro(AVRO, Order),
}
BILL = serdes.json(Bill)


class Both(NamedTuple):
    """An expression, and what does the same to one record."""

    expression: Any
    function: Callable[[Any], Any]


def field(name: str) -> Both:
    """A column; a function sees null where there is no value, as an expression does."""

    def read(order: Any) -> Any:
        if order is None:
            return None
        value = order[name] if isinstance(order, dict) else getattr(order, name)
        if isinstance(value, int) and not -LONG <= value < LONG:
            raise OverflowError("a column has 64 bits")
        return value

    return Both(pl.col(name), read)


def wrapped(number: int) -> int:
    """An integer of 64 bits, which in Polars begins anew where it ends."""
    return (number + LONG) % (2 * LONG) - LONG


def of_two(one: Both, two: Both, expression: Any, function: Callable[[Any, Any], Any]) -> Both:
    """What is null where one of two is."""

    def call(order: Any) -> Any:
        left, right = one.function(order), two.function(order)
        return None if left is None or right is None else function(left, right)

    return Both(expression(one.expression, two.expression), call)


def literal(value: Any) -> Both:
    return Both(pl.lit(value, pl.Int64 if type(value) is int else None), lambda _order: value)


def both_true(one: Any, two: Any) -> Any:
    if one is False or two is False:
        return False
    return None if one is None or two is None else True


def chosen(test: Both, one: Both, two: Both) -> Both:
    made = pl.when(test.expression).then(one.expression).otherwise(two.expression)

    # Polars computes both sides, so whatever fails in one of them fails.
    def call(order: Any) -> Any:
        sides = one.function(order), two.function(order)
        return sides[0] if test.function(order) else sides[1]

    return Both(made, call)


def length(one: Both) -> Both:
    def call(order: Any) -> Any:
        text = one.function(order)
        return None if text is None else len(text)

    return Both(one.expression.str.len_chars().cast(pl.Int64), call)


def parsed(one: Both) -> Both:
    """Fails for texts that are no numbers."""

    def call(order: Any) -> Any:
        text = one.function(order)
        return None if text is None else int(text)

    return Both(one.expression.cast(pl.Int64), call)


def filled(one: Both, value: Any) -> Both:
    def call(order: Any) -> Any:
        found = one.function(order)
        return value if found is None else found

    return Both(one.expression.fill_null(value), call)


def hour(one: Both) -> Both:
    def call(order: Any) -> Any:
        at = one.function(order)
        return None if at is None else at.hour

    return Both(one.expression.dt.hour().cast(pl.Int64), call)


def is_null(one: Both) -> Both:
    return Both(one.expression.is_null(), lambda order: one.function(order) is None)


def among(one: Both, values: list[Any]) -> Both:
    def call(order: Any) -> Any:
        found = one.function(order)
        return None if found is None else found in values

    return Both(one.expression.is_in(values), call)


TEXTS = st.sampled_from([field("customer"), field("note"), filled(field("note"), "7")])
NUMBERS = st.recursive(
    st.sampled_from([field("amount"), hour(field("at")), parsed(field("note"))])
    | TEXTS.map(length)
    | st.integers(-5, 5).map(literal),
    lambda inner: (
        st.builds(
            lambda a, b: of_two(a, b, pl.Expr.__add__, lambda x, y: wrapped(x + y)), inner, inner
        )
        | st.builds(
            lambda a, b: of_two(a, b, pl.Expr.__mul__, lambda x, y: wrapped(x * y)), inner, inner
        )
        | st.builds(filled, inner, st.integers(-1, 1))
        | st.builds(
            chosen,
            inner.map(lambda a: of_two(a, literal(1), pl.Expr.__gt__, lambda x, y: x > y)),
            inner,
            inner,
        )
    ),
    max_leaves=4,
)
BOOLEANS = st.recursive(
    st.just(field("paid"))
    | st.builds(lambda a, b: of_two(a, b, pl.Expr.__ge__, lambda x, y: x >= y), NUMBERS, NUMBERS)
    | st.builds(is_null, NUMBERS | TEXTS)
    | st.builds(among, TEXTS, st.lists(st.sampled_from(["a", "7", ""]), min_size=1, max_size=2))
    | st.floats(allow_nan=False, allow_infinity=False).map(
        lambda x: of_two(field("price"), literal(x), pl.Expr.__lt__, lambda a, b: a < b)
    ),
    lambda inner: st.builds(
        lambda a, b: Both(
            a.expression & b.expression, lambda o: both_true(a.function(o), b.function(o))
        ),
        inner,
        inner,
    ),
    max_leaves=3,
)


class Program(NamedTuple):
    keep: Both
    drop: Both
    text: Both
    number: Both
    large: Both
    key: Both


EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
PROGRAMS = st.builds(Program, BOOLEANS, BOOLEANS, TEXTS, NUMBERS, BOOLEANS, TEXTS | NUMBERS)
# What fails is small already, and a smaller example takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
ORDERS = st.builds(
    Order,
    st.sampled_from(["a", "b", "", "é"]),
    st.integers(-20, 20) | st.sampled_from([LONG - 1, -LONG, LONG, 2**64, -(10**30)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 2**52).map(lambda us: EPOCH + dt.timedelta(microseconds=us)),
    st.none() | st.sampled_from(["7", "-3", "x", ""]),
    st.none() | st.booleans(),
)
RECORDS = st.tuples(
    st.sampled_from([b"k", None]),
    ORDERS | st.none() | st.sampled_from([b"\x00poison", b"{}", b"null", b'{"customer":1}']),
)


def topology(order: ss.Serde[Any], program: Program, *, columns: bool) -> ss.Topology:
    """The same pipeline of expressions, or of functions."""
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=BILL)
    orders = builder.stream("in", value_serde=order)
    keep, drop, text, number, large, key = program
    names = {"customer": text, "number": number, "large": large}
    if columns:
        some = orders.filter(keep.expression).filter_not(drop.expression)
        parts = some.branch(large.expression, keep.expression)
        made = some.map_values({n: one.expression for n, one in names.items()}, value_serde=BILL)
        grouped = some.group_by(key.expression, key_serde=serdes.JSON, name="by")
    else:
        some = orders.filter(lambda _k, o: keep.function(o)).filter_not(
            lambda _k, o: drop.function(o)
        )
        parts = some.branch(lambda _k, o: large.function(o), lambda _k, o: keep.function(o))
        made = some.map_values(lambda o: bill(names, o), value_serde=BILL)
        grouped = some.group_by(lambda _k, o: key.function(o), key_serde=serdes.JSON, name="by")
    for number_of, part in enumerate(parts):
        part.to(f"part-{number_of}", value_serde=order)
    made.to("out")
    grouped.count("counts").to_stream().to("counted")
    return builder.build()


def bill(names: dict[str, Both], order: Any) -> Any:
    """A bill; none of no order, but what would be in it is computed, as an expression is."""
    made = {name: one.function(order) for name, one in names.items()}
    return None if order is None else Bill(**made)


def results(driver: TopologyTestDriver) -> tuple[Any, ...]:
    # Without offsets: each commit takes one.
    return (
        [one[:4] for one in driver.read("out")],
        [one[:4] for one in driver.read("counted")],
        [[one[:4] for one in driver.read(f"part-{number}")] for number in range(3)],
        dropped(driver),
        [_without_words(one) for one in driver.read("dead")],
    )


def _without_words(letter: "ss.Record[Any, Any]") -> tuple[Any, ...]:
    """A dead letter, less the words of its error."""
    kept = {n: v for n, v in letter.headers if n.endswith(("offset", "topic", "stage", "node"))}
    return letter.key, letter.value, letter.timestamp_ms, kept


def data_of(order: ss.Serde[Any], name: str, value: Any) -> bytes | None:
    if not isinstance(value, Order):
        return value  # type: ignore[no-any-return]  # bytes or None
    if name.startswith("avro"):
        value = msgspec.structs.replace(value, amount=wrapped(value.amount))
    return order.serialize(msgspec.structs.asdict(value) if name == "avro" else value)


@pytest.mark.parametrize(
    ("name", "handler"),
    [
        ("json", "dead_letter"),
        ("json or null", "dead_letter"),
        pytest.param("json", "continue", marks=pytest.mark.thorough),
        pytest.param("avro", "dead_letter", marks=pytest.mark.thorough),
        ("avro of a type", "continue"),
    ],
)
@settings(max_examples=12, deadline=None, phases=PHASES)
@given(program=PROGRAMS, piped=st.lists(RECORDS, min_size=1, max_size=12))
def test_expressions_do_what_functions_do(
    handler: str, name: str, program: Program, piped: list[Any]
) -> None:
    order = SERDES[name]
    found = []
    for columns, together in ((False, True), (True, True), (True, False)):
        made = topology(order, program, columns=columns)
        with TopologyTestDriver(made, poison_settings(handler)) as driver:
            for time, (key, value) in enumerate(piped):
                driver._produce("in", ss.Record(key, data_of(order, name, value), time))
                if not together:
                    driver._drain()
            driver._drain()
            found.append(results(driver))
    assert found[0] == found[1]
    # Counts are told once a commit.
    assert found[1][0] == found[2][0]
    assert found[1][2:] == found[2][2:]


class Numbers(msgspec.Struct):
    x: float
    y: float
    i: int


X, Y, N = pl.col("x"), pl.col("y"), pl.col("i")
OF_NUMBERS = {
    "by a literal": X / 49,
    "floored": X // 49,
    "rest": X % 49,
    "of integers": N / 3,
    "integers by a float": N // 0.7,
    "of a literal": 1 / X,
    "nothing added": X + 0,
    "by a column": X / Y,
    "in a choice": pl.when(X > Y).then(X / 7).otherwise(Y / 11),
    "in a sum": X / 3 + Y / 7,
    "power": X**2 + X.sqrt() + X.log(3),
}
ALL_SORTS = st.floats(-1e18, 1e18) | st.sampled_from([49.0, -0.0, 0.0, 7.0, 1e16])
NUMBERS = st.builds(Numbers, ALL_SORTS, ALL_SORTS, st.integers(-(2**53), 2**53))


@settings(max_examples=20, deadline=None)
@given(values=st.lists(NUMBERS, min_size=2, max_size=12), cut=st.integers(1, 11))
def test_numbers_are_the_same_to_the_last_bit_wherever_batches_end(
    values: list[Numbers], cut: int
) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    rows = builder.stream("in", value_serde=serdes.json(Numbers))
    finite = {name: pl.when(one.is_finite()).then(one) for name, one in OF_NUMBERS.items()}
    rows.map_values(finite).to("out")
    rows.filter(X % 49 > Y % 7).to("kept")
    found = []
    for ends in ([len(values)], [cut, len(values)], range(1, len(values) + 1)):
        with TopologyTestDriver(builder.build()) as driver:
            start = 0
            for end in ends:
                driver.pipe_all("in", [("k", value, 0) for value in values[start:end]])
                start = end
            told = [[repr(one.value) for one in driver.read(topic)] for topic in ("out", "kept")]
            found.append(told)
    assert found[0] == found[1] == found[2]


def mixed(order: ss.Serde[Any], *, columns: bool) -> ss.Topology:
    """Expressions before and behind functions that change what they are given."""
    amount: Any = pl.col("amount")
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=BILL)
    orders = builder.stream("in", value_serde=order)
    if columns:
        some = orders.filter(amount > 1)
    else:
        some = orders.filter(lambda _k, one: one is not None and one.amount > 1)

    def raise_amount(_key: Any, one: Any) -> None:
        one.amount += 10

    first = some.filter(amount > 3) if columns else some.filter(lambda _k, one: one.amount > 3)
    first.to("first", value_serde=order)
    changed = some.peek(raise_amount)
    if columns:
        told = changed.map_values({"number": amount, "customer": pl.col("customer")})
        numbers = told.map_values(pl.col("number"), value_serde=serdes.INT64)
    else:
        numbers = changed.map_values(lambda one: one.amount, value_serde=serdes.INT64)
    numbers.to("numbers")
    sums = some.group_by_key().aggregate({"sum": ss.agg.sum("amount")}, materialized="sums")
    sums.to_stream().to("sums")
    return builder.build()


AMOUNTS = st.lists(st.integers(0, 8), min_size=1, max_size=10)


@pytest.mark.parametrize("name", ["json", "json or null"])
@settings(max_examples=20, deadline=None)
@given(amounts=AMOUNTS, size=st.integers(1, 10))
def test_functions_between_expressions_change_what_later_ones_see(
    name: str, amounts: list[int], size: int
) -> None:
    order = SERDES[name]
    found = []
    for columns, together in ((False, 1), (True, size), (True, 1)):
        with TopologyTestDriver(mixed(order, columns=columns)) as driver:
            for start in range(0, len(amounts), together):
                some = [
                    ("k", Order("c", amount, 0.5, EPOCH), 0)
                    for amount in amounts[start : start + together]
                ]
                driver.pipe_all("in", some)
            told = [[one.value for one in driver.read(topic)] for topic in ("first", "numbers")]
            found.append((told, driver.store("sums").get("k")))
    assert found[0] == found[1] == found[2]
