"""Bytes that are no record batches: an error that names the batch, never a read outside of them."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import MalformedRecords
from statestore.kafka.wire import codec
from statestore.kafka.wire.codec import decode, encode
from tests.builders import DEADLINE_S, ROOT
from tests.unit.batch_rig import (
    ABORT,
    Row,
    batch,
    decoded,
    marker,
    number,
    piece,
    record,
    transactional,
    values,
)

WIRE = ROOT / "statestore" / "kafka" / "wire"
SOURCES = sorted(str(path.relative_to(ROOT)) for path in WIRE.glob("*.c"))
HEADERS = number(1) + piece(b"name") + piece(b"value")
ONE = values(77, "a")
# About every field of a batch, in one set.
SAMPLE = b"".join([
    batch(10, record(Row(0, b"value", b"key", -3), HEADERS), count=1, last_delta=0),
    transactional(11, 7, "aborted", "too"),
    marker(13, 7, ABORT),
    batch(14, [Row(0, None), Row(3, b"", b"")], last_delta=5),
    batch(20, record(Row(0, b"last"), HEADERS), count=1, last_delta=0),
])  # fmt: skip


def one(rows: bytes, count: int = 1) -> bytes:
    return batch(77, rows, count=count, last_delta=5)


WRONG = {
    "checksum": ONE[:-1] + bytes([ONE[-1] ^ 1]),
    "magic 0": batch(77, [Row(0)], magic=0),
    "magic 1": batch(77, [Row(0)], magic=1),
    "magic that is not known": batch(77, [Row(0)], magic=3),
    "attributes that are not known": batch(77, [Row(0)], attributes=0x80),
    "compression is not known": batch(77, [Row(0)], attributes=5),
    "length is negative": ONE[:8] + b"\xff" + ONE[9:],
    "length is too small": ONE[:8] + (48).to_bytes(4, "big") + ONE[12:],
    "number of records is negative": one(b"", -1),
    "offsets are not possible": batch(77, b"", count=0, last_delta=-1),
    "more records than bytes": one(record(Row(0)), 2),
    "length of a record": one(number(50) + b"\x00" * 20),
    "number that does not end": one(number(10) + b"\x00" + b"\xff" * 9),
    "offset outside its batch": one(record(Row(6))),
    "offsets of records do not rise": one(record(Row(2)) + record(Row(2)), 2),
    "length of a key": one(number(12) + bytes(3) + number(50) + bytes(8)),
    "length of a value": one(number(12) + bytes(3) + piece(b"k") + number(-2) + bytes(6)),
    "number of headers": one(record(Row(0), number(1))),
    "length of a header": one(record(Row(0), number(1) + number(9) + bytes(2))),
    "longer than its fields": one(record(Row(0), number(0) + b"?")),
    "bytes are left": one(record(Row(0)) + b"?"),
    "gzip": batch(77, b"\x1f\x8b?", attributes=1, count=1, last_delta=0),
    "block of Snappy": batch(77, b"\xff" * 9, attributes=2, count=1, last_delta=0),
    "block of Snappy claims": batch(77, b"\xff\xff\xff\x7f?", attributes=2, count=1, last_delta=0),
    "snappy": batch(77, b"\x05?", attributes=2, count=1, last_delta=0),
    "lz4": batch(77, b"\x04\x22\x4d\x18?", attributes=3, count=1, last_delta=0),
    "zstd": batch(77, b"\x28\xb5\x2f\xfd?", attributes=4, count=1, last_delta=0),
    "before the end of the batch before it": ONE + values(77, "b"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_an_error_says_what_does_not_fit_and_where(what: str) -> None:
    with pytest.raises(MalformedRecords, match=rf"offset 77 cannot be read: .*{what}"):
        decode(WRONG[what], 0)


def test_a_marker_without_a_type_is_refused_if_it_matters() -> None:
    broken = batch(13, [Row(0, b"", b"k")], attributes=0x30, producer=7)
    assert decode(broken, 0).next_offset == 14
    with pytest.raises(MalformedRecords, match=r"offset 13 .* no type"):
        decode(transactional(11, 7, "a") + broken, 0, [(7, 11)])


def test_without_the_checksum_damaged_values_are_taken_as_they_are() -> None:
    damaged = ONE[:-2] + b"b" + ONE[-1:]
    assert decoded(damaged, 0, check_crc=False).values == [b"b"]


def read_all(data: bytes) -> str:
    """What the codec makes of bytes: a result or an error."""
    # Memory that ends with the last byte, which that of a bytes object does not.
    exact = np.frombuffer(data, np.uint8).copy().data
    try:
        return repr(decoded(exact, 12, [(7, 11)], check_crc=False, max_records=1000))
    except MalformedRecords as error:
        return str(error)


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for place, byte in changes:
        changed[place % len(changed)] = byte
    return bytes(changed)


places_and_bytes = st.lists(
    st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4
)


@given(places_and_bytes, st.integers(0, len(SAMPLE)))
def test_damaged_sets_are_an_error_or_a_result(changes: list[tuple[int, int]], size: int) -> None:
    read_all(damaged(SAMPLE, changes)[: size or None])


@given(st.sampled_from(["gzip", "snappy", "lz4", "zstd"]), places_and_bytes)
def test_damaged_compressed_batches_are_an_error_or_a_result(
    name: codec.Compression, changes: list[tuple[int, int]]
) -> None:
    data = encode([b"key"] * 50, [b"value" * 9] * 50, list(range(50)), None, compression=name)
    behind_head = [(61 + place % (len(data) - 61), byte) for place, byte in changes]
    read_all(damaged(data, behind_head))


FUZZ = """
import itertools, random, sys
from tests.unit.batch_rig import *
from tests.unit.test_malformed_records import SAMPLE, WRONG, damaged, read_all
from statestore.kafka.wire import _records, codec
assert _records.__file__ == sys.argv[1]
seen = set()
for sample in (SAMPLE, *WRONG.values()):
    read_all(sample)
for size in range(len(SAMPLE)):
    seen.add(read_all(SAMPLE[:size]))
# Every byte of the set in turn becomes something else; then several at once.
for place, byte in itertools.product(range(len(SAMPLE)), (0, 1, 0x7F, 0x80, 0xFF)):
    seen.add(read_all(damaged(SAMPLE, [(place, byte)])))
chance = random.Random(890)
for _ in range(20_000):
    several = range(chance.randint(1, 4))
    changes = [(chance.randrange(2**16), chance.randrange(256)) for _ in several]
    seen.add(read_all(damaged(SAMPLE, changes)[: chance.randint(1, len(SAMPLE))]))
rows = [None, b"", b"key", bytes(3000)]
for count in (1, 3, 50):
    keys = [chance.choice(rows) for _ in range(count)]
    headers = [(("name", chance.choice(rows)),) * chance.randrange(3) for _ in range(count)]
    data = codec.encode(keys, keys[::-1], list(range(count)), headers)
    found = codec.decode(data, 0)
    columns = [codec.joined([column]) for column in (found.keys, found.values)]
    assert codec.encode(*columns, found.timestamps, found.headers) == data
    assert codec.encode(found.keys, found.values, found.timestamps, found.headers) == data
    codec.sized_rows(found.keys, found.values, found.headers, 100)
    assert codec.first_larger(found.keys, found.values, 6000) is None
    codec.partitions_of(found.keys, 3, "murmur2"), codec.partitions_of(found.keys, 3, "crc32")
print(len(seen))
"""


@pytest.mark.thorough
def test_no_damage_makes_it_read_outside_its_input(tmp_path: Path) -> None:
    """The same sources under AddressSanitizer and UndefinedBehaviorSanitizer."""
    built = tmp_path / "statestore.kafka.wire._records.so"
    checked = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
    python = ["-I", sysconfig.get_path("include"), "-shared", "-fPIC", "-std=c11"]
    subprocess.run(["cc", *checked, *python, *SOURCES, "-o", built], cwd=ROOT, check=True)
    library = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        f"found = importlib.util.spec_from_file_location({built.stem!r}, {str(built)!r})\n"
        "sys.modules[found.name] = importlib.util.module_from_spec(found)\n"
        "found.loader.exec_module(sys.modules[found.name])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, built],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": library,
            # Python keeps what it has until it ends.
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
        },
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
