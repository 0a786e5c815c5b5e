"""Applications of every kind of operator, a few at a time, each of which goes on through all of it.

In each round of an application something befalls its runs; then it is run to its end, and what it
has put out by then is compared with what plain code says.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from threading import Lock
from typing import ClassVar, Generic, TypeVar

from tests.prove.kind_rig import Found, KindRig, Refused
from tests.prove.section import Deadline, Finding, Harm, repeating

T = TypeVar("T")
_AT_ONCE = 2


@dataclass
class Tally:
    """What the chains have met so far; several threads add to it.

    `met`: how often what, by kind of operator. `ends`: how else runs ended.
    """

    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    audits: int = 0
    records: int = 0
    lock: Lock = field(default_factory=Lock)


class Turns(Generic[T]):
    """Draws in an order of the seed; each has its turn before one comes again."""

    def __init__(self, rng: Random, items: Sequence[T]) -> None:
        self._rng = rng
        self._items = items
        self._left: list[T] = []

    def next(self, count: int) -> list[T]:
        """The next ones."""
        while len(self._left) < count:
            self._left += self._rng.sample(self._items, len(self._items))
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn


class Chain(ABC):
    """The rounds of one kind of operator, in an order of the seed."""

    section: ClassVar[str]
    refusal: ClassVar[str]
    """The rule that a run breaks which ends by an error of its own."""

    def __init__(self, kind: str, seed: int, tally: Tally) -> None:
        self.kind = kind
        self.seed = seed
        self.rng = Random(f"{seed} {kind}")
        self._tally = tally
        self._is_broken = False

    @cached_property
    def rig(self) -> KindRig:
        """The application, whose topics are made once it has its first round."""
        return self.made()

    @abstractmethod
    def made(self) -> KindRig:
        """Make the application."""

    @abstractmethod
    def befall(self, round_: Tally) -> None:
        """Produce records, and note what befalls runs over them. Refused: one failed."""

    def next_round(self) -> None:
        """One round and its audit; nothing once something was found."""
        if self._is_broken:
            return
        round_, before = Tally(), self.rig.produced
        found: list[Found]
        try:
            self.befall(round_)
            self.rig.ended()
            found = self.rig.anomalies()
        except Refused as error:
            found = [(self.refusal, str(error), Harm.ANOMALY)]
        self._is_broken = bool(found)
        repeat, met = repeating(self.section, self.seed), dict(round_.met)
        tally = self._tally
        with tally.lock:
            tally.met += round_.met
            tally.ends += round_.ends
            tally.findings += [
                Finding(rule, f"{self.kind} after {met}: {text}", repeat, harm)
                for rule, text, harm in found
            ]
            tally.audits += 1
            tally.records += self.rig.produced - before


def take_turns(chains: Sequence[Chain], deadline: Deadline) -> None:
    """Let them have rounds until the time is over, so that each has as many as the others."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for number in deadline.rounds():
            turn = chains[number * _AT_ONCE % len(chains) :][:_AT_ONCE]
            list(pool.map(Chain.next_round, turn))
