"""The arguments that all DAG factories share, and the DAGs that they make of them.

The DAGs have in common: runs one at a time, tasks with retries and a bounded time, choices in
their forms, and ids by which the DAGs of several applications live in one Airflow.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pendulum
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_2_PLUS
from airflow.sdk import DAG, Context, Param
from airflow.sdk.definitions._internal.contextmanager import DagContext

from statestore.airflow.dag_applications import (
    Application,
    applications_file,
    failure_callback,
    find_application,
    load_applications,
)
from statestore.airflow.sources import SettingsSource
from statestore.model.texts import whole_number


class DagOptions(TypedDict, total=False):
    """What every factory takes beside its own arguments; all of it may be left out."""

    config: Path | str | None
    """The applications file; by default `statestore.toml` beside the DAG file or one folder up."""
    pipeline: str | None
    """The pipeline as "module:function"; by default the one of the applications file."""
    settings: Mapping[str, object]
    """Settings that take precedence over the file and the connection."""
    connection: str | None
    """The id of a connection of the type `statestore` or `kafka`: brokers, security, state."""
    spark_connection: str
    """The id of the connection to Spark; without `spark_default`, Spark runs on the worker."""
    spark_conf: Mapping[str, str]
    """Settings of Spark."""
    dag_id: str
    """The id of the DAG; by default `<application id>__<name of the factory>`."""
    schedule: Any
    """A schedule as Airflow takes it; None: the DAG runs when it is triggered."""
    start_date: datetime
    """By default the first day of 2026; missed runs are not made up for."""
    owner: str
    """By default "statestore"."""
    tags: Iterable[str]
    """Tags beside "statestore", the name of the factory and the ids of the applications."""
    retries: int
    """How often a task is tried again after an error that may pass; by default 3, a drill 1."""
    retry_delay: timedelta
    """How long Airflow waits before a retry."""
    pool: str
    """The pool of the tasks that do the work; it must exist. By default Airflow's default pool."""
    pool_slots: int
    """How many of its slots such a task takes."""
    queue: str
    """The queue of all tasks, where the executor has queues."""
    default_args: Mapping[str, Any]
    """Further arguments of all tasks, as Airflow's DAGs take them."""
    operator: Mapping[str, Any]
    """Further arguments of the tasks that do the work, such as `env_vars` or `executor_config`."""
    dag: Mapping[str, Any]
    """Further arguments of the DAG, such as `max_consecutive_failed_dag_runs`."""


class Chosen(NamedTuple):
    """The applications of one DAG, which share one source of settings."""

    applications: tuple[Application, ...]
    source: SettingsSource
    named: bool
    """Whether the DAG file names them, and does not take all that the applications file has."""

    @property
    def ids(self) -> list[str]:
        """Their ids."""
        return [application.application_id for application in self.applications]

    def dag_id(self, verb: str) -> str:
        """The id of their DAG, unless it is given another one."""
        alone = self.named and len(self.applications) == 1
        return self.applications[0].dag_id(verb) if alone else verb


def choose(options: DagOptions, *applications: str | Application) -> Chosen:
    """Find the applications of a DAG: those that are named, else all of the applications file.

    ValueError says what is wrong, and TypeError which option no factory has.
    """
    _check_names(options)
    conn_id, settings = options.get("connection"), options.get("settings") or {}
    if len(applications) == 1:
        application = find_application(
            applications[0],
            config=options.get("config"),
            pipeline=options.get("pipeline"),
            settings=settings,
            connected=conn_id is not None,
        )
        return Chosen((application,), SettingsSource.of(application, conn_id), named=True)
    if options.get("pipeline"):
        raise ValueError("pipeline= is for a DAG of one application: name that application")
    if not applications:
        file = applications_file(options.get("config"))
        return Chosen(
            load_applications(file), SettingsSource(file, None, settings, conn_id), named=False
        )
    found = tuple(find_application(one, config=options.get("config")) for one in applications)
    files = {one.config for one in found}
    of_files = len(files) == 1 and None not in files
    if not of_files or any(one.settings for one in found):
        raise ValueError(
            f"one DAG for {', '.join(one.application_id for one in found)}: all must be of one "
            "applications file, and without settings of their own; make a DAG for each"
        )
    return Chosen(found, SettingsSource(found[0].config, None, settings, conn_id), named=True)


def open_dag(
    verb: str,
    chosen: Chosen,
    options: DagOptions,
    *,
    schedule: Any,
    hours: int,
    retries: int = 3,
    retry_delay: timedelta = timedelta(seconds=30),
    growing: bool = False,
    **fields: Any,
) -> DAG:
    """Make the DAG of a factory, which is then filled in a `with` block.

    `hours` bounds each of its tasks. `growing` doubles the delay of retries up to ten minutes.
    STATESTORE_RETRIES in the environment takes the place of `retries`, unless the options say how
    many. Airflow calls what `on_failure` of the applications file names, for each task that has
    failed for good. ValueError if this DAG file has made a DAG of that id already.
    """
    dag_id = options.get("dag_id", chosen.dag_id(verb))
    _require_new(dag_id, verb)
    default_args: dict[str, Any] = {
        "owner": options.get("owner", "statestore"),
        "retries": options.get("retries", int(os.environ.get("STATESTORE_RETRIES", retries))),
        "retry_delay": options.get("retry_delay", retry_delay),
        "execution_timeout": timedelta(hours=hours),
        "pre_execute": refuse_unknown_conf,
    }
    callback = failure_callback(chosen.source.config)
    if callback is not None:
        default_args["on_failure_callback"] = callback
    if growing:
        default_args |= {
            # Airflow 3.1 only knows whether the delay is doubled.
            "retry_exponential_backoff": 2.0 if AIRFLOW_V_3_2_PLUS else True,
            "max_retry_delay": timedelta(minutes=10),
        }
    if "queue" in options:
        default_args["queue"] = options["queue"]
    named = chosen.ids if chosen.named else []
    common: dict[str, Any] = {
        "start_date": options.get("start_date", pendulum.datetime(2026, 1, 1, tz="UTC")),
        "catchup": False,
        "max_active_runs": 1,
        "tags": list(dict.fromkeys(["statestore", verb, *named, *options.get("tags", ())])),
        "default_args": default_args | dict(options.get("default_args", {})),
    }
    return DAG(
        dag_id=dag_id,
        schedule=options.get("schedule", schedule),
        **{**fields, **common, **options.get("dag", {})},
    )


def refuse_unknown_conf(context: Context) -> None:
    """Fail for good if a run was triggered with a key that its DAG does not know.

    Airflow checks the values of the keys that it knows, and passes over all others.
    """
    known = list(context["dag"].params)
    for name in context["dag_run"].conf or {}:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise AirflowFailException(
                f"the conf of this run has {name!r}: {hint}the DAG takes "
                f"{', '.join(known) or 'no conf'}; trigger it again"
            )


def work_arguments(options: DagOptions, *, slots: int = 1) -> dict[str, Any]:
    """Return the arguments of a task that does the work; `slots`: what it takes of a pool."""
    found: dict[str, Any] = {}
    if "pool" in options:
        found = {"pool": options["pool"], "pool_slots": options.get("pool_slots", slots)}
    elif "pool_slots" in options:
        found = {"pool_slots": options["pool_slots"]}
    return found | dict(options.get("operator", {}))


def spark_arguments(options: DagOptions) -> dict[str, Any]:
    """Return the arguments of a task that submits to Spark; it takes as many slots as cores."""
    found: dict[str, Any] = {}
    if "spark_connection" in options:
        found["conn_id"] = options["spark_connection"]
    if "spark_conf" in options:
        found["conf"] = dict(options["spark_conf"])
    return found | work_arguments(options, slots=job_slots() or 1)


def _check_names(options: Mapping[str, Any]) -> None:
    known = list(DagOptions.__annotations__)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(known)}."
            raise TypeError(
                f"there is no argument {name}=: {hint} Arguments of the operator itself go into "
                "operator={...}, those of the DAG into dag={...}"
            )


def job_slots() -> int | None:
    """How many Spark slots a job takes and how many cores it may use; None if nothing says so.

    STATESTORE_JOB_SLOTS says it, else STATESTORE_SLOTS: the whole pool, as Spark takes all of it.
    """
    pool, job = _whole_number("STATESTORE_SLOTS"), _whole_number("STATESTORE_JOB_SLOTS")
    # A task that asked for more than the pool has would wait for ever.
    return min(job, pool) if job and pool else job or pool


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


def _require_new(dag_id: str, verb: str) -> None:
    """Airflow would keep only one of two DAGs of an id, and not say which."""
    if any(dag.dag_id == dag_id for dag, _ in DagContext.autoregistered_dags):
        raise ValueError(
            f"this file makes two DAGs of the id {dag_id!r}, the second one by {verb}(): call it "
            "once for each application, or pass dag_id= to one of the calls"
        )


def _whole_number(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    number = whole_number(text)
    if not number:
        raise ValueError(f"{name}={text!r} must be a whole number of Spark slots, 1 or more")
    return number
