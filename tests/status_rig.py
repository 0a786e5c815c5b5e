"""The status of an application from its folder, with brokers that say what a test wants."""

from typing import Any

from statestore.layout.folders import StateLayout
from statestore.operations.status.status import StatusReader
from statestore.ports import Clock, MonitoringClient
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.testing.memory_broker import MemoryBroker, MemoryBrokers
from tests.builders import ManualClock


class ToldBrokers(MemoryBrokers):
    """Brokers with another monitoring client."""

    def __init__(self, settings: Settings, client: MonitoringClient) -> None:
        super().__init__(MemoryBroker(), settings)
        self._client = client

    def monitoring_client(self) -> MonitoringClient:
        return self._client


def reader_of(
    layout: StateLayout,
    client: MonitoringClient | None = None,
    *,
    clock: Clock | None = None,
    settings: dict[str, object] | None = None,
    **fields: Any,
) -> StatusReader:
    """A reader of the application in that folder; `client` None: it asks no broker."""
    known: dict[str, object] = {
        "application.id": layout.application_id,
        "state.dir": str(layout.state_dir),
        **(settings or {}),
    }
    clock = clock or ManualClock()
    if client is None:
        return StatusReader(Runtime(known, clock=clock), **fields)
    known["bootstrap.servers"] = "told"
    runtime = Runtime(known, clock=clock, brokers=lambda made: ToldBrokers(made, client))
    return StatusReader(runtime, **fields)
