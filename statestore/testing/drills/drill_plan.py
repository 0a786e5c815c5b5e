"""The plan of a drill, its report, and when the report is a pass.

`plan` is pure. A drill whose kill missed, or that lacks something it needs, is "not drilled": it
proves nothing, so it is neither green nor red. The report is a pass only if something is green,
nothing is red, and everything that was asked for by name was drilled.
"""

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from statestore.errors import DrillFailed, Misuse, NotDrilled, StateStoreError
from statestore.faults import CrashPoint

ALL: Final = "all"
NONE: Final = "none"
PREFIX: Final = "drill-"
"""The names of every application, topic, group and folder of a drill begin with this."""


class Kind(StrEnum):
    """What a drill does to a run."""

    POINT = "crash point"
    MOMENT = "random moment"
    SPECIAL = "special"


class Special(StrEnum):
    """Drills other than a kill at a crash point or at a random moment."""

    ZOMBIE = "zombie"
    BROKER_RESTART = "broker-restart"
    DISK_FULL = "disk-full"
    UNREADABLE_FILE = "unreadable-file"
    TRUNCATED_CHANGELOG = "truncated-changelog"
    TWO_STARTERS = "two-starters"
    ROLLBACK_EXPORT_RELOAD = "rollback-export-reload"


class Outcome(StrEnum):
    """The verdict of a drill."""

    GREEN = "green"
    RED = "red"
    NOT_DRILLED = "not drilled"


class Planned(msgspec.Struct, frozen=True):
    """One drill to do.

    `seed` decides what is random in it. `by_name` says that it was asked for by its name.
    """

    kind: Kind
    name: str
    seed: int
    by_name: bool = False


_UNDRILLED: Final = ("reset.", "offsets.", "global.", "move.")
DRILLED: Final = [p for p in CrashPoint if not p.startswith(_UNDRILLED)]
"""The points of drills. Tests alone kill the others: a reset forgets what a drill compares, the
pipeline of drills begins its inputs at their start and has no global table, and a move needs
another cluster."""


class Drilled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one drill.

    `recovery_seconds` go from the start of the run after the death to its end, caught up.
    `restore_seconds` are those the slowest stream task spent on restoring, and `restored_records`
    are those that all stream tasks replayed. `evidence` is the folder kept of a red drill.
    """

    kind: Kind
    name: str
    seed: int
    outcome: Outcome
    happened: str
    recovery_seconds: float | None = None
    restore_seconds: float | None = None
    restored_records: int | None = None
    findings: list[str] = []
    evidence: str | None = None
    by_name: bool = False


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all drills of one call."""

    application_id: str
    workload: str
    seed: int
    started_ms: int
    seconds: float
    drills: list[Drilled]

    def count(self, outcome: Outcome) -> int:
        return sum(1 for drill in self.drills if drill.outcome is outcome)

    def failure(self) -> StateStoreError | None:
        """The error that says why the report is not a pass; None if it is."""
        red = [drill for drill in self.drills if drill.outcome is Outcome.RED]
        if red:
            first = red[0]
            kept = f"; evidence in {first.evidence}" if first.evidence else ""
            return DrillFailed(
                f"{len(red)} of {len(self.drills)} drills are red, the first is {first.name}: "
                f"{'; '.join(first.findings[:3])}{kept}; repeat it with "
                f"`statestore drill {_alone(first)} --seed {self.seed}`"
            )
        missed = [d for d in self.drills if d.outcome is Outcome.NOT_DRILLED and d.by_name]
        if missed or not self.count(Outcome.GREEN):
            why = "; ".join(f"{drill.name}: {drill.happened}" for drill in missed[:5])
            return NotDrilled(
                f"not drilled, so nothing is shown: {why or 'nothing was asked for'}; see to what "
                "they lack, or leave them out"
            )
        return None


def plan(points: str, moments: int, specials: str, seed: int) -> list[Planned]:
    """The drills to do, in order; Misuse names the drills there are.

    `points` and `specials` are `all`, `none`, or names separated by commas.
    """
    made = [
        # The seed depends on the name, so that a drill alone is what it was among the others.
        Planned(kind, name, random.Random(f"{seed} {name}").randrange(2**31), by_name)
        for kind, names, by_name in (
            (Kind.POINT, *_named(points, DRILLED, "crash point")),
            (Kind.MOMENT, [f"moment {n + 1}" for n in range(moments)], False),
            (Kind.SPECIAL, *_named(specials, list(Special), "special drill")),
        )
        for name in names
    ]
    if not made:
        raise Misuse("nothing to drill: pass --points, --random or --special")
    return made


def _named(text: str, known: Sequence[str], what: str) -> tuple[list[str], bool]:
    if text == ALL:
        return list(known), False
    names = [] if text == NONE else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise Misuse(f"no {what} {name!r}; there are: {', '.join(known)}")
    return names, True


def _alone(drill: Drilled) -> str:
    """The flags that ask for this drill and no other."""
    match drill.kind:
        case Kind.POINT:
            return f"--points {drill.name} --random 0 --special none"
        case Kind.MOMENT:
            return f"--points none --random {drill.name.rpartition(' ')[2]} --special none"
        case Kind.SPECIAL:
            return f"--points none --random 0 --special {drill.name}"
