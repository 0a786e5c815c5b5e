"""The section `model`: the commit protocol searched whole, and what the implementation did in it.

SPIN searches tests/model/commit.pml within bounds. The steps that stream tasks of the simulation
tell are then followed by the same model: what it cannot do, the implementation must not have done.
"""

import logging
import tempfile
from pathlib import Path

from tests.model.cases import FOUND, HOLDS, HOLDS_LONGER
from tests.model.search import missing, search
from tests.model.traces import by_task, follows
from tests.prove.section import Deadline, Finding, Planted, Section, SectionResult
from tests.simulation.schedule import Simulation

_LONG_S = 600.0
_TRACES_SHARE = 0.3


def run(seed: int, deadline: Deadline) -> SectionResult:
    """All searches that there is time for, then traces of the simulation from this seed on."""
    lacking = missing()
    assert lacking is None, f"missing: {lacking}"
    logging.disable(logging.CRITICAL)
    findings: list[Finding] = []
    figures: dict[str, str] = {}
    states = accepted = unsettled = 0
    planted = []
    for case in FOUND:
        found = search(case.parameters)
        is_it = found.violated is not None and found.violated.endswith(case.violated)
        planted.append(Planted(case.name, (case.violated,) if is_it else (), found.states))
    for name, bounds in (HOLDS | (HOLDS_LONGER if deadline.seconds >= _LONG_S else {})).items():
        found = search(bounds)
        states += found.states
        told = " ".join(f"{key}={value}" for key, value in bounds.items())
        figures[name] = f"{found.states} states ({told}), {found.megabytes:.0f} MB"
        if found.violated is not None:
            repeat = f".venv/bin/python -m tests.model.search {told}"
            findings.append(Finding("commit protocol", "\n".join(found.story), repeat))
    for number in deadline.part(_TRACES_SHARE).rounds():
        with tempfile.TemporaryDirectory(prefix="model-") as folder:
            simulation = Simulation(seed + number, Path(folder) / "schedule")
            simulation.run()
        for task, trace in by_task(simulation.protocol).items():
            is_followed = follows(trace)
            accepted += is_followed is True
            unsettled += is_followed is None
            if is_followed is False:
                text = f"stream task {task} of seed {seed + number} did what the model cannot do"
                repeat = f".venv/bin/python -m tests.model.traces {seed + number}"
                findings.append(Finding("trace refused by the model", text, repeat))
    return SectionResult(
        tried={"states": states, "traces": accepted},
        findings=tuple(findings),
        planted=tuple(planted),
        figures=figures,
        notes=(
            "A model, searched within the bounds that each search names; see docs/proof.md.",
            f"{unsettled} traces took too much to search, and are not counted.",
        ),
    )


SECTION = Section(
    "model",
    "The commit protocol as a model that is searched whole: late, lost and repeated messages, "
    "deaths and takeovers in every order; and what stream tasks of the simulation did, followed "
    "step by step by the same model.",
    share=1,
    run=run,
)
