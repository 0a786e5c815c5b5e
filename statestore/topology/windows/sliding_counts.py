"""Counts in sliding windows of many keys at once.

The records of most keys meet nothing that is stored, and come in the order of their times, while
all their windows are open. Which windows such records make, and which records lie in each, follows
from their times alone (topology/windows/sliding.py), so nothing has to be done one by one.
"""

from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from statestore.model import big_endian
from statestore.stores.staged_table import StagedTable
from statestore.stores.windows import rows_that_find
from statestore.topology.aggregates.folds import Updates
from statestore.topology.windows.records_by_key import RecordsByKey

_NUMBER_MAX = np.iinfo(np.int64).max


class CountsApart:
    """The windows of the keys whose records can be counted at once.

    `whole` says which keys these are. `found`: the keys for which windows are stored.
    """

    def __init__(self, records: RecordsByKey, difference_ms: int, found: list[int]) -> None:
        self._records = records
        self._difference_ms = difference_ms
        self._order = order = records.in_time()
        self.whole = records.lows >= difference_ms
        # One number is to have a key and a time in it.
        spread = int(records.highs.max()) - int(records.lows.min()) + 2 * difference_ms + 2
        if spread > _NUMBER_MAX // (len(records.keys) + 1):
            self.whole[:] = False
        owners = records.owners[order]
        backwards = (owners[1:] == owners[:-1]) & (order[1:] < order[:-1])
        self.whole[owners[1:][backwards]] = False
        self.whole[records.owners[records.closed > records.times]] = False
        self.whole[found] = False

    def put(self, table: StagedTable) -> Updates:
        """Write the windows of all these keys, and return an update for each."""
        records = self._records
        order = self._order[self.whole[records.owners[self._order]]]
        if not len(order):
            return Updates.none()
        made = _windows(records.owners[order], records.times[order], self._difference_ms)
        last = order[made.stop - 1]
        latest, places = records.times[last], records.places[last]
        starts = big_endian.packed(made.starts)
        counts = big_endian.packed(made.stop - made.first)
        owners = made.owners.tolist()
        rows = list(map(add, starts, map(records.keys.__getitem__, owners)))
        table.put_all(dict(zip(rows, counts, strict=True)), latest.tolist())
        table.put_all(dict.fromkeys(rows_that_find(records.keys, owners, starts), b""))
        # At one place there is one key, so that its rows are in the order of their starts.
        told = np.lexsort((made.starts, places))
        updates = Updates(places.tolist(), latest.tolist(), rows, counts, [None] * len(rows))
        return updates.picked(told.tolist())


class _Windows(NamedTuple):
    """Windows by owner and start; each has the records from `first` to before `stop`."""

    owners: NDArray[np.intp]
    starts: NDArray[np.int64]
    first: NDArray[np.intp]
    stop: NDArray[np.intp]


def _windows(owners: NDArray[np.intp], times: NDArray[np.int64], difference_ms: int) -> _Windows:
    """Return the windows of records by owner and time; no time is below the difference."""
    origin = times.min() - difference_ms
    spread = times.max() - origin + difference_ms + 2
    at = owners * spread + (times - origin)
    # Records of one key and one time make the same windows.
    firsts = np.flatnonzero(np.concatenate(([True], at[1:] != at[:-1])))
    # The windows that end with a record.
    ending = np.searchsorted(at, at[firsts] - difference_ms)
    ended = np.append(firsts[1:], len(at))
    # Those that begin after one, if the next record lies there.
    before, after = firsts[:-1], firsts[1:]
    meet = (owners[before] == owners[after]) & (times[after] <= times[before] + 1 + difference_ms)
    before, beginning = before[meet], after[meet]
    begun = np.searchsorted(at, at[before] + 1 + difference_ms, side="right")
    starts = np.concatenate((times[firsts] - difference_ms, times[before] + 1))
    first = np.concatenate((ending, beginning))
    stop = np.concatenate((ended, begun))
    # Of those that begin alike, which have the same records, one is enough.
    _, one = np.unique(owners[first] * spread + (starts - origin), return_index=True)
    first = first[one]
    return _Windows(owners[first], starts[one], first, stop[one])
