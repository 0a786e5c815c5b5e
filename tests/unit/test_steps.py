"""Steps that pause: one to its end, or several in turn."""

import logging

import pytest

from statestore.errors import Unavailable
from statestore.tasks.steps import Pause, Steps, at_once, together


def commit(name: str, done: list[str], fails_at: int | None = None) -> Steps[str]:
    """Three steps, with a pause behind the first and the second."""
    for number in range(3):
        if number == fails_at:
            raise Unavailable(f"{name} failed")
        done.append(f"{name}{number}")
        if number < 2:
            yield Pause.ASKED
    return name


def went_back(name: str, done: list[str]) -> Steps[str]:
    """One that fails at its second step, and repairs itself behind a pause."""
    done.append(f"{name}0")
    yield Pause.ASKED
    yield Pause.FAILED
    done.append(f"{name} went back")
    return name


def test_steps_at_once_return_what_they_return() -> None:
    done: list[str] = []
    assert at_once(commit("a", done)) == "a"
    assert done == ["a0", "a1", "a2"]


def test_together_each_keeps_its_order_and_goes_on_at_its_pauses() -> None:
    done: list[str] = []
    together([commit(name, done) for name in "abc"])
    assert done == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_who_failed_goes_back_after_the_others_have_ended() -> None:
    done: list[str] = []
    together([went_back("a", done), commit("b", done)])
    assert done == ["a0", "b0", "b1", "b2", "a went back"]


@pytest.mark.parametrize("fails_at", range(3))
def test_an_error_is_raised_after_the_others_have_ended(fails_at: int) -> None:
    done: list[str] = []
    with pytest.raises(Unavailable, match="a failed"):
        together([commit("a", done, fails_at), commit("b", done), went_back("c", done)])
    assert done[-1] == "c went back"
    assert [step for step in done if step.startswith("b")] == ["b0", "b1", "b2"]


def test_of_several_errors_the_first_is_raised_and_the_others_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    with caplog.at_level(logging.WARNING), pytest.raises(Unavailable, match="b failed"):
        together([commit("a", done, 2), commit("b", done, 1), commit("c", done)])
    assert "a failed" in caplog.text
    assert done[-1] == "c2"
