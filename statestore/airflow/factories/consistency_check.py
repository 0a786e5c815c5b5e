"""`consistency_check`: the daily DAG that compares stores with their changelogs."""

import logging
from typing import Any, Unpack

from airflow.sdk import DAG, Param, TriggerRule, task

from statestore.airflow.dag_applications import Application
from statestore.airflow.operator import SUMMARY_KEY, StateStoreJobOperator
from statestore.airflow.options import (
    DagOptions,
    applications_param,
    choose,
    open_dag,
    spark_arguments,
)

_log = logging.getLogger(__name__)
REPORTS_KEY = "reports"
_STORES = "{% for store in params.stores %} --store {{ store }}{% endfor %}"

_DOC = """
# Compare stores with their changelogs

Every day, for every application of the form, each in a mapped task of its own: a Spark job
takes a snapshot of every stream task, folds each store's changelog up to the very offset of its
snapshot with a reader of its own, joins both on Spark and lets Great Expectations judge: values,
missing and extra keys, offsets, partitions, history. The application may run meanwhile; all it does
is answer one snapshot per stream task.

* **Red** names stores, stream tasks and keys, and is not retried: docs/runbook.md, "An audit is
  red". Nothing compared, or too little, is no pass: it is tried again, and red in the end.
* **Report**, a link of each `audit`, is a page of what was found, after a red audit too; `publish`
  has all of them in its XCom `reports`. The page, and Data Docs, also lie beside the state, in
  `audits/` of the application. `statestore status` shows the last verdict.
* Repeating a run changes nothing.
"""


def consistency_check(
    *applications: str | Application, job: str = "audit", **options: Unpack[DagOptions]
) -> DAG:
    """Make the DAG that audits the named applications, or all of the applications file.

    `job` names a script to submit in place of the job "audit".
    """
    chosen_ones = choose(options, *applications)
    ids = chosen_ones.ids
    with open_dag(
        "consistency_check",
        chosen_ones,
        options,
        description="Compare stores with their changelogs, judged by Great Expectations",
        schedule="@daily" if ids else None,
        hours=6,
        params=_params(ids),
        doc_md=_DOC,
    ) as dag:

        @task
        def chosen(**context: Any) -> list[str]:
            """The applications of the form: all there are, unless it says less."""
            return list(context["params"]["applications"])

        defaults = {
            "map_index_template": "{{ task.application_id }}",
            "doc_md": "Both sides read and joined on Spark, judged by Great Expectations.",
        }
        audit = StateStoreJobOperator.partial(
            task_id="audit",
            job=job,
            flags=_STORES,
            **(defaults | chosen_ones.source.arguments() | spark_arguments(options)),
        ).expand(application_id=chosen())

        @task(trigger_rule=TriggerRule.ALL_DONE)
        def publish(**context: Any) -> list[dict[str, Any]]:
            """Say what was found and where its report is, whatever the verdicts."""
            return _published(context)

        # The run stays red after a red audit: publishing does not decide about it.
        audit >> publish().as_teardown(on_failure_fail_dagrun=False)
    return dag


def _params(applications: list[str]) -> dict[str, Param]:
    return {
        "applications": applications_param(
            applications, applications, "Whose stores to audit: all of them, unless fewer are left."
        ),
        "stores": Param(
            [],
            type="array",
            items={"type": "string", "pattern": r"^(?!\.)[A-Za-z0-9._-]{1,200}$"},
            title="Stores",
            description="Only these; none: all of them.",
        ),
    }


def _published(context: dict[str, Any]) -> list[dict[str, Any]]:
    found = context["ti"].xcom_pull(task_ids="audit", key=SUMMARY_KEY) or []
    summaries = [found] if isinstance(found, dict) else [one for one in found if one]
    reports = {one["application_id"]: one.get("report") for one in summaries}
    context["ti"].xcom_push(key=REPORTS_KEY, value=reports)
    for one in summaries:
        _log.info("%s: %s; %s", one["application_id"], one.get("verdict"), one.get("report"))
    told = ("application_id", "verdict", "stores", "failures", "report", "link", "data_docs")
    return [{name: one.get(name) for name in told} for one in summaries]
