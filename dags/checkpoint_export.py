"""`checkpoint_export`: durable copies of the stores, verified; old ones go."""

from typing import Any

from airflow.sdk import DAG, AssetAny, Param, task, task_group

from statestore_airflow.applications import SPAN, load_applications
from statestore_airflow.command import StateStoreCommandOperator
from statestore_airflow.policy import applications_param, policy

APPLICATIONS = load_applications()
EXPORTED = [application for application in APPLICATIONS if application.exports]
BY_ASSET = {application.asset.uri: application.application_id for application in EXPORTED}

DOC = """
# Export the stores, verify, prune

Runs after the `micro_batches` of every application that has a `statestore.export.target` in
statestore.toml, or by hand for those chosen. A run that goes on meanwhile is not disturbed: owners
take snapshots between two commits.

* `export` uploads only files the target does not have; its log tells how far it is. Repeating it
  makes one more export, of next to nothing.
* `verify` reads every file of that export again and checks it against its manifest.
* `prune` removes exports beyond the newest **Keep** and older than **Keep for**, and what dead
  uploads left. While another export is being uploaded it waits.

Restore one with `statestore restore` (docs/runbook.md, "Recover a lost state volume").
"""

with DAG(
    dag_id="checkpoint_export",
    description="Export stores, verify the export, prune old ones",
    schedule=AssetAny(*(application.asset for application in EXPORTED)) if EXPORTED else None,
    **policy(hours=12, growing=True),
    params={
        "applications": applications_param(
            [application.application_id for application in APPLICATIONS],
            [application.application_id for application in EXPORTED],
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
    },
    doc_md=DOC,
):

    @task
    def chosen(**context: Any) -> list[str]:
        """The applications whose micro-batches brought this run about, else those of the form."""
        events = context.get("triggering_asset_events") or {}
        triggered = [BY_ASSET[asset.uri] for asset in events if asset.uri in BY_ASSET]
        return sorted(triggered) or list(context["params"]["applications"])

    @task_group
    def exported(application: str) -> None:
        """One application."""
        export = StateStoreCommandOperator(
            task_id="export",
            command="exports create",
            application_id=application,
            doc_md="Snapshots of all stream tasks; what the target lacks; the manifest last.",
        )
        verify = StateStoreCommandOperator(
            task_id="verify",
            command="exports verify",
            application_id=application,
            flags="{{ ti.xcom_pull('exported.export', map_indexes=ti.map_index)['export_id'] }}",
            doc_md="Every file of that export, read again.",
        )
        prune = StateStoreCommandOperator(
            task_id="prune",
            command="exports prune",
            application_id=application,
            flags="--keep {{ params.keep }}"
            "{% if params.keep_for %} --keep-for {{ params.keep_for }}{% endif %}",
            doc_md="Old exports go, and files no export needs.",
        )
        export >> verify >> prune

    exported.expand(application=chosen())
