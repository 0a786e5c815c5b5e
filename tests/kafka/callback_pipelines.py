"""Pipelines whose functions do what runs must live through; topics as in run_pipelines."""

import sys
from typing import Any

import statestore as ss
from statestore.model.modes import PunctuationType
from statestore.topology.processors.user_processors import ProcessorContext
from tests.kafka.run_pipelines import builder, prefix

LEAVES_AT = 13
HOUR_MS = 3_600_000


class Scheduling:
    """Schedules by the wall clock when it sees its first record; forwards the times it fires."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self._scheduled = False

    def process(self, record: "ss.Record[str, dict[str, Any]]") -> None:
        if not self._scheduled:
            self._context.schedule(HOUR_MS, PunctuationType.WALL_CLOCK_TIME, self._tick)
            self._scheduled = True
        self._context.forward(record)

    def _tick(self, time_ms: int) -> None:
        self._context.forward(ss.Record("tick", {"time": time_ms}, time_ms))


def schedules_on_its_first_record() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").process(Scheduling).to(f"{prefix()}-out")
    return b.build()


def leaving(value: dict[str, Any]) -> dict[str, Any]:
    if value["number"] == LEAVES_AT:
        sys.exit(0)
    return value


def leaves_in_a_mapper() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").map_values(leaving).to(f"{prefix()}-out")
    return b.build()


class LeavingAtOnce:
    """Leaves as it is made, on a worker."""

    def __init__(self, context: ProcessorContext) -> None:
        if context is not None:
            sys.exit(0)

    def process(self, record: "ss.Record[str, dict[str, Any]]") -> None: ...


def leaves_in_a_factory() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").process(LeavingAtOnce)
    return b.build()


class LeavingInTime:
    """Leaves when its function is due."""

    def __init__(self, context: ProcessorContext) -> None:
        # Records take longer to come than a millisecond.
        context.schedule(1, PunctuationType.WALL_CLOCK_TIME, lambda _time_ms: sys.exit(0))

    def process(self, record: "ss.Record[str, dict[str, Any]]") -> None: ...


def leaves_in_a_punctuation() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").process(LeavingInTime)
    return b.build()


def leaves_in_an_extractor() -> ss.Topology:
    b = builder()
    stream = b.stream(
        f"{prefix()}-in", timestamp_extractor=lambda record: leaving(record.value)["number"]
    )
    stream.to(f"{prefix()}-out")
    return b.build()
