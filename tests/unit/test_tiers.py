"""Which cases of a dear test are in the first tier."""

from typing import Any

import pytest

from tests import tiers


def items(request: pytest.FixtureRequest, *names: str) -> list[pytest.Item]:
    module: Any = request.node.getparent(pytest.Module)
    return [pytest.Function.from_parent(module, name=name, callobj=list) for name in names]


def first_tier(made: list[pytest.Item]) -> list[str]:
    return [one.name for one in made if one.get_closest_marker("thorough") is None]


@pytest.fixture
def cost(request: pytest.FixtureRequest) -> str:
    return items(request, "test_dear")[0].nodeid


@pytest.mark.parametrize(("seconds", "kept"), [(0.01, 8), (0.1, 5), (0.2, 2), (9.0, 1)])
def test_as_many_cases_are_kept_as_cost_half_a_second(
    request: pytest.FixtureRequest, cost: str, seconds: float, kept: int
) -> None:
    names = [f"test_dear[{i}]" for i in range(8)]
    made = items(request, *names, "test_dear")
    tiers.leave_cases_out(made, {cost: seconds})
    assert len(first_tier(made)) == kept + 1, "and the one without parameters"


def test_each_commit_chooses_others_and_together_they_choose_all(
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
