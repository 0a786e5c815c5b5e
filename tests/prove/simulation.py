"""The section `simulation`: schedules of real stream tasks over simulated brokers and disks.

It is cheap, so it tries many: processes that die at any visit, zombies, lost locks, lost answers,
brokers that stop, late requests, compaction. The other sections repeat less of it on real brokers.
"""

import gc
import logging
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.prove.section import (
    Coverage,
    Deadline,
    Finding,
    Harm,
    Planted,
    Section,
    SectionResult,
    planted_while,
)
from tests.simulation.audit import is_mistake_in_code
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.schedule import Simulation

_MEMORY = Path("/dev/shm")
_TRIALS = 300
_SCHEDULES = 5  # at least, as nobody dies in some
_PLANTED_SHARE = 0.3
_PER_MINUTE = 60  # schedules, on a machine that does other work too
_SIMULATED = (
    "Brokers, disks, clocks and processes are simulated here; stream tasks, stores and their "
    "commits are the real ones."
)
_DEATH = re.compile(r"(\S+)  DIES at (.*)$")
# What the audit of the simulation says, and the rule that is.
_RULES: Mapping[str, tuple[str, Harm]] = {
    "more than once": ("duplicate", Harm.DOUBLED),
    "never passed": ("lost write", Harm.LOST),
    "but never committed": ("aborted read", Harm.ANOMALY),
    "out of order": ("write cycle", Harm.ANOMALY),
    "want 1..": ("gap in counts", Harm.ANOMALY),
    "want them to grow": ("gap in an aggregate", Harm.ANOMALY),
    "is not its changelog": ("store unlike its changelog", Harm.ANOMALY),
    "changelog of": ("changelog unlike its input", Harm.ANOMALY),
    "buried": ("dead letter lost or doubled", Harm.ANOMALY),
    ".checkpoint has": ("checkpoint unlike its store", Harm.ANOMALY),
    "after commit": ("offset going back", Harm.ANOMALY),
    "the log ends at": ("input left over", Harm.LOST),
}


def run(seed: int, deadline: Deadline) -> SectionResult:
    """The library with each of the planted defects, then schedules from this seed on."""
    with _quiet():
        return _run(seed, deadline)


def _run(seed: int, deadline: Deadline) -> SectionResult:
    minutes = deadline.seconds / 60
    deaths: Counter[tuple[str, str]] = Counter()
    findings: list[Finding] = []
    schedules = steps = 0
    in_memory = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory, prefix="prove-") as scratch:
        folder = Path(scratch) / "schedule"
        planted = planted_while(
            deadline.part(_PLANTED_SHARE),
            (partial(_planted, mutant, seed, folder) for mutant in MUTANTS),
        )
        for number in deadline.rounds(least=_SCHEDULES):
            simulation, found = _lived(seed + number, folder)
            schedules, steps = schedules + 1, steps + len(simulation.trace)
            deaths.update(_deaths(simulation.trace))
            findings += [_finding(text, seed + number) for text in found]
    return SectionResult(
        tried={
            "schedules": schedules,
            "deaths": deaths.total(),
            "steps": steps,
            "planted defects": len(planted),
        },
        least={"schedules": int(_PER_MINUTE * minutes), "planted defects": len(MUTANTS)},
        findings=tuple(findings),
        planted=tuple(planted),
        coverage=(_coverage(deaths),),
        notes=(_SIMULATED,),
    )


def rule_of(text: str) -> tuple[str, Harm]:
    """The rule that a finding of the simulation's audit names."""
    if is_mistake_in_code(text):
        return "mistake in code", Harm.ANOMALY
    found = [rule for words, rule in _RULES.items() if words in text]
    # A stream task that nothing befell has failed by an error of the product's own.
    return found[0] if found else ("refused without a reason", Harm.ANOMALY)


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings by the thousand say nothing; garbage is not worth a search."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        logging.disable(logging.NOTSET)


def _lived(seed: int, folder: Path) -> tuple[Simulation, list[str]]:
    simulation = Simulation(seed, folder)
    try:
        return simulation, simulation.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _finding(text: str, seed: int) -> Finding:
    rule, harm = rule_of(text)
    repeat = f"STATESTORE_SIMULATION_SEED={seed} .venv/bin/python -m pytest tests/simulation"
    return Finding(rule, text, f"{repeat} -k one_seed -s", harm)


def _planted(mutant: Mutant, seed: int, folder: Path) -> Planted:
    name = mutant.__name__.replace("_", " ")
    for trial in range(_TRIALS):
        simulation = Simulation(seed + trial, folder)
        try:
            with pytest.MonkeyPatch.context() as patch:
                mutant(patch, simulation)
                found = simulation.run()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        # A mistake in code is no rule: the defect does not fit the product any more.
        if found and not any(map(is_mistake_in_code, found)):
            rules = sorted({rule_of(text)[0] for text in found})
            return Planted(name, tuple(rules), trial + 1)
    return Planted(name, (), _TRIALS)


def _deaths(trace: list[str]) -> list[tuple[str, str]]:
    found = [_DEATH.search(line) for line in trace]
    return [
        (match[2].removeprefix("· ").split(" ")[0], _kind(match[1])) for match in found if match
    ]


def _kind(process: str) -> str:
    name = process.partition("#")[0]
    return name if name == "driver" else f"sub-topology {name.partition('_')[0]}"


def _coverage(deaths: Counter[tuple[str, str]]) -> Coverage:
    """Where processes died, by what they were."""
    who = tuple(sorted({name for _, name in deaths}))
    places = sorted({place for place, _ in deaths})
    rows = {place: tuple(deaths[place, name] for name in who) for place in places}
    return Coverage("Deaths by what the process was about to ask, and whose it was", who, rows)


SECTION = Section(
    "simulation",
    "Schedules of stream tasks that die, stall, come back as zombies, lose answers and locks, over "
    "brokers and disks that are simulated: every count, list, dead letter, offset and store is "
    "compared with the input.",
    share=2,
    run=run,
)
