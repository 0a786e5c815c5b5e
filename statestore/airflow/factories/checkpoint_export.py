"""`checkpoint_export`: the DAG that makes durable copies of the stores and prunes old ones."""

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from airflow.sdk import DAG, AssetAny, Param, task, task_group

from statestore.airflow.command_operator import StateStoreCommandOperator
from statestore.airflow.dag_applications import SPAN, Application, ids_of
from statestore.airflow.options import (
    DagOptions,
    applications_param,
    choose,
    open_dag,
    work_arguments,
)

_DOC = """
# Export the stores, verify, prune

Runs after the `micro_batches` of its applications (those with a `statestore.export.target`, unless
the DAG file names them), or by hand for those chosen. A run that goes on meanwhile is not
disturbed: owners take snapshots between two commits.

* `export` uploads only files the target does not have; its log tells how far it is. Repeating it
  makes one more export, of next to nothing.
* `verify` reads every file of that export again and checks it against its manifest. What is
  damaged is set aside, so that the next export uploads it again.
* `prune` removes exports beyond the newest **Keep** and older than **Keep for**, and what dead
  uploads left. While another export is being uploaded it waits.

Restore one with `statestore restore` (docs/runbook.md, "Recover a lost state volume").
"""


def checkpoint_export(*applications: str | Application, **options: Unpack[DagOptions]) -> DAG:
    """Make the DAG that exports, verifies and prunes.

    It is for the named applications, or for all of the applications file, of which those are
    exported by themselves that name a target.
    """
    chosen_ones = choose(options, *applications)
    every = chosen_ones.applications
    exported = every if chosen_ones.named else [one for one in every if one.exports]
    with open_dag(
        "checkpoint_export",
        chosen_ones,
        options,
        description="Export stores, verify the export, prune old ones",
        schedule=AssetAny(*(application.asset for application in exported)) if exported else None,
        hours=12,
        growing=True,
        params=_params(every, exported),
        doc_md=_DOC,
    ) as dag:
        by_asset = {application.asset.uri: application.application_id for application in exported}

        @task
        def chosen(**context: Any) -> list[str]:
            """The applications whose micro-batches triggered this run, else those of the form."""
            events = context.get("triggering_asset_events") or {}
            triggered = [by_asset[asset.uri] for asset in events if asset.uri in by_asset]
            return sorted(triggered) or list(context["params"]["applications"])

        _steps(chosen_ones.source.arguments() | work_arguments(options)).expand(
            application=chosen()
        )
    return dag


def _params(
    applications: Iterable[Application], exported: Iterable[Application]
) -> dict[str, Param]:
    return {
        "applications": applications_param(
            ids_of(applications),
            ids_of(exported),
            "Whose stores to export when triggered by hand.",
        ),
        "keep": Param(
            7, type="integer", minimum=1, title="Keep", description="The newest so many stay."
        ),
        "keep_for": Param(
            None,
            type=["null", "string"],
            title="Keep for",
            description="All younger than that stay too: 36h, 7d.",
            pattern=SPAN,
        ),
    }


def _steps(arguments: Mapping[str, Any]) -> Any:
    """The group of tasks for one application."""

    @task_group
    def exported(application: str) -> None:
        """Export, verify and prune one application."""
        common: dict[str, Any] = {"application_id": application, **arguments}
        export = StateStoreCommandOperator(
            task_id="export",
            command="exports create",
            doc_md="Snapshots of all stream tasks; what the target lacks; the manifest last.",
            **common,
        )
        verify = StateStoreCommandOperator(
            task_id="verify",
            command="exports verify",
            flags="{{ ti.xcom_pull('exported.export', map_indexes=ti.map_index)['export_id'] }}",
            doc_md="Every file of that export, read again.",
            **common,
        )
        prune = StateStoreCommandOperator(
            task_id="prune",
            command="exports prune",
            flags="--keep {{ params.keep }}"
            "{% if params.keep_for %} --keep-for {{ params.keep_for }}{% endif %}",
            doc_md="Old exports go, and files no export needs.",
            **common,
        )
        export >> verify >> prune

    return exported
