"""Which rows of a table the records of a batch meet."""

from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class MetRows(NamedTuple):
    """The rows of a table that records met: `of` has the place of each one's row among `rows`.

    A row is None where there is none.
    """

    rows: list[Any]
    of: NDArray[np.intp]

    def where(self, kept: NDArray[np.bool_]) -> "MetRows":
        """Return what these records met, and no row that none of them met."""
        if kept.all():
            return self
        of = self.of[kept]
        used = np.zeros(len(self.rows), np.bool_)
        used[of] = True
        return MetRows(list(compress(self.rows, used.tolist())), (np.cumsum(used) - 1)[of])
