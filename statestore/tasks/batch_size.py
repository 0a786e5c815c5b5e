"""How many records a stream task takes at once: about what it can do in two seconds.

The more at once, the less work each is: a key that comes again costs nothing more in the store, the
changelog and the output of an aggregate. But a batch lies in memory, and is committed as a whole.
"""

_STEP_S = 2.0
# About what a commit takes whatever is in it: so much of a small batch's time tells nothing.
_COMMIT_S = 0.1
_FIRST_RECORDS = 40_000
_LEAST_RECORDS = 1_000
_MOST_GROWTH = 16


class AdaptiveBatchSize:
    """`records`: of the next batch, from the time the last one took; never beyond the most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.records = min(most, _FIRST_RECORDS)

    def took(self, records: int, seconds: float) -> None:
        """So many were processed and committed in that time."""
        # Of few, it is not the records that take the time.
        if 2 * records < self.records:
            return
        spent_s = seconds - _COMMIT_S
        in_time = _MOST_GROWTH * records
        if spent_s > 0:
            in_time = min(in_time, int(records * (_STEP_S - _COMMIT_S) / spent_s))
        self.records = min(self._most, max(_LEAST_RECORDS, in_time))
