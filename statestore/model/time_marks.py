"""Time marks: what the stream tasks above an internal topic say there of how far they have come.

A mark is a record of the topic, in each of its partitions, behind the records that it is about and
in their transaction. It has no value, and a key that no record of a pipeline may have (E4d):

    16 bytes that no other key begins with, then a `TimeMark` in MessagePack
"""

from typing import Annotated, Final

import msgspec

from statestore.errors import UNREADABLE, RecordFailed
from statestore.model.batch import Batch
from statestore.model.decoders import msgpack_decoder

_INT64_MAX: Final = (1 << 63) - 1
_BEGINS: Final = bytes.fromhex("9f1e53746d61726b01c7d2a84be0657d")


class TimeMark(msgspec.Struct, frozen=True, array_like=True):
    """What one stream task says. Times are in ms.

    `channel`: which of the tasks that write the topic it is, from 0. `time_ms`: no record that it
    writes later is earlier, if its inputs are in order; None: it has taken no record yet.
    `sent_ms`: the latest time that it has written into any partition; None: none that is new.
    `run`: the run in which it said so. `idle`: while that run lasts, it waits for input and holds
    nobody back.
    """

    channel: Annotated[int, msgspec.Meta(ge=0)]
    time_ms: Annotated[int, msgspec.Meta(ge=-_INT64_MAX, le=_INT64_MAX)] | None
    sent_ms: Annotated[int, msgspec.Meta(ge=-_INT64_MAX, le=_INT64_MAX)] | None
    run: str
    idle: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(TimeMark).decode


def key_of(mark: TimeMark) -> bytes:
    """Return the key of the record that is this mark."""
    return _BEGINS + _encode(mark)


def is_mark(key: bytes | None) -> bool:
    """Return whether a record without a value and with this key is a mark."""
    return key is not None and key.startswith(_BEGINS)


def among(batch: Batch) -> dict[int, bytes]:
    """Return the keys of the marks among these records of an internal topic, by their places.

    Records without a value are rare in most topics, and only their keys are looked at.
    """
    places = batch.values.nulls()
    keys = batch.keys.bytes_at(places) if places else []
    found = zip(places, keys, strict=True)
    return {place: key for place, key in found if key is not None and is_mark(key)}


def read(key: bytes, where: str) -> TimeMark:
    """Return the mark that a key is; RecordFailed if it cannot be read, as nobody else has it."""
    try:
        return _decode(key[len(_BEGINS) :])
    except UNREADABLE as error:
        raise RecordFailed(
            f"{where}: the time mark there cannot be read ({error}): was it written by a newer "
            "version of statestore, or by another program? Use that version, or `statestore reset`"
        ) from error
