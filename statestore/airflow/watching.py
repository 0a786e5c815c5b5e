"""`StatusOperator`: `statestore status` of an application, judged by limits."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Context

from statestore.airflow.command_operator import StateStoreCommandOperator
from statestore.airflow.dag_applications import SPAN
from statestore.airflow.retries import JobFailed

FINDINGS_KEY = "findings"
LIMITS: Final = ("records_behind", "seconds_behind", "not_run_for", "audit_age")
_SPANS: Final = ("not_run_for", "audit_age")
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

Limits = dict[str, float | str | None]
"""Limits by name, as the applications file and the form have them; None means no limit."""


class StatusOperator(StateStoreCommandOperator):
    """Look at one application, and fail with all that is wrong with it.

    `limits` are by application; a Param of the same name replaces a limit. The operator returns
    what the command says.
    """

    def __init__(
        self, *, limits: Mapping[str, Limits], command: str = "status", **kwargs: Any
    ) -> None:
        super().__init__(command=command, **kwargs)
        self.limits = limits

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask for the status, then judge it."""
        status = super().execute(context)
        asked = {name: context["params"].get(name) for name in LIMITS}
        given = {name: value for name, value in asked.items() if value is not None}
        limits = {**self.limits.get(self.application_id, {}), **given}
        findings = list(found(status, limits))
        context["ti"].xcom_push(key=FINDINGS_KEY, value=findings)
        if findings:
            raise AirflowFailException(f"{self.application_id}: {'; '.join(findings)}")
        if status.get("broker") and limits.keys() & {"records_behind", "seconds_behind"}:
            told = f"{self.application_id}: its lag is not known: {status['broker']}"
            # Another attempt would meet the same settings.
            raise AirflowFailException(told) if status.get("broker_refuses") else JobFailed(told)
        self.log.info("%s: nothing to tell, by %s", self.application_id, limits or "no limits")
        return status


def limits_of(alerts: Mapping[str, Any], application_id: str) -> Limits:
    """Check `[applications.<id>.alerts]`; ValueError names what is wrong in it."""
    where = f"[applications.{application_id}.alerts]"
    for name, value in alerts.items():
        if name not in LIMITS:
            raise ValueError(f"{where} has {name!r}; it takes {', '.join(LIMITS)}")
        if name in _SPANS:
            if not isinstance(value, str) or not re.match(SPAN, value):
                raise ValueError(f"{where}: {name} must be a time span such as '2h', not {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ValueError(f"{where}: {name} must be a number, 0 or more, not {value!r}")
    return dict(alerts)


def found(status: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with an application, in one phrase each."""
    for name, unit in (("records", "records"), ("seconds", "s of event time")):
        most, lag = limits.get(f"{name}_behind"), status.get(f"lag_{name}")
        if most is None or status.get("broker"):
            continue
        if lag is None:
            new = status.get("state") == "new"
            why = "it never ran" if new else "; ".join(status.get("problems") or ["no answer"])
            yield f"how many {unit} it is behind is not known: {why}"
        elif lag > most:
            yield f"{lag:,} {unit} behind, {most:,} are allowed"
    yield from _idle(status, limits.get("not_run_for"))
    yield from _unaudited(status, limits.get("audit_age"))


def _idle(status: Mapping[str, Any], span: str | None) -> Iterator[str]:
    if span is None or status.get("state") in {"running", "restoring"}:
        return
    age_s = status.get("last_start_age_seconds")
    if age_s is None:
        yield "it never ran"
    elif age_s > seconds_of(span):
        yield f"{status.get('state')}: last started {told(age_s)} ago, {span} are allowed"


def _unaudited(status: Mapping[str, Any], span: str | None) -> Iterator[str]:
    audit = status.get("audit")
    if audit is None:
        if span is not None:
            yield "it was never audited"
        return
    age_s, verdict = audit["age_seconds"], audit["verdict"]
    if verdict == "wrong":
        yield f"the audit of {told(age_s)} ago found wrong stores: {audit.get('link')}"
    elif span is not None and verdict != "right":
        yield f"the audit of {told(age_s)} ago is no pass: {verdict}"
    elif span is not None and age_s > seconds_of(span):
        yield f"last audited {told(age_s)} ago, {span} are allowed"


def seconds_of(span: str) -> float:
    """The seconds of a time span such as 90 (seconds), 90m, 2h or 7d."""
    match = re.fullmatch(r"(\d+)(\D*)", span)
    assert match, f"{span!r} was checked before"
    return int(match[1]) * _UNITS_S[match[2] or "s"]


def told(seconds: float) -> str:
    """A time span in words for people."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _UNITS_S[unit]:
            return f"{seconds / _UNITS_S[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
