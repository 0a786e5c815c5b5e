"""`when_input`: the DAG that starts `micro_batches` of one application whenever input waits."""

import re
from datetime import timedelta
from typing import Any, Unpack

from airflow.sdk import DAG, TriggerRule

from statestore.airflow.dag_applications import SPAN, Application
from statestore.airflow.input_trigger import POLL, KafkaLagSensor, PauseOperator
from statestore.airflow.options import DagOptions, choose, open_dag
from statestore.airflow.waiting import OneRunOperator, SwitchedOnSensor
from statestore.airflow.watching import seconds_of

_DOC = """
# Run `{application_id}` when input waits

Waits until more than {records} records wait{age}, starts `{started}` and waits for its end; then it
begins again. Whether input waits follows from the committed offsets and the log ends at that
moment, so no input is missed and no run starts without input, whatever died in between.

* The waiting takes no slot of a worker. It needs Airflow's triggerer, which must be able to read
  the applications file and the state directory and to reach the brokers.
* After a run that failed it rests for {rest} before it asks again.
"""

_DEFAULTS = {"records": 0, "age": None, "poll": POLL, "rest": timedelta(minutes=10)}


def when_input(
    application: str | Application,
    *,
    records: int | None = None,
    age: timedelta | None = None,
    poll: timedelta | None = None,
    rest: timedelta | None = None,
    processed_by: str | None = None,
    **options: Unpack[DagOptions],
) -> DAG:
    """Make the DAG that starts `micro_batches` of one application by its input.

    A run starts when more than `records` records wait (0 unless given), or when the oldest waiting
    record is older than `age` by its own time. The brokers are asked every `poll` (5 s). After a
    run that failed the DAG rests for `rest` (10 min). What is not given here is taken from
    `[applications.<id>.input]` of the applications file, where `age`, `poll` and `rest` are spans
    such as "30s"; ValueError names what is wrong in it. `processed_by` is the id of the DAG to
    start, if it is not the one that `micro_batches` gives it.
    """
    chosen = choose(options, application)
    (target,) = chosen.applications
    given = {"records": records, "age": age, "poll": poll, "rest": rest}
    limits = {**_DEFAULTS, **_limits(target), **{k: v for k, v in given.items() if v is not None}}
    started = processed_by or target.dag_id("micro_batches")
    with open_dag(
        "when_input",
        chosen,
        options,
        description=f"Start {started} whenever input waits for it",
        schedule="@continuous",
        hours=24,
        doc_md=_DOC.format(
            application_id=target.application_id,
            records=limits["records"],
            age=f", or the oldest is older than {limits['age']}" if limits["age"] else "",
            started=started,
            rest=limits["rest"],
        ),
    ) as dag:
        waits = KafkaLagSensor(
            task_id="wait_for_input",
            application_id=target.application_id,
            records=limits["records"],
            age=limits["age"],
            poll=limits["poll"],
            doc_md="Asks the brokers until enough input waits.",
            **chosen.source.arguments(),
        )
        switched_on = SwitchedOnSensor(
            task_id="wait_until_switched_on",
            waited_for=started,
            doc_md=f"Waits while `{started}` is paused.",
        )
        process = OneRunOperator(
            task_id="process",
            trigger_dag_id=started,
            wait_for_completion=True,
            deferrable=True,
            poke_interval=int(POLL.total_seconds()),
            failed_states=["failed"],
            doc_md=f"Runs `{started}` to its end.",
        )
        rests = PauseOperator(
            task_id="rest_after_failure",
            span=limits["rest"],
            trigger_rule=TriggerRule.ONE_FAILED,
            doc_md="Keeps a failure that does not pass from being repeated without a pause.",
        )
        waits >> switched_on >> process >> rests
    return dag


def _limits(application: Application) -> dict[str, Any]:
    where = f"{application.config}: [applications.{application.application_id}.input]"
    found: dict[str, Any] = {}
    for name, value in (application.input or {}).items():
        if name not in {"records", "age", "poll", "rest"}:
            raise ValueError(f"{where} has {name!r}; it takes records, age, poll and rest")
        if name == "records":
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{where}: records must be a whole number, 0 or more")
            found[name] = value
        elif not isinstance(value, str) or not re.match(SPAN, value):
            raise ValueError(f"{where}: {name} must be a time span such as '30s', not {value!r}")
        else:
            found[name] = timedelta(seconds=seconds_of(value))
    return found
