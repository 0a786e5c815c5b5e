"""`consistency_check`: are all applications' stores what their changelogs make of them?"""

import logging
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task

from statestore_airflow.applications import load_applications
from statestore_airflow.operator import SUMMARY_KEY, StateStoreJobOperator
from statestore_airflow.policy import applications_param, policy, spark_slots

_log = logging.getLogger(__name__)
APPLICATIONS = [application.application_id for application in load_applications()]
REPORTS_KEY = "reports"
STORES = "{% for store in params.stores %} --store {{ store }}{% endfor %}"

DOC = """
# Compare stores with their changelogs

Every day, for every application of statestore.toml, each in a mapped task of its own:
`jobs/audit.py` takes a snapshot of every stream task, folds each store's changelog up to the very
offset of its snapshot with a reader of its own, joins both on Spark and lets Great Expectations
judge: values, missing and extra keys, offsets, partitions, history. The application may run
meanwhile; all it does is answer one snapshot per stream task.

* **Red** names stores, stream tasks and keys, and is not retried: docs/runbook.md, "An audit is
  red". Nothing compared, or too little, is no pass: it is tried again, and red in the end.
* **Report**, a link of each `audit`, is a page of what was found, after a red audit too; `publish`
  has all of them in its XCom `reports`. The page, and Data Docs, also lie beside the state, in
  `audits/` of the application. `statestore status` shows the last verdict.
* Repeating a run changes nothing.
"""

with DAG(
    dag_id="consistency_check",
    description="Compare stores with their changelogs, judged by Great Expectations",
    schedule="@daily" if APPLICATIONS else None,
    **policy(hours=6),
    params={
        "applications": applications_param(
            APPLICATIONS, APPLICATIONS, "Whose stores to audit: all of them, unless fewer are left."
        ),
        "stores": Param(
            [],
            type="array",
            items={"type": "string", "pattern": r"^(?!\.)[A-Za-z0-9._-]{1,200}$"},
            title="Stores",
            description="Only these; none: all of them.",
        ),
    },
    doc_md=DOC,
):

    @task
    def chosen(**context: Any) -> list[str]:
        """The applications of the form: all there are, unless it says less."""
        return list(context["params"]["applications"])

    audit = StateStoreJobOperator.partial(
        task_id="audit",
        script="jobs/audit.py",
        flags=STORES,
        **spark_slots(),
        map_index_template="{{ task.application_id }}",
        doc_md="Both sides read and joined on Spark, judged by Great Expectations.",
    ).expand(application_id=chosen())

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def publish(**context: Any) -> list[dict[str, Any]]:
        """Say what was found and where its report is, whatever the verdicts."""
        found = context["ti"].xcom_pull(task_ids="audit", key=SUMMARY_KEY) or []
        summaries = [found] if isinstance(found, dict) else [one for one in found if one]
        reports = {one["application_id"]: one.get("report") for one in summaries}
        context["ti"].xcom_push(key=REPORTS_KEY, value=reports)
        for one in summaries:
            _log.info("%s: %s; %s", one["application_id"], one.get("verdict"), one.get("report"))
        told = ("application_id", "verdict", "stores", "failures", "report", "link", "data_docs")
        return [{name: one.get(name) for name in told} for one in summaries]

    # Red stays red: what publishes does not decide about the run.
    audit >> publish().as_teardown(on_failure_fail_dagrun=False)
