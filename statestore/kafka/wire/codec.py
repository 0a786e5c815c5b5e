"""Record batches (magic 2, KIP-98) to columns, lists or columns to them; no I/O and no threads.

The work is done by `_records`, an extension in C that is built where there is a compiler
(docs/adr/0047). Where it is missing, `available()` is False, `unavailable_reason()` says why, and
nothing else of this module may be called; librdkafka has a codec of its own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Literal, NamedTuple

from typing_extensions import Buffer

from statestore.errors import MalformedRecords
from statestore.model.byte_columns import ByteColumn
from statestore.model.records import Header

try:
    from statestore.kafka.wire import _records
except ImportError as error:
    _UNAVAILABLE = str(error)
else:
    _UNAVAILABLE = ""

Rows = list[bytes | None] | ByteColumn
"""Keys or values; a batch may have a list of the one and a column of the other."""
Times = list[int] | memoryview
"""In ms since 1970; a memoryview has numbers of 64 bits."""
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
KeyHash = Literal["murmur2", "crc32"]

_CODECS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
_TRANSACTIONAL = 0x10


class Decoded(NamedTuple):
    """The records of one partition from one record set, in order.

    Times and offsets are numbers of 64 bits; `offsets` is a range if none is missing. `headers` is
    None if no record has any. `next_offset` is where the next fetch begins: behind the last whole
    batch, also if that had no records to give; the `start` that was asked for if the set has no
    whole batch from there on. `size_bytes` is the size of keys, values and headers.
    """

    keys: ByteColumn
    values: ByteColumn
    timestamps: "memoryview[int]"
    offsets: "range | memoryview[int]"
    headers: list[tuple[Header, ...]] | None
    next_offset: int
    size_bytes: int


def available() -> bool:
    """Return whether the extension is there, without which nothing here works."""
    return not _UNAVAILABLE


def unavailable_reason() -> str:
    """Why the extension cannot be imported; empty if it can."""
    return _UNAVAILABLE


def decode(
    data: bytes | memoryview,
    start: int,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    check_crc: bool = True,
    max_records: int | None = None,
) -> Decoded:
    """Return the committed records of a record set from the offset `start` on.

    `aborted` has a producer id and the first offset of each aborted transaction, as a Fetch answer
    of read_committed gives them; in any order. A batch that is cut off at the end of the set is
    left for the next fetch. With `max_records`, at most so many are returned, and `next_offset` is
    behind the last of them: decode the same set again from there.

    Keys and values stand in the set itself if none of its batches is compressed: it is kept as long
    as they are, and nobody may change it.

    MalformedRecords if the set is damaged or of a format that is not known; nothing of it is
    returned then.
    """
    limit = -1 if max_records is None else max(max_records, 0)
    pairs = sorted(aborted, key=itemgetter(1))
    keys, values, times, offsets, headers, next_offset, size_bytes = _records.decode(
        data, start, pairs, check_crc, limit, _decompress, MalformedRecords
    )
    return Decoded(
        ByteColumn._make(keys),
        ByteColumn._make(values),
        memoryview(times).cast("q"),
        offsets if isinstance(offsets, range) else memoryview(offsets).cast("q"),
        headers,
        next_offset,
        size_bytes,
    )


def cut(rows: Rows, at: list[int] | None = None) -> list[bytes | None]:
    """Return the rows as objects: all of them, or those at these places in their order."""
    return _records.cut(rows, at)


def size_bytes(column: ByteColumn) -> int:
    """Return the sum of the sizes of the rows."""
    return _records.size_bytes(column)


def joined(columns: Sequence[ByteColumn]) -> ByteColumn:
    """Return the rows of all columns as one in the layout of Arrow."""
    return ByteColumn._make(_records.joined(list(columns)))


def encode(
    keys: Rows,
    values: Rows,
    timestamps: Times,
    headers: list[tuple[Header, ...]] | None,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    compression: Compression = "none",
) -> bytes:
    """Return one record batch of at least one record, with offsets from 0.

    ValueError if columns differ in length, or the batch would be 2 GiB
    or larger; TypeError if something is not bytes, None or a number.
    """
    attributes = _CODECS.index(compression) | (_TRANSACTIONAL if transactional else 0)
    packed = None if compression == "none" else _compressor(compression)
    return _records.encode(
        keys,
        values,
        timestamps,
        headers,
        producer_id,
        producer_epoch,
        base_sequence,
        attributes,
        packed,
    )


def sized_rows(
    keys: Rows,
    values: Rows,
    headers: list[tuple[Header, ...]] | None,
    max_bytes: int,
) -> list[int]:
    """Return where to cut rows into batches: the end of each batch, the last one's being all rows.

    Each batch, uncompressed and whatever the times, is at most `max_bytes` long, except that a row
    alone may be longer: the caller refuses it.
    """
    return _records.cuts(keys, values, headers, max_bytes)


def first_larger(keys: Rows, values: Rows, limit_bytes: int) -> int | None:
    """Return the first row whose key and value have more bytes than that; None if none has."""
    found = _records.larger(keys, values, limit_bytes)
    return None if found < 0 else found


def partitions_of(keys: Rows, count: int, hash: KeyHash) -> list[int]:  # noqa: A002 - Kafka's word
    """Return the partition of each key among `count`, -1 for null keys, which may go anywhere.

    The partitions are those of `statestore.kafka.partitioner`.
    """
    return _records.partitions(keys, count, hash == "murmur2")


def _compressor(compression: Compression) -> Callable[[memoryview], Buffer]:
    from statestore.kafka.wire.compression import compress

    return partial(compress, compression)


def _decompress(codec: int, payload: memoryview, offset: int) -> Buffer:
    from statestore.kafka.wire.compression import decompress

    try:
        return decompress(_CODECS[codec], payload)
    except (ValueError, OSError) as error:
        raise MalformedRecords(
            f"the batch at offset {offset} cannot be read: {_CODECS[codec]}: {error}"
        ) from error
