"""The sample application: flights, departure delays and cancellations per carrier and day.

    flights -> by carrier and day, through one repartition topic -> store -> carrier-day-stats

The store keeps whole numbers only, so its rows can be compared with an oracle exactly; the mean is
computed where rows leave. `scripts/flights_data.py` makes the topics and fills the input.
"""

from typing import Any

import statestore as ss
from statestore import serdes

FLIGHTS_TOPIC = "flights"
STATS_TOPIC = "carrier-day-stats"

CARRIER_DAY = ss.persistent_key_value_store(
    "carrier-day", key_serde=serdes.STRING, value_serde=serdes.JSON
)
"""Key `UA|2013-01-01`, the local day of the scheduled departure; value what add_flight returns."""


def topology() -> ss.Topology:
    """The pipeline; see the module's drawing."""
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    add_carrier_days(builder)
    return builder.build()


def add_carrier_days(builder: ss.StreamsBuilder) -> None:
    """Its two sub-topologies, behind whatever else the builder has."""
    (
        builder.stream(FLIGHTS_TOPIC, name="flights")
        .map(by_carrier_and_day, name="by-carrier-and-day")
        .group_by_key(name="carrier-day")
        .aggregate(no_flights, add_flight, ss.Materialized(CARRIER_DAY), name="carrier-day-figures")
        .to_stream(name="carrier-day-updates")
        .map_values(with_mean_delay, name="with-mean-delay")
        .to(STATS_TOPIC, name="stats")
    )


def by_carrier_and_day(_tail_number: str | None, flight: dict[str, Any]) -> tuple[str, Any]:
    """The new key, and of the flight only what is counted: the repartition topic stays small."""
    day = f"{flight['year']:04}-{flight['month']:02}-{flight['day']:02}"
    return f"{flight['carrier']}|{day}", {"dep_delay_min": flight["dep_delay"]}


def no_flights() -> dict[str, int]:
    """The figures of a day before its first flight."""
    return {"flights": 0, "cancellations": 0, "delayed": 0, "delay_sum_min": 0}


def add_flight(_key: str, flight: dict[str, Any], day: dict[str, int]) -> dict[str, int]:
    """A flight without a departure delay never left; early departures count as negative delays."""
    delay_min = flight["dep_delay_min"]
    left = delay_min is not None
    return {
        "flights": day["flights"] + 1,
        "cancellations": day["cancellations"] + (not left),
        "delayed": day["delayed"] + (left and delay_min > 0),
        "delay_sum_min": day["delay_sum_min"] + (delay_min if left else 0),
    }


def with_mean_delay(day: dict[str, int]) -> dict[str, Any]:
    """The figures and the mean over flights that left; None if none did."""
    left = day["flights"] - day["cancellations"]
    return {**day, "mean_delay_min": day["delay_sum_min"] / left if left else None}
