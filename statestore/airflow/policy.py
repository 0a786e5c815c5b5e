"""What all DAGs have in common: runs one at a time, bounded tasks with retries, choices, slots."""

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
from airflow.sdk import Param

from statestore.airflow.applications import failure_callback

POOL = "statestore_slots"
"""The pool has as many slots as Spark has cores for the jobs of all applications."""


def policy(
    *application_ids: str,
    config: Path,
    hours: int,
    retries: int = 3,
    retry_delay: timedelta = timedelta(seconds=30),
    growing: bool = False,
) -> dict[str, Any]:
    """Arguments of a DAG; `hours` bounds each of its tasks.

    STATESTORE_RETRIES in the environment takes the place of `retries`; `growing` doubles the delay
    up to ten minutes. The DAG's tags name its applications. Airflow calls what `on_failure` of the
    applications file `config` names, for each task that has failed for good.
    """
    default_args: dict[str, Any] = {
        "owner": "statestore",
        "retries": int(os.environ.get("STATESTORE_RETRIES", retries)),
        "retry_delay": retry_delay,
        "execution_timeout": timedelta(hours=hours),
    }
    callback = failure_callback(config)
    if callback is not None:
        default_args["on_failure_callback"] = callback
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


def job_slots() -> int | None:
    """How many Spark slots a job takes and how many cores it may use; None if nothing says so.

    STATESTORE_JOB_SLOTS says it, else STATESTORE_SLOTS: the whole pool, as Spark takes all of it.
    """
    pool, job = _whole_number("STATESTORE_SLOTS"), _whole_number("STATESTORE_JOB_SLOTS")
    # A task that asked for more than the pool has would wait for ever.
    return min(job, pool) if job and pool else job or pool


def spark_slots(most: int | None = None) -> dict[str, Any]:
    """Arguments of a task that runs Spark: the pool, and how many of its slots the task takes."""
    taken = job_slots() or 1
    return {"pool": POOL, "pool_slots": taken if most is None else min(taken, most)}


def _whole_number(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{name}={text!r} must be a whole number of Spark slots, 1 or more")
    return int(text)


def application_param(application_ids: Iterable[str], description: str | None = None) -> Param:
    """The choice of one application; if there are several, the form insists on a choice."""
    known = list(application_ids)
    default: dict[str, Any] = {"default": known[0]} if len(known) == 1 else {}
    return Param(**default, type="string", enum=known, title="Application", description=description)


def applications_param(
    application_ids: Iterable[str], chosen: Iterable[str], description: str
) -> Param:
    """The choice of at least one of `application_ids`; all of `chosen`, unless the form says less.

    If `chosen` is empty, the form insists on a choice, and the DAG must have no schedule.
    """
    known, given = list(application_ids), list(chosen)
    default: dict[str, Any] = {"default": given} if given else {}
    return Param(
        **default,
        type="array",
        items={"type": "string", "enum": known},
        minItems=1,
        uniqueItems=True,
        examples=known,
        title="Applications",
        description=description,
    )
