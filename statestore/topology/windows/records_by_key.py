"""The records of a batch that may count in windows, by key."""

import numpy as np
from numpy.typing import NDArray

from statestore.model.byte_columns import MaybePacked
from statestore.topology.aggregates.row_ranks import ranked_rows


class RecordsByKey:
    """The records of a batch that may count, by key.

    `places` are their indices in the batch, `times` theirs, and `closed` the times up to which
    windows are closed at each. `owners` has the index of each one's key in `keys`, `lows` and
    `highs` the earliest and the latest time of each key.
    """

    def __init__(
        self,
        places: NDArray[np.intp],
        times: NDArray[np.int64],
        closed: NDArray[np.int64],
        keys: MaybePacked,
    ) -> None:
        """`keys` are those of the records, and none of them is null."""
        self.places = places
        self.times = times
        self.closed = closed
        self.owners, self.keys = ranked_rows(keys)
        self.lows = np.full(len(self.keys), np.iinfo(np.int64).max)
        self.highs = np.full(len(self.keys), -1)
        np.minimum.at(self.lows, self.owners, times)
        np.maximum.at(self.highs, self.owners, times)

    def in_time(self) -> NDArray[np.intp]:
        """Return their indices by key, then time; of equal times, in the order they came."""
        return np.lexsort((self.times, self.owners))
