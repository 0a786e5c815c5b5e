"""`watch`: the DAG that fails where an application is behind, not run or not audited."""

from typing import Any, Unpack

from airflow.sdk import DAG, Param, task

from statestore.airflow.dag_applications import SPAN, Application
from statestore.airflow.options import (
    DagOptions,
    applications_param,
    choose,
    open_dag,
    work_arguments,
)
from statestore.airflow.watching import StatusOperator, limits_of

_AS_CONFIGURED = "Empty: as [applications.<id>.alerts] of statestore.toml says."

_DOC = """
# Watch the applications

`statestore status` of every application of the form, each in a mapped task of its own; it
takes no lock and disturbs no run. The task **fails**, without retries, if an application is further
behind, was started longer ago or audited longer ago than is allowed, or if its last audit found
wrong stores; all that is wrong is in the error and in the XCom `findings`. Where no broker answers
it is tried again.

What is allowed stands in `[applications.<id>.alerts]` of statestore.toml, for one run also in the
form. Whom to tell: `on_failure` in `[alerts]` names a notifier or callback, which every DAG here
calls when a task has failed for good (docs/runbook.md, "Set up alerts").
"""


def watch(*applications: str | Application, **options: Unpack[DagOptions]) -> DAG:
    """Make the DAG that looks at the named applications, or at all of the applications file."""
    chosen_ones = choose(options, *applications)
    ids = chosen_ones.ids
    limits = {
        one.application_id: limits_of(one.alerts, one.application_id)
        for one in chosen_ones.applications
    }
    with open_dag(
        "watch",
        chosen_ones,
        options,
        description="Fail where an application is behind, not run or not audited",
        schedule="*/15 * * * *" if ids else None,
        hours=1,
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
            map_index_template="{{ task.application_id }}",
            doc_md="What status says, against what is allowed.",
            **chosen_ones.source.arguments(),
            **work_arguments(options),
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
