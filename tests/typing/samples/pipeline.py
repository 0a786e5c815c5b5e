"""A user's pipeline, with the types that checkers must see in it."""

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, assert_type

import msgspec
import polars as pl

import statestore as ss
from statestore import serdes
from statestore.testing import TopologyTestDriver


class Order(NamedTuple):
    customer: str
    cents: int


def read_order(data: bytes) -> Order:
    customer, _, cents = data.decode().partition(":")
    return Order(customer, int(cents))


def write_order(order: Order) -> bytes:
    return f"{order.customer}:{order.cents}".encode()


ORDER = ss.Serde("ORDER", write_order, read_order)
assert_type(ORDER, ss.Serde[Order])


class Invoice(msgspec.Struct):
    total: int


assert_type(serdes.json(Invoice), ss.Serde[Invoice])
assert_type(serdes.json(list[Invoice]), ss.Serde[list[Invoice]])
REGISTRY = ss.SchemaRegistry("http://localhost:8081", auto_register=True, max_retries=1)
assert_type(serdes.avro("{}", Invoice), ss.Serde[Invoice])
assert_type(serdes.avro("{}", Invoice, registry=REGISTRY), ss.Serde[Invoice])
assert_type(serdes.avro(registry=REGISTRY), ss.Serde[Any])
assert_type(serdes.json_schema(None, Invoice), ss.Serde[Invoice])
assert_type(serdes.protobuf(Invoice, registry=REGISTRY), ss.Serde[Invoice])


def write_in_place(order: Order, context: ss.SerdeContext) -> bytes:
    return context.topic.encode() + write_order(order)


IN_PLACE = ss.Serde("IN_PLACE", write_in_place, read_order)
assert_type(IN_PLACE, ss.Serde[Order])
assert_type(IN_PLACE.at("orders", "value").serialize, Callable[[Order], bytes])

# Specs have the types of their serdes, and bytes where they name none.

TOTALS = ss.persistent_key_value_store("totals", key_serde=serdes.STRING, value_serde=serdes.INT64)
RATES = ss.persistent_versioned_key_value_store(
    "rates", timedelta(days=1), key_serde=serdes.STRING, value_serde=serdes.FLOAT64
)
assert_type(TOTALS, ss.KeyValueSpec[str, int])
assert_type(RATES, ss.VersionedSpec[str, float])
assert_type(ss.persistent_key_value_store("raw"), ss.KeyValueSpec[bytes, bytes])
assert_type(ss.key_value_store("raw", in_memory=True), ss.KeyValueSpec[bytes, bytes])
assert_type(
    ss.key_value_store("kv", ttl=timedelta(1), value_serde=serdes.INT64),
    ss.KeyValueSpec[bytes, int],
)
assert_type(
    ss.versioned_key_value_store("v", 10, key_serde=serdes.STRING), ss.VersionedSpec[str, bytes]
)
assert_type(
    ss.window_store("w", 1, retention=9, key_serde=serdes.STRING, value_serde=serdes.INT64),
    ss.WindowSpec[str, int],
)
assert_type(ss.session_store("s", 9, in_memory=True), ss.SessionSpec[bytes, bytes])
assert_type(
    ss.in_memory_key_value_store("by-name", key_serde=serdes.STRING), ss.KeyValueSpec[str, bytes]
)
assert_type(
    ss.in_memory_versioned_key_value_store("v", 10, value_serde=serdes.INT64),
    ss.VersionedSpec[bytes, int],
)
SEEN = ss.persistent_window_store("seen", timedelta(minutes=1), 10**6, key_serde=serdes.STRING)
VISITS = ss.in_memory_session_store(
    "visits", timedelta(hours=1), key_serde=serdes.STRING, value_serde=serdes.INT64
)
assert_type(SEEN, ss.WindowSpec[str, bytes])
assert_type(VISITS, ss.SessionSpec[str, int])
LATER = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
assert_type(
    LATER.stream("later", timestamp_extractor=lambda r, last_ms: max(r.value, last_ms or 0)),
    ss.KStream[str, int],
)
ENDS = ss.timer_store("ends", key_serde=serdes.STRING)
assert_type(ENDS, ss.TimerSpec[str])
assert_type(ss.timer_store("raw-ends"), ss.TimerSpec[bytes])


def timers_of(context: ss.ProcessorContext[str, int]) -> ss.Timers[str]:
    timers = context.timers(ENDS)
    timers.schedule("a", 10, name="b", kind="wall_clock_time")
    timers.cancel("a")
    assert_type(timers.get("a"), ss.Timer[str] | None)
    return timers


assert_type(ss.in_memory_window_store("raw-windows", 1, 1), ss.WindowSpec[bytes, bytes])
assert_type(
    ss.persistent_session_store("raw-sessions", 1, value_serde=serdes.INT64),
    ss.SessionSpec[bytes, int],
)


class Visits:
    """A processor with a window store and a session store."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._seen = context.store(SEEN)
        self._visits = context.store(VISITS)
        assert_type(self._seen, ss.WindowStore[str, bytes])
        assert_type(self._visits, ss.SessionStore[str, int])

    def process(self, record: ss.Record[str, Order]) -> None:
        at = record.timestamp_ms
        self._seen.put(record.key, b"", at)
        assert_type(self._seen.get(record.key, at), bytes | None)
        with self._visits.fetch(record.key, from_time=at, reverse=True) as near:
            for session, count in near:
                assert_type(session, ss.Windowed[str])
                assert_type(count, int)
                self._visits.remove(session)
        self._visits.put(ss.Windowed(record.key, at, at), 1)


class Totals:
    """A processor whose stores and records are typed by its specs and its context."""

    def __init__(self, context: ss.ProcessorContext[str, float]) -> None:
        self._context = context
        self._totals = context.store(TOTALS)
        self._rates = context.store(RATES)
        assert_type(self._totals, ss.KeyValueStore[str, int])
        assert_type(self._rates, ss.VersionedKeyValueStore[str, float])
        assert_type(context.store("totals"), Any)
        assert_type(context.stream_time, int | None)
        context.schedule(timedelta(seconds=1), ss.PunctuationType.STREAM_TIME, self._tick)
        context.schedule(1000, ss.PunctuationType.WALL_CLOCK_TIME, self._tick, at=0)

    def process(self, record: ss.Record[str, Order]) -> None:
        total = self._totals.get(record.key, 0) + record.value.cents
        assert_type(total, int)
        self._totals.put(record.key, total)
        rate = self._rates.get(record.key, as_of=record.timestamp_ms)
        assert_type(rate, ss.VersionedRecord[float] | None)
        if rate is not None:
            made = record.replace(value=total * rate.value)
            assert_type(made, ss.Record[str, float])
            self._context.forward(made)

    def _tick(self, time_ms: int) -> None:
        for key, total in self._totals.all():
            assert_type(key, str)
            self._context.forward(ss.Record(key, float(total), time_ms))


class Sizes:
    """A processor of batches that says nothing about what it forwards."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context = context

    def process_batch(self, records: Sequence[ss.Record[str, Order]]) -> None:
        self._context.forward(ss.Record("size", len(records), records[-1].timestamp_ms))


def add(key: str, order: Order, so_far: list[int]) -> list[int]:
    return [*so_far, order.cents]


def column_of(values: Any) -> Any:
    return values


def later_column_of(keys: Any, values: Any) -> Any:
    return values if keys else None


def topology() -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    assert_type(builder, ss.StreamsBuilder[str, bytes])
    assert_type(ss.StreamsBuilder(), ss.StreamsBuilder[bytes, bytes])
    assert_type(builder.stream("raw"), ss.KStream[str, bytes])
    assert_type(builder.stream(re.compile("raw-.*")), ss.KStream[str, bytes])

    orders = builder.stream(
        "orders", value_serde=ORDER, timestamp_extractor=lambda r: r.value.cents
    )
    assert_type(orders, ss.KStream[str, Order])
    stateless(orders)
    aggregates(orders)
    joins(builder, orders)
    global_joins(builder, orders)
    processors(orders)
    return builder.build()


def by_expressions(orders: ss.KStream[str, Order]) -> None:
    cents = pl.col("cents")
    assert_type(orders.filter(cents > 100), ss.KStream[str, Order])
    assert_type(orders.map_values({"euros": cents / 100}), ss.KStream[str, Any])
    assert_type(orders.map_values({"n": cents}, value_serde=ORDER), ss.KStream[str, Order])
    assert_type(orders.map_values(cents, value_serde=serdes.INT64), ss.KStream[str, int])
    assert_type(orders.select_key(cents), ss.KStream[Any, Order])
    assert_type(orders.select_key(cents, key_serde=serdes.INT64), ss.KStream[int, Order])
    assert_type(orders.group_by(cents), ss.KGroupedStream[Any, Order])
    by_cents = orders.group_by(cents, key_serde=serdes.INT64)
    assert_type(by_cents, ss.KGroupedStream[int, Order])


def stateless(orders: ss.KStream[str, Order]) -> None:
    dear = orders.filter(lambda key, order: order.cents > 100)
    assert_type(dear, ss.KStream[str, Order])
    cents = dear.map_values(lambda order: order.cents)
    assert_type(dear.filter_arrow(column_of), ss.KStream[str, Order])
    in_arrow = dear.map_values_arrow(column_of, value_serde=serdes.INT64)
    assert_type(in_arrow, ss.KStream[str, int])
    assert_type(dear.map_values_arrow(later_column_of), ss.KStream[str, Any])
    assert_type(cents, ss.KStream[str, int])
    by_expressions(orders)
    keyed = dear.map_values(lambda key, order: (key, order.cents))
    assert_type(keyed, ss.KStream[str, tuple[str, int]])
    assert_type(cents.flat_map_values(lambda key, n: [key] * n), ss.KStream[str, str])
    assert_type(cents.map(lambda key, n: (n, key)), ss.KStream[int, str])
    assert_type(cents.flat_map(lambda key, n: [(n, key), (n + 1, key)]), ss.KStream[int, str])
    assert_type(cents.flat_map_values(str), ss.KStream[str, str])
    assert_type(orders.select_key(lambda key, order: order.cents), ss.KStream[int, Order])
    assert_type(cents.peek(lambda key, n: assert_type(n, int)), ss.KStream[str, int])
    assert_type(
        cents.filter_records(lambda record: assert_type(record.key, str)), ss.KStream[str, int]
    )
    assert_type(cents.set_timestamp(lambda record: record.value), ss.KStream[str, int])
    assert_type(
        cents.set_headers(lambda record: [*record.headers, ("n", None)]), ss.KStream[str, int]
    )
    assert_type(cents.merge(cents, dear.map_values(hash)), ss.KStream[str, int])
    assert_type(orders.branch(lambda key, order: order.cents), tuple[ss.KStream[str, Order], ...])
    named = orders.split({"dear": lambda key, order: order.cents > len(key)}, default="cheap")
    assert_type(named, dict[str, ss.KStream[str, Order]])
    assert_type(named["dear"].filter_not(lambda key, order: order.cents), ss.KStream[str, Order])
    cents.to(lambda record: f"{record.key}{record.value + 1}", topics=["a1", "b2"])
    cents.to("c", partitioner=lambda topic, key, n, partitions: (len(topic + key) + n) % partitions)
    again = cents.repartition("r2", partitioner=lambda topic, key, n, count: n % count or None)
    assert_type(again, ss.KStream[str, int])
    # A function may return None for a null value; a serde never gets one.
    maybe = cents.map_values(lambda n: n if n > 1 else None)
    assert_type(maybe, ss.KStream[str, int | None])
    maybe.to("cents", key_serde=serdes.STRING, value_serde=serdes.INT64)
    assert_type(maybe.to_table("latest"), ss.KTable[str, int])
    assert_type(maybe.repartition("r", value_serde=serdes.INT64), ss.KStream[str, int])


def aggregates(orders: ss.KStream[str, Order]) -> None:
    by_key = orders.group_by_key()
    assert_type(by_key, ss.KGroupedStream[str, Order])
    assert_type(by_key.count("counts"), ss.KTable[str, int])
    assert_type(by_key.count(ss.Materialized(TOTALS)), ss.KTable[str, int])
    plain = ss.in_memory_key_value_store("plain", key_serde=serdes.STRING)
    assert_type(by_key.count(ss.Materialized(plain, caching=False)), ss.KTable[str, int])
    assert_type(by_key.reduce(max, "dearest"), ss.KTable[str, Order])
    assert_type(by_key.aggregate(list[int], add, "lists"), ss.KTable[str, list[int]])
    assert_type(by_key.aggregate(ss.agg.mean("cents")), ss.KTable[str, float | None])
    several = by_key.aggregate({"n": ss.agg.count()}, materialized="several")
    assert_type(several, ss.KTable[str, Any])
    longest = by_key.aggregate(lambda: "", lambda key, order, text: max(text, key), "longest")
    assert_type(longest, ss.KTable[str, str])
    sums = by_key.aggregate(
        lambda: 0,
        lambda key, order, total: total + order.cents,
        ss.Materialized("sums", value_serde=serdes.INT64),
    )
    assert_type(sums, ss.KTable[str, int])
    by_cents = orders.group_by(lambda key, order: order.cents, key_serde=serdes.INT64)
    assert_type(by_cents, ss.KGroupedStream[int, Order])
    windows = by_cents.windowed_by(ss.TumblingWindows(timedelta(minutes=1)))
    assert_type(windows, ss.TimeWindowedKStream[int, Order])
    assert_type(windows.count("per-minute"), ss.KTable[ss.Windowed[int], int])
    slides = by_cents.windowed_by(ss.SlidingWindows(timedelta(minutes=5), grace=1000))
    assert_type(slides, ss.TimeWindowedKStream[int, Order])
    hops = by_cents.windowed_by(ss.HoppingWindows(timedelta(minutes=5), timedelta(minutes=1)))
    assert_type(hops, ss.TimeWindowedKStream[int, Order])
    lasts = by_cents.windowed_by(ss.CountWindows.of(5).advance_by(1), emit="on_window_close")
    assert_type(lasts, ss.CountWindowedKStream[int, Order])
    assert_type(lasts.count("lasts"), ss.KTable[int, int])
    sessions = by_cents.windowed_by(ss.SessionWindows(timedelta(minutes=5)), emit="on_window_close")
    assert_type(sessions, ss.SessionWindowedKStream[int, Order])
    assert_type(sessions.count("visits"), ss.KTable[ss.Windowed[int], int])
    spent = sessions.aggregate(
        int, lambda _k, order, total: total + order.cents, lambda _k, a, b: a + b
    )
    assert_type(spent, ss.KTable[ss.Windowed[int], int])

    others = orders.map_values(lambda order: order.cents).group_by_key()
    both = by_key.cogroup(add).cogroup(others, lambda key, cents, total: [*total, cents])
    assert_type(both, ss.CogroupedKStream[str, list[int]])
    assert_type(both.aggregate(list[int], "both"), ss.KTable[str, list[int]])
    hopping = both.windowed_by(ss.HoppingWindows(1000, 100))
    assert_type(hopping, ss.TimeWindowedCogroupedKStream[str, list[int]])
    assert_type(hopping.aggregate(list[int], "hops"), ss.KTable[ss.Windowed[str], list[int]])
    visits = both.windowed_by(ss.SessionWindows(1000))
    assert_type(visits, ss.SessionWindowedCogroupedKStream[str, list[int]])
    merged = visits.aggregate(list[int], lambda key, one, other: one + other, "visits")
    assert_type(merged, ss.KTable[ss.Windowed[str], list[int]])


def global_joins(builder: ss.StreamsBuilder[str, bytes], orders: ss.KStream[str, Order]) -> None:
    prices = builder.global_table("prices", key_serde=serdes.INT64, value_serde=serdes.FLOAT64)
    assert_type(prices, ss.GlobalKTable[int, float])
    tariffs = builder.lookup("tariffs.csv", key="country")
    assert_type(tariffs, ss.GlobalKTable[str, Any])
    weights = builder.lookup("weights.parquet", key="cents", key_serde=serdes.INT64)
    assert_type(weights, ss.GlobalKTable[int, Any])
    known = orders.join(
        prices, lambda order, price: order.cents * price, key=lambda _key, order: order.cents
    )
    assert_type(known, ss.KStream[str, float])
    maybe = orders.left_join(
        prices, lambda key, order, price: (key, price), key=lambda _key, order: order.cents
    )
    assert_type(maybe, ss.KStream[str, tuple[str, float | None]])


def in_time(rates: ss.KTable[str, float], orders: ss.KStream[str, Order]) -> None:
    month = timedelta(days=30)
    dear = rates.filter(lambda _, rate: rate > 1, ss.Materialized("d", history_retention=month))
    assert_type(dear, ss.KTable[str, float])
    rounded = ss.Materialized("r", value_serde=serdes.INT64, history_retention=month)
    assert_type(rates.map_values(round, rounded), ss.KTable[str, int])
    sums = ss.Materialized("b", value_serde=serdes.FLOAT64, history_retention=month)
    assert_type(dear.join(rates, lambda rate, other: rate + other, sums), ss.KTable[str, float])
    recent = orders.join(rates, lambda order, rate: order.cents * rate, tolerance=1000)
    assert_type(recent, ss.KStream[str, float])
    lately = orders.left_join(
        rates, lambda key, order, rate: (key, rate), grace=5, tolerance=timedelta(minutes=1)
    )
    assert_type(lately, ss.KStream[str, tuple[str, float | None]])


def joins(builder: ss.StreamsBuilder[str, bytes], orders: ss.KStream[str, Order]) -> None:
    rates = builder.table("rates", value_serde=serdes.FLOAT64, materialized=ss.Materialized(RATES))
    assert_type(rates, ss.KTable[str, float])
    assert_type(rates.store, str | None)
    priced = orders.join(rates, lambda order, rate: order.cents * rate)
    assert_type(priced, ss.KStream[str, float])
    named = orders.left_join(rates, lambda order, rate: "none" if rate is None else str(rate))
    assert_type(named, ss.KStream[str, str])
    with_key = orders.join(rates, lambda key, order, rate: (key, order.cents, rate))
    assert_type(with_key, ss.KStream[str, tuple[str, int, float]])
    in_time(rates, orders)
    near = ss.JoinWindows(timedelta(minutes=1), grace=1000)
    lengths = orders.map_values(lambda order: order.cents)
    pairs = orders.join(lengths, lambda order, n: (order, n), near)
    assert_type(pairs, ss.KStream[str, tuple[Order, int]])
    assert_type(orders.left_join(lengths, lambda order, n: n, near), ss.KStream[str, int | None])
    either = orders.outer_join(lengths, lambda order, n: order, near)
    assert_type(either, ss.KStream[str, Order | None])
    keys = orders.outer_join(lengths, lambda key, order, n: (key, n), near)
    assert_type(keys, ss.KStream[str, tuple[str, int | None]])
    texts = rates.map_values(str, ss.Materialized("texts", value_serde=serdes.STRING))
    assert_type(texts, ss.KTable[str, str])
    assert_type(texts.map_values(lambda key, text: key + text), ss.KTable[str, str])
    lengthy = rates.left_join(texts, lambda key, rate, text: (key, text))
    assert_type(lengthy, ss.KTable[str, tuple[str, str | None]])
    assert_type(texts.filter(lambda key, text: text), ss.KTable[str, str])
    assert_type(
        rates.join(texts, lambda rate, text: (rate, text)), ss.KTable[str, tuple[float, str]]
    )
    assert_type(rates.left_join(texts, lambda rate, text: text), ss.KTable[str, str | None])
    assert_type(rates.outer_join(texts, lambda rate, text: rate), ss.KTable[str, float | None])
    names = builder.table("names", key_serde=serdes.INT64, value_serde=serdes.STRING)
    assert_type(
        rates.join(
            names, lambda rate, name: (rate, name), foreign_key=lambda rate: round(rate) + 1
        ),
        ss.KTable[str, tuple[float, str]],
    )
    assert_type(
        rates.left_join(names, lambda rate, name: name, foreign_key=lambda key, rate: len(key)),
        ss.KTable[str, str | None],
    )
    closing = ss.Suppressed.until_window_closes(close_idle=timedelta(hours=1))
    assert_type(closing, ss.Suppressed)
    held = rates.suppress(ss.Suppressed.until_time_limit(timedelta(minutes=1), max_records=9))
    assert_type(held, ss.KTable[str, float])
    groups = rates.group_by(lambda key, rate: (len(key), str(rate)), key_serde=serdes.INT64)
    assert_type(groups, ss.KGroupedTable[int, str])
    assert_type(groups.count("n"), ss.KTable[int, int])
    assert_type(groups.reduce(lambda a, b: a + b, lambda a, b: a, "s"), ss.KTable[int, str])
    seen = groups.aggregate(set[str], lambda k, v, a: a | {v}, lambda k, v, a: a - {v}, "v")
    assert_type(seen, ss.KTable[int, set[str]])
    assert_type(texts.to_stream(), ss.KStream[str, str])
    assert_type(texts.to_stream(lambda key, text: len(key)), ss.KStream[int, str])
    assert_type(texts.filter_not(lambda key, text: key + text), ss.KTable[str, str])
    texts.to_stream().foreach(lambda key, text: key + text)
    unchanged = ss.Materialized(TOTALS, value_serde=serdes.FLOAT64)
    assert_type(unchanged, ss.Materialized[str, float])


def processors(orders: ss.KStream[str, Order]) -> None:
    made = orders.process(Totals, TOTALS, RATES)
    assert_type(made, ss.KStream[str, float])
    made.to("totals", value_serde=serdes.FLOAT64)
    kept = orders.process_values(Totals, TOTALS, RATES)
    assert_type(kept, ss.KStream[str, float])
    assert_type(orders.process_batch(Sizes), ss.KStream[Any, Any])
    number, text = serdes.FLOAT64, serdes.STRING
    typed = orders.process(Totals, TOTALS, RATES, key_serde=text, value_serde=number)
    assert_type(typed, ss.KStream[str, float])
    assert_type(
        orders.process_values(Totals, TOTALS, RATES, value_serde=number), ss.KStream[str, float]
    )


def serdes_of_results(orders: ss.KStream[str, Order], names: ss.KTable[str, str]) -> None:
    kept = serdes.json(Invoice)
    assert_type(
        orders.map_values(lambda order: Invoice(order.cents), value_serde=kept),
        ss.KStream[str, Invoice],
    )
    assert_type(
        orders.map(lambda key, order: (order.cents, key), key_serde=serdes.INT64),
        ss.KStream[int, str],
    )
    assert_type(
        orders.select_key(lambda key, order: order.cents, key_serde=serdes.INT64),
        ss.KStream[int, Order],
    )
    assert_type(
        orders.join(names, lambda order, name: Invoice(order.cents), value_serde=kept),
        ss.KStream[str, Invoice],
    )
    assert_type(
        orders.left_join(
            orders,
            lambda order, other: Invoice(order.cents),
            ss.JoinWindows(10),
            key_serde=serdes.STRING,
            value_serde=kept,
        ),
        ss.KStream[str, Invoice],
    )


def stores(directory: str) -> None:
    with ss.open_store(TOTALS, directory) as totals:
        totals.put("a", 1)
        assert_type(totals.get("a"), int | None)
        assert_type(totals.get("a", 0), int)
        assert_type(totals.get_many(["a", "b"]), list[int | None])
        shown(totals)


def shown(totals: ss.ReadOnlyKeyValueStore[str, int]) -> list[tuple[str, int]]:
    """What takes a store by its protocol."""
    return list(totals.all())


def tested() -> int:
    with TopologyTestDriver(topology()) as driver:
        driver.pipe("orders", "a", Order("a", 3), 1000)
        assert_type(driver.read("totals"), list[ss.Record[Any, Any]])
        totals = driver.store(TOTALS)
        assert_type(totals, ss.KeyValueStore[str, int])
        assert_type(driver.store("totals"), Any)
        return totals.get("a", 0)


def snapshots(state_dir: str) -> None:
    with ss.open_snapshot(state_dir, "shop", TOTALS) as totals:
        assert_type(totals, ss.ReadOnlyKeyValueStore[str, int])
        shown(totals)
    with ss.open_snapshot(state_dir, "shop", RATES, export="latest") as rates:
        assert_type(rates, ss.ReadOnlyVersionedKeyValueStore[str, float])
    with ss.open_snapshot(state_dir, "shop", SEEN, partition=1) as seen:
        assert_type(seen, ss.ReadOnlyWindowStore[str, bytes])
    with ss.open_snapshot(state_dir, "shop", VISITS) as visits:
        assert_type(visits, ss.ReadOnlySessionStore[str, int])
    named = ss.open_snapshot(state_dir, "shop", "totals", key_serde=serdes.STRING)
    assert_type(named, Any)


def written(rates: ss.VersionedKeyValueStore[str, float]) -> ss.PutResult:
    """What takes a writable store by its protocol."""
    return rates.put("a", 1.0, 1000)


def read(rates: ss.ReadOnlyVersionedKeyValueStore[str, float]) -> list[float]:
    return [version.value for version in rates.history("a")]


def histories(directory: str) -> None:
    with ss.open_store(RATES, directory) as rates:
        assert_type(rates.get("a", as_of=10), ss.VersionedRecord[float] | None)
        written(rates)
        read(rates)
        read(rates.reader())
    with ss.open_store(TOTALS, directory) as totals:
        shown(totals.reader())
