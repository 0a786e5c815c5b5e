"""Wait until an application has enough input for a run: a trigger and the sensor that uses it.

The trigger is level-triggered. It asks for the committed offsets and the log ends again and again;
it keeps no position, joins no consumer group and consumes nothing. So it can neither miss input
nor report the same input twice: what it tells follows from what waits at that moment.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, BaseSensorOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from statestore.airflow.hook import aconnection_settings
from statestore.airflow.retries import RETRY_POLICY, with_retry_policy
from statestore.airflow.sources import SettingsSource

POLL = timedelta(seconds=5)


class KafkaLagTrigger(BaseTrigger):
    """Fires once more than `records` records wait, or the oldest is older than `age_s` seconds.

    The settings come from the applications file `config`, which the triggerer must be able to
    read, from the connection `statestore_conn_id`, whose secrets are not kept with the trigger, and
    from `settings`. Relative paths start at `folder`. Brokers that do not answer are asked again; a
    wrong setting fires an event with an error.
    """

    def __init__(
        self,
        *,
        application_id: str,
        config: str | None = None,
        settings: Mapping[str, Any] | None = None,
        statestore_conn_id: str | None = None,
        folder: str | None = None,
        records: int = 0,
        age_s: float | None = None,
        poll_s: float = POLL.total_seconds(),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's base class
        self.application_id = application_id
        self.config = config
        self.settings = dict(settings or {})
        self.statestore_conn_id = statestore_conn_id
        self.folder = folder
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
                "settings": self.settings,
                "statestore_conn_id": self.statestore_conn_id,
                "folder": self.folder,
                "records": self.records,
                "age_s": self.age_s,
                "poll_s": self.poll_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask until the answer is worth a run; yield one event."""
        try:
            overrides = await self._overrides()
        except ValueError as error:
            told = {"error": f"connection {self.statestore_conn_id!r}: {error}"}
            yield TriggerEvent(told)  # type: ignore[no-untyped-call]  # Airflow's
            return
        watch = await asyncio.to_thread(self._watch, overrides)
        try:
            while True:
                event = await asyncio.to_thread(watch.look)
                if event is not None:
                    yield TriggerEvent(event)  # type: ignore[no-untyped-call]  # Airflow's
                    return
                await asyncio.sleep(self.poll_s)
        finally:
            await asyncio.to_thread(watch.close)

    def _watch(self, overrides: Mapping[str, str]) -> Any:
        """Return an InputWatch; this takes a while, as it brings the Kafka client."""
        from statestore.airflow.input_watch import InputWatch

        return InputWatch(
            self.application_id,
            self.config,
            overrides=overrides,
            folder=self.folder,
            records=self.records,
            age_s=self.age_s,
        )

    async def _overrides(self) -> dict[str, str]:
        """What takes precedence over the applications file."""
        connected: dict[str, str] = {}
        if self.statestore_conn_id is not None:
            connected = await aconnection_settings(self.statestore_conn_id)
        return connected | {key: str(value) for key, value in self.settings.items()}


class KafkaLagSensor(BaseSensorOperator):
    """Succeeds once enough input waits for a run of an application; it holds no slot meanwhile.

    `records` and `age`: see KafkaLagTrigger; `config`, `settings` and `statestore_conn_id`: see
    StateStoreCommandOperator. Before the first run of an application the sensor succeeds at once.
    It returns what waits: `records`, `oldest_ms` and `is_first_run`.
    """

    template_fields: Sequence[str] = ("application_id",)
    ui_color: str = "#d9e4f2"

    def __init__(
        self,
        *,
        application_id: str,
        config: str | None = None,
        pipeline: str | None = None,
        settings: Mapping[str, object] | None = None,
        statestore_conn_id: str | None = None,
        records: int = 0,
        age: timedelta | None = None,
        poll: timedelta = POLL,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application_id = application_id
        self.source = SettingsSource.given(config, pipeline, settings, statestore_conn_id)
        self.records = records
        self.age = age
        self.poll = poll

    def execute(self, context: Context) -> None:
        """Leave the waiting to the triggerer."""
        self.defer(
            trigger=KafkaLagTrigger(
                application_id=self.application_id,
                config=str(self.source.config) if self.source.config else None,
                settings=dict(self.source.settings),
                statestore_conn_id=self.source.conn_id,
                folder=str(self.source.folder(context)),
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

    def __init__(self, *, span: timedelta, retry_policy: Any = RETRY_POLICY, **kwargs: Any) -> None:
        super().__init__(**with_retry_policy(retry_policy), **kwargs)
        self.span = span

    def execute(self, context: Context) -> None:  # noqa: ARG002  # Airflow's signature
        """Leave the waiting to the triggerer."""
        self.defer(trigger=TimeDeltaTrigger(self.span), method_name="resume")

    def resume(self, context: Context, event: Any) -> None:  # Airflow's signature
        """Go on."""
