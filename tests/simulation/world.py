"""The world around a simulated process: its clock, its fate, its death.

One thread, one seed. Whatever a process asks of the world is a visit: there it may die, somebody
else may act first, and the answer may fail. A dead process changes nothing any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum, auto
from random import Random
from typing import NamedTuple

from statestore.errors import Unavailable

START_MS = 1_700_000_000_000
_ARRIVES = 0.1


class Died(BaseException):
    """A process was killed: nothing of the library may catch this."""


class SimulatedClock:
    """Time that only the schedule moves."""

    def __init__(self) -> None:
        self._now_ms = START_MS

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def advance(self, ms: int) -> None:
        self._now_ms += ms


@dataclass(frozen=True)
class Odds:
    """How often what goes wrong; drawn anew for each seed, many of them 0."""

    unavailable: float = 0.0
    unanswered: float = 0.0
    in_trouble: float = 0.0
    nothing_yet: float = 0.0
    interrupted: float = 0.0


class Step(StrEnum):
    """What a stream task does that the model of the commit protocol knows (tests/model)."""

    CLAIMS = auto()
    OPENS = auto()
    READS = auto()
    BEGINS = auto()
    SENDS = auto()
    ADDS_OFFSETS = auto()
    HEARS = auto()
    HEARS_NOTHING = auto()
    WRITES = auto()
    IS_GONE = auto()
    EXPIRES = auto()
    OPENS_UNHEARD = auto()


class Protocol(NamedTuple):
    """One such step: of which stream task, in which process, and a commit number if it has one."""

    task: str
    process: str
    step: Step
    number: int = -1


@dataclass
class Fate:
    """What all processes of one schedule share."""

    rng: Random
    odds: Odds
    interrupt: Callable[["Process"], None]
    trace: list[str] = field(default_factory=list)
    protocol: list[Protocol] = field(default_factory=list)
    late: list[Callable[[], None]] = field(default_factory=list)
    """Requests on their way that nobody waits for any more."""

    def happens(self, odds: float) -> bool:
        return odds > 0 and self.rng.random() < odds

    def note(self, who: str, what: str) -> None:
        self.trace.append(f"{who:>10}  {what}")

    def deliver_late(self) -> None:
        """Let the oldest of the late requests arrive."""
        if self.late:
            self.late.pop(0)()


class Process:
    """One process: alive until it dies, at the latest at its last visit. Later ones count up."""

    def __init__(self, what: str, number: int, fate: Fate) -> None:
        self.task = what
        self.name = f"{what}#{number}"
        self.number = number
        self.fate = fate
        self.dead = False
        self.visits_left: int | None = None
        self.trouble = 0
        self.offered = 0

    def tell(self, step: Step, number: int = -1) -> None:
        """Note a step of the commit protocol that has just happened."""
        if not self.dead:
            self.fate.protocol.append(Protocol(self.task, self.name, step, number))

    def visit(self, what: str) -> None:
        """Go on, or die here."""
        if not self.dead:
            self.fate.note(self.name, what)
            if self.fate.late and self.fate.happens(_ARRIVES):
                self.fate.deliver_late()
            if self.fate.happens(self.fate.odds.interrupted):
                self.fate.interrupt(self)
            if self.visits_left is not None:
                self.visits_left -= 1
                self.dead = self.visits_left <= 0
            if self.dead:
                self.fate.note(self.name, f"DIES at {what}")
        if self.dead:
            raise Died(self.name)

    def ask(self, what: str) -> None:
        """A visit whose answer may be that nobody answers."""
        self.visit(what)
        odds = self.fate.odds.unavailable
        if self.trouble:
            # Where one answer got lost, the next ones are in danger.
            self.trouble -= 1
            odds = max(odds, self.fate.odds.in_trouble)
        if self.fate.happens(odds):
            self.fate.note(self.name, f"{what}: unavailable")
            raise Unavailable(f"{what}: nobody answers")
