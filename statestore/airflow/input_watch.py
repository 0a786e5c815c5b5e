"""What the triggerer asks the brokers; the only module of statestore.airflow with a Kafka client.

Triggers import it when they run, in the triggerer, and hooks when a connection is tested, so that
DAG files stay quick to parse.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from statestore.commands.arguments import StateArguments
from statestore.errors import Action, StateStoreError
from statestore.operations.running.waiting_input import Threshold, waiting_input
from statestore.runtime import Runtime
from statestore.settings import Settings, expand

_log = logging.getLogger(__name__)


def probe(settings: Mapping[str, str]) -> str:
    """Ask the brokers of a connection who they are; StateStoreError if they do not answer."""
    # The client asks for offsets of this group; none is joined and nothing is written.
    named = {"application.id": "statestore-connection-test", "state.dir": os.devnull, **settings}
    runtime = Runtime(Settings.from_mapping(named))
    try:
        runtime.settings.require("bootstrap.servers")
        runtime.monitoring_client.partitions(["statestore-connection-test"])
    finally:
        runtime.close()
    return f"the brokers {runtime.settings.bootstrap_servers} answer"


class InputWatch:
    """One application, asked again and again over one connection. Not for two threads at once."""

    def __init__(
        self,
        application_id: str,
        config: str | None,
        *,
        overrides: Mapping[str, str],
        folder: str | None,
        records: int,
        age_s: float | None,
    ) -> None:
        age_ms = None if age_s is None else int(age_s * 1000)
        self._application_id = application_id
        self._config = config
        self._overrides = dict(overrides)
        # Relative paths start at the folder of the applications file or of the DAG file.
        self._folder = Path(config).parent if config else Path(folder or ".")
        self._threshold = Threshold(records, age_ms)
        self._runtime: Runtime | None = None
        self._trouble = ""

    def look(self) -> dict[str, Any] | None:
        """Return what waits if it is worth a run, an `error` that will not pass, else None."""
        try:
            runtime = self._opened()
            found = waiting_input(runtime.layout, runtime.monitoring_client, runtime.settings)
            reached = self._threshold.check().is_reached(found, runtime.clock.now_ms())
        except StateStoreError as error:
            if error.action is Action.FAIL:
                return {"error": f"{type(error).__name__}: {error}"}
            self._tell(str(error))
            return None
        self._tell("")
        return found._asdict() if reached else None

    def close(self) -> None:
        """Close the connection."""
        if self._runtime is not None:
            self._runtime.close()

    def _opened(self) -> Runtime:
        if self._runtime is None:
            settings = StateArguments(
                application_id=self._application_id,
                config=self._config,
                overrides=self._overrides | {"application.id": self._application_id},
            ).settings()
            state_dir = self._folder / expand(settings.state_dir, "state.dir")
            self._runtime = Runtime(replace(settings, state_dir=str(state_dir)))
        return self._runtime

    def _tell(self, trouble: str) -> None:
        """Log trouble when it begins and when it ends, not at every question."""
        if trouble and trouble != self._trouble:
            _log.warning("%s: %s; asking again", self._application_id, trouble)
        elif self._trouble and not trouble:
            _log.info("%s: the brokers answer again", self._application_id)
        self._trouble = trouble
