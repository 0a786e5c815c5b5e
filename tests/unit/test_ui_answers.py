"""The three answers, for every way an application can be."""

from typing import Any

import pytest

from statestore.layout.audits import AuditVerdict
from statestore.operations.status.status import AuditStatus, State, Status, TaskStatus
from statestore.ui.answers import Answer, Level, answers_of, level_of


def status(**fields: Any) -> Status:
    known: dict[str, Any] = {
        "application_id": "app",
        "state": State.RUNNING,
        "at_ms": 0,
        "owner": None,
        "broker": None,
        "stream_tasks": [],
        "lag_records": 0,
        "lag_seconds": 0.0,
        "last_commit_age_seconds": 1.0,
        "catch_up_seconds": 0.0,
        "restore_seconds": 0.0,
        "audit": None,
        "export": None,
        "relocation": None,
        "free_bytes": 1,
    }
    return Status(**known | fields)


def audit(verdict: AuditVerdict, age_s: float = 60.0) -> AuditStatus:
    return AuditStatus(verdict, 0, age_s, "live", None)


def answers(**fields: Any) -> tuple[Answer, Answer, Answer]:
    return answers_of(status(**fields))


@pytest.mark.parametrize(
    ("fields", "level", "words"),
    [
        ({}, Level.GOOD, "no"),
        ({"lag_records": 5, "lag_seconds": 2.0}, Level.GOOD, "by 2.0 s"),
        ({"lag_records": 5, "lag_seconds": 7200.0}, Level.CARE, "by 2 h"),
        ({"lag_records": 5, "lag_seconds": None}, Level.CARE, "yes"),
        (
            {"lag_records": 5, "lag_seconds": 7200.0, "state": State.CRASHED},
            Level.BAD,
            "by 2 h",
        ),
        ({"broker": "no answer", "lag_records": None}, Level.UNKNOWN, "not known"),
        ({"lag_records": None, "lag_seconds": None}, Level.UNKNOWN, "not known"),
    ],
)
def test_am_i_behind(fields: dict[str, Any], level: Level, words: str) -> None:
    answer = answers(**fields)[0]
    assert (answer.level, answer.words) == (level, words)


def test_an_application_that_never_ran_is_told_from_brokers_that_say_nothing() -> None:
    unknown = {"lag_records": None, "lag_seconds": None}
    assert answers(**unknown)[0].note == "it never ran"
    tasks = [TaskStatus("0_0", State.STOPPED, None)]
    assert answers(**unknown, stream_tasks=tasks)[0].note == "the brokers did not tell"


def test_records_held_back_are_told_when_nothing_else_is_behind() -> None:
    assert "3 records wait" in answers(held_records=3)[0].note


@pytest.mark.parametrize(
    ("last", "level", "words"),
    [
        (None, Level.UNKNOWN, "never audited"),
        (audit(AuditVerdict.RIGHT), Level.GOOD, "yes"),
        (audit(AuditVerdict.RIGHT, 30 * 86_400.0), Level.CARE, "yes"),
        (audit(AuditVerdict.WRONG), Level.BAD, "no"),
        (audit(AuditVerdict.NOTHING_CHECKED), Level.CARE, "nothing checked"),
        (audit(AuditVerdict.NOT_ENOUGH_CHECKED), Level.CARE, "not enough checked"),
    ],
)
def test_is_my_data_right(last: AuditStatus | None, level: Level, words: str) -> None:
    answer = answers(audit=last)[1]
    assert (answer.level, answer.words) == (level, words)


@pytest.mark.parametrize(
    ("fields", "level", "words"),
    [
        ({}, Level.GOOD, "now"),
        ({"restore_seconds": 1.0, "catch_up_seconds": 4.0}, Level.GOOD, "5.0 s"),
        ({"restore_seconds": None, "catch_up_seconds": 3600.0}, Level.CARE, "1 h"),
        ({"restore_seconds": 1.0, "catch_up_seconds": None}, Level.UNKNOWN, "not known"),
        ({"restore_seconds": None, "catch_up_seconds": None}, Level.UNKNOWN, "not known"),
    ],
)
def test_how_long_until_i_am_back(fields: dict[str, Any], level: Level, words: str) -> None:
    answer = answers(**fields)[2]
    assert (answer.level, answer.words) == (level, words)


def test_every_state_has_a_level_and_only_work_is_good() -> None:
    good = {state for state in State if level_of(state) is Level.GOOD}
    assert good == {State.RUNNING, State.RESTORING}
    assert level_of(State.CRASHED) is Level.BAD
