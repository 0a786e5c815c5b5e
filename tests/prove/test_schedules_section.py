"""The section `schedules`, with little time."""

import json
import shlex

import pytest

from tests.kafka import log_checker
from tests.kafka.fault_schedules import Order, Story, tried
from tests.prove import schedules
from tests.prove.section import Deadline, Harm, Verdict

FIRST = schedules._PLANTED[:1]


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_little_of_the_schedules_holds_and_catches_runs_without_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "_AT_A_TIME", 4)
    monkeypatch.setattr(schedules, "_PLANTED", FIRST)
    result = schedules.run(3, Deadline(0))
    assert result.verdict is Verdict.HELD, result.findings
    assert result.tried == {"schedules": 4, "planted defects": 1}
    (planted,) = result.planted
    assert "duplicate" in planted.caught_by


def test_a_process_that_dies_is_told_with_what_it_had_not_lived_through() -> None:
    order = Order([4, 5], ("wire",))
    (finding,) = schedules.found_in(order, [Story(4, [], [])], "exit code -6: an assertion")
    assert (finding.rule, finding.harm) == ("process died", Harm.ANOMALY)
    assert repeated(finding.repeat)["seeds"] == [5]


@pytest.mark.kafka
@pytest.mark.thorough
def test_how_a_process_died_is_told() -> None:
    stories, death = tried(Order([1], ()))  # no client to draw
    assert stories == []
    assert death.startswith("exit code 1: ")


def test_what_the_judge_found_is_a_finding_with_its_rule_and_the_command() -> None:
    order = Order([4, 5], ("librdkafka", "wire"))
    story = Story(5, [log_checker.Finding("lost write", "a result is missing")], [])
    (finding,) = schedules.found_in(order, [story], "")
    assert (finding.rule, finding.harm) == ("lost write", Harm.LOST)
    told = repeated(finding.repeat)
    assert (told["seeds"], told["clients"]) == ([5], ["librdkafka", "wire"])


def repeated(command: str) -> dict[str, object]:
    """The order in a command."""
    _, dash, module, order = shlex.split(command)
    assert (dash, module) == ("-m", "tests.kafka.fault_schedules")
    found: dict[str, object] = json.loads(order)
    return found
