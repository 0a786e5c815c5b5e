"""`micro_batches`: the scheduled DAG that processes one application."""

from typing import Unpack

from airflow.sdk import DAG, Param

from statestore.airflow.dag_applications import SPAN, Application
from statestore.airflow.operator import StateStoreJobOperator
from statestore.airflow.options import DagOptions, choose, open_dag, spark_arguments

_DOC = """
# Micro-batches of `{application_id}`

Submits a job to Spark for the pipeline `{pipeline}`. The run reads every input partition from its
committed offset to the end (or to **Until**), and commits state, changelog, output and offsets as
one. Repeating a run gives nothing twice; a run after a crash goes on from the last commit.

* **Exclusion** is the application's lock. `max_active_runs=1` and a pool, if there is one, only
  keep Airflow from starting what would wait: a job takes as many slots as it may use cores.
* **Retries** go by the error's class: a wrong setting, topology or record fails at once; an
  unreachable broker or a full disk is retried; a locked application after five minutes.
* **Exports**: with `statestore.export.interval.ms`, the job exports the stores at its end, once the
  newest export is that old.
* **Results**: the XCom `summary` of the task, after failures too; the asset `{asset_uri}` carries
  it to DAGs scheduled on it.
"""


def micro_batches(
    application: str | Application, *, job: str = "process", **options: Unpack[DagOptions]
) -> DAG:
    """Make the DAG that processes one application.

    The application is one of the applications file, or one that `pipeline`, `settings` and
    `connection` describe. The schedule is the one in the file unless the options name another.
    `job` names a script to submit in place of the job "process".
    """
    chosen = choose(options, application)
    (target,) = chosen.applications
    with open_dag(
        "micro_batches",
        chosen,
        options,
        description=f"Process {target.application_id} up to the end of its inputs",
        schedule=target.schedule,
        hours=24,
        growing=True,
        params={"until": _until(), "run_for": _run_for()},
        doc_md=_DOC.format(
            application_id=target.application_id,
            pipeline=target.pipeline or "that the job's settings name",
            asset_uri=target.asset.uri,
        ),
    ) as dag:
        defaults = {"doc_md": "One Spark application: waves of stream tasks, exactly once."}
        StateStoreJobOperator(
            task_id="process",
            target=target,
            statestore_conn_id=options.get("connection"),
            until="{{ params.until }}",
            run_for="{{ params.run_for or '' }}",
            job=job,
            **(defaults | spark_arguments(options)),
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
