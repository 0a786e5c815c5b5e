"""How many records a stream task takes at once: about as many as it can process in two seconds.

The more it takes at once, the less work each record is: a key that comes again costs nothing more
in the store, the changelog and the output of an aggregate. But a batch lies in memory and is
committed as a whole.
"""

_STEP_S = 2.0
# About what a commit takes whatever is in it: a small batch's time says little about its records.
_COMMIT_S = 0.1
_FIRST_RECORDS = 40_000
_LEAST_RECORDS = 1_000
_MOST_GROWTH = 16


class AdaptiveBatchSize:
    """The size of the next batch, from the time that the last one took.

    A transaction that was lost may have been too long for transaction.timeout.ms, so it halves the
    size; each commit gives some of that back.
    """

    def __init__(self, most: int) -> None:
        """`most`: never more records than that."""
        self._most = most
        self._in_time = min(most, _FIRST_RECORDS)
        self.cap = most
        """What lost transactions have left of `most`."""

    @property
    def records(self) -> int:
        """How many records to take now."""
        return min(self.cap, self._in_time)

    def took(self, records: int, seconds: float) -> None:
        """So many records were processed, and committed if a commit was due, in that time."""
        # Of few, it is not the records that take the time.
        if 2 * records < self._in_time:
            return
        spent_s = seconds - _COMMIT_S
        in_time = _MOST_GROWTH * records
        if spent_s > 0:
            in_time = min(in_time, int(records * (_STEP_S - _COMMIT_S) / spent_s))
        self._in_time = min(self._most, max(_LEAST_RECORDS, in_time))

    def halve(self) -> None:
        """A transaction was lost."""
        self.cap = max(1, self.records // 2)

    def committed(self) -> None:
        """A transaction went through."""
        self.cap = min(self.cap + self.cap // 16 + 1, self._most)
