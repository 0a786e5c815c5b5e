"""The three answers: am I behind, is my data right, how long until I am back?"""

from enum import StrEnum
from typing import Final, NamedTuple

from statestore.layout.audits import AuditVerdict
from statestore.model.texts import span_text
from statestore.operations.status.status import State, Status

_LITTLE_S: Final = 60.0
_OLD_AUDIT_S: Final = 2 * 86_400.0
_AT_WORK: Final = frozenset({State.RUNNING, State.RESTORING})
_BROKEN: Final = frozenset({State.CRASHED, State.SILENT, State.UNKNOWN})


class Level(StrEnum):
    """How good an answer is; its text always says so as well, as not everybody sees colours."""

    GOOD = "good"
    CARE = "care"
    BAD = "bad"
    UNKNOWN = "unknown"


class Answer(NamedTuple):
    """An answer in a few words, with what stands below it."""

    question: str
    level: Level
    words: str
    note: str = ""


def answers_of(status: Status) -> tuple[Answer, Answer, Answer]:
    """Return the answers to the three questions."""
    return _behind(status), _right(status), _back(status)


def level_of(state: State) -> Level:
    """Return how good it is to be in a state."""
    if state in _AT_WORK:
        return Level.GOOD
    return Level.BAD if state in _BROKEN else Level.UNKNOWN


def _behind(status: Status) -> Answer:
    question = "Am I behind?"
    if status.broker is not None:
        return Answer(question, Level.UNKNOWN, "not known", status.broker)
    records, seconds = status.lag_records, status.lag_seconds
    if records is None:
        note = "the brokers did not tell" if status.stream_tasks else "it never ran"
        return Answer(question, Level.UNKNOWN, "not known", note)
    if records == 0:
        held = status.held_records
        note = f"{held:,} records wait in operators for later input" if held else ""
        return Answer(question, Level.GOOD, "no", note)
    note = f"{records:,} records"
    if seconds is not None and seconds <= _LITTLE_S:
        return Answer(question, Level.GOOD, f"by {span_text(seconds)}", note)
    level = Level.BAD if status.state in _BROKEN else Level.CARE
    by = "yes" if seconds is None else f"by {span_text(seconds)}"
    return Answer(question, level, by, note)


def _right(status: Status) -> Answer:
    question, audit = "Is my data right?", status.audit
    if audit is None:
        return Answer(question, Level.UNKNOWN, "never audited", "run an audit to know")
    age = f"audited {span_text(audit.age_seconds)} ago"
    if audit.verdict is AuditVerdict.WRONG:
        return Answer(question, Level.BAD, "no", age)
    if audit.verdict is AuditVerdict.RIGHT:
        old = audit.age_seconds > _OLD_AUDIT_S
        return Answer(question, Level.CARE if old else Level.GOOD, "yes", age)
    # Nothing or too little was checked, which is no pass.
    return Answer(question, Level.CARE, str(audit.verdict), age)


def _back(status: Status) -> Answer:
    question = "How long until I am back?"
    restore, catch_up = status.restore_seconds, status.catch_up_seconds
    if restore is None and catch_up is None:
        note = "no rate is known before the first long run"
        if status.broker is not None:
            note = "the brokers were not reached"
        return Answer(question, Level.UNKNOWN, "not known", note)
    if not restore and catch_up == 0:
        return Answer(question, Level.GOOD, "now", "nothing to restore, nothing to catch up with")
    whole = None if catch_up is None else (restore or 0.0) + catch_up
    note = f"restore {span_text(restore)}, then catch up in {span_text(catch_up)}"
    level = Level.GOOD if whole is not None and whole <= _LITTLE_S else Level.CARE
    words = span_text(whole) if whole is not None else "not known"
    return Answer(question, level if whole is not None else Level.UNKNOWN, words, note)
