"""What the first tier has of dear tests."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.test_times import summary
from tests import tiers

ROOT = Path(__file__).resolve().parents[2]


def items(request: pytest.FixtureRequest, *names: str) -> list[pytest.Item]:
    module: Any = request.node.getparent(pytest.Module)
    return [pytest.Function.from_parent(module, name=name, callobj=list) for name in names]


def first_tier(made: list[pytest.Item]) -> list[str]:
    return [one.name for one in made if one.get_closest_marker("thorough") is None]


@pytest.fixture
def cost(request: pytest.FixtureRequest) -> str:
    return items(request, "test_dear")[0].nodeid


@pytest.mark.parametrize(("seconds", "kept"), [(0.01, 8), (0.02, 5), (0.05, 2), (9.0, 1)])
def test_as_many_cases_are_kept_as_cost_a_tenth_of_a_second(
    request: pytest.FixtureRequest, cost: str, seconds: float, kept: int
) -> None:
    names = [f"test_dear[{i}]" for i in range(8)]
    made = items(request, *names, "test_dear")
    tiers.leave_cases_out(made, {cost: seconds})
    assert len(first_tier(made)) == kept + 1, "and the one without parameters"


def test_each_commit_chooses_other_cases_and_together_they_choose_all(
    request: pytest.FixtureRequest, cost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []
    for seed in range(60):
        monkeypatch.setattr(tiers, "commit_seed", lambda seed=seed: seed)
        made = items(request, *(f"test_dear[{i}]" for i in range(4)))
        tiers.leave_cases_out(made, {cost: 1.0})
        chosen += first_tier(made)
    assert len(chosen) == 60
    assert set(chosen) == {f"test_dear[{i}]" for i in range(4)}


@pytest.mark.parametrize(("seconds", "kept"), [(0.1, 6), (0.2, 2), (0.25, 2), (1.4, 1)])
def test_of_the_dear_tests_of_a_module_there_are_as_many_as_cost_less_than_a_second(
    request: pytest.FixtureRequest, seconds: float, kept: int
) -> None:
    made = items(request, *(f"test_{i}" for i in range(6)), "test_cheap")
    tiers.leave_tests_out(made, {one.nodeid: seconds for one in made[:-1]})
    assert len(first_tier(made)) == kept + 1, "and the cheap one"


def test_each_commit_chooses_other_tests_and_together_they_choose_all(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []
    for seed in range(60):
        monkeypatch.setattr(tiers, "commit_seed", lambda seed=seed: seed)
        made = items(request, *(f"test_{i}" for i in range(4)))
        tiers.leave_tests_out(made, {one.nodeid: 1.0 for one in made})
        chosen += first_tier(made)
    assert len(chosen) == 60
    assert set(chosen) == {f"test_{i}" for i in range(4)}


def test_a_very_dear_test_has_its_turn_in_one_commit_of_three(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = 0
    for seed in range(90):
        monkeypatch.setattr(tiers, "commit_seed", lambda seed=seed: seed)
        made = items(request, "test_alone")
        tiers.leave_tests_out(made, {made[0].nodeid: 9.0})
        there += len(first_tier(made))
    assert 20 < there < 40


def test_what_keeps_a_promise_alone_is_always_there(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = items(request, *(f"test_{i}" for i in range(4)))
    costs = {one.nodeid: 9.0 for one in made}
    module = made[0].nodeid.partition("::")[0]
    monkeypatch.setattr(tiers, "KEPT", {module: ("test_0", "test_1")})
    tiers.leave_tests_out(made, costs)
    assert {"test_0", "test_1"} <= set(first_tier(made))
    assert set(first_tier(made)) != {one.name for one in made}
    again = items(request, *(f"test_{i}" for i in range(4)))
    monkeypatch.setattr(tiers, "WHOLE", (again[0].nodeid.rpartition("/")[0] + "/",))
    tiers.leave_tests_out(again, costs)
    assert len(first_tier(again)) == 4


def test_what_a_module_starts_is_no_cost_of_the_function_that_came_first() -> None:
    def line(what: str, name: str, phase: str, cpu: float) -> dict[str, Any]:
        return {"what": what, "name": name, "phase": phase, "cpu": cpu, "real": cpu}

    lines = [
        line("fixture", "m.py::broker", "module", 4.0),
        line("fixture", "m.py::app", "function", 0.25),
        line("test", "m.py::test_first", "setup", 4.5),
        line("test", "m.py::test_first", "call", 1.0),
        line("fixture", "m.py::app", "function", 0.25),
        line("test", "m.py::test_second[a]", "setup", 0.5),
        line("test", "m.py::test_second[a]", "call", 1.0),
    ]
    kept = summary(lines)
    assert kept["functions"] == {"m.py::test_first": 1.5, "m.py::test_second": 1.5}
    assert kept["modules"] == {"m.py": [2, 7.0, 7.0]}


@pytest.mark.parametrize("folder", tiers.WHOLE)
def test_folders_that_are_always_there_have_tests(folder: str) -> None:
    assert any((ROOT / folder).glob("test_*.py"))


@pytest.mark.parametrize("module", tiers.KEPT)
def test_what_is_always_there_exists_and_is_not_of_the_second_tier(module: str) -> None:
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    found = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    marks = [ast.unparse(one) for one in tree.body if isinstance(one, ast.Assign)]
    marks = [mark for mark in marks if mark.startswith("pytestmark")]
    for name in tiers.KEPT[module]:
        marks += [ast.unparse(one) for one in found[name].decorator_list]
    for mark in marks:
        outside_cases = mark.partition("parametrize(")[0]
        assert not {"thorough", "slow"} & set(re.findall(r"\w+", outside_cases)), mark
