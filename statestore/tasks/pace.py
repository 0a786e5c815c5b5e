"""How many records a stream task takes at once: about what it can do in two seconds.

The more at once, the less work each is: a key that comes again costs nothing more in the store, the
changelog and the output of an aggregate. But a batch lies in memory, and is committed as a whole.
"""

_STEP_S = 2.0
_FIRST_RECORDS = 100_000
_LEAST_RECORDS = 1_000


class Pace:
    """`records`: of the next batch, from the time the last one took; never beyond the most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.records = min(most, _FIRST_RECORDS)

    def took(self, records: int, seconds: float) -> None:
        """So many were processed and committed in that time."""
        # Of few, it is not the records that take the time.
        if 2 * records < self.records:
            return
        in_time = records * _STEP_S / seconds if seconds > 0 else self._most
        self.records = min(self._most, max(_LEAST_RECORDS, int(in_time)))
