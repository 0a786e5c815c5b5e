"""Sensors that wait for another DAG: until none of its runs is on, or until it is switched on."""

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseSensorOperator, Context


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
        """Ask Airflow whether the DAG is paused."""
        paused = context["ti"].get_dag(self.waited_for).is_paused
        if paused:
            self.log.warning("%s is paused: switch it on, and this run starts it", self.waited_for)
        return not paused
