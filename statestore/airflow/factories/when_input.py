"""`when_input`: the DAG that starts `micro_batches` of one application whenever input waits."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, ExceptionRetryPolicy, RetryAction, RetryRule, TriggerRule
from airflow.sdk.exceptions import AirflowException

from statestore.airflow.applications import SPAN, Application, find_application
from statestore.airflow.input_trigger import POLL, InputSensor, PauseOperator
from statestore.airflow.policy import policy
from statestore.airflow.waiting import SwitchedOnSensor
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

_REST = timedelta(minutes=10)
# A run that failed has had its own retries: the next one comes after a rest.
_ONE_TRY = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            exception=AirflowException,
            action=RetryAction.FAIL,
            reason="the run had retries of its own",
        )
    ]
)


def when_input(
    application: str | Application,
    *,
    records: int | None = None,
    age: timedelta | None = None,
    poll: timedelta | None = None,
    rest: timedelta | None = None,
    config: Path | str | None = None,
) -> DAG:
    """Make the DAG that starts `micro_batches` of one application by its input.

    A run starts when more than `records` records wait (0 unless given), or when the oldest waiting
    record is older than `age` by its own time. The brokers are asked every `poll` (5 s). After a
    run that failed the DAG rests for `rest` (10 min). What is not given here is taken from
    `[applications.<id>.input]` of the applications file, where `age`, `poll` and `rest` are spans
    such as "30s"; ValueError names what is wrong in it.
    """
    if isinstance(application, str):
        application = find_application(application, config)
    said = _limits(application)
    records = said.get("records", 0) if records is None else records
    age = age or said.get("age")
    poll = poll or said.get("poll", POLL)
    rest = rest or said.get("rest", _REST)
    started = application.dag_id("micro_batches")
    told = "" if age is None else f", or the oldest is older than {age}"
    with DAG(
        dag_id=application.dag_id("when_input"),
        description=f"Start {started} whenever input waits for it",
        schedule="@continuous",
        **policy(application.application_id, config=application.config, hours=24),
        doc_md=_DOC.format(
            application_id=application.application_id,
            records=records,
            age=told,
            started=started,
            rest=rest,
        ),
    ) as dag:
        waits = InputSensor(
            task_id="wait_for_input",
            target=application,
            records=records,
            age=age,
            poll=poll,
            doc_md="Asks the brokers until enough input waits.",
        )
        switched_on = SwitchedOnSensor(
            task_id="wait_until_switched_on",
            waited_for=started,
            doc_md=f"Waits while `{started}` is paused.",
        )
        process = TriggerDagRunOperator(
            task_id="process",
            trigger_dag_id=started,
            wait_for_completion=True,
            deferrable=True,
            poke_interval=int(POLL.total_seconds()),
            failed_states=["failed"],
            retry_policy=_ONE_TRY,
            doc_md=f"Runs `{started}` to its end.",
        )
        rests = PauseOperator(
            task_id="rest_after_failure",
            span=rest,
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
