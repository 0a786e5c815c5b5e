"""`state_relocation`: the DAG that moves state to where a new topology looks for it."""

from collections.abc import Mapping
from typing import Any, Unpack

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task

from statestore.airflow.command_operator import StateStoreCommandOperator
from statestore.airflow.dag_applications import Application
from statestore.airflow.options import (
    DagOptions,
    application_param,
    choose,
    open_dag,
    work_arguments,
)
from statestore.airflow.waiting import NoRunSensor, SwitchedOnSensor

_KEEP = "{% for task in params.keep %} --keep {{ task }}{% endfor %}"
_PROCESSED_BY = "{{ micro_batches[params.application] }}"

_DOC = """
# Move state after a topology change

Trigger it after deploying a pipeline whose sub-topologies changed, where the setting
`automatic.state.relocation` is false (else the next start moves the stores by itself). Without
**Approve** it only shows what would move, in the log and the XCom of `dry_run`.

* A run of the application's `micro_batches` is waited out; while stores move, the application's
  lock keeps the next one waiting.
* Nothing to move: the rest is skipped. Repeating a run is safe, also after a death at any moment: a
  relocation that was begun is finished.
* `check` fails if anything still lies elsewhere; then, with **Resume**, `wait_until_on` waits until
  `micro_batches` is no longer paused, as a run of a paused DAG would stay queued: switch it on when
  `check` is green. `resume` starts it, and it restores nothing.
"""


def state_relocation(
    *applications: str | Application,
    processed_by: str | None = None,
    **options: Unpack[DagOptions],
) -> DAG:
    """Make the DAG that relocates the state of one of the named applications or of all in the file.

    `processed_by` is the id of the DAG that processes the application, if it is not the one that
    `micro_batches` gives it.
    """
    chosen = choose(options, *applications)
    if processed_by is not None and len(chosen.ids) != 1:
        raise ValueError("processed_by= is for a DAG of one application: name that application")
    micro_batches = {
        application.application_id: processed_by or application.dag_id("micro_batches")
        for application in chosen.applications
    }
    with open_dag(
        "state_relocation",
        chosen,
        options,
        description="Move stores whose sub-topology has another number",
        schedule=None,
        hours=1,
        params=_params(chosen.ids),
        doc_md=_DOC,
        user_defined_macros={"micro_batches": micro_batches},
    ) as dag:
        checked = _relocated(chosen.source.arguments() | work_arguments(options))
        _resumed(checked)
    return dag


def _params(applications: list[str]) -> dict[str, Param]:
    return {
        "application": application_param(applications),
        "approve": Param(
            False, type="boolean", title="Approve", description="Move what the dry run shows."
        ),
        "keep": Param(
            [],
            type="array",
            items={"type": "string", "pattern": r"^\d+_\d+$"},
            title="Keep",
            description="Of stores in two places, the stream tasks whose copies are right.",
        ),
        "resume": Param(
            True, type="boolean", title="Resume", description="Start micro_batches afterwards."
        ),
    }


def _relocated(arguments: Mapping[str, Any]) -> Any:
    """The tasks that move the stores once that is approved; the last one checks the result."""
    common: dict[str, Any] = {
        "application_id": "{{ params.application }}",
        **arguments,
    }
    wait_for_runs = NoRunSensor(
        task_id="wait_for_runs",
        waited_for=_PROCESSED_BY,
        poke_interval=10,
        timeout=6 * 3600,
        doc_md="Wait until no run of `micro_batches` is on.",
    )
    dry_run = StateStoreCommandOperator(
        task_id="dry_run",
        command="relocate --dry-run",
        flags=_KEEP,
        doc_md="What would move, go aside and stay; asks no broker.",
        **common,
    )

    @task.short_circuit
    def approved(plan: Any, **context: Any) -> bool:
        """Go on only if something is to be done, and approved."""
        return bool(plan["anything"] and context["params"]["approve"])

    apply = StateStoreCommandOperator(
        task_id="apply",
        command="relocate",
        flags=_KEEP,
        doc_md="Settle the old transactions, move the stores, publish the fingerprint.",
        **common,
    )
    look_again = StateStoreCommandOperator(
        task_id="look_again",
        command="relocate --dry-run",
        doc_md="The dry run once more.",
        **common,
    )

    @task
    def check(plan: Any) -> None:
        """Fail if anything still lies elsewhere."""
        if plan["anything"]:
            raise AirflowFailException(f"still to be done: {plan}")

    wait_for_runs >> dry_run
    approved(plan=dry_run.output) >> apply >> look_again
    return check(plan=look_again.output)


def _resumed(checked: Any) -> None:
    """The tasks that start `micro_batches` after it, if that is wanted."""

    @task.short_circuit
    def wanted(**context: Any) -> bool:
        """Go on only if micro_batches is to be started."""
        return bool(context["params"]["resume"])

    wait_until_on = SwitchedOnSensor(
        task_id="wait_until_on",
        waited_for=_PROCESSED_BY,
        poke_interval=10,
        timeout=6 * 3600,
        doc_md="Wait until `micro_batches` is switched on.",
    )
    resume = TriggerDagRunOperator(
        task_id="resume",
        trigger_dag_id=_PROCESSED_BY,
        doc_md="Go on processing, under the new topology.",
    )

    checked >> wanted() >> wait_until_on >> resume
