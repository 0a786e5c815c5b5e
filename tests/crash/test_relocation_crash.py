"""SIGKILL at every visit of every crash point of a relocation: the next ends in the same place.

Each death is a real one, of a forked process. Stores are files here; relocation does not look into
them.

Shows I15.
"""

import gc
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import faults
from statestore.faults import CrashPoint
from statestore.model.ids import TaskId
from statestore.operations.relocation.relocation_plan import Choices
from tests.relocation_rig import (
    Died,
    Rig,
    dying_at,
    expected_entries,
    expected_stores,
    in_memory_folder,
    places_of,
)
from tests.tiers import chosen_of

POINTS = [point for point in CrashPoint if point.startswith("relocate.")]
SCENARIOS = {
    "swap": ("A|B", "B|A"),
    "3-cycle": ("A|B|C", "C|A|B"),
    "split": ("A B C|D", "A|B|C|D"),
    "merge": ("A|B|C", "A B C"),
}
SEED = 13627


def killed(action: Callable[[], object], crash_at: str) -> bool:
    """Whether a process that does it dies at that point; one that lives does all of it."""
    pid = os.fork()
    if pid == 0:
        # A database that another test has forgotten would wait here, at its close, for threads that
        # a forked process does not have.
        gc.disable()
        code = 1
        try:
            faults.arm(crash_at)
            action()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def finished(folder: Path, before: str, after: str) -> dict[str, str]:
    """Every file of a relocation nobody disturbed."""
    rig = Rig(folder / "undisturbed").deploy(before, partitions=1)
    rig.relocation(after).apply()
    return rig.tree()


@pytest.mark.parametrize("scenario", chosen_of(SCENARIOS))
def test_killed_at_each_visit_of_each_point_it_ends_in_the_same_place(scenario: str) -> None:
    before, after = SCENARIOS[scenario]
    reached: Counter[CrashPoint] = Counter()
    with in_memory_folder() as folder:
        wanted = finished(folder, before, after)
        for point in POINTS:
            for visit in range(1, 100):
                rig = Rig(folder / f"{point}-{visit}").deploy(before, partitions=1)
                if not killed(rig.relocation(after).apply_locked, f"{point}:{visit}"):
                    break
                reached[point] += 1
                rig.relocation(after).apply_locked()
                assert rig.tree() == wanted, f"{scenario}: {point}, visit {visit}"
                assert rig.stores() == expected_stores(after, partitions=1)
                assert rig.entries() == expected_entries(after, partitions=1)
    print(scenario, dict(reached))  # noqa: T201 - what was reached is part of the result
    assert set(reached) == set(POINTS), "a point that was not reached proves nothing"
    assert reached[CrashPoint.RELOCATE_RENAMED] >= 2


@pytest.mark.parametrize("scenario", chosen_of(SCENARIOS))
def test_killed_again_and_again_it_ends_in_the_same_place(scenario: str) -> None:
    before, after = SCENARIOS[scenario]
    rng = random.Random(SEED)
    with in_memory_folder() as folder:
        wanted = finished(folder, before, after)
        for life in range(2):
            rig = Rig(folder / str(life)).deploy(before, partitions=1)
            deaths = sum(
                killed(rig.relocation(after).apply_locked, f"{rng.choice(POINTS)}:1")
                for _ in range(6)
            )
            rig.relocation(after).apply_locked()
            assert rig.tree() == wanted, f"seed {SEED}, life {life}"
            assert deaths


def test_a_chosen_copy_is_set_aside_once_however_often_it_is_killed() -> None:
    choices = Choices(keep=frozenset({TaskId(0, 0)}))
    visits = 0
    with in_memory_folder() as folder:
        for visit in range(1, 100):
            rig = Rig(folder / str(visit)).deploy("A|B", partitions=1)
            rig.put("A", TaskId(1, 0), "the wrong rows")
            relocate = rig.relocation("B|A", choices=choices).apply_locked
            if not killed(relocate, f"{CrashPoint.RELOCATE_RENAMING}:{visit}"):
                break
            visits += 1
            rig.relocation("B|A", choices=choices).apply_locked()
            assert rig.stores() == expected_stores("B|A", partitions=1)
            assert rig.quarantined() == {"A-0 other-copy": "the wrong rows"}
    assert visits >= 4


def test_offline_a_repeated_one_needs_no_broker_either() -> None:
    with in_memory_folder() as folder:
        for point in POINTS:
            rig = Rig(folder / point).deploy("A|B")
            assert killed(rig.relocation("B|A", settle=None).apply_locked, point)
            rig.relocation("B|A", settle=None).apply_locked()
            assert rig.stores() == expected_stores("B|A")


@st.composite
def topologies(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from("ABCDEm"), min_size=1, unique=True))
    cuts = draw(st.sets(st.integers(1, max(1, len(names) - 1))))
    return "".join(("|" if i in cuts else " ") + name for i, name in enumerate(names)).strip()


@given(
    before=topologies(),
    after=topologies(),
    partitions=st.integers(1, 3),
    deaths=st.lists(st.integers(1, 40), max_size=3),
    empties=st.lists(st.tuples(st.sampled_from("ABCDE"), st.integers(0, 4)), max_size=2),
)
def test_any_topology_finds_its_stores_after_any_other_and_nothing_else_is_touched(
    before: str,
    after: str,
    partitions: int,
    deaths: list[int],
    empties: list[tuple[str, int]],
) -> None:
    with in_memory_folder() as folder:
        rig = Rig(folder).deploy(before, partitions)
        had = {name for name in places_of(before) if not name.islower()}
        for name, ordinal in empties:
            path = rig.layout.store_dir(TaskId(ordinal, 0), name)
            if name in had and not path.exists():
                path.mkdir(parents=True)
        wanted = wanted_stores(rig, after)
        offsets = {tp: at for said in rig.entries().values() for tp, at in said.items()}
        for visit in deaths:
            faults.on_reach(dying_at(visit))
            try:
                rig.relocation(after).apply_locked()
            except Died:
                pass
            finally:
                faults.on_reach(None)
        rig.relocation(after).apply_locked()
        assert rig.stores() == wanted
        for task, said in rig.entries().items():
            for (topic, partition), at in said.items():
                name = topic.removeprefix("shop-").removesuffix("-changelog")
                assert at == offsets.pop((topic, partition))  # type: ignore[call-overload]  # equal
                assert f"{task}/{name}" in wanted
                assert int(task.partition("_")[2]) == partition
        assert not offsets, "an entry was lost"
        kept = {record.store for _, record in rig.layout.quarantined()}
        assert kept <= {name for name, _ in empties}


def wanted_stores(rig: Rig, after: str) -> dict[str, str]:
    """What must be where: found by name and partition, the empty ones only where alone."""
    places = {name: o for name, o in places_of(after).items() if not name.islower()}
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for place, rows in rig.stores().items():
        task, _, name = place.partition("/")
        found.setdefault((name, task.partition("_")[2]), []).append((task, rows))
    wanted: dict[str, str] = {}
    for (name, partition), copies in found.items():
        if name not in places:
            wanted |= {f"{task}/{name}": rows for task, rows in copies}
        else:
            wanted[f"{places[name]}_{partition}/{name}"] = max(rows for _, rows in copies)
    return wanted
