"""Asks the brokers now and then how far each stream task is behind, beside what is served."""

import logging
import threading
from collections.abc import Callable

from statestore.errors import StateStoreError
from statestore.model.ids import TaskId
from statestore.operations.deployed import Deployed
from statestore.operations.environment import Environment
from statestore.operations.start.matching import OwnTopics
from statestore.operations.status import lags

_EVERY_S = 5.0
_log = logging.getLogger(__name__)


class LagWatch:
    """The lag of each stream task, some seconds old. It is unknown without brokers.

    Why they do not tell it is logged when it begins, and not again until they have told it.
    """

    def __init__(self, environment: Environment, deployed: Callable[[], Deployed]) -> None:
        self._environment = environment
        self._deployed = deployed
        self._facts = lags.Facts()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statestore-lags", daemon=True)

    def lag(self, task: TaskId) -> tuple[int | None, float | None]:
        """Return records and seconds, each None if it is not known."""
        found = self._facts.lag(task)
        return found.records, found.seconds

    def start(self) -> None:
        """Begin to ask, if the settings name brokers."""
        if self._environment.settings.bootstrap_servers:
            self._thread.start()

    def close(self) -> None:
        """Stop asking. An answer that is still awaited keeps nobody waiting."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            facts = self._asked()
            if facts.problem is not None and self._facts.problem is None:
                _log.warning("the lags are not known: %s", facts.problem)
            self._facts = facts
            self._ending.wait(_EVERY_S)

    def _asked(self) -> lags.Facts:
        environment = self._environment
        try:
            own = OwnTopics.of(environment.layout, environment.settings)
            return lags.ask(environment.monitoring_client, self._deployed(), own)
        except StateStoreError as error:
            return lags.Facts.none(error)
