"""Wait until an application has enough input for a run: a trigger and the sensor that uses it.

The trigger is level-triggered. It asks for the committed offsets and the log ends again and again;
it keeps no position, joins no consumer group and consumes nothing. So it can neither miss input
nor report the same input twice: what it tells follows from what waits at that moment.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, BaseSensorOperator, Context, RetryPolicy
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from statestore.airflow.applications import Application
from statestore.airflow.retries import RETRY_POLICY

POLL = timedelta(seconds=5)
_WATCH = "statestore.airflow.input_watch"
"""Imported by the triggerer only: it brings the Kafka client."""


class InputTrigger(BaseTrigger):
    """Fires once more than `records` records wait, or the oldest is older than `age_s` seconds.

    The settings come from the applications file `config`, which the triggerer must be able to
    read. Brokers that do not answer are asked again; a wrong setting fires an event with an error.
    """

    def __init__(
        self,
        *,
        application_id: str,
        config: str,
        records: int = 0,
        age_s: float | None = None,
        poll_s: float = POLL.total_seconds(),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's base class
        self.application_id = application_id
        self.config = config
        self.records = records
        self.age_s = age_s
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow keeps them."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "application_id": self.application_id,
                "config": self.config,
                "records": self.records,
                "age_s": self.age_s,
                "poll_s": self.poll_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask until the answer is worth a run; yield one event."""
        module = await asyncio.to_thread(importlib.import_module, _WATCH)
        watch = module.InputWatch(self.application_id, self.config, self.records, self.age_s)
        try:
            while True:
                event = await asyncio.to_thread(watch.look)
                if event is not None:
                    yield TriggerEvent(event)  # type: ignore[no-untyped-call]  # Airflow's
                    return
                await asyncio.sleep(self.poll_s)
        finally:
            await asyncio.to_thread(watch.close)


class InputSensor(BaseSensorOperator):
    """Succeeds once enough input waits for a run of `target`; it holds no slot meanwhile.

    `records` and `age`: see InputTrigger. Before the first run of an application it succeeds at
    once. It returns what waits: `records`, `oldest_ms` and `is_first_run`.
    """

    ui_color: str = "#d9e4f2"

    def __init__(
        self,
        *,
        target: Application,
        records: int = 0,
        age: timedelta | None = None,
        poll: timedelta = POLL,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application_id = target.application_id
        self.config_file = str(target.config)
        self.records = records
        self.age = age
        self.poll = poll

    def execute(self, context: Context) -> None:  # noqa: ARG002  # Airflow's signature
        """Leave the waiting to the triggerer."""
        self.defer(
            trigger=InputTrigger(
                application_id=self.application_id,
                config=self.config_file,
                records=self.records,
                age_s=None if self.age is None else self.age.total_seconds(),
                poll_s=self.poll.total_seconds(),
            ),
            method_name="resume",
        )

    def resume(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return what waits, or fail for good with the error of the trigger."""
        if "error" in event:
            raise AirflowFailException(f"{self.application_id}: {event['error']}")
        self.log.info("%s: %s", self.application_id, dict(event))
        return dict(event)


class PauseOperator(BaseOperator):
    """Waits for a span from its own start; it holds no slot meanwhile."""

    def __init__(
        self, *, span: timedelta, retry_policy: RetryPolicy = RETRY_POLICY, **kwargs: Any
    ) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.span = span

    def execute(self, context: Context) -> None:  # noqa: ARG002  # Airflow's signature
        """Leave the waiting to the triggerer."""
        self.defer(trigger=TimeDeltaTrigger(self.span), method_name="resume")

    def resume(self, context: Context, event: Any) -> None:  # Airflow's signature
        """Go on."""
