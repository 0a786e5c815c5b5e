"""As much of Kafka's wire format as the tests read themselves: frames, requests, raw logs.

Nothing here asks a client library, so what it says is what the broker was sent and what it keeps.
"""

import socket
import struct
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import NamedTuple

from tests.builders import DEADLINE_S

HOST = "127.0.0.1"
LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
_FETCH_VERSION = 4
_FETCH_BYTES = 1 << 22
# Of a batch: base offset, length, leader epoch, magic, checksum, attributes, last offset's delta,
# two times, producer id, its epoch, base sequence, count of records.
_BATCH = struct.Struct(">qiibIhiqqqhii")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


class Api(IntEnum):
    """The requests the tests speak of, by their key on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


_NAMES = {api.value: api.name for api in Api}
# Since which version a request is "flexible": compact strings, tagged fields in its header.
_FLEXIBLE = {
    Api.PRODUCE: 9,
    Api.INIT_PRODUCER_ID: 2,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.ADD_OFFSETS_TO_TXN: 3,
    Api.END_TXN: 3,
    Api.TXN_OFFSET_COMMIT: 3,
}


class Request(NamedTuple):
    """One request; `commits` says of an EndTxn what it asks for, None of any other."""

    api: int
    correlation_id: int
    client_id: str
    transactional_id: str | None
    commits: bool | None
    frame: bytes

    def __str__(self) -> str:
        known = _NAMES.get(self.api, f"api {self.api}")
        what = {None: "", True: " (commit)", False: " (abort)"}[self.commits]
        return f"{known}{what} of {self.transactional_id or self.client_id}"


class Kind(StrEnum):
    """What a batch of a raw log is."""

    RECORDS = "records"
    COMMIT = "commit marker"
    ABORT = "abort marker"


class RawBatch(NamedTuple):
    """A batch of a log; both offsets are inclusive."""

    first: int
    last: int
    producer_id: int
    kind: Kind
    epoch: int = 0


class RawLog(NamedTuple):
    """A partition as its leader keeps it, up to the last stable offset."""

    batches: list[RawBatch]
    stable_end: int
    end: int


def parse_request(frame: bytes) -> Request:
    """A request from its frame, the length in front left out."""
    api, version, correlation_id, client_id_length = _HEADER.unpack_from(frame)
    at = _HEADER.size
    client_id = frame[at : at + max(0, client_id_length)].decode()
    at += max(0, client_id_length)
    transactional_id, commits = None, None
    if api in _FLEXIBLE:
        if version >= _FLEXIBLE[Api(api)]:
            at = _after_tags(frame, at)
            transactional_id, at = compact_string(frame, at)
        else:
            transactional_id, at = string(frame, at)
        if api == Api.END_TXN:
            commits = bool(frame[at + 10])  # behind the producer's id and epoch
    return Request(api, correlation_id, client_id, transactional_id, commits, frame)


def error_of(request: Request, answer: bytes) -> int | None:
    """The error code of an answer to an EndTxn or InitProducerId, None of others."""
    if request.api == Api.END_TXN:
        return int.from_bytes(answer[8:10], signed=True)
    if request.api == Api.INIT_PRODUCER_ID:
        return int.from_bytes(answer[9:11], signed=True)
    return None


def read_raw(
    address: str, topic: str, partition: int, start: int = 0, *, committed: bool = True
) -> RawLog:
    """All batches from `start` on; if `committed`, those that no open transaction keeps back."""
    host, _, port = address.rpartition(":")
    batches: list[RawBatch] = []
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        while True:
            stable_end, end, data = _fetch(connection, topic, partition, start, committed=committed)
            for batch in _batches(data):
                if batch.first >= start:
                    batches.append(batch)
                start = max(start, batch.last + 1)
            if start >= (stable_end if committed else end):
                return RawLog(batches, stable_end, end)


def string(data: bytes, at: int) -> tuple[str | None, int]:
    """A string with its length in two bytes, and where it ends."""
    size = int.from_bytes(data[at : at + 2], signed=True)
    return (None, at + 2) if size < 0 else (data[at + 2 : at + 2 + size].decode(), at + 2 + size)


def compact_string(data: bytes, at: int) -> tuple[str | None, int]:
    """A string as flexible messages have it, and where it ends."""
    size, at = _varint(data, at)
    return (None, at) if size == 0 else (data[at : at + size - 1].decode(), at + size - 1)


def plain_array(data: bytes, at: int) -> tuple[int, int]:
    """How many items an array has, whose length has four bytes, and where they begin."""
    return max(0, int.from_bytes(data[at : at + 4], signed=True)), at + 4


def compact_array(data: bytes, at: int) -> tuple[int, int]:
    """The same of an array as flexible messages have it."""
    size, at = _varint(data, at)
    return max(0, size - 1), at


def _fetch(
    connection: socket.socket, topic: str, partition: int, start: int, *, committed: bool
) -> tuple[int, int, bytes]:
    """The last stable offset, the log's end, and batches from the one with `start` on."""
    name = topic.encode()
    body = (
        _HEADER.pack(Api.FETCH, _FETCH_VERSION, 0, 0)
        + struct.pack(">iiiib", -1, 0, 0, _FETCH_BYTES, committed)
        + struct.pack(f">ih{len(name)}s", 1, len(name), name)
        + struct.pack(">iiqi", 1, partition, start, _FETCH_BYTES)
    )
    connection.sendall(LENGTH.pack(len(body)) + body)
    answer = _exactly(connection, LENGTH.unpack(_exactly(connection, LENGTH.size))[0])
    # Before the partition: correlation id, throttle time, one topic, its name, one partition.
    at = 4 + 4 + 4 + 2 + len(name) + 4
    _, error, end, stable_end, aborted = struct.unpack_from(">ihqqi", answer, at)
    assert error == 0, f"{topic}-{partition} at {start}: error {error}"
    at += 26 + 16 * max(0, aborted)
    (size,) = LENGTH.unpack_from(answer, at)
    return stable_end, end, answer[at + LENGTH.size : at + LENGTH.size + max(0, size)]


def _batches(data: bytes) -> Iterator[RawBatch]:
    at = 0
    while at + _BATCH.size <= len(data):
        base, length, _, _, _, attributes, delta, _, _, producer_id, epoch, *_ = _BATCH.unpack_from(
            data, at
        )
        if at + 12 + length > len(data):
            return  # cut off: the next fetch brings it whole
        kind = Kind.RECORDS
        if attributes & _CONTROL:
            kind = _marker(data, at + _BATCH.size)
        yield RawBatch(base, base + delta, producer_id, kind, epoch)
        at += 12 + length


def _marker(data: bytes, at: int) -> Kind:
    """What the one record of a control batch says: its key holds a version and a type."""
    _, at = _varint(data, at)  # length
    at += 1  # attributes
    for _ in range(3):  # time, offset, length of the key
        _, at = _varint(data, at)
    return Kind.COMMIT if data[at + 3] == 1 else Kind.ABORT


def _after_tags(frame: bytes, at: int) -> int:
    count, at = _varint(frame, at)
    for _ in range(count):
        _, at = _varint(frame, at)
        size, at = _varint(frame, at)
        at += size
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Unsigned; whoever wants the signed one decodes it from there."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = source.recv(count - len(data))
        assert piece, "the broker closed the connection"
        data += piece
    return bytes(data)
