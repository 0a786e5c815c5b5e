"""Aggregates of ss.agg tell what Python computes of the same values, wherever batches end."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, RecordFailed
from statestore.testing import TopologyTestDriver
from statestore.topology.aggregates import declared, sketches


@pytest.fixture(scope="module", autouse=True)
def in_columns() -> Iterator[None]:
    """A few records are folded as many are, where they can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(declared, "_FEW", 0)
        yield


class Order(msgspec.Struct):
    customer: str
    amount: int
    price: float
    note: str | None = None


ORDER = serdes.json(Order)
SEVERAL = {
    "n": ss.agg.count(),
    "notes": ss.agg.count("note"),
    "total": ss.agg.sum("amount"),
    "prices": ss.agg.sum("price"),
    "mean": ss.agg.mean("amount"),
    "least": ss.agg.min("note"),
    "most": ss.agg.max("amount"),
    "first": ss.agg.first("note"),
    "last": ss.agg.last("note"),
    "all": ss.agg.collect("amount"),
    "distinct": ss.agg.approx_distinct("note"),
}
ABLE = {name: SEVERAL[name] for name in ("n", "notes", "total", "mean", "all")}
GAP = 5


def of_values(orders: list[Order]) -> dict[str, Any]:
    """What Python makes of the orders of a key, in their order."""
    amounts = [one.amount for one in orders]
    notes = [one.note for one in orders if one.note is not None]
    prices = 0.0
    for one in orders:
        prices += one.price
    return {
        "n": len(orders),
        "notes": len(notes),
        "total": sum(amounts),
        "prices": prices,
        "mean": sum(amounts) / len(amounts) if amounts else None,
        "least": min(notes, default=None),
        "most": max(amounts, default=None),
        "first": notes[0] if notes else None,
        "last": notes[-1] if notes else None,
        "all": amounts,
        "distinct": len(set(notes)),
    }


ORDERS = st.builds(
    Order,
    st.sampled_from("ab"),
    st.integers(-5, 5) | st.sampled_from([2**63, -(2**70)]),
    st.floats(-1e9, 1e9),
    st.none() | st.text("xyz", max_size=2),
)
PIPED = st.lists(
    st.tuples(st.sampled_from(["k", "l", None]), ORDERS, st.integers(0, 30)), max_size=14
)
Grouped = ss.KGroupedStream[str, Order]


def by_windows(size: int) -> Callable[[str, list[tuple[Order, int]]], list[list[Order]]]:
    def groups(_key: str, rows: list[tuple[Order, int]]) -> list[list[Order]]:
        found = defaultdict(list)
        for order, time in rows:
            found[time // size].append(order)
        return list(found.values())

    return groups


def whole(_key: str, rows: list[tuple[Order, int]]) -> list[list[Order]]:
    return [[order for order, _ in rows]]


def latest(driver: TopologyTestDriver, topic: str = "out") -> dict[Any, Any]:
    found = {}
    for record in driver.read(topic):
        found[record.key] = record.value
        if record.value is None:
            del found[record.key]
    return {key: msgspec.to_builtins(value) for key, value in found.items()}


@pytest.mark.parametrize(
    ("group", "groups"),
    [
        (lambda g: g, whole),
        (lambda g: g.windowed_by(ss.TumblingWindows(10, grace=100)), by_windows(10)),
    ],
    ids=["by key", "by window"],
)
@settings(max_examples=25, deadline=None)
@given(piped=PIPED, together=st.booleans(), in_order=st.booleans())
def test_results_are_those_of_python(
    group: Callable[[Grouped], Any], groups: Any, piped: list[Any], together: bool, in_order: bool
) -> None:
    piped = sorted(piped, key=lambda row: row[-1]) if in_order else piped
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    grouped = builder.stream("in", value_serde=ORDER).group_by_key()
    group(grouped).aggregate(SEVERAL, materialized="sums", name="sums").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        if together:
            driver.pipe_all("in", piped)
        else:
            for row in piped:
                driver.pipe("in", *row)
        found = sorted(latest(driver).values(), key=repr)
    rows = defaultdict(list)
    for key, order, time in piped:
        rows[key].append((order, time))
    rows.pop(None, None)  # A record without a key counts nowhere.
    wanted = [of_values(some) for key, own in rows.items() for some in groups(key, own)]
    assert found == sorted(wanted, key=repr)


@settings(max_examples=15, deadline=None)
@given(piped=PIPED)
def test_sessions_merge_states(piped: list[Any]) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    grouped = builder.stream("in", value_serde=ORDER).group_by_key()
    sessions = grouped.windowed_by(ss.SessionWindows(GAP, grace=100))
    sessions.aggregate(ABLE, materialized="sums").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe_all("in", piped)
        found = [{**one, "all": sorted(one["all"])} for one in latest(driver).values()]
    rows = defaultdict(list)
    for key, order, time in piped:
        rows[key].append((time, order))
    wanted = []
    rows.pop(None, None)
    for own in rows.values():
        sessions_of: list[list[tuple[int, Order]]] = []
        for time, order in sorted(own, key=lambda row: row[0]):
            if not sessions_of or time - sessions_of[-1][-1][0] > GAP:
                sessions_of.append([])
            sessions_of[-1].append((time, order))
        for one in sessions_of:
            made = of_values([order for _, order in one])
            wanted.append({name: made[name] for name in ABLE} | {"all": sorted(made["all"])})
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


@settings(max_examples=15, deadline=None)
@given(piped=st.lists(st.tuples(st.sampled_from("klm"), ORDERS | st.none()), max_size=12))
def test_groups_of_a_table_follow_its_rows(piped: list[Any]) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    rows = builder.table("in", value_serde=ORDER, materialized="rows")
    groups = rows.group_by(lambda _k, o: (o.customer, o), value_serde=ORDER, name="by")
    groups.aggregate(ABLE, materialized="sums").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for key, order in piped:
            driver.pipe("in", key, order)
        found = latest(driver)
    table = {key: order for key, order in piped if order is not None}
    for key, order in piped:
        table.pop(key, None)
        if order is not None:
            table[key] = order
    seen = {order.customer for _, order in piped if order is not None}
    wanted = {}
    for customer in seen:
        made = of_values([one for one in table.values() if one.customer == customer])
        wanted[customer] = {name: made[name] for name in ABLE}
    for one in (*found.values(), *wanted.values()):
        one["all"] = sorted(one["all"])
    assert found == wanted


@settings(max_examples=40, deadline=None)
@given(piped=PIPED, cuts=st.sets(st.integers(0, 14)), in_order=st.booleans())
@pytest.mark.parametrize(
    "given_",
    [SEVERAL, ss.agg.sum("amount"), ss.agg.min("note")],
    ids=["several", "one", "a least one"],
)
def test_rows_and_their_times_are_the_same_wherever_batches_end(
    given_: Any, piped: list[Any], cuts: set[int], in_order: bool
) -> None:
    piped = sorted(piped, key=lambda row: row[-1]) if in_order else piped
    found = []
    for ends in (sorted(cuts | {len(piped)}), range(1, len(piped) + 1)):
        builder = ss.StreamsBuilder(key_serde=serdes.STRING)
        grouped = builder.stream("in", value_serde=ORDER).group_by_key()
        grouped.aggregate(given_, materialized="sums", name="sums").to_stream().to("out")
        with TopologyTestDriver(builder.build()) as driver:
            start = 0
            for end in ends:
                driver.pipe_all("in", piped[start:end])
                start = max(start, end)
            last = {one.key: one for one in driver.read("out")}
            found.append({key: (one.value, one.timestamp_ms) for key, one in last.items()})
    assert found[0] == found[1]
    if given_ is SEVERAL:
        latest_ms = {key: max(t for k, _, t in piped if k == key) for key in found[0]}
        assert {key: time for key, (_, time) in found[0].items()} == latest_ms


def test_one_aggregate_tells_its_result_and_the_store_keeps_its_state() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    mean = builder.stream("in", value_serde=ORDER).group_by_key()
    mean.aggregate(ss.agg.mean("amount"), materialized="means").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for amount in (1, 2):
            driver.pipe("in", "k", Order("a", amount, 0.0))
        assert [one.value for one in driver.read("out")] == [1.0, 1.5]
        assert msgspec.to_builtins(driver.store("means").get("k")) == {"sum": 3, "count": 2}


def test_a_sum_that_is_no_finite_number_fails_its_record_alone() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    grouped = builder.stream("in", value_serde=ORDER).group_by_key()
    grouped.aggregate(ss.agg.sum("price"), name="sums").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        rows = [("k", Order("a", 1, price), 0) for price in (1.0, 1.7e308, 1.7e308, 2.0)]
        with pytest.raises(RecordFailed, match="node sums, in-0 offset 2: ValueError: inf is no"):
            driver.pipe_all("in", rows)


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        (ss.agg.sum("amuont"), "no field 'amuont' in JSON.Order., which has customer, amount"),
        (ss.agg.sum("note"), r"sum\('note'\): the field 'note' .* is str | None, want numbers"),
        (ss.agg.min(), "the value of JSON.Order. is Order, want numbers, texts"),
        ({}, "the dict has no aggregates"),
        ({"n": len}, "'n' is <built-in function len>, want an aggregate"),
        ({1: ss.agg.count()}, "the name of an aggregate is 1, want a str"),
    ],
)
def test_aggregates_that_do_not_fit_the_values_are_refused(given_: Any, told: str) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    with pytest.raises(Misuse, match=told):
        builder.stream("in", value_serde=ORDER).group_by_key().aggregate(given_)


def test_what_has_no_fields_and_what_is_given_twice_is_refused() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    with pytest.raises(Misuse, match=r"serde JSON, which does not say .*serdes.json.Type"):
        builder.stream("a", value_serde=serdes.JSON).group_by_key().aggregate(ss.agg.sum("x"))
    grouped: Any = builder.stream("in", value_serde=ORDER).group_by_key()
    with pytest.raises(Misuse, match="pass the store as materialized="):
        grouped.aggregate(ss.agg.count(), "store")
    with pytest.raises(Misuse, match="a function is missing"):
        grouped.aggregate(int)
    kept = ss.Materialized("s", value_serde=serdes.INT64)
    with pytest.raises(Misuse, match="leave out value_serde"):
        grouped.aggregate(ss.agg.count(), materialized=kept)


@pytest.mark.parametrize("one", [ss.agg.min("note"), ss.agg.last("note")], ids=str)
def test_a_group_of_a_table_refuses_what_cannot_be_taken_out(one: Any) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    rows = builder.table("in", value_serde=ORDER)
    groups = rows.group_by(lambda _k, o: (o.customer, o), value_serde=ORDER)
    with pytest.raises(Misuse, match=rf"{one.kind}\('note'\) cannot take out a row .* collect"):
        groups.aggregate({"one": one})


def test_a_sketch_counts_many_values_within_its_error_and_merges() -> None:
    halves = []
    for start in (0, 15_000):
        sketch = sketches.Sketch()
        for number in range(start, start + 20_000):
            sketch = sketches.with_value(sketch, f"user {number}")
        halves.append(sketch)
    assert abs(sketches.estimate(halves[0]) - 20_000) < 20_000 * 0.07
    both = sketches.merged(*halves)
    assert both == sketches.merged(*reversed(halves))
    assert abs(sketches.estimate(both) - 35_000) < 35_000 * 0.07


def test_what_is_expressed_can_be_aggregated_and_states_are_read_without_the_pipeline() -> None:
    pl = pytest.importorskip("polars")
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    bills = builder.stream("in", value_serde=ORDER).map_values(
        {"who": pl.col("customer"), "cents": pl.col("amount") * 100}
    )
    summed = bills.group_by(pl.col("who"), name="by")
    summed.aggregate({"cents": ss.agg.sum("cents")}, materialized="sums").to_stream().to("out")
    topology = builder.build()
    with TopologyTestDriver(topology) as driver:
        for amount in (1, 2):
            driver.pipe("in", "k", Order("a", amount, 0.0))
        assert latest(driver) == {"a": {"cents": 300}}
    schema = topology.stores["sums"].value_serde.schema
    assert schema is not None
    assert '"cents":{"type":"integer"}' in schema.text


class Refund(msgspec.Struct):
    amount: int
    reason: str | None


REFUND = serdes.json(Refund)
OF_ORDERS = {"orders": ss.agg.count(), "total": ss.agg.sum("amount"), "last": ss.agg.last("note")}
OF_REFUNDS = {
    "refunds": ss.agg.count(),
    "total": ss.agg.sum("amount"),
    "last": ss.agg.last("reason"),
}
REFUNDS = st.builds(Refund, st.integers(-5, 0), st.none() | st.sampled_from("pq"))
TWO = st.lists(
    st.tuples(st.sampled_from("kl"), ORDERS | REFUNDS, st.integers(0, 30)), max_size=14
).map(lambda rows: sorted(rows, key=lambda row: row[-1]))


def cogrouped(windows: Any, orders: Any = OF_ORDERS, refunds: Any = OF_REFUNDS) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    both: Any = builder.stream("orders", value_serde=ORDER).group_by_key().cogroup(orders)
    both = both.cogroup(builder.stream("refunds", value_serde=REFUND).group_by_key(), refunds)
    if windows is not None:
        both = both.windowed_by(windows)
    both.aggregate(materialized="sums", name="sums").to_stream().to("out")
    return builder.build()


@pytest.mark.parametrize(
    ("windows", "groups"),
    [
        (None, lambda rows: [rows]),
        (
            ss.TumblingWindows(10, grace=100),
            lambda rows: split(rows, lambda a, b: a // 10 != b // 10),
        ),
        (ss.SessionWindows(GAP, grace=100), lambda rows: split(rows, lambda a, b: b - a > GAP)),
    ],
    ids=["by key", "by window", "by session"],
)
@settings(max_examples=25, deadline=None)
@given(piped=TWO)
def test_streams_share_the_aggregates_that_have_one_name(
    windows: Any, groups: Any, piped: list[Any]
) -> None:
    with TopologyTestDriver(cogrouped(windows)) as driver:
        for key, value, time in piped:
            driver.pipe("orders" if isinstance(value, Order) else "refunds", key, value, time)
        found = sorted(latest(driver).values(), key=repr)
    wanted = []
    for key in "kl":
        for rows in groups([(time, one) for k, one, time in piped if k == key]):
            texts = [text_of(one) for _, one in rows if text_of(one) is not None]
            if rows:
                wanted.append(
                    {
                        "orders": sum(isinstance(one, Order) for _, one in rows),
                        "total": sum(one.amount for _, one in rows),
                        "last": texts[-1] if texts else None,
                        "refunds": sum(isinstance(one, Refund) for _, one in rows),
                    }
                )
    assert found == sorted(wanted, key=repr)


def text_of(one: Order | Refund) -> str | None:
    return one.note if isinstance(one, Order) else one.reason


def split(rows: list[Any], apart: Callable[[int, int], bool]) -> list[list[Any]]:
    """Rows in the order of their times, cut where two neighbours are apart."""
    found: list[list[Any]] = []
    for row in rows:
        if not found or apart(found[-1][-1][0], row[0]):
            found.append([])
        found[-1].append(row)
    return found


def test_streams_of_a_cogroup_may_share_one_aggregate() -> None:
    topology = cogrouped(None, ss.agg.mean("amount"), ss.agg.mean("amount"))
    with TopologyTestDriver(topology) as driver:
        driver.pipe("orders", "k", Order("a", 4, 0.0), 0)
        driver.pipe("refunds", "k", Refund(-2, None), 1)
        assert [one.value for one in driver.read("out")] == [4.0, 1.0]


def test_a_dict_that_changes_later_leaves_the_streams_before_as_they_are() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    orders = builder.stream("orders", value_serde=ORDER).group_by_key()
    returns = builder.stream("returns", value_serde=ORDER).group_by_key()
    asked = {"total": ss.agg.sum("amount")}
    both = orders.cogroup(asked)
    asked["returns"] = ss.agg.count()
    both = both.cogroup(returns, asked)
    asked.clear()
    both.aggregate(materialized="sums").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("orders", "k", Order("a", 4, 0.0), 0)
        driver.pipe("returns", "k", Order("a", -1, 0.0), 1)
        assert list(latest(driver).values()) == [{"total": 3, "returns": 1}]


@pytest.mark.parametrize(
    ("refunds", "told"),
    [
        ({"total": ss.agg.count()}, r"'total' is sum\('amount'\) of one stream and count\(\) of"),
        ({"total": ss.agg.sum("reason")}, "the field 'reason' .* want numbers"),
        (ss.agg.count(), "pass one aggregate for each stream, or a dict for each"),
        ({}, "the dict has no aggregates"),
        (lambda _key, _value, total: total, "functions for all streams, or aggregates for all"),
    ],
)
def test_streams_of_a_cogroup_that_do_not_fit_are_refused(refunds: Any, told: str) -> None:
    with pytest.raises(Misuse, match=told):
        cogrouped(None, OF_ORDERS, refunds)
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    grouped: Any = builder.stream("orders", value_serde=ORDER).group_by_key()
    with pytest.raises(Misuse, match=r"aggregates of ss\.agg need no functions"):
        grouped.cogroup(OF_ORDERS).aggregate("sums")
    with pytest.raises(Misuse, match="a function is missing"):
        grouped.cogroup(lambda _key, _value, total: total).aggregate()


class Amount(msgspec.Struct):
    amount: int
    fee: int = 0


AMOUNT = serdes.json(Amount)


@pytest.mark.parametrize("size", [1, 20, 32, 40])
def test_what_a_function_does_to_expressed_values_counts_wherever_batches_end(size: int) -> None:
    def twice(_key: str, value: Any) -> None:
        value.amount *= 2

    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    made = builder.stream("in", value_serde=AMOUNT).map_values({"amount": pl.col("amount")})
    several = {"sum": ss.agg.sum("amount"), "most": ss.agg.max("amount"), "n": ss.agg.count()}
    made.peek(twice).group_by_key().aggregate(several, materialized="sums").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for _ in range(40 // size):
            driver.pipe_all("in", [("k", Amount(1), 0)] * size)
        rest = 40 % size
        driver.pipe_all("in", [("k", Amount(1), 0)] * rest)
        assert latest(driver)["k"] == {"sum": 80, "most": 2, "n": 40}


@pytest.mark.parametrize("count", [1, 40])
def test_values_of_a_merged_stream_that_lack_the_field_fail(count: int) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    one = builder.stream("one", value_serde=AMOUNT)
    other = builder.stream("other", value_serde=AMOUNT).map_values(
        {"x": pl.col("amount"), "fee": pl.col("fee")}
    )
    grouped = one.merge(other).group_by_key()
    grouped.aggregate({"sum": ss.agg.sum("amount")}, materialized="sums").to_stream().to("out")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(RecordFailed, match="has no attribute 'amount'"),
    ):
        driver.pipe_all("other", [("k", Amount(1, 100), 0)] * count)


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_record_of_several_windows_has_one_value(is_seen: bool) -> None:
    def add(_key: str, value: Any, total: int) -> int:
        value.amount += 1
        return total + int(value.amount)

    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    made = builder.stream("in", value_serde=AMOUNT).map_values({"amount": pl.col("amount")})
    if is_seen:
        made = made.peek(lambda _key, _value: None)
    windows = made.group_by_key().windowed_by(ss.HoppingWindows(10, 5))
    windows.aggregate(int, add, ss.Materialized("sums", value_serde=serdes.INT64)).to_stream().to(
        "out"
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", Amount(0), 7)
        assert [one.value for one in driver.read("out")] == [1, 2]
