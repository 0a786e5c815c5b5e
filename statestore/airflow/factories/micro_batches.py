"""`micro_batches`: the scheduled DAG that processes one application."""

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from statestore.airflow.applications import SPAN, Application, find_application
from statestore.airflow.operator import StateStoreJobOperator
from statestore.airflow.policy import policy, spark_slots

_DOC = """
# Micro-batches of `{application_id}`

Submits a job to Spark for the pipeline `{pipeline}`. The run reads every input partition from its
committed offset to the end (or to **Until**), and commits state, changelog, output and offsets as
one. Repeating a run gives nothing twice; a run after a crash goes on from the last commit.

* **Exclusion** is the application's lock. `max_active_runs=1` and the pool `statestore_slots` only
  keep Airflow from starting what would wait: a job takes as many slots as it may use cores, all of
  the pool unless STATESTORE_JOB_SLOTS says less.
* **Retries** go by the error's class: a wrong setting, topology or record fails at once; an
  unreachable broker or a full disk is retried; a locked application after five minutes.
* **Results**: the XCom `summary` of the task, after failures too; the asset `{asset_uri}` carries
  it to DAGs scheduled on it.
"""


def micro_batches(
    application: str | Application,
    *,
    config: Path | str | None = None,
    job: str = "process",
    **operator: Any,
) -> DAG:
    """Make the DAG of one application of the applications file.

    Its schedule is the one in the file. `job` names a script to submit in place of the job
    "process". Other arguments are those of StateStoreJobOperator: `conn_id`, `conf`, `pool` and so
    on.
    """
    if isinstance(application, str):
        application = find_application(application, config)
    with DAG(
        dag_id=application.dag_id("micro_batches"),
        description=f"Process {application.application_id} up to the end of its inputs",
        schedule=application.schedule,
        **policy(application.application_id, config=application.config, hours=24, growing=True),
        params={"until": _until(), "run_for": _run_for()},
        doc_md=_DOC.format(**application._asdict(), asset_uri=application.asset.uri),
    ) as dag:
        defaults = {
            **spark_slots(),
            "doc_md": "One Spark application: waves of stream tasks, exactly once.",
        }
        StateStoreJobOperator(
            task_id="process",
            target=application,
            until="{{ params.until }}",
            run_for="{{ params.run_for or '' }}",
            job=job,
            **(defaults | operator),
        )
    return dag


def _until() -> Param:
    return Param(
        "latest",
        type="string",
        title="Until",
        description='Where to stop: "latest", a time in ISO-8601 with its zone or in epoch '
        'milliseconds, or a time of this run: "{{ data_interval_end }}". Records at or after it '
        "wait.",
        pattern=r"^(latest|\d{1,15}"
        r"|\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})"
        r"|\{\{\s*(data_interval_start|data_interval_end|logical_date)\s*\}\})$",
    )


def _run_for() -> Param:
    return Param(
        None,
        type=["null", "string"],
        title="Run for",
        description="Run continuously for this long instead: 300, 300s, 5m. Excludes Until.",
        pattern=SPAN,
    )
