"""The section `simulation`, with little time."""

import pytest

from tests.prove import simulation
from tests.prove.section import Deadline, Harm, Verdict
from tests.simulation.mutants import stores_before_the_log
from tests.simulation.schedule import Simulation


def test_a_little_of_the_simulation_holds_and_catches_what_was_planted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation, "MUTANTS", [stores_before_the_log])
    result = simulation.run(3, Deadline(0.5))
    assert result.verdict is Verdict.HELD
    assert result.tried["deaths"] > 0
    (planted,) = result.planted
    assert planted.defect == "stores before the log"
    # By which rule depends on the schedule, which each call to a broker changes.
    assert planted.caught_by


def test_a_defect_in_the_product_is_a_finding_with_its_rule_and_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation, "MUTANTS", [])

    def run(schedule: Simulation) -> list[str]:
        return ["never passed: [3]"]

    monkeypatch.setattr(Simulation, "run", run)
    result = simulation.run(3, Deadline(0))
    finding = result.findings[0]
    assert (finding.rule, finding.harm) == ("lost write", Harm.LOST)
    assert "STATESTORE_SIMULATION_SEED=3" in finding.repeat
    assert result.verdict is Verdict.BROKEN


def test_a_defect_that_does_not_run_is_not_caught_but_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation, "MUTANTS", [stores_before_the_log])
    monkeypatch.setattr(simulation, "_TRIALS", 2)
    monkeypatch.setattr(Simulation, "run", lambda _schedule: ["0_0#3 steps: TypeError('None')"])
    result = simulation.run(3, Deadline(0))
    assert result.missed == ["stores before the log"]
