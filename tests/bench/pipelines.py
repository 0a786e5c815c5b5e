"""The pipelines the task benchmark runs; their topics come from the environment."""

import os
from collections.abc import Callable
from typing import Any

import msgspec

import statestore as ss
from statestore import serdes
from statestore.topology.processors.user_processors import ProcessorContext

INPUT_VARIABLE = "BENCH_INPUT"
OUTPUT_VARIABLE = "BENCH_OUTPUT"
JSON_VARIABLE = "BENCH_JSON"
TABLE_VARIABLE = "BENCH_TABLE"
JSON_TABLE_VARIABLE = "BENCH_JSON_TABLE"

COUNTS = ss.persistent_key_value_store("counts", value_serde=serdes.INT64)
ENDS = ss.timer_store("ends")
TOTALS = ss.persistent_key_value_store("totals", value_serde=serdes.INT64)


def counting() -> ss.Topology:
    """Count by key, every updated count to the output topic."""
    return _counts_of(lambda records: records.group_by_key(name="by-key"))


def counting_each() -> ss.Topology:
    """Count by key, each count to the output topic, also those of one key in one batch."""
    return _counts_of(lambda records: records.group_by_key(name="by-key"), caching=False)


def counting_anew() -> ss.Topology:
    """Count by a key of the pipeline's own, behind a repartition topic."""
    return _counts_of(
        lambda records: records.group_by(lambda key, _value: key[::-1], name="by-other-key")
    )


def _counts_of(grouped: Callable[[Any], Any], *, caching: bool = True) -> ss.Topology:
    builder = ss.StreamsBuilder()
    (
        grouped(builder.stream(os.environ[INPUT_VARIABLE], name="records"))
        .count(ss.Materialized(COUNTS, caching=caching), name="count")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="counts-out")
    )
    return builder.build()


class Total:
    """One get, one put, one forward for each record."""

    def __init__(self, context: ProcessorContext) -> None:
        self._forward = context.forward
        self._store = context.store(TOTALS)

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        total = self._store.get(record.key, 0) + len(record.value)
        self._store.put(record.key, total)
        self._forward(record.replace(value=total))


class TotalOnly(Total):
    """One get, one put."""

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        total = self._store.get(record.key, 0) + len(record.value)
        self._store.put(record.key, total)


def per_record() -> ss.Topology:
    """A processor called record by record, its result to the output topic."""
    builder = ss.StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], name="records")
        .process(Total, TOTALS, name="total")
        .to(os.environ[OUTPUT_VARIABLE], value_serde=serdes.INT64, name="totals-out")
    )
    return builder.build()


def per_value() -> ss.Topology:
    """The same by a processor that keeps keys."""
    builder = ss.StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], name="records")
        .process_values(Total, TOTALS, name="total")
        .to(os.environ[OUTPUT_VARIABLE], value_serde=serdes.INT64, name="totals-out")
    )
    return builder.build()


def per_record_silent() -> ss.Topology:
    """A processor called record by record, its store and changelog only."""
    builder = ss.StreamsBuilder()
    builder.stream(os.environ[INPUT_VARIABLE], name="records").process(
        TotalOnly, TOTALS, name="total"
    )
    return builder.build()


class Passed(Total):
    """One get, one put, the record handed on as it came."""

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        self._store.put(record.key, self._store.get(record.key, 0) + 1)
        self._forward(record)


def passing() -> ss.Topology:
    """Values arrive as they were sent: what tells when."""
    builder = ss.StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], name="records")
        .process(Passed, TOTALS, name="total")
        .to(os.environ[OUTPUT_VARIABLE], name="passed-out")
    )
    return builder.build()


def joining() -> ss.Topology:
    """Each record with the row of its key, to the output topic."""
    builder = ss.StreamsBuilder()
    rows = builder.table(os.environ[TABLE_VARIABLE], materialized="rows", name="rows-in")
    (
        builder.stream(os.environ[INPUT_VARIABLE], name="records")
        .join(rows, lambda value, row: row + value, name="join")
        .to(os.environ[OUTPUT_VARIABLE], name="joined-out")
    )
    return builder.build()


def enriching() -> ss.Topology:
    """JSON: large orders with the row of their customer, summed by customer and minute."""
    builder = ss.StreamsBuilder(value_serde=serdes.JSON)
    rows = builder.table(os.environ[JSON_TABLE_VARIABLE], materialized="rows", name="rows-in")
    (
        builder.stream(os.environ[JSON_VARIABLE], name="orders")
        .filter(lambda _key, order: order["amount"] >= 100, name="large")
        .join(rows, lambda order, row: {**order, "country": row["country"]}, name="join")
        .group_by_key(name="by-key")
        .windowed_by(ss.TumblingWindows(60_000, grace=3_600_000))
        .aggregate(
            int,
            lambda _key, order, total: total + order["amount"],
            ss.Materialized("sums", value_serde=serdes.INT64),
            name="sum",
        )
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="sums-out")
    )
    return builder.build()


class Order(msgspec.Struct):
    """What the JSON job reads, for those who declare it."""

    amount: int
    order: int
    currency: str
    customer: str
    note: str


class TimedOrder(Order):
    """What peers read, too."""

    at: int = 0


class Customer(msgspec.Struct):
    """What it takes of a row of the table."""

    country: str


class Sale(msgspec.Struct):
    """An order with what its customer's row adds."""

    amount: int
    order: int
    currency: str
    customer: str
    note: str
    country: str


def customers(builder: ss.StreamsBuilder) -> ss.KTable[bytes, Customer]:
    """The table of the JSON job, with declared types."""
    return builder.table(
        os.environ[JSON_TABLE_VARIABLE],
        value_serde=serdes.json(Customer),
        materialized="rows",
        name="rows-in",
    )


def enriching_typed() -> ss.Topology:
    """The job of `enriching`, with declared types."""
    builder = ss.StreamsBuilder()
    rows = customers(builder)
    (
        builder.stream(
            os.environ[JSON_VARIABLE], value_serde=serdes.json(TimedOrder), name="orders"
        )
        .filter(lambda _key, order: order.amount >= 100, name="large")
        .join(
            rows,
            lambda order, row: Sale(
                order.amount, order.order, order.currency, order.customer, order.note, row.country
            ),
            name="join",
        )
        .group_by_key(name="by-key")
        .windowed_by(ss.TumblingWindows(60_000, grace=3_600_000))
        .aggregate(
            int,
            lambda _key, sale, total: total + sale.amount,
            ss.Materialized("sums", value_serde=serdes.INT64),
            name="sum",
        )
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="sums-out")
    )
    return builder.build()


def versions() -> ss.Topology:
    """Each record a version of its row, every update to the output topic."""
    builder = ss.StreamsBuilder()
    kept = ss.Materialized[bytes, bytes]("rows", history_retention=86_400_000)
    (
        builder.table(os.environ[INPUT_VARIABLE], materialized=kept, name="rows-in")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="updates-out")
    )
    return builder.build()


def joining_globally() -> ss.Topology:
    """The same table, whole for every stream task and looked up by its own key."""
    builder = ss.StreamsBuilder()
    table = builder.global_table(os.environ[TABLE_VARIABLE], materialized="everywhere")
    builder.stream(os.environ[INPUT_VARIABLE], name="records").left_join(
        table, lambda value, row: row or value, key=lambda key, _value: key, name="joined"
    ).to(os.environ[OUTPUT_VARIABLE], name="joined-out")
    return builder.build()


def json_values() -> ss.Topology:
    """Objects filtered and changed, to the output topic."""
    builder = ss.StreamsBuilder(value_serde=serdes.JSON)
    (
        builder.stream(os.environ[JSON_VARIABLE], name="objects")
        .filter(lambda _key, order: order["amount"] >= 100, name="big")
        .map_values(lambda order: {**order, "cents": order["amount"] * 100}, name="in-cents")
        .to(os.environ[OUTPUT_VARIABLE], name="cents-out")
    )
    return builder.build()


def windows() -> ss.Topology:
    """Count by key in windows of a second, every updated count to the output topic."""
    return _counting_in(ss.TumblingWindows(1000, grace=60_000))


def hops() -> ss.Topology:
    """The same in windows that overlap: each record counts in four."""
    return _counting_in(ss.HoppingWindows(1000, 250, grace=60_000))


def sessions() -> ss.Topology:
    """The same in sessions with a gap of a second."""
    return _counting_in(ss.SessionWindows(1000, grace=60_000))


def slides() -> ss.Topology:
    """The same in sliding windows of a tenth of a second."""
    return _counting_in(ss.SlidingWindows(100, grace=60_000))


def tens() -> ss.Topology:
    """The same in windows of ten records side by side."""
    return _counting_in(ss.CountWindows.of(10))


def last_tens() -> ss.Topology:
    """The same in windows of the last ten records."""
    return _counting_in(ss.CountWindows.of(10).advance_by(1))


class Reminds:
    """Sets the timer of a key a second ahead with each record; forwards what fires."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context, self._ends = context, context.timers(ENDS)

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        self._ends.schedule(record.key, record.timestamp_ms + 1000)

    def on_timer(self, timer: "ss.Timer[bytes]") -> None:
        self._context.forward(ss.Record(timer.key, b"", timer.time_ms))


def reminding() -> ss.Topology:
    """A timer for each record, what fires to the output topic."""
    builder = ss.StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], name="records")
        .process(Reminds, ENDS, name="reminds")
        .to(os.environ[OUTPUT_VARIABLE], name="reminders-out")
    )
    return builder.build()


def joining_near() -> ss.Topology:
    """Each record with the version of its key's row at its time, if that is not too old."""
    builder = ss.StreamsBuilder()
    kept = ss.Materialized[bytes, bytes]("rows", history_retention=86_400_000)
    rows = builder.table(os.environ[TABLE_VARIABLE], materialized=kept, name="rows-in")
    (
        builder.stream(os.environ[INPUT_VARIABLE], name="records")
        .left_join(rows, lambda value, row: (row or b"") + value, tolerance=60_000, name="join")
        .to(os.environ[OUTPUT_VARIABLE], name="joined-out")
    )
    return builder.build()


def final_windows() -> ss.Topology:
    """Count by key in windows of a second, the last count of each to the output topic."""
    builder = ss.StreamsBuilder()
    grouped = builder.stream(os.environ[INPUT_VARIABLE], name="records").group_by_key(name="by-key")
    (
        grouped.windowed_by(ss.TumblingWindows(1000, grace=100))
        .count("windows", name="count")
        .suppress(ss.Suppressed.until_window_closes(), name="final")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="windows-out")
    )
    return builder.build()


def fewer_updates() -> ss.Topology:
    """Count by key, the updates of a tenth of a second as one to the output topic."""
    builder = ss.StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], name="records")
        .group_by_key(name="by-key")
        .count(ss.Materialized(COUNTS), name="count")
        .suppress(ss.Suppressed.until_time_limit(100), name="fewer")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="counts-out")
    )
    return builder.build()


def _counting_in(
    windows: ss.TumblingWindows
    | ss.HoppingWindows
    | ss.SlidingWindows
    | ss.SessionWindows
    | ss.CountWindows,
) -> ss.Topology:
    builder = ss.StreamsBuilder()
    grouped = builder.stream(os.environ[INPUT_VARIABLE], name="records").group_by_key(name="by-key")
    windowed: Any = grouped.windowed_by(windows)
    (
        windowed.count("windows", name="count")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="windows-out")
    )
    return builder.build()


def meeting() -> ss.Topology:
    """Each record with the one record of its key in another stream, to the output topic."""
    return _streams_joined(ss.JoinWindows(3_600_000), left=False)


def missing() -> ss.Topology:
    """Each record without a match, once its window has closed, to the output topic."""
    return _streams_joined(ss.JoinWindows(0, grace=100), left=True)


def _streams_joined(windows: ss.JoinWindows, *, left: bool) -> ss.Topology:
    builder = ss.StreamsBuilder()
    stream = builder.stream(os.environ[INPUT_VARIABLE], name="records")
    others = builder.stream(os.environ[TABLE_VARIABLE], name="others")
    if left:
        joined = stream.left_join(others, lambda one, _other: one, windows, name="pairs")
    else:
        joined = stream.join(others, lambda one, other: one + other, windows, name="pairs")
    joined.to(os.environ[OUTPUT_VARIABLE], name="pairs-out")
    return builder.build()


def both_tables() -> ss.Topology:
    """Rows of either of two tables, every updated row to the output topic."""
    builder = ss.StreamsBuilder()
    rows = builder.table(os.environ[TABLE_VARIABLE], materialized="rows", name="rows-in")
    (
        builder.table(os.environ[INPUT_VARIABLE], materialized="records", name="records-in")
        .outer_join(rows, lambda one, row: (one or b"") + (row or b""), name="either")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="either-out")
    )
    return builder.build()


def referring() -> ss.Topology:
    """Rows joined with the row of another table whose key they hold, to the output topic."""
    builder = ss.StreamsBuilder()
    keys = builder.table(os.environ[TABLE_VARIABLE], materialized="others", name="others-in")
    (
        builder.table(os.environ[INPUT_VARIABLE], materialized="rows", name="rows-in")
        .join(keys, lambda one, other: one + other, foreign_key=lambda key, _v: key, name="refers")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="refers-out")
    )
    return builder.build()


def cogrouped() -> ss.Topology:
    """Records of two streams folded into one aggregate, every update to the output topic."""
    builder = ss.StreamsBuilder()
    records = builder.stream(os.environ[INPUT_VARIABLE], name="records").group_by_key()
    others = builder.stream(os.environ[TABLE_VARIABLE], name="others").group_by_key()
    (
        records.cogroup(lambda _key, _value, count: count + 1)
        .cogroup(others, lambda _key, _value, count: count + 1000)
        .aggregate(int, ss.Materialized("sums", value_serde=serdes.INT64), name="sum")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="sums-out")
    )
    return builder.build()


def regrouping() -> ss.Topology:
    """Rows of a table counted in 256 groups, every updated count to the output topic."""
    builder = ss.StreamsBuilder()
    (
        builder.table(os.environ[INPUT_VARIABLE], materialized="rows", name="rows-in")
        .group_by(lambda _key, value: (value[:1], value), name="by-first")
        .count("counts", name="count")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], value_serde=serdes.INT64, name="counts-out")
    )
    return builder.build()
