"""The section `volumes`: runs of every kind of operator over volumes that fail, and odd clocks.

Each kind has an application that goes on through all of it. A run ends well or says, in a line,
that the host is at fault; nothing else. The next run has the volume as it was left.
"""

import errno
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from statestore.errors import HostFailure, InvalidSetting, Unavailable
from statestore.model.modes import KafkaClient
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import STATESTORE
from tests.kafka import faulty_volume
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


class Fault(NamedTuple):
    """What befalls a run.

    `how`: the variables of `faulty_volume.c`. `settings`: those that such a run needs. `passes`: it
    may last for some calls only. `files`: how many files it may have open, one of these is drawn.
    `codes`: the exit codes with which it may end, beside 0. `refused`: that of a run without those
    settings.
    """

    name: str
    how: Mapping[str, int] = {}
    settings: Mapping[str, object] = {}
    passes: bool = False
    files: Sequence[int] = ()
    codes: Sequence[int] = ()
    refused: int | None = None


def _failing(name: str, number: int) -> Fault:
    return Fault(name, {"errno": number}, passes=True, codes=[HostFailure.exit_code])


_DAY_S = 86_400
FAULTS = (
    _failing("full", errno.ENOSPC),
    _failing("over quota", errno.EDQUOT),
    _failing("broken", errno.EIO),
    _failing("read-only", errno.EROFS),
    Fault("slow", {"slow_us": 5_000}),
    Fault("clock set ahead", {"step_s": _DAY_S}),
    Fault("clock set back", {"step_s": -40 * 365 * _DAY_S}),
    Fault(
        "no flock",
        {"flock": errno.ENOLCK},
        {"statestore.volume.locks": "false"},
        refused=InvalidSetting.exit_code,
    ),
    Fault(
        "too few open files",
        # A connection that cannot be opened is tried again for so long, several times.
        settings={"default.api.timeout.ms": 5000},
        files=(24, 40, 64, 96),
        codes=[HostFailure.exit_code, Unavailable.exit_code],
    ),
)
_RECORDS = 240
_FAULTS_A_ROUND = 4
_END_S = 300
_FAULTS_PER_MINUTE = 6
_EACH = 3
_PLANTED_SHARE = 0.5
_PLANTED_TRIALS = 24
_NAME = "état d'été ✓ 'q\" $x %s"
"""Where the state directories are."""
_FLUSHES: Mapping[str, object] = {"statestore.flush.lag.max.records": 40}
Part = tuple[float, float]
"""Of the calls of a run, as shares of all: from the one, before the other."""
DEFECTS: Mapping[str, Part] = {
    "errors_of_the_engine": (0.3, 0.5),
    "flushed_one_by_one": (0.6, 0.85),
}
"""By the part in which what is planted is at work: while stores are opened, and while flushed."""

_NOTE = (
    "A library loaded before all others has calls fail that write to the state directory: opening, "
    "writing, syncing, renaming, linking, making folders. Volumes that are lost are no part of it: "
    "tests/kafka/test_lost_volumes.py loses them."
)


def run(seed: int, deadline: Deadline) -> SectionResult:
    """Plant each defect, then let volumes fail until the time is over."""
    tally = Tally()
    with broker_of("volumes") as (kafka, folder):
        library, named = faulty_volume.built(folder), folder / _NAME
        planted = planted_while(
            deadline.part(_PLANTED_SHARE),
            (partial(_planted, kafka, named, library, seed, defect) for defect in DEFECTS),
        )
        take_turns([Faults(kafka, named, library, kind, seed, tally) for kind in KINDS], deadline)
    return SectionResult(
        tried={
            "faults met": tally.met.total(),
            "audits": tally.audits,
            "records": tally.records,
            "planted defects": len(planted),
        },
        least={
            "faults met": int(_FAULTS_PER_MINUTE * deadline.seconds / 60),
            "planted defects": len(DEFECTS),
        },
        findings=tuple(tally.findings),
        planted=tuple(planted),
        coverage=(_coverage(tally, _EACH if deadline.is_night else 0),),
        figures={f"runs that {end}": str(count) for end, count in sorted(tally.ends.items())},
        notes=(_NOTE,),
    )


class Faults(Chain):
    """The faults of one kind of operator, one after another."""

    section, refusal = "volumes", "unforeseen end"

    def __init__(
        self, kafka: LocalKafka, folder: Path, library: Path, kind: str, seed: int, tally: Tally
    ) -> None:
        super().__init__(kind, seed, tally)
        self._where = kafka, folder
        self._library = library
        client = self.rng.choice(list(KafkaClient))
        self._settings = {**SETTINGS, **_FLUSHES, "kafka.client": str(client)}
        self._faults = Turns(self.rng, FAULTS)

    def made(self) -> KindRig:
        name = f"volumes-{self.seed}-{self.kind}"
        return rig_on(*self._where, self.kind, name, settings=self._settings)

    @cached_property
    def _volume(self) -> "Volume":
        return Volume(self.rig, self._library)

    def befall(self, round_: Tally) -> None:
        self._volume.ends = round_.ends
        for fault in self._faults.next(_FAULTS_A_ROUND):
            self.rig.produce(_RECORDS)
            if self._volume.meets(fault, self.rng):
                round_.met[fault.name, self.kind] += 1


@dataclass
class Volume:
    """The volume of one application, and how its runs ended."""

    rig: KindRig
    library: Path
    ends: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    """How often the last run that ended well wrote there; 0: none did so far."""

    def meets(self, fault: Fault, rng: Random, within: Part = (0.0, 1.0)) -> bool:
        """Whether a run met it, at a call of this part; Refused if it ended as it must not."""
        if not self.calls:
            self._run({}, {}, [], [])
            self.rig.produce(_RECORDS)
        how, through = dict(fault.how), list[str]()
        if fault.refused is not None:
            refused, _ = self._run(how, {}, [fault.refused], [])
            self._run(how, fault.settings, fault.codes, [])
            return refused == fault.refused
        first, end = (int(share * self.calls) for share in within)
        after = how["after"] = rng.randrange(max(first, 1), max(end, first + 1, 2))
        if fault.passes:
            # For good, as on a volume that is full; or for some calls only.
            how["for"] = rng.choice((0, 0, 1, 20))
        if fault.files:
            through = ["prlimit", f"--nofile={rng.choice(fault.files)}"]
        code, calls = self._run(how, fault.settings, fault.codes, through)
        return bool(code) or (calls >= after and not fault.files)

    def _run(
        self,
        how: Mapping[str, int],
        settings: Mapping[str, object],
        codes: Sequence[int],
        through: Sequence[str],
    ) -> tuple[int, int]:
        """Run to the end or to a fault; return the exit code and how often it wrote there."""
        told = self.rig.state_dir.parent / f"calls-{self.rig.application_id}"
        told.parent.mkdir(parents=True, exist_ok=True)
        told.unlink(missing_ok=True)
        over = faulty_volume.over(self.library, self.rig.state_dir, count=told, **how)
        more = [f"--set={name}={value}" for name, value in settings.items()]
        command = [str(STATESTORE), "run", "--json", *self.rig.options, *self.rig.command(), *more]
        try:
            ended = subprocess.run(
                [*through, *over, *command],
                env=self.rig.environment(),
                capture_output=True,
                text=True,
                timeout=_END_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Refused(f"a run with {how} did not end within {_END_S} s") from None
        code, err = ended.returncode, ended.stderr
        if code not in {0, *codes} or "Traceback" in err:
            raise Refused(f"a run with {how} ended with code {code}: {err[-2000:]}")
        calls = sum(map(int, told.read_text().split())) if told.exists() else 0
        if not code and not codes:
            self.calls = calls
        self.ends["ended well" if not code else f"ended with code {code}"] += 1
        return code, calls


def _planted(kafka: LocalKafka, folder: Path, library: Path, seed: int, defect: str) -> Planted:
    """What runs with the defect, over a volume that is full from some call on, are found to be."""
    rng, full = Random(f"{seed} {defect}"), FAULTS[0]._replace(passes=False)
    name = f"volumes-{seed}-{defect}".replace("_", "-")
    settings = {**SETTINGS, **_FLUSHES}
    rig = rig_on(kafka, folder, "aggregate", name, defect=defect, settings=settings)
    volume, rules, trials = Volume(rig, library), list[str](), 0
    while not rules and trials < _PLANTED_TRIALS:
        trials += 1
        try:
            rig.produce(_RECORDS)
            volume.meets(full, rng, DEFECTS[defect])
            rig.ended()
            rules = [rule for rule, _, _ in rig.anomalies()]
        except Refused as error:
            # Any other end means that the defect does not fit the code any more.
            rules = [Faults.refusal] if os.strerror(errno.ENOSPC) in str(error) else []
    return Planted(defect.replace("_", " "), tuple(dict.fromkeys(rules)), trials)


def _coverage(tally: Tally, least: int) -> Coverage:
    kinds = tuple(KINDS)
    rows = {fault.name: tuple(tally.met[fault.name, kind] for kind in kinds) for fault in FAULTS}
    return Coverage("Faults of volumes, clocks and limits by kind of operator", kinds, rows, least)


SECTION = Section(
    "volumes",
    "Runs of every kind of operator over volumes that are full, broken, read-only, slow or without "
    "locks, with clocks that are set and too few open files; in the end all output, all offsets "
    "and all rows of stores are compared with what plain code says.",
    share=3,
    run=run,
)
