"""How every DAG here runs: one run at a time, none for the past, tasks retried and bounded."""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import Param


def policy(
    *application_ids: str,
    hours: int,
    retries: int = 3,
    retry_delay: timedelta = timedelta(seconds=30),
    growing: bool = False,
) -> dict[str, Any]:
    """Arguments of a DAG; `hours` bounds each of its tasks.

    STATESTORE_RETRIES in the environment takes the place of `retries`; `growing` doubles the delay
    up to ten minutes. Tags name the applications whose own the DAG is.
    """
    default_args: dict[str, Any] = {
        "owner": "statestore",
        "retries": int(os.environ.get("STATESTORE_RETRIES", retries)),
        "retry_delay": retry_delay,
        "execution_timeout": timedelta(hours=hours),
    }
    if growing:
        default_args |= {
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(minutes=10),
        }
    return {
        "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["statestore", *application_ids],
        "default_args": default_args,
    }


def application_param(application_ids: Iterable[str], description: str | None = None) -> Param:
    """The choice of one application; the first unless the form says otherwise."""
    known = list(application_ids)
    return Param(next(iter(known), None), enum=known, title="Application", description=description)
