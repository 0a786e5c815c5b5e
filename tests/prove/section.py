"""What a section of the proof is, and what it hands back.

A section tries something again and again until its time is over. It says what it tried and how
often, which anomalies it met, and which planted defects it caught. It decides nothing: the verdict
follows from these figures alone.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

import msgspec


class Verdict(StrEnum):
    """What a section's figures say."""

    HELD = "held"
    BROKEN = "broken"
    SHORT = "less than promised"
    NOTHING = "nothing tried"
    FAILED = "could not be tried"

    @property
    def passes(self) -> bool:
        """Whether the proof as a whole may be a pass with it."""
        return self in {Verdict.HELD, Verdict.SHORT}


class Harm(StrEnum):
    """What a finding means for the user's records."""

    LOST = "lost"
    DOUBLED = "doubled"
    ANOMALY = "anomaly"


_HARMS: Mapping[str, Harm] = {"lost write": Harm.LOST, "duplicate": Harm.DOUBLED}


def harm_of(rule: str) -> Harm:
    """What breaking a rule of the log checker means for the user's records."""
    return _HARMS.get(rule, Harm.ANOMALY)


class Finding(msgspec.Struct, frozen=True):
    """Something that must not be, the rule that says so, and the command that repeats it."""

    rule: str
    text: str
    repeat: str
    harm: Harm = Harm.ANOMALY


class Planted(msgspec.Struct, frozen=True):
    """A defect that the section put into the product to see whether it is caught.

    `caught_by`: the rules that found it; none of them means that it was missed.
    `trials`: how many schedules, kills or programs that took.
    """

    defect: str
    caught_by: tuple[str, ...]
    trials: int


class Coverage(msgspec.Struct, frozen=True):
    """How often what was tried with what; None: what cannot be.

    `least`: what each cell has to reach.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[int | None, ...]]
    least: int = 0

    def short_of(self) -> list[str]:
        """The cells that are below `least`."""
        return [
            f"{row} x {column}: {number} of {self.least}"
            for row, cells in self.rows.items()
            for column, number in zip(self.columns, cells, strict=True)
            if number is not None and number < self.least
        ]


class SectionResult(msgspec.Struct, frozen=True):
    """What a section tried and what it met.

    `tried`: counts by name; one that is 0 means that the section proves nothing.
    `least`: what the same counts should have reached in the time that there was.
    `figures`: what was measured on the way; `notes`: what a reader has to know, such as what was
    simulated.
    """

    tried: Mapping[str, int]
    least: Mapping[str, int] = {}
    findings: tuple[Finding, ...] = ()
    planted: tuple[Planted, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    figures: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    def harmed(self, harm: Harm) -> int:
        return sum(finding.harm is harm for finding in self.findings)

    @property
    def missed(self) -> list[str]:
        """The planted defects that no rule caught."""
        return [planted.defect for planted in self.planted if not planted.caught_by]

    def short_of(self) -> list[str]:
        """What was tried less often than promised."""
        counts = [
            f"{name}: {self.tried.get(name, 0)} of {least}"
            for name, least in self.least.items()
            if self.tried.get(name, 0) < least
        ]
        return counts + [cell for table in self.coverage for cell in table.short_of()]

    @property
    def verdict(self) -> Verdict:
        if self.findings or self.missed:
            return Verdict.BROKEN
        if not self.tried or not all(self.tried.values()):
            return Verdict.NOTHING
        return Verdict.SHORT if self.short_of() else Verdict.HELD


_NIGHT_S, _WHOLE_NIGHT_S = 3600.0 * 2, 3600.0 * 6


@dataclass(frozen=True)
class Deadline:
    """When a section has to be done; what it has begun it may finish.

    `whole_s`: what all sections have together.
    """

    seconds: float
    whole_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_began", self.clock())

    @property
    def left_s(self) -> float:
        return self._began + self.seconds - self.clock()

    @property
    def over(self) -> bool:
        return self.left_s <= 0

    @property
    def is_night(self) -> bool:
        """Whether there is time for what the night promises, for this section or for all."""
        return self.seconds >= _NIGHT_S or self.whole_s >= _WHOLE_NIGHT_S

    def part(self, share: float) -> "Deadline":
        """A share of what is left."""
        return replace(self, seconds=max(0.0, self.left_s * share))

    def rounds(self, share: float = 1.0, *, least: int = 1) -> "Rounds":
        """Numbers from 0 until this share of the time is over, at least so many."""
        return Rounds(self.part(share), least)


class Rounds:
    """Counts on as long as there is time."""

    def __init__(self, deadline: Deadline, least: int) -> None:
        self._deadline = deadline
        self._least = least
        self._numbers = count()

    def __iter__(self) -> "Rounds":
        return self

    def __next__(self) -> int:
        number = next(self._numbers)
        if number >= self._least and self._deadline.over:
            raise StopIteration
        return number


def planted_while(planting: Deadline, plants: Iterable[Callable[[], Planted]]) -> list[Planted]:
    """Plant the first defect, and one more as long as there is time to begin."""
    found = list[Planted]()
    for plant in plants:
        if found and planting.over:
            break
        found.append(plant())
    return found


@dataclass(frozen=True)
class Section:
    """One line of the registry.

    `name`: what `SECTIONS=` chooses it by.
    `tries`: what it tries, in a sentence for the reader of the report.
    `share`: of the time, beside those of the others; None: it has all of the time, while the
    others take turns.
    `run`: a function of a module, as it is called in a process of its own.
    """

    name: str
    tries: str
    share: float | None
    run: Callable[[int, Deadline], SectionResult]


def repeating(section: str, seed: int, seconds: float | None = None) -> str:
    """The command that tries the same again."""
    hours = "" if seconds is None else f" HOURS={max(seconds, 36) / 3600:.2f}"
    return f"make prove SECTIONS={section} SEED={seed}{hours}"
