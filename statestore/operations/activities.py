"""The long activities of an application that go on, and those that ended without a word.

Restores, exports, audits, relocations, clones, migrations and upgrades tell of themselves
(layout/activity_files.py). The catch-up of a run is added up from what its stream tasks report.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from statestore.errors import StateStoreError
from statestore.layout.activity_files import (
    RESTORE,
    SILENT_MS,
    Activities,
    ActivityNote,
    ActivityState,
    SeenActivity,
    Together,
    Unit,
    activity_text,
    together,
)
from statestore.layout.folders import StateLayout
from statestore.layout.owners import read_owner
from statestore.model.ids import TaskId
from statestore.operations.environment import Environment
from statestore.tasks.progress_file import TaskProgress, read_progress

_WORTH_S: Final = 5.0
"""A run that catches up in less is as good as caught up."""
_SHOWN_MAX: Final = 20


class ActivityStatus(msgspec.Struct, frozen=True):
    """Works of one kind that go on, `count` of them together; or one that ended without a word.

    `unit`: what is counted. `rate`: in a second. `process`, `stream_task`, `age_seconds`: of the
    one that is silent or dead, and when it last told anything. None: not known.
    """

    kind: str
    state: ActivityState
    unit: Unit
    done: int
    expected: int
    count: int = 1
    rate: float | None = None
    seconds_left: float | None = None
    process: str | None = None
    stream_task: str | None = None
    age_seconds: float | None = None

    @property
    def share(self) -> float:
        """What is done of the whole, from 0 to 1."""
        return min(1.0, self.done / self.expected) if self.expected else 0.0

    def text(self) -> str:
        """How far it is, for people."""
        return activity_text(self.unit, self.done, self.expected, self.rate, self.seconds_left)


def catch_up_of(notes: Iterable[TaskProgress]) -> Together | None:
    """Add up how far running stream tasks have caught up; None if they have, or it is not known."""
    known = [note for note in notes if note.lag_records is not None]
    lag = sum(note.lag_records or 0 for note in known)
    if not lag:
        return None
    done = sum(note.records for note in known)
    rates = [note.process_rate for note in known if note.process_rate]
    slots = max(note.slots for note in known)
    rate = sum(sorted(rates)[-slots:]) if rates else None
    left_s = lag / rate if rate else None
    if left_s is not None and left_s < _WORTH_S:
        return None
    return Together("catch-up", Unit.RECORDS, len(known), done, done + lag, rate, left_s)


def running(environment: Environment) -> list[TaskProgress]:
    """Return what the stream tasks report that did so within a minute."""
    layout, now_ms = environment.layout, environment.clock.now_ms()
    notes = (read_progress(layout.task_dir(task)) for task in layout.tasks())
    return [note for note in notes if note.written_ms + SILENT_MS > now_ms]


def activities_of(
    seen: list[SeenActivity], layout: StateLayout, notes: Iterable[TaskProgress], now_ms: int
) -> list[ActivityStatus]:
    """Return what is to be told; `notes`: what the stream tasks report that run now."""
    adds = together(seen)
    if (catching_up := catch_up_of(notes)) is not None:
        adds.append(catching_up)
    found = [
        ActivityStatus(
            each.kind,
            ActivityState.WORKING,
            each.unit,
            each.done,
            each.expected,
            each.count,
            each.rate,
            each.seconds_left,
        )
        for each in adds
    ]
    gone = [
        one for one in seen if one.state is not ActivityState.WORKING and not _is_past(one, layout)
    ]
    return found + [
        ActivityStatus(
            note.kind,
            state,
            note.unit,
            note.done,
            note.expected,
            process=f"process {note.by.pid} on {note.by.host}",
            stream_task=note.stream_task,
            age_seconds=max(0, now_ms - note.written_ms) / 1000,
        )
        for note, state in gone[-_SHOWN_MAX:]
    ]


def restores_of(seen: Iterable[SeenActivity]) -> dict[str, ActivityNote]:
    """Return the restores that go on, by stream task."""
    return {
        note.stream_task: note
        for note, state in seen
        if note.kind == RESTORE and note.stream_task and state is ActivityState.WORKING
    }


def activities_in(environment: Environment) -> Activities:
    """Return the activities of the application."""
    return Activities(environment.layout.application_dir, environment.clock)


def _is_past(one: SeenActivity, layout: StateLayout) -> bool:
    """Tell whether somebody has claimed the stream task since, who restores what is missing."""
    if one.note.stream_task is None:
        return False
    owner = None
    with suppress(StateStoreError):
        owner = read_owner(layout.task_dir(TaskId.parse(one.note.stream_task)))
    return owner is not None and owner.since_ms >= one.note.written_ms
