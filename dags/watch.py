"""`watch`: is an application behind, not run, or not audited? Red says which, and how much."""

from typing import Any

from airflow.sdk import DAG, Param, task

from statestore_airflow.applications import SPAN, load_applications
from statestore_airflow.policy import applications_param, policy
from statestore_airflow.watching import StatusOperator, limits_of

APPLICATIONS = load_applications()
IDS = [application.application_id for application in APPLICATIONS]
LIMITS = {one.application_id: limits_of(one.alerts, one.application_id) for one in APPLICATIONS}
AS_CONFIGURED = "Empty: as [applications.<id>.alerts] of statestore.toml says."

DOC = """
# Watch the applications

`statestore status` of every application of statestore.toml, each in a mapped task of its own; it
takes no lock and disturbs no run. The task **fails**, without retries, if an application is further
behind, was started longer ago or audited longer ago than is allowed, or if its last audit found
wrong stores; all that is wrong is in the error and in the XCom `findings`. Where no broker answers
it is tried again.

What is allowed stands in `[applications.<id>.alerts]` of statestore.toml, for one run also in the
form. Whom to tell: `on_failure` in `[alerts]` names a notifier or callback, which every DAG here
calls when a task has failed for good (docs/runbook.md, "Set up alerts").
"""


def limit(kind: str, title: str, description: str, **schema: Any) -> Param:
    """A limit of the form; none by default."""
    return Param(
        None,
        type=["null", kind],
        title=title,
        description=f"{description} {AS_CONFIGURED}",
        **schema,
    )


with DAG(
    dag_id="watch",
    description="Fail where an application is behind, not run or not audited",
    schedule="*/15 * * * *" if IDS else None,
    **policy(hours=1),
    params={
        "applications": applications_param(IDS, IDS, "Whom to look at: all unless fewer are left."),
        "records_behind": limit(
            "integer", "Records behind", "More input records than this to go.", minimum=0
        ),
        "seconds_behind": limit(
            "number", "Seconds behind", "More seconds of event time than this to go.", minimum=0
        ),
        "not_run_for": limit(
            "string",
            "Not run for",
            "Started longer ago than 90m, 2h, 1d, and over.",
            pattern=SPAN,
        ),
        "audit_age": limit(
            "string", "Audit age", "Audited longer ago than 36h, 7d, or never.", pattern=SPAN
        ),
    },
    doc_md=DOC,
):

    @task
    def chosen(**context: Any) -> list[str]:
        """The applications of the form: all there are, unless it says less."""
        return list(context["params"]["applications"])

    StatusOperator.partial(
        task_id="look",
        limits=LIMITS,
        map_index_template="{{ task.application_id }}",
        doc_md="What status says, against what is allowed.",
    ).expand(application_id=chosen())
