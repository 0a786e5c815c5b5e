"""DAGs that show what a command would do to a stopped application, and do it once approved.

`state_relocation` and `partition_change` are made of the tasks below; each adds its parameters.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task

from statestore.airflow.command_operator import StateStoreCommandOperator
from statestore.airflow.dag_applications import Application
from statestore.airflow.options import (
    Chosen,
    DagOptions,
    application_param,
    choose,
    open_dag,
    work_arguments,
)
from statestore.airflow.waiting import NoRunSensor, SwitchedOnSensor

_PROCESSED_BY = "{{ micro_batches[params.application] }}"
_WAITING: Mapping[str, Any] = {
    "waited_for": _PROCESSED_BY,
    "poke_interval": 10,
    "timeout": 6 * 3600,
}


class ApprovedChange(NamedTuple):
    """A command with `--dry-run` and a JSON line that says whether `anything` is to be done.

    `flags` and `flags_again`, for the dry run after the change, are templates over `params`.
    """

    dag_id: str
    description: str
    doc_md: str
    command: str
    params: Mapping[str, Param]
    flags: str
    flags_again: str
    shows: str
    does: str
    goes_on: str


def change_dag(
    change: ApprovedChange,
    applications: tuple[str | Application, ...],
    processed_by: str | None,
    options: DagOptions,
) -> DAG:
    """Make the DAG of a change for one of the named applications, or of all in the file."""
    chosen = choose(options, *applications)
    with open_dag(
        change.dag_id,
        chosen,
        options,
        description=change.description,
        schedule=None,
        hours=1,
        params=_params(change, chosen.ids),
        doc_md=change.doc_md,
        user_defined_macros={"micro_batches": _processed_by(chosen, processed_by)},
    ) as dag:
        checked = _changed(change, chosen.source.arguments() | work_arguments(options))
        _resumed(checked, change.goes_on)
    return dag


def _processed_by(chosen: Chosen, processed_by: str | None) -> dict[str, str]:
    if processed_by is not None and len(chosen.ids) != 1:
        raise ValueError("processed_by= is for a DAG of one application: name that application")
    return {
        application.application_id: processed_by or application.dag_id("micro_batches")
        for application in chosen.applications
    }


def _params(change: ApprovedChange, applications: list[str]) -> dict[str, Param]:
    return {
        "application": application_param(applications),
        "approve": Param(
            False, type="boolean", title="Approve", description="Do what the dry run shows."
        ),
        **change.params,
        "resume": Param(
            True, type="boolean", title="Resume", description="Start micro_batches afterwards."
        ),
    }


def _changed(change: ApprovedChange, arguments: Mapping[str, Any]) -> Any:
    """The tasks that make the change once it is approved; the last one checks the result."""
    common: dict[str, Any] = {
        "application_id": "{{ params.application }}",
        **arguments,
    }
    wait_for_runs = NoRunSensor(
        task_id="wait_for_runs",
        doc_md="Wait until no run of `micro_batches` is on.",
        **_WAITING,
    )
    dry_run = StateStoreCommandOperator(
        task_id="dry_run",
        command=f"{change.command} --dry-run",
        flags=change.flags,
        doc_md=change.shows,
        **common,
    )

    @task.short_circuit
    def approved(plan: Any, **context: Any) -> bool:
        """Go on only if something is to be done, and approved."""
        return bool(plan["anything"] and context["params"]["approve"])

    apply = StateStoreCommandOperator(
        task_id="apply",
        command=change.command,
        flags=change.flags,
        doc_md=change.does,
        **common,
    )
    look_again = StateStoreCommandOperator(
        task_id="look_again",
        command=f"{change.command} --dry-run",
        flags=change.flags_again,
        doc_md="The dry run once more.",
        **common,
    )

    @task
    def check(plan: Any) -> None:
        """Fail if anything is still to be done."""
        if plan["anything"]:
            raise AirflowFailException(f"still to be done: {plan}")

    wait_for_runs >> dry_run
    approved(plan=dry_run.output) >> apply >> look_again
    return check(plan=look_again.output)


def _resumed(checked: Any, goes_on: str) -> None:
    """The tasks that start `micro_batches` after it, if that is wanted."""

    @task.short_circuit
    def wanted(**context: Any) -> bool:
        """Go on only if micro_batches is to be started."""
        return bool(context["params"]["resume"])

    wait_until_on = SwitchedOnSensor(
        task_id="wait_until_on",
        doc_md="Wait until `micro_batches` is switched on.",
        **_WAITING,
    )
    resume = TriggerDagRunOperator(task_id="resume", trigger_dag_id=_PROCESSED_BY, doc_md=goes_on)

    checked >> wanted() >> wait_until_on >> resume
