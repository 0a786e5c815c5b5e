"""The section `kills`: runs of every kind of operator are killed at every crash point.

Each kind has an application that goes on through all of its kills; from time to time it is run to
its end, and what it has put out by then is compared with what plain code says.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from statestore.faults import CrashPoint
from statestore.model.modes import KafkaClient
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import ELSEWHERE
from tests.prove.chains import Chain, Tally, Turns, take_turns
from tests.prove.kind_rig import SETTINGS, KindRig, Refused, broker_of, rig_on
from tests.prove.kinds import KINDS
from tests.prove.section import (
    Coverage,
    Deadline,
    Planted,
    Section,
    SectionResult,
    planted_while,
)

POINTS = tuple(point for point in CrashPoint if point not in ELSEWHERE)
_STATELESS = "stateless"
_MISSED = "runs that ended before the point they were to die at"
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


def run(seed: int, deadline: Deadline) -> SectionResult:
    """Plant each defect, then kill until the time is over."""
    tally = Tally()
    with broker_of("kills") as (kafka, folder):
        planted = planted_while(
            deadline.part(_PLANTED_SHARE),
            (partial(planted_in, kafka, folder, seed, defect) for defect in DEFECTS),
        )
        take_turns([Kills(kafka, folder, kind, seed, tally) for kind in KINDS], deadline)
    return SectionResult(
        tried={
            "kills": tally.met.total(),
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
        figures={_MISSED: str(tally.ends[_MISSED])},
        notes=(_NOTE,),
    )


class Kills(Chain):
    """The kills of one kind of operator, one after another."""

    section, refusal = "kills", "run failed"

    def __init__(self, kafka: LocalKafka, folder: Path, kind: str, seed: int, tally: Tally) -> None:
        super().__init__(kind, seed, tally)
        self._where = kafka, folder
        client = self.rng.choice(list(KafkaClient))
        self._settings: Mapping[str, object] = {**SETTINGS, "kafka.client": str(client)}
        self._points = Turns(self.rng, [it for it in POINTS if is_visited(it, kind)])

    def made(self) -> KindRig:
        name = f"kills-{self.seed}-{self.kind}"
        return rig_on(*self._where, self.kind, name, settings=self._settings)

    def befall(self, round_: Tally) -> None:
        if not self.rig.produced:
            self.rig.produce(_FIRST_RECORDS)
        for point in self._points.next(_KILLS_A_ROUND):
            self.rig.produce(_RECORDS)
            if self.rig.killed_at(f"{point}:{self._visit(point)}"):
                round_.met[point, self.kind] += 1
            else:
                round_.ends[_MISSED] += 1

    def _visit(self, point: CrashPoint) -> int:
        return self.rng.randint(1, _VISITS) if point.startswith("commit.") else 1


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
            tally.met[point, kind] if is_visited(point, kind) else None for kind in kinds
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
