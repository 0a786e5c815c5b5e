"""Which rows of a batch are picked, of lists, columns of bytes and Arrow arrays alike."""

from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from statestore.model.byte_columns import MaybePacked, PackedRows, without


class Pick(Protocol):
    """Some of the rows of a batch, in some order."""

    @property
    def piece(self) -> slice | None:
        """The rows as one piece of all; None: they stand apart."""

    def of(self, rows: Any, /) -> Any:
        """Return these of a list, a tuple or a range."""

    def of_packed(self, rows: PackedRows, /) -> MaybePacked:
        """Return these of columns of bytes, as columns where that is less work."""

    def of_array(self, array: Any, /) -> Any:
        """Return these of a pyarrow.Array."""

    def of_places(self, places: NDArray[np.intp], /) -> NDArray[np.intp]:
        """Return these of places, at which the rows of a batch stand elsewhere."""


class AtPlaces:
    """The rows at these places, in their order."""

    piece = None

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places

    def of(self, rows: Any) -> Any:
        return [rows[place] for place in self._places]

    def of_packed(self, rows: PackedRows) -> MaybePacked:
        return rows.taken(self._places)

    def of_array(self, array: Any) -> Any:
        return array.take(np.array(self._places, np.int64))

    def of_places(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        return places[np.array(self._places, np.intp)]


class Where:
    """The rows for which a mask is true."""

    piece = None

    def __init__(self, mask: list[bool] | NDArray[np.bool_]) -> None:
        self._mask = mask

    @cached_property
    def _list(self) -> list[bool]:
        mask = self._mask
        return mask if isinstance(mask, list) else mask.tolist()

    @cached_property
    def _array(self) -> NDArray[np.bool_]:
        return np.asarray(self._mask, np.bool_)

    def of(self, rows: Any) -> Any:
        return list(compress(rows, self._list))

    def of_packed(self, rows: PackedRows) -> MaybePacked:
        return rows.taken(np.flatnonzero(self._array))

    def of_array(self, array: Any) -> Any:
        return array.filter(self._array)

    def of_places(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        return places[self._array]


class InPiece:
    """The rows from `start` to `stop`, exclusive."""

    def __init__(self, start: int, stop: int) -> None:
        self.piece = slice(start, stop)

    def of(self, rows: Any) -> Any:
        return rows[self.piece]

    of_packed = of_array = of_places = of


class Left:
    """The rows but those at these places, which are in rising order."""

    piece = None

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places

    def of(self, rows: Any) -> Any:
        return without(rows, self._places)

    of_packed = of

    def of_array(self, array: Any) -> Any:
        return array.take(self.of_places(np.arange(len(array))))

    def of_places(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        return np.delete(places, np.array(self._places, np.intp))
