"""Carries out a plan of drills, one after another, on scratch applications.

One application goes through all drills in a chain: each run finishes what a killed one left. A red
drill ends the chain: its folder and topics stay as evidence, and the next drill gets another
application.
"""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from statestore.errors import StateStoreError
from statestore.faults import CrashPoint
from statestore.ports import Clock
from statestore.testing.drills.drill_plan import (
    Drilled,
    DrillReport,
    Kind,
    Outcome,
    Planned,
    Special,
)
from statestore.testing.drills.points import Met, at_moment, at_point, span_of_a_run
from statestore.testing.drills.scratch import Scratch
from statestore.testing.drills.specials import OwnBroker, drilled

_log = logging.getLogger(__name__)


@dataclass
class Drills:
    """The drills of one call.

    `fresh` makes a scratch application that has not begun yet. `keep` leaves green ones in place,
    too. `killable` says whether killing the process of a run kills the run; on Spark that would
    leave workers behind.
    """

    fresh: Callable[[], Scratch]
    clock: Clock
    broker: OwnBroker | None = None
    keep: bool = False
    killable: bool = True
    _scratch: Scratch | None = None
    _span_s: float | None = None
    _made: list[Scratch] = field(default_factory=list)

    def run(self, planned: Sequence[Planned], *, workload: str, seed: int) -> DrillReport:
        """Do all of them; no process stays, nor any topic or folder that is not evidence."""
        started_ms, started_s = self.clock.now_ms(), self.clock.monotonic()
        try:
            done = list(self._each(planned))
        finally:
            for scratch in self._made:
                scratch.end_children()
            # After a drill that was stopped, too, everything that is not evidence is removed.
            self._retire()
        return DrillReport(
            application_id=self._made[0].application_id,
            workload=workload,
            seed=seed,
            started_ms=started_ms,
            seconds=self.clock.monotonic() - started_s,
            drills=done,
        )

    def _each(self, planned: Sequence[Planned]) -> Iterator[Drilled]:
        for number, drill in enumerate(planned, start=1):
            scratch, met = self._met(drill)
            outcome = Outcome.GREEN if met.killed else Outcome.NOT_DRILLED
            evidence = None
            if met.findings:
                outcome, evidence = Outcome.RED, scratch.evidence()
                scratch.end_children()
                self._scratch = None
            elif scratch.spoilt:
                self._retire()
            result = _result(drill, met, outcome, evidence)
            level = logging.ERROR if outcome is Outcome.RED else logging.INFO
            _log.log(
                level,
                "drill %d/%d %s: %s, %s%s",
                number,
                len(planned),
                drill.name,
                outcome,
                met.happened,
                "".join(f"; {finding}" for finding in met.findings[:3]),
            )
            yield result

    def _met(self, drill: Planned) -> tuple[Scratch, Met]:
        scratch, rng = self._scratch, random.Random(drill.seed)
        try:
            if scratch is None:
                scratch = self._begun()
            match drill.kind:
                case Kind.POINT:
                    return scratch, at_point(scratch, CrashPoint(drill.name), rng)
                case Kind.MOMENT:
                    if not self.killable:
                        return scratch, _unkillable()
                    if self._span_s is None:
                        self._span_s = span_of_a_run(scratch)
                        scratch = self._unspent(scratch)
                    return scratch, at_moment(scratch, rng, self._span_s)
                case Kind.SPECIAL:
                    if not self.killable:
                        return scratch, _unkillable()
                    if scratch.clone is not None:
                        return scratch, _not_on_a_clone()
                    return scratch, drilled(Special(drill.name), scratch, self.broker)
        except (StateStoreError, OSError) as error:
            if scratch is None:
                raise
            wrong = [f"the drill itself could not go on: {type(error).__name__}: {error}"]
            return scratch, Met(killed=False, happened="broken off", recovery=None, findings=wrong)

    def _begun(self) -> Scratch:
        scratch = self._scratch = self.fresh()
        self._made.append(scratch)
        scratch.begin()
        return scratch

    def _unspent(self, scratch: Scratch) -> Scratch:
        """Replace a clone that has processed its backlog by another one."""
        if scratch.clone is None:
            return scratch
        self._retire()
        return self._begun()

    def _retire(self) -> None:
        """Remove a scratch application that is not needed any more."""
        scratch, self._scratch = self._scratch, None
        if scratch is None or self.keep:
            return
        scratch.remove()


def _result(drill: Planned, met: Met, outcome: Outcome, evidence: str | None) -> Drilled:
    summary = (met.recovery and met.recovery.summary) or {}
    return Drilled(
        kind=drill.kind,
        name=drill.name,
        seed=drill.seed,
        outcome=outcome,
        happened=met.happened,
        recovery_seconds=met.recovery and met.recovery.seconds,
        restore_seconds=summary.get("restore_seconds"),
        restored_records=summary.get("restored_records"),
        findings=met.findings,
        evidence=evidence,
        by_name=drill.by_name,
    )


def _not_on_a_clone() -> Met:
    why = "takes the generated workload: leave out --workload clone"
    return Met(killed=False, happened=why, recovery=None, findings=[])


def _unkillable() -> Met:
    why = "on Spark only crash points are drilled: there it is a worker that dies"
    return Met(killed=False, happened=why, recovery=None, findings=[])
