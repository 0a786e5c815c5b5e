"""How often a stream task goes back to its last commit before it gives up (SEMANTICS E5).

And with it how much it takes at once.

Three times in a row; then the failure is the run's, and a later run may have more luck. A lost
transaction also halves the batch, as it may have been too long for transaction.timeout.ms; each
commit gives some of it back.
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
    """Counts failures between commits."""

    def __init__(self, task: TaskId, settings: Settings, clock: Clock) -> None:
        self._most = settings.batch_max_records
        self._pace = AdaptiveBatchSize(self._most)
        self._task = task
        self._settings = settings
        self._clock = clock
        self._failures = 0
        self._failed_s = 0.0

    @property
    def batch_max_records(self) -> int:
        """How many to take at once now."""
        return min(self._most, self._pace.records)

    def took(self, records: int, seconds: float) -> None:
        """So many were processed and committed in that time, or as good as."""
        self._pace.took(records, seconds)

    def failed(self, error: StateStoreError) -> None:
        """Take note of one more; from the fourth on it is raised, in a class that is retried."""
        self._failures += 1
        self._failed_s = self._clock.monotonic()
        if self._failures > _IN_A_ROW:
            if not isinstance(error, Fenced):
                raise error
            raise Unavailable(
                f"task {self._task}: {self._failures} transactions in a row expired, the last with "
                f"batches of {self._most} records: raise transaction.timeout.ms, or "
                "lower statestore.batch.max.records or commit.interval.ms"
            ) from error
        if isinstance(error, Fenced | CommitUnknown):
            self._most = max(1, self.batch_max_records // 2)
        _log.warning(
            "task %s: %s; going back to the last commit (%d of %d)",
            self._task,
            error,
            self._failures,
            _IN_A_ROW,
        )

    def committed(self) -> None:
        """All is well again."""
        self._failures = 0
        self._most = min(self._most + self._most // 16 + 1, self._settings.batch_max_records)

    def idle(self) -> None:
        """Nothing to commit: failures long past are not in a row with the next."""
        quiet_s = self._clock.monotonic() - self._failed_s
        if quiet_s > self._settings.request_timeout_ms / 1000:
            self._failures = 0
