"""Which rows of a batch are picked, of lists, columns of bytes and Arrow arrays alike."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import compress
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from statestore.model.byte_columns import PackedRows, without


class Pick(Protocol):
    """Some of the rows of a batch, in some order."""

    @property
    def piece(self) -> slice | None:
        """The rows as one piece of all; None: they stand apart."""

    @property
    def rows(self) -> Callable[[Any], Any]:
        """What returns these of a list, of columns of bytes, or of a lazy column."""

    @property
    def of_array(self) -> Callable[[Any], Any]:
        """What returns these of a pyarrow.Array."""

    @property
    def of_places(self) -> Callable[[NDArray[np.intp]], NDArray[np.intp]]:
        """What returns these of places, at which the rows of a batch stand elsewhere."""


class InPiece:
    """The rows from `start` to `stop`, exclusive."""

    def __init__(self, start: int, stop: int) -> None:
        self.piece = slice(start, stop)
        # In C, as records that go one by one are pieces of one.
        self.rows = self.of_array = self.of_places = itemgetter(self.piece)


class _Apart(ABC):
    """Rows that stand apart."""

    piece = None

    def rows(self, rows: Any) -> Any:
        """Return these of a list, of columns of bytes, or of a lazy column."""
        if isinstance(rows, PackedRows):
            return self._of_packed(rows)
        lazily = getattr(rows, "picked", None)
        return self._of(rows) if lazily is None else lazily(self)

    @abstractmethod
    def _of(self, rows: Any) -> list[Any]: ...

    @abstractmethod
    def _of_packed(self, rows: PackedRows) -> Any:
        """Return these of columns of bytes, as columns where that is less work."""

    @abstractmethod
    def of_array(self, array: Any) -> Any: ...

    @abstractmethod
    def of_places(self, places: NDArray[np.intp]) -> NDArray[np.intp]: ...


class AtPlaces(_Apart):
    """The rows at these places, in their order."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places

    def _of(self, rows: Any) -> list[Any]:
        return [rows[place] for place in self._places]

    def _of_packed(self, rows: PackedRows) -> Any:
        return rows.taken(self._places)

    def of_array(self, array: Any) -> Any:
        return array.take(np.array(self._places, np.int64))

    def of_places(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        return places[np.array(self._places, np.intp)]


class Where(_Apart):
    """The rows for which a mask is true."""

    def __init__(self, mask: list[bool] | NDArray[np.bool_]) -> None:
        self._mask = mask

    @cached_property
    def _list(self) -> list[bool]:
        mask = self._mask
        return mask if isinstance(mask, list) else mask.tolist()

    @cached_property
    def _array(self) -> NDArray[np.bool_]:
        return np.asarray(self._mask, np.bool_)

    def _of(self, rows: Any) -> list[Any]:
        return list(compress(rows, self._list))

    def _of_packed(self, rows: PackedRows) -> Any:
        return rows.taken(np.flatnonzero(self._array))

    def of_array(self, array: Any) -> Any:
        return array.filter(self._array)

    def of_places(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        return places[self._array]


class Left(_Apart):
    """The rows but those at these places, which are in rising order."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places

    def _of(self, rows: Any) -> Any:
        return without(rows, self._places)

    _of_packed = _of

    def of_array(self, array: Any) -> Any:
        return array.take(self.of_places(np.arange(len(array))))

    def of_places(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        return np.delete(places, np.array(self._places, np.intp))
