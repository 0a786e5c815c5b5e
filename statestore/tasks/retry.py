"""How often a stream task goes back to its last commit before it gives up (SEMANTICS E5).

It goes back three times in a row. The next failure ends the run, and a later run may succeed.
"""

import logging

from statestore.errors import CommitUnknown, Fenced, StateStoreError, Unavailable
from statestore.model.ids import TaskId
from statestore.ports import Clock
from statestore.settings import Settings
from statestore.tasks.batch_size import AdaptiveBatchSize

_log = logging.getLogger(__name__)
_IN_A_ROW = 3


class RetryBudget:
    """Counts the failures between two commits; a lost transaction also halves the batches."""

    def __init__(self, task: TaskId, settings: Settings, clock: Clock) -> None:
        self.batch_size = AdaptiveBatchSize(settings.batch_max_records)
        self._task = task
        self._quiet_s = settings.request_timeout_ms / 1000
        self._clock = clock
        self._failures = 0
        self._failed_s = 0.0

    def failed(self, error: StateStoreError) -> None:
        """Count a failure; the fourth in a row is raised, as an error of which a run is retried."""
        self._failures += 1
        self._failed_s = self._clock.monotonic()
        if self._failures > _IN_A_ROW:
            if not isinstance(error, Fenced):
                raise error
            raise Unavailable(
                f"task {self._task}: {self._failures} transactions in a row expired, the last with "
                f"batches of {self.batch_size.cap} records: raise transaction.timeout.ms, or "
                "lower statestore.batch.max.records or commit.interval.ms"
            ) from error
        if isinstance(error, Fenced | CommitUnknown):
            self.batch_size.halve()
        _log.warning(
            "task %s: %s; going back to the last commit (%d of %d)",
            self._task,
            error,
            self._failures,
            _IN_A_ROW,
        )

    def committed(self) -> None:
        """A commit went through: failures before it count no more."""
        self._failures = 0
        self.batch_size.committed()

    def idle(self) -> None:
        """There is nothing to commit: a failure long ago is not in a row with the next."""
        if self._clock.monotonic() - self._failed_s > self._quiet_s:
            self._failures = 0
