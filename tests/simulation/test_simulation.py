"""Thousands of schedules of stream tasks that die, stall, lose answers and locks: exactly once.

STATESTORE_SIMULATIONS=20000 pytest tests/simulation       more of them
STATESTORE_SIMULATION_SEED=77 pytest tests/simulation -k one_seed -s     one of them, told

Shows I6.
"""

import gc
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import DEADLINE_S, child
from tests.simulation.audit import is_mistake_in_code
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.schedule import Simulation
from tests.tiers import commit_seed

SCHEDULES = int(os.environ.get("STATESTORE_SIMULATIONS", "2000"))
NEW_SCHEDULES = 80
SEED = os.environ.get("STATESTORE_SIMULATION_SEED")
_MEMORY = Path("/dev/shm")
_MUTANT_SEEDS = 300
_PARTS = 8  # for as many processes
_TRACED = """
import sys
from pathlib import Path
from tests.simulation.schedule import Simulation

simulation = Simulation(int(sys.argv[1]), Path(sys.argv[2]))
simulation.run()
print("\\n".join(simulation.trace))
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: locks and checkpoint files are synced a lot."""
    in_memory = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory, prefix="simulation-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings by the thousand say nothing, the trace does; garbage is not worth a search."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    yield
    gc.unfreeze()
    logging.disable(logging.NOTSET)


def simulated(seed: int, folder: Path, *, exactly_once: bool = True) -> list[str]:
    """What one schedule found."""
    simulation = Simulation(seed, folder / str(seed), exactly_once=exactly_once)
    try:
        return simulation.run()
    finally:
        shutil.rmtree(folder / str(seed), ignore_errors=True)


def check(first: int, count: int, folder: Path) -> None:
    """Fail with the first schedule that finds something: what, how to repeat it, its story."""
    for seed in range(first, first + count):
        if simulated(seed, folder):
            again = Simulation(seed, folder / "again")
            findings = "\n".join(again.run())
            story = "\n".join(again.trace)
            pytest.fail(
                f"seed {seed}:\n{findings}\n\nrepeat it:  STATESTORE_SIMULATION_SEED={seed} "
                f"{sys.executable} -m pytest tests/simulation -k one_seed -s\n\n{story}",
                pytrace=False,
            )


def test_no_schedule_of_those_of_the_commit_loses_or_doubles_anything(scratch: Path) -> None:
    check(commit_seed(), NEW_SCHEDULES, scratch)


@pytest.mark.thorough
@pytest.mark.timeout(60 + SCHEDULES)
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_schedule_loses_or_doubles_anything(scratch: Path, part: int) -> None:
    first, end = (SCHEDULES * number // _PARTS for number in (part, part + 1))
    check(first, end - first, scratch)


@pytest.mark.slow
def test_no_schedule_of_many_new_ones_loses_or_doubles_anything(scratch: Path) -> None:
    check(secrets.randbelow(1 << 32), 20 * SCHEDULES, scratch)


def test_one_seed_tells_the_same_story_in_every_process(scratch: Path) -> None:
    seed = int(SEED or 13)
    simulation = Simulation(seed, scratch / "here")
    findings = simulation.run()
    story = "\n".join(simulation.trace)
    if SEED:
        print(f"{story}\n\nseed {seed}: {findings or 'nothing wrong'}")  # noqa: T201 - asked for
    assert findings == []
    for hash_seed in ("1", "2"):
        other = child(_TRACED, seed, scratch / hash_seed, env={"PYTHONHASHSEED": hash_seed})
        output, errors = other.communicate(timeout=DEADLINE_S)
        assert other.returncode == 0, errors
        assert output == story + "\n"


def test_without_transactions_the_same_schedules_double_but_lose_nothing(scratch: Path) -> None:
    found = [
        finding for seed in range(40) for finding in simulated(seed, scratch, exactly_once=False)
    ]
    assert any("more than once" in finding for finding in found)
    assert any("want 1.." in finding for finding in found)
    # At least once is a promise too.
    assert [f for f in found if "never passed" in f or "is not its changelog" in f] == []


# The one that takes most schedules to find.
FOUND_LATE = "going_back_without_a_restore"


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=mutant.__name__,
            marks=[pytest.mark.thorough] if mutant.__name__ == FOUND_LATE else [],
        )
        for mutant in MUTANTS
    ],
)
def test_a_fault_planted_in_the_commit_code_is_found(
    mutant: Mutant, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(_MUTANT_SEEDS):
        simulation = Simulation(seed, scratch / str(seed))
        with monkeypatch.context() as patch:
            mutant(patch, simulation)
            if found := simulation.run():
                # Or the mutant does not fit the code any more.
                assert [it for it in found if is_mistake_in_code(it)] == []
                return
    pytest.fail(f"{mutant.__name__} was not found within {_MUTANT_SEEDS} schedules")
