"""The sample's second application: each flight with the weather at its origin when it was to leave.

    weather ------------------------------> table by origin, with its history
    flights -> by origin, repartitioned ---> left join as of the departure -> flights-weather

`patient` waits six hours of stream time for late observations; `topology` joins at once.
"""

from datetime import timedelta
from typing import Any

import statestore as ss
from statestore import serdes

FLIGHTS_TOPIC = "flights"
WEATHER_TOPIC = "weather"
JOINED_TOPIC = "flights-weather"
GRACE = timedelta(hours=6)
HISTORY = timedelta(days=366)


def topology() -> ss.Topology:
    """Flights meet what is known of the weather when they are processed."""
    return _joined(timedelta(0))


def patient() -> ss.Topology:
    """Flights wait for late observations."""
    return _joined(GRACE)


def _joined(grace: timedelta) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    kept = ss.Materialized("weather", history_retention=HISTORY)
    weather = b.table(WEATHER_TOPIC, materialized=kept, name="weather-table")
    (
        b.stream(FLIGHTS_TOPIC, name="flights")
        .map(by_origin, name="by-origin")
        .left_join(weather, with_weather, grace=grace, name="flights-by-origin")
        .to(JOINED_TOPIC, name="flights-weather")
    )
    return b.build()


def by_origin(tail_number: str | None, flight: dict[str, Any]) -> tuple[str, Any]:
    """The new key, and of the flight what tells it from others: little is repartitioned."""
    told = ("carrier", "flight", "time_hour", "sched_dep_time")
    return flight["origin"], {"tail_number": tail_number, **{name: flight[name] for name in told}}


def with_weather(flight: dict[str, Any], weather: dict[str, Any] | None) -> dict[str, Any]:
    """The flight, the temperature and when it was measured; None before the first observation."""
    if weather is None:
        return {**flight, "temp": None, "observed": None}
    return {**flight, "temp": weather["temp"], "observed": weather["time_hour"]}
