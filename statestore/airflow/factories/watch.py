"""`watch`: the DAG that fails where an application is behind, not run or not audited."""

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from statestore.airflow.applications import SPAN, applications_file, load_applications
from statestore.airflow.policy import applications_param, policy
from statestore.airflow.watching import StatusOperator, limits_of

_AS_CONFIGURED = "Empty: as [applications.<id>.alerts] of statestore.toml says."

_DOC = """
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


def watch(*, config: Path | str | None = None) -> DAG:
    """Make the DAG that looks at all applications of the file."""
    file = applications_file(config)
    applications = load_applications(file)
    ids = [application.application_id for application in applications]
    limits = {one.application_id: limits_of(one.alerts, one.application_id) for one in applications}
    with DAG(
        dag_id="watch",
        description="Fail where an application is behind, not run or not audited",
        schedule="*/15 * * * *" if ids else None,
        **policy(config=file, hours=1),
        params=_params(ids),
        doc_md=_DOC,
    ) as dag:

        @task
        def chosen(**context: Any) -> list[str]:
            """The applications of the form: all there are, unless it says less."""
            return list(context["params"]["applications"])

        StatusOperator.partial(
            task_id="look",
            limits=limits,
            config=str(file),
            map_index_template="{{ task.application_id }}",
            doc_md="What status says, against what is allowed.",
        ).expand(application_id=chosen())
    return dag


def _params(applications: list[str]) -> dict[str, Param]:
    return {
        "applications": applications_param(
            applications, applications, "Whom to look at: all unless fewer are left."
        ),
        "records_behind": _limit(
            "integer", "Records behind", "More input records than this to go.", minimum=0
        ),
        "seconds_behind": _limit(
            "number", "Seconds behind", "More seconds of event time than this to go.", minimum=0
        ),
        "not_run_for": _limit(
            "string",
            "Not run for",
            "Started longer ago than 90m, 2h, 1d, and over.",
            pattern=SPAN,
        ),
        "audit_age": _limit(
            "string", "Audit age", "Audited longer ago than 36h, 7d, or never.", pattern=SPAN
        ),
    }


def _limit(kind: str, title: str, description: str, **schema: Any) -> Param:
    """A limit of the form; none by default."""
    return Param(
        None,
        type=["null", kind],
        title=title,
        description=f"{description} {_AS_CONFIGURED}",
        **schema,
    )
