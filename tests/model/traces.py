"""The steps that stream tasks of the simulation told, for the model of the commit protocol.

python -m tests.model.traces 77        where the model stops following the schedule of this seed
"""

import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.model.search import Event, accepts
from tests.simulation.schedule import Simulation
from tests.simulation.world import Protocol, Step

_KINDS: Mapping[Step, int] = {step: kind for kind, step in enumerate(Step, 1)}
"""In the order of E_… in commit.pml."""
_NOBODY = 6
_PLACES = 6
# What the implementation was given: both ids opened at once, and messages that meet anything.
_PARAMETERS = {"LIVES": 9, "COMMITS": 30_000, "LATE": 3, "FAULTS": 1}


class TooMany(Exception):
    """More owners of a stream task live at once than the model has room for."""


def by_task(protocol: Iterable[Protocol]) -> dict[str, list[Event]]:
    """The trace of each stream task; owners have the lowest free place from claim to end."""
    traces: dict[str, list[Event]] = defaultdict(list)
    places: dict[str, dict[str, int]] = defaultdict(dict)
    for task, process, step, number in protocol:
        if task == "driver":
            continue
        taken, kind = places[task], _KINDS[step]
        if step is Step.EXPIRES:
            traces[task].append(Event(kind, _NOBODY, 0))
            continue
        if step is Step.CLAIMS:
            free = [place for place in range(_PLACES) if place not in taken.values()]
            if not free:
                raise TooMany(task)
            taken[process] = free[0]
        if process not in taken:
            continue  # It owns nothing.
        event = Event(kind, taken[process], number)
        if step is Step.IS_GONE:
            del taken[process]
        if step is Step.WRITES and _last_of(traces[task], event.owner) == event:
            continue  # The task's next store.
        traces[task].append(event)
    return traces


def follows(trace: list[Event]) -> bool | None:
    """Return whether the model accepts a trace; None if too much is to be searched."""
    owners = 1 + max((event.owner for event in trace if event.owner != _NOBODY), default=0)
    return accepts(trace, {**_PARAMETERS, "OWNERS": owners})


def refused_at(trace: list[Event]) -> int | None:
    """Return the first step that the model cannot follow, None if it follows as far as it gets."""
    if follows(trace) is not False:
        return None
    low, high = 0, len(trace)
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if follows(trace[: middle + 1]) is not False else (low, middle)
        )
    return low


def _last_of(trace: list[Event], owner: int) -> Event | None:
    return next((event for event in reversed(trace) if event.owner == owner), None)


def main() -> None:
    """Tell, for each stream task of a schedule, how far the model follows."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        simulation = Simulation(int(sys.argv[1]), Path(folder) / "schedule")
        simulation.run()
    for task, trace in by_task(simulation.protocol).items():
        at = refused_at(trace)
        end = len(trace) if at is None else at + 1
        told = "\n".join(map(str, trace[max(0, end - 20) : end]))
        followed = "all" if at is None else f"{at}"
        print(f"{task}: {followed} of {len(trace)} steps\n{told}")  # noqa: T201 - asked for


if __name__ == "__main__":
    main()
