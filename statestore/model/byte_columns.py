"""Keys or values as one run of bytes, as Arrow has them, instead of an object for each."""

from typing import NamedTuple

from typing_extensions import Buffer


class ByteColumn(NamedTuple):
    """So many `rows`, from `first` on, of a column in the layout of Arrow's LargeBinary.

    Row i is `data[offsets[i]:offsets[i + 1]]`; the offsets are numbers of 64 bits in the order of
    the machine. It is null if bit i of `valid` is 0; without `valid`, none is. Nobody changes the
    buffers of a column, because others may share them.
    """

    data: Buffer
    offsets: Buffer
    valid: Buffer | None
    first: int
    rows: int
