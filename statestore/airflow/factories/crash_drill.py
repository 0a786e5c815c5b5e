"""`crash_drill`: the DAG that kills runs on purpose, and shows that nothing is lost or doubled."""

from datetime import timedelta
from typing import Any, Unpack

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Param, task

from statestore.airflow.command_operator import StateStoreCommandOperator
from statestore.airflow.dag_applications import Application
from statestore.airflow.options import (
    DagOptions,
    application_param,
    choose,
    job_slots,
    open_dag,
    work_arguments,
)

_NAMES = r"^[a-z][a-z.-]*(,[a-z][a-z.-]*)*(?![\s\S])"
_FLAGS = (
    "--points {{ params.points }} --random {{ params.moments }} "
    "--special {{ params.specials }} --workload {{ params.workload }} "
    "--brokers {{ params.brokers }}"
    "{% if params.seed is not none %} --seed {{ params.seed }}{% endif %}"
    "{% if params.confirm %} --confirm{% endif %}"
)

_DOC = """
# Drill crashes

Runs of a scratch application `drill-…` are killed at every named crash point and at random moments,
started again, and audited: every input record seen once, every count right, store and changelog
alike. Its workload is generated, or the application's own pipeline on a **clone** of its state for
each drill; no topic, group or folder of a real application is written.

* By default it starts a broker of its own. On the **application's brokers** it makes and deletes
  topics `drill-…`: that takes **Confirm**. Clones are always there.
* The task fails if a drill is **red**; folder and topics of a red one stay as evidence. What could
  not be drilled (no rights to mount a small volume, say) is told apart and is no pass.
* **Report**, a link of `drill`, is the page of all verdicts; the XCom has them too, and the path of
  `report.html`. The **seed** repeats it.
"""


def crash_drill(*applications: str | Application, **options: Unpack[DagOptions]) -> DAG:
    """Make the DAG that drills crashes, for one of the named applications or of all in the file."""
    chosen = choose(options, *applications)
    with open_dag(
        "crash_drill",
        chosen,
        options,
        description="Kill runs of a scratch application, audit what is left",
        schedule=None,
        hours=3,
        retries=1,
        retry_delay=timedelta(minutes=1),
        params=_params(chosen.ids),
        doc_md=_DOC,
    ) as dag:

        @task
        def confirmed(**context: Any) -> None:
            """Fail unless what is shared was confirmed."""
            _require_confirmation(context["params"])

        drill = StateStoreCommandOperator(
            task_id="drill",
            command="drill",
            job="{{ 'drill' if params.runs_on == 'spark' else '' }}",
            application_id="{{ params.application }}",
            flags=_FLAGS,
            doc_md="All drills, one after another; its log names each verdict as it falls.",
            **chosen.source.arguments(),
            # runs_on = spark uses two slots, and a process uses one.
            **work_arguments(options, slots=min(job_slots() or 1, 2)),
        )

        confirmed() >> drill
    return dag


def _params(applications: list[str]) -> dict[str, Param]:
    return {
        "application": application_param(
            applications, "Whose volume, and on request whose brokers, the drill uses."
        ),
        "points": Param(
            "all",
            type="string",
            pattern=_NAMES,
            title="Crash points",
            description="all, none, or names with commas between: commit.begin,commit.log-done.",
        ),
        "moments": Param(
            5, type="integer", minimum=0, maximum=100, title="Random moments to kill at"
        ),
        "specials": Param(
            "all",
            type="string",
            pattern=_NAMES,
            title="What else may happen",
            description="all, none, or some of zombie, broker-restart, disk-full, "
            "unreadable-file, truncated-changelog, two-starters, rollback-export-reload.",
        ),
        "seed": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            title="Seed",
            description="Repeats the random choices of an earlier drill.",
        ),
        "runs_on": Param(
            "process",
            enum=["process", "spark"],
            title="Runs on",
            description="spark: only crash points are drilled, and it takes much longer.",
        ),
        "brokers": Param("own", enum=["own", "application"], title="Brokers"),
        "workload": Param(
            "generated",
            enum=["generated", "clone"],
            title="Workload",
            description="clone: the application must be stopped, with a backlog; takes brokers = "
            "application and an export target.",
        ),
        "confirm": Param(
            False,
            type="boolean",
            title="Confirm",
            description="Yes, make and delete topics drill-… on the application's brokers.",
        ),
    }


def _require_confirmation(params: dict[str, Any]) -> None:
    application = params["application"]
    if params["workload"] == "clone" and params["brokers"] != "application":
        raise AirflowFailException(
            f"{application}: a clone is on the application's brokers: trigger again "
            "with brokers = application, or with workload = generated"
        )
    if params["brokers"] == "application" and not params["confirm"]:
        raise AirflowFailException(
            f"{application}: a drill on its brokers makes and deletes topics "
            "drill-… there: trigger again with Confirm, or with brokers = own"
        )
