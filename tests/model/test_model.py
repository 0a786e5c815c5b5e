"""The commit protocol searched whole: nothing is found, unless something that protects is off.

    pytest tests/model -m slow       two owners with more faults, for minutes

Shows I2 and I31.
"""

import shutil
from pathlib import Path

import pytest

from tests.model.cases import FOUND, HOLDS, HOLDS_LONGER, Case
from tests.model.search import Event, missing, search
from tests.model.traces import by_task, follows, refused_at
from tests.simulation.mutants import (
    Mutant,
    stores_before_the_log,
    unanswered_is_taken_for_done,
)
from tests.simulation.schedule import Simulation

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"missing: {missing()}")


@pytest.mark.thorough
@pytest.mark.parametrize("case", FOUND, ids=lambda case: case.name)
def test_what_goes_wrong_without_a_protection_is_found(case: Case) -> None:
    found = search(case.parameters)
    assert found.violated is not None, f"{found.states} states"
    assert found.violated.endswith(case.violated), "\n".join(found.story)


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOLDS)
def test_no_order_of_messages_and_deaths_breaks_a_commit(name: str) -> None:
    found = search(HOLDS[name])
    assert found.violated is None, "\n".join(found.story)
    assert found.states > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDS_LONGER)
def test_no_order_of_more_owners_and_faults_breaks_a_commit(name: str) -> None:
    found = search(HOLDS_LONGER[name])
    assert found.violated is None, "\n".join(found.story)
    assert found.states > 10_000


SEEDS = 5
_REFUSED_WITHIN = 100


def traces_of(simulation: Simulation, folder: Path) -> list[list[Event]]:
    """What the stream tasks of a schedule did."""
    simulation.run()
    shutil.rmtree(folder, ignore_errors=True)
    return list(by_task(simulation.protocol).values())


@pytest.mark.thorough
def test_the_model_can_do_all_that_stream_tasks_of_the_simulation_did(tmp_path: Path) -> None:
    seen = 0
    for seed in range(SEEDS):
        for trace in traces_of(Simulation(seed, tmp_path / "x"), tmp_path / "x"):
            at = refused_at(trace)
            assert at is None, f"seed {seed}, step {at}: {trace[max(0, at - 20) : at + 1]}"
            seen += bool(follows(trace))
    assert seen >= SEEDS


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [stores_before_the_log, unanswered_is_taken_for_done])
def test_the_model_cannot_do_what_a_faulty_implementation_did(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(_REFUSED_WITHIN):
        simulation = Simulation(seed, tmp_path / "x")
        with monkeypatch.context() as patch:
            mutant(patch, simulation)
            traces = traces_of(simulation, tmp_path / "x")
        if any(follows(trace) is False for trace in traces):
            return
    pytest.fail(f"the model accepts all of {_REFUSED_WITHIN} schedules")
