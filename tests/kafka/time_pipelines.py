"""Pipelines whose results depend on event time below repartitions."""

import statestore as ss
from tests.kafka.run_pipelines import builder, prefix

MINUTE_MS = 60_000


def minutes() -> ss.Topology:
    """Clicks per user and minute, told once each, behind one repartition."""
    b = builder()
    users = b.stream(f"{prefix()}-in").group_by(lambda _key, value: value["user"], name="by-user")
    _told(users)
    return b.build()


def minutes_twice() -> ss.Topology:
    """The same behind two repartitions."""
    b = builder()
    clicks = b.stream(f"{prefix()}-in").select_key(lambda _key, value: str(value["number"] % 5))
    users = clicks.repartition("by-page").group_by(lambda _key, v: v["user"], name="by-user")
    _told(users)
    return b.build()


def _told(users: ss.KGroupedStream) -> None:  # type: ignore[type-arg]  # of any types
    minutes = users.windowed_by(ss.TumblingWindows(MINUTE_MS), emit="on_window_close")
    told = minutes.count("minutes").to_stream()
    told.map(lambda at, count: (f"{at.key}@{at.start_ms}", count)).to(f"{prefix()}-out")
