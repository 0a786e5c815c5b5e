"""The codecs of record batches by pyarrow: gzip, LZ4 frames, Zstandard, and Snappy's two framings.

Snappy's own framing is not used in Kafka: Java writes blocks behind the header of xerial's
snappy-java, librdkafka one raw block. Both are read; a raw block is written, which both read.
It is imported with the first compressed batch, as pyarrow is.
"""

from collections.abc import Iterator

import pyarrow as pa
from typing_extensions import Buffer

_XERIAL = b"\x82SNAPPY\x00"
# The header has two versions behind its magic; a block has its size before it.
_XERIAL_HEADER = 16
_BLOCK_HEADER = 4
# A copy of 64 bytes takes three, so no block becomes larger by more than this.
_SNAPPY_RATIO_MAX = 32
_snappy = pa.Codec("snappy")
# The header of a frame whose blocks do not refer to each other, and have 64 KiB at most; with its
# checksum. pyarrow's own frames have blocks that do, which Java's brokers refuse.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 64 << 10
_LZ4_PLAIN = 1 << 31
_lz4_block = pa.Codec("lz4_raw")


def decompress(codec: str, data: memoryview) -> Buffer:
    """Return the plain bytes; ValueError or OSError (pyarrow's) says what does not fit."""
    if codec == "snappy":
        return b"".join(_snappy_blocks(data))
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
        plain: Buffer = stream.read_buffer()
        return plain


def compress(codec: str, data: memoryview) -> Buffer:
    """Return the bytes as one frame, or one raw block, of that codec."""
    if codec == "lz4":
        return b"".join(_lz4_frame(data))
    packed: Buffer = pa.Codec(codec).compress(pa.py_buffer(data))
    return packed


def _lz4_frame(data: memoryview) -> Iterator[Buffer]:
    yield _LZ4_HEADER
    for at in range(0, len(data), _LZ4_BLOCK):
        plain = data[at : at + _LZ4_BLOCK]
        packed = _lz4_block.compress(pa.py_buffer(plain))
        fits = packed.size < len(plain)
        yield (packed.size if fits else len(plain) | _LZ4_PLAIN).to_bytes(4, "little")
        yield packed if fits else plain
    yield bytes(4)


def _snappy_blocks(data: memoryview) -> Iterator[Buffer]:
    if data[: len(_XERIAL)] != _XERIAL:
        yield _snappy_block(data)
        return
    at = _XERIAL_HEADER
    while at < len(data):
        size = int.from_bytes(data[at : at + _BLOCK_HEADER])
        at += _BLOCK_HEADER
        if size > len(data) - at:
            raise ValueError("a block of Snappy is longer than what is left")
        yield _snappy_block(data[at : at + size])
        at += size


def _snappy_block(block: memoryview) -> Buffer:
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    else:
        raise ValueError("the length of a block of Snappy does not end")
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise ValueError("a block of Snappy claims to be larger than it can become")
    plain: Buffer = _snappy.decompress(pa.py_buffer(block), decompressed_size=size)
    return plain
