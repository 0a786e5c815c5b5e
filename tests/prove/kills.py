"""The section `kills`: runs of every kind of operator are killed at every crash point.

Each kind has an application that goes on through all of its kills; from time to time it is run to
its end, and what it has put out by then is compared with what plain code says.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from statestore.faults import CrashPoint
from statestore.model.modes import KafkaClient
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import ELSEWHERE
from tests.prove.kind_rig import SETTINGS, Found, KindRig, Refused, broker_of, rig_on
from tests.prove.kinds import KINDS
from tests.prove.section import (
    Coverage,
    Deadline,
    Finding,
    Harm,
    Planted,
    Section,
    SectionResult,
    repeating,
)

POINTS = tuple(point for point in CrashPoint if point not in ELSEWHERE)
_STATELESS = "stateless"
_AT_ONCE = 2
_RECORDS = 240
_FIRST_RECORDS = 600
_KILLS_A_ROUND = 6
_KILLS_PER_MINUTE = 20
_EACH = 20
_PLANTED_SHARE = 0.25
# Most of what a run does are commits: which one a kill meets is drawn.
_VISITS = 5

_NOTE = (
    "Crash points of commands (exports, relocation, clones, resets) and of Spark's sink are no "
    "part of this section: tests/crash, tests/kafka and tests/spark kill there. Each kind of "
    "operator has one of the two Kafka clients, by the seed. A stateless pipeline has no store, so "
    "its runs do not come by the points of stores."
)


class Defect(NamedTuple):
    """A planted defect, the kind of operator it concerns, and where kills bring it out."""

    name: str
    kind: str
    points: Sequence[CrashPoint]
    guarantee: str = "exactly_once"


DEFECTS = (
    Defect("store_before_the_log", "aggregate", (CrashPoint.COMMIT_OFFSETS_SENT,)),
    Defect("offsets_outside_the_transaction", "processor", (CrashPoint.COMMIT_LOG_DONE,)),
    Defect("dirty_reader", "repartition", (CrashPoint.COMMIT_OFFSETS_SENT,)),
    Defect("timer_fired_twice", "timers", ()),
    Defect("window_emitted_twice", "windows", (CrashPoint.COMMIT_DONE,)),
    Defect("", "stateless", (CrashPoint.COMMIT_LOG_DONE,), "at_least_once"),
)


@dataclass
class Tally:
    """What the chains have met so far; several threads add to it."""

    kills: Counter[tuple[CrashPoint, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    missed: int = 0
    audits: int = 0
    records: int = 0
    lock: Lock = field(default_factory=Lock)


def run(seed: int, deadline: Deadline) -> SectionResult:
    """Plant each defect, then kill until the time is over."""
    tally = Tally()
    planted: list[Planted] = []
    with broker_of("kills") as (kafka, folder):
        planting = deadline.part(_PLANTED_SHARE)
        for defect in DEFECTS:
            if not planted or not planting.over:
                planted.append(planted_in(kafka, folder, seed, defect))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            chains = [_Chain(kafka, folder, kind, seed, tally) for kind in KINDS]
            for number in deadline.rounds():
                # Kinds take turns, so that each has as many kills as the others.
                turn = chains[number * _AT_ONCE % len(chains) :][:_AT_ONCE]
                list(pool.map(_Chain.next_round, turn))
    return SectionResult(
        tried={
            "kills": tally.kills.total(),
            "audits": tally.audits,
            "records": tally.records,
            "planted defects": len(planted),
        },
        least={
            "kills": int(_KILLS_PER_MINUTE * deadline.seconds / 60),
            "planted defects": len(DEFECTS),
        },
        findings=tuple(tally.findings),
        planted=tuple(planted),
        coverage=(_coverage(tally, _EACH if deadline.is_night else 0),),
        figures={"runs that ended before the point they were to die at": str(tally.missed)},
        notes=(_NOTE,),
    )


class _Chain:
    """The kills of one kind of operator, one after another, in an order of the seed."""

    def __init__(self, kafka: LocalKafka, folder: Path, kind: str, seed: int, tally: Tally) -> None:
        self._rng = random.Random(f"{seed} {kind}")
        client = self._rng.choice(list(KafkaClient))
        settings: Mapping[str, object] = {**SETTINGS, "kafka.client": str(client)}
        self._make = partial(rig_on, kafka, folder, kind, f"kills-{seed}-{kind}", settings=settings)
        self._seed = seed
        self._tally = tally
        self._points: list[CrashPoint] = []
        self._is_broken = False

    @cached_property
    def _rig(self) -> KindRig:
        return self._make()

    def next_round(self) -> None:
        """Some kills, a run to the end, and an audit."""
        if self._is_broken:
            return
        rig, kills, missed = self._rig, Counter[tuple[CrashPoint, str]](), 0
        before = rig.produced
        if not before:
            rig.produce(_FIRST_RECORDS)
        found: list[Found]
        try:
            for point in self._drawn():
                rig.produce(_RECORDS)
                if rig.killed_at(f"{point}:{self._visit(point)}"):
                    kills[point, rig.kind] += 1
                else:
                    missed += 1
            rig.ended()
            found = rig.anomalies()
        except Refused as error:
            found = [("run failed", str(error), Harm.ANOMALY)]
        self._is_broken = bool(found)
        repeat = repeating("kills", self._seed)
        findings = [
            Finding(rule, f"{rig.kind} after {dict(kills)}: {text}", repeat, harm)
            for rule, text, harm in found
        ]
        tally = self._tally
        with tally.lock:
            tally.kills.update(kills)
            tally.findings += findings
            tally.missed += missed
            tally.audits += 1
            tally.records += rig.produced - before

    def _drawn(self) -> list[CrashPoint]:
        """The next points; each has its turn before one comes again."""
        while len(self._points) < _KILLS_A_ROUND:
            again = [it for it in POINTS if is_visited(it, self._rig.kind)]
            self._rng.shuffle(again)
            self._points += again
        drawn, self._points = self._points[:_KILLS_A_ROUND], self._points[_KILLS_A_ROUND:]
        return drawn

    def _visit(self, point: CrashPoint) -> int:
        return self._rng.randint(1, _VISITS) if point.startswith("commit.") else 1


def is_visited(point: CrashPoint, kind: str) -> bool:
    """Whether a run of the kind comes by a point; what is about stores needs one."""
    of_stores = point.startswith(("restore.", "store.")) or point == CrashPoint.COMMIT_STORE_WRITTEN
    return not (of_stores and kind == _STATELESS)


def planted_in(kafka: LocalKafka, folder: Path, seed: int, defect: Defect) -> Planted:
    """What an audit says of runs with the defect, killed where it shows."""
    said = defect.name or "no transactions"
    rig = rig_on(
        kafka,
        folder,
        defect.kind,
        f"planted-{seed}-{said.replace(' ', '-')}",
        defect=defect.name,
        guarantee=defect.guarantee,
    )
    kills = 0
    try:
        rig.produce(_FIRST_RECORDS)
        rig.ended()
        for point in defect.points:
            for nth in (2, 3):
                rig.produce(_FIRST_RECORDS)
                kills += rig.killed_at(f"{point}:{nth}")
        rig.ended()
        rules = [rule for rule, _, _ in rig.anomalies()]
    except Refused as error:
        # An error of Python is no refusal: then the defect does not fit the code any more.
        rules = [] if "Traceback" in str(error) else ["refused by the product"]
    return Planted(said.replace("_", " "), tuple(dict.fromkeys(rules)), max(kills, 1))


def _coverage(tally: Tally, least: int) -> Coverage:
    kinds = tuple(KINDS)
    rows = {
        str(point): tuple(
            tally.kills[point, kind] if is_visited(point, kind) else None for kind in kinds
        )
        for point in POINTS
    }
    return Coverage("Kills by crash point and kind of operator", kinds, rows, least)


SECTION = Section(
    "kills",
    "Runs on a real broker are killed by SIGKILL at every crash point that a run comes by, for "
    "every kind of operator and with both Kafka clients; the next run goes on, and in the end all "
    "output, all offsets and all rows of stores are compared with what plain code says.",
    share=6,
    run=run,
)
