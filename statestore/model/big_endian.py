"""Many numbers as the bytes in which stores and changelogs have them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMBERS, _BYTES = np.dtype(">i8"), np.dtype("V8")


def packed(numbers: NDArray[np.int64]) -> list[Any]:
    """Return each number as INT64 has it: in 8 bytes, which sort as the numbers from 0 on do."""
    made: list[bytes] = numbers.astype(_NUMBERS).view(_BYTES).tolist()
    return made


def unpacked(rows: list[bytes]) -> NDArray[np.int64]:
    """Return the numbers of rows of 8 bytes."""
    return np.frombuffer(b"".join(rows), _NUMBERS)
