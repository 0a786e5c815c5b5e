"""Tasks that wait for another DAG: for the end of its runs, or until it is switched on."""

from collections.abc import Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowRuntimeError

_NOT_FOUND = 404


class NoRunSensor(BaseSensorOperator):
    """Succeeds once the DAG `waited_for` has no running DAG run.

    Queued runs of a paused DAG do not count. The sensor only spares others a wait: what keeps two
    processes apart is the application's lock.
    """

    template_fields: Sequence[str] = ("waited_for",)
    ui_color: str = "#e8e4cf"

    def __init__(self, *, waited_for: str, **kwargs: Any) -> None:
        kwargs.setdefault("mode", "reschedule")
        super().__init__(**kwargs)
        self.waited_for = waited_for

    def poke(self, context: Context) -> bool:
        """Ask Airflow how many runs are on."""
        running = context["ti"].get_dr_count(dag_id=self.waited_for, states=["running"])
        self.log.info("%s has %d running runs", self.waited_for, running)
        return not running


class SwitchedOnSensor(BaseSensorOperator):
    """Succeeds once the DAG `waited_for` is not paused, as a run of a paused DAG stays queued.

    A task cannot switch a DAG on; a person can.
    """

    template_fields: Sequence[str] = ("waited_for",)
    ui_color: str = "#e8e4cf"

    def __init__(self, *, waited_for: str, **kwargs: Any) -> None:
        kwargs.setdefault("mode", "reschedule")
        super().__init__(**kwargs)
        self.waited_for = waited_for

    def poke(self, context: Context) -> bool:
        """Ask Airflow whether the DAG is paused; Airflow before 3.2 does not tell tasks."""
        ti: Any = context["ti"]
        if not hasattr(ti, "get_dag"):
            self.log.info("if %s is paused, its run stays queued until it is on", self.waited_for)
            return True
        try:
            paused = ti.get_dag(self.waited_for).is_paused
        except AirflowRuntimeError as error:
            if (error.error.detail or {}).get("status_code") != _NOT_FOUND:
                raise
            self.log.warning(
                "there is no DAG %s yet: deploy it, or name another by processed_by=",
                self.waited_for,
            )
            return False
        if paused:
            self.log.warning("%s is paused: switch it on, and this run starts it", self.waited_for)
        return not paused


class OneRunOperator(TriggerDagRunOperator):
    """Triggers one run of a DAG and waits for its end; if that run failed, it triggers no other.

    The tasks of the run had retries of their own.
    """

    def execute_complete(self, context: Context, event: tuple[str, dict[str, Any]]) -> None:
        """Succeed if the run did, else fail for good."""
        try:
            super().execute_complete(context, event)
        except AirflowException as error:
            raise AirflowFailException(str(error)) from error
