"""What Airflow does after a failure of a job or a command, by the class of its error.

the error's action     raised                 Airflow
fail                   AirflowFailException   fails at once
retry                  JobFailed              retries after the task's own delay
retry_later            RetryLater             retries after RETRY_LATER_DELAY

Airflow before 3.3 cannot delay a single retry, so RetryLater has the task's own delay there.
"""

import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from statestore.errors import Action, StateStoreError
from statestore.settings import shows_secret

RETRY_LATER_DELAY = timedelta(minutes=5)


class JobFailed(AirflowException):
    """The job did not finish, but the same run may succeed: nothing that it committed is lost."""


class RetryLater(JobFailed):
    """Time helps, and another attempt at once does not.

    Another process has the application, or an audit could not judge enough.
    """


def retry_later_policy() -> Any:
    """Return the retry policy of jobs and commands; None where Airflow has no such policies."""
    if not AIRFLOW_V_3_3_PLUS:
        return None
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryAction, RetryRule

    retry = RetryAction.RETRY
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=RetryLater,
                action=retry,
                retry_delay=RETRY_LATER_DELAY,
                reason="time helps, a rerun at once does not",
            ),
            RetryRule(exception=JobFailed, action=retry, reason="a rerun may succeed"),
        ]
    )


RETRY_POLICY = retry_later_policy()


def with_retry_policy(policy: Any) -> dict[str, Any]:
    """Return the argument of an operator for its retry policy, where Airflow has such policies."""
    return {"retry_policy": policy} if AIRFLOW_V_3_3_PLUS else {}


def split_flags(flags: str, application_id: str) -> list[str]:
    """Split flags as a shell does; AirflowFailException if a quote is open, or a secret shown."""
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise AirflowFailException(
            f"{application_id}: flags= cannot be split: {error}; close the quote"
        ) from error
    for word in words:
        key, _, value = word.removeprefix("--set=").partition("=")
        if shows_secret("", word) or (value and shows_secret(key, value)):
            raise AirflowFailException(
                f"{application_id}: flags= has a secret at {key.partition('://')[0]!r}, which the "
                "logs of Airflow and every list of processes would show: put it into a connection "
                "of Airflow (statestore_conn_id=), or into the applications file"
            )
    return words


def raise_from_code(log: Any, application_id: str, what: str, code: int) -> NoReturn:
    """Raise what Airflow acts on, for a program that left nothing but its exit code."""
    told = "it was killed" if code < 0 else "its log says why"
    error = {"class": what, "message": f"gave no result; {told}", "exit_code": code}
    raise_from_error(log, application_id, error | {"action": _action_of(code)}, None)


def raise_from_error(
    log: Any, application_id: str, error: Mapping[str, Any], failure: Exception | None
) -> NoReturn:
    """Raise what Airflow acts on, for an error as jobs and commands report it."""
    message = f"{application_id}: {error.get('class')}: {error.get('message')}"
    message += f" (exit code {error.get('exit_code')})"
    match error.get("action"):
        case Action.FAIL:
            log.error("%s; it is not retried", message)
            raise AirflowFailException(message) from failure
        case Action.RETRY_LATER:
            log.error("%s; it is retried in %s", message, RETRY_LATER_DELAY)
            raise RetryLater(message) from failure
        case _:
            log.error("%s; it is retried", message)
            raise JobFailed(message) from failure


def _action_of(code: int) -> Action:
    """What the errors of that exit code ask for; an error that nobody foresaw is retried."""
    kinds: list[type[StateStoreError]] = [StateStoreError]
    for kind in kinds:
        if kind.exit_code == code:
            return kind.action
        kinds += kind.__subclasses__()
    return Action.RETRY
