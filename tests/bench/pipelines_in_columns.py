"""The pipelines of expressions that are benchmarked; Polars is loaded for them alone."""

import os

import msgspec
import polars as pl

import statestore as ss
from statestore import serdes
from tests.bench.pipelines import (
    INPUT_VARIABLE,
    JSON_VARIABLE,
    OUTPUT_VARIABLE,
    Order,
    customers,
)


def expressing() -> ss.Topology:
    """Typed JSON: large orders by an expression, summed by customer and minute by `ss.agg`."""
    builder = ss.StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], value_serde=serdes.json(Order), name="orders")
        .filter(pl.col("amount") >= 100, name="large")
        .map_values({"amount": pl.col("amount"), "cents": pl.col("amount") * 100}, name="cents")
        .group_by_key(name="by-key")
        .windowed_by(ss.TumblingWindows(60_000, grace=3_600_000))
        .aggregate({"n": ss.agg.count(), "cents": ss.agg.sum("cents")}, materialized="sums")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="sums-out")
    )
    return builder.build()


class Cents(msgspec.Struct):
    """What the same pipeline makes by functions."""

    amount: int
    cents: int


class Sums(msgspec.Struct, frozen=True):
    """What it keeps."""

    n: int = 0
    cents: int = 0


def in_functions() -> ss.Topology:
    """The same by functions."""
    builder = ss.StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], value_serde=serdes.json(Order), name="orders")
        .filter(lambda _key, order: order.amount >= 100, name="large")
        .map_values(lambda order: Cents(order.amount, order.amount * 100), name="cents")
        .group_by_key(name="by-key")
        .windowed_by(ss.TumblingWindows(60_000, grace=3_600_000))
        .aggregate(
            Sums,
            lambda _key, one, sums: Sums(sums.n + 1, sums.cents + one.cents),
            ss.Materialized("sums", value_serde=serdes.json(Sums)),
        )
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="sums-out")
    )
    return builder.build()


def enriching() -> ss.Topology:
    """The job of `pipelines.enriching` by expressions; a result has the fields that are used."""
    builder = ss.StreamsBuilder()
    sale = {"amount": pl.col("amount"), "country": pl.col("country")}
    (
        builder.stream(os.environ[JSON_VARIABLE], value_serde=serdes.json(Order), name="orders")
        .filter(pl.col("amount") >= 100, name="large")
        .join(customers(builder), sale, name="join")
        .group_by_key(name="by-key")
        .windowed_by(ss.TumblingWindows(60_000, grace=3_600_000))
        .aggregate(ss.agg.sum("amount"), materialized="sums", name="sum")
        .to_stream(name="updates")
        .to(os.environ[OUTPUT_VARIABLE], name="sums-out")
    )
    return builder.build()
