"""Rows in columns are the rows they would be as objects, in whatever order somebody asks."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import serdes
from statestore.kafka.wire import codec
from statestore.kafka.wire.fetched import Fetched, extent
from statestore.model.batch import Batch, Column
from statestore.model.byte_columns import ByteColumn, MaybePacked, PackedRows
from statestore.model.ids import TopicPartition
from statestore.tasks.memory_share import MemoryLimits, Usage, plan_step
from statestore.testing.packed import InPython, packed
from statestore.topology.aggregates import row_numbers, row_ranks
from tests.builders import DEADLINE_S

Rows = list[bytes | None]
_64_BITS = (1 << 64) - 1
some_rows = st.lists(st.none() | st.binary(max_size=3), max_size=40)
needs_codec = pytest.mark.skipif(not codec.available(), reason="the extension is not built here")
needs_ranks = pytest.mark.skipif(row_ranks._ranks is None, reason="the extension is not built here")


def fetched(rows: Rows, piece: int) -> PackedRows:
    """The rows as values of batches of so many records, as the client of our own gives them."""
    log, tp = Fetched(check_crc=True), TopicPartition("in", 0)
    found = log.rows()
    for start in range(0, len(rows), piece):
        part = rows[start : start + piece]
        data = codec.encode(part, part, [0] * len(part), None)
        end = extent(data)
        assert end is not None
        log.add(data, end, ())
        found.add(log.take(0, len(part), 1 << 30))
    made = found.batch(tp).values.packed(serdes.BYTES)
    assert made is not None
    return made


def in_pieces(rows: Rows, piece: int) -> PackedRows:
    """The same without the extension."""
    parts = [packed(rows[start : start + piece]) for start in range(0, len(rows), piece)]
    return PackedRows([one for part in parts for one in part.columns], InPython())


MADE = [pytest.param(fetched, marks=needs_codec), in_pieces]
RANKERS = [
    pytest.param(row_ranks, id="by the extension", marks=needs_ranks),
    pytest.param(row_numbers, id="by Arrow"),
]


@pytest.mark.parametrize("made", MADE)
@given(rows=some_rows, piece=st.integers(1, 15), more=st.data())
def test_rows_in_columns_are_the_rows(
    made: Callable[[Rows, int], PackedRows], rows: Rows, piece: int, more: st.DataObject
) -> None:
    columns = made(rows, piece)
    assert len(columns) == len(rows)
    assert columns.size_bytes == sum(len(row or b"") for row in rows)
    assert columns.may_have_nulls or None not in rows
    assert columns.nulls() == [place for place, row in enumerate(rows) if row is None]
    ends = st.none() | st.integers(-len(rows) - 1, len(rows) + 1)
    asked = slice(more.draw(ends), more.draw(ends), more.draw(st.sampled_from([None, 1, 2, -1])))
    part, wanted = columns[asked], rows[asked]
    assert list(part) == wanted
    if isinstance(part, PackedRows):
        assert part.nulls() == [place for place, row in enumerate(wanted) if row is None]
    assert list(part[1:-1]) == wanted[1:-1]
    if isinstance(part, PackedRows):
        assert part.size_bytes == sum(len(row or b"") for row in wanted)
    assert columns.all() == rows
    assert [columns[i] for i in range(-len(rows), len(rows))] == rows + rows
    assert list(columns[asked]) == wanted
    assert columns.all() is columns.all()


@given(rows=some_rows, piece=st.integers(1, 15), more=st.data())
def test_a_column_of_them_does_what_one_of_objects_does(
    rows: Rows, piece: int, more: st.DataObject
) -> None:
    any_place = st.integers(0, max(len(rows) - 1, 0))
    places = more.draw(st.lists(any_place, max_size=9 if rows else 0))
    rising = sorted(more.draw(st.sets(any_place, max_size=9 if rows else 0)))
    start, stop = sorted(more.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))

    def looked_at(raw: "Rows | PackedRows") -> list[Sequence[object]]:
        batch = Batch(keys=Column(raw=raw), values=Column(raw=raw), timestamps=[0] * len(rows))
        cut, taken = batch.slice(start, stop), batch.take(places)
        left = batch.without(rising)
        return [
            batch.keys.nulls(),
            cut.keys.nulls(),
            cut.values.encoded(serdes.BYTES),
            taken.values.objects,
            taken.keys.nulls(),
            batch.keys.bytes_at(rising),
            cut.keys.bytes_at([place - start for place in rising if start <= place < stop]),
            left.timestamps,
            left.keys.nulls(),
            left.keys.bytes_at(range(len(left))),
            left.values.objects,
            left.without(range(len(left))).keys.objects,
            cut.take(range(len(cut))).keys.objects,
            batch.values.with_serde(serdes.BYTES).objects,
            [record.value for record in batch.records()],
        ]

    assert looked_at(in_pieces(rows, piece)) == looked_at(rows)


@pytest.mark.parametrize("apart", [2, 3, 200])
def test_many_rows_are_left_out_as_a_few_are(apart: int) -> None:
    rows: Rows = [None if i % apart == 0 else b"%d" % i for i in range(1_000)]
    left = Column(raw=in_pieces(rows, 7))
    batch = Batch(keys=left, values=left, timestamps=list(range(1_000)))
    found = batch.without(left.nulls())
    assert found.keys.objects == [row for row in rows if row is not None]
    assert found.timestamps == [i for i, row in enumerate(rows) if row is not None]
    assert (found.values.packed(serdes.BYTES) is None) == (apart < 200)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("nulls", [False, True])
def test_many_rows_are_taken_as_columns(
    made: Callable[[Rows, int], PackedRows], *, asked: bool, nulls: bool
) -> None:
    rng = random.Random(3)
    rows: Rows = [
        None if nulls and rng.random() < 0.1 else rng.randbytes(i % 9) for i in range(5_000)
    ]
    places = sorted(rng.sample(range(4_600), 3_000))
    columns, part = made(rows, 700), rows[300:4_900]
    if asked:
        columns.all()
    taken = columns[300:4_900].taken(places)
    assert isinstance(taken, PackedRows)
    wanted = [part[place] for place in places]
    assert taken.nulls() == [i for i, row in enumerate(wanted) if row is None]
    assert taken.size_bytes == sum(len(row or b"") for row in wanted)
    again = taken.taken(range(0, 3_000, 2))
    assert list(taken[5:-5]) == wanted[5:-5]
    assert codec.cut(taken.joined()) == wanted if codec.available() else True
    assert list(again) == wanted[::2]
    assert list(taken) == wanted
    assert isinstance(again, PackedRows)
    backwards = columns.taken(range(2_000, 0, -1))
    assert list(backwards) == rows[2_000:0:-1]
    assert not isinstance(backwards, PackedRows)


def test_only_the_bytes_of_the_same_serde_are_there_in_columns() -> None:
    rows = packed([b"a", b"b"])
    assert Column(raw=rows).packed(serdes.STRING) is rows
    assert Column(raw=rows, serde=serdes.STRING).packed(serdes.STRING) is rows
    assert Column(raw=rows, serde=serdes.STRING).packed(serdes.BYTES) is None
    assert Column(raw=[b"a"]).packed(serdes.BYTES) is None
    assert Column(objects=["a"]).packed(serdes.STRING) is None


class Uncut(InPython):
    """Makes no objects."""

    def cut(self, column: ByteColumn) -> Rows:
        raise AssertionError(f"{column} was cut")


def test_slices_cut_nothing() -> None:
    rows = PackedRows(packed([b"a", b"bc", b""]).columns, Uncut())
    assert not rows[1:].may_have_nulls
    assert Column(raw=rows).nulls() == []
    assert len(rows[1:3][1:]) == 1
    with pytest.raises(AssertionError, match="was cut"):
        rows[0]


@pytest.mark.parametrize("ranker", RANKERS)
@pytest.mark.parametrize("made", [*MADE, lambda rows, _: rows])
@given(
    keys=st.lists(st.binary(max_size=12), max_size=80),
    begin=st.binary(max_size=9),
    piece=st.sampled_from([1, 7, 1000]),
    cut=st.integers(0, 80),
)
def test_rows_are_ranked_by_their_bytes(
    ranker: Any,
    made: Callable[[Rows, int], MaybePacked],
    keys: list[bytes],
    begin: bytes,
    piece: int,
    cut: int,
) -> None:
    keys = [begin + key for key in keys]
    rows = made([*keys], piece)[cut:]
    numbers, distinct = ranker.ranked_rows(rows)
    assert distinct == sorted(set(keys[cut:]))
    assert [distinct[i] for i in numbers.tolist()] == keys[cut:]


@pytest.mark.parametrize("ranker", RANKERS)
@pytest.mark.parametrize("begin", [b"", b"a", b"eight by", b"more than eight bytes"])
def test_a_row_comes_before_those_that_it_begins(ranker: Any, begin: bytes) -> None:
    rows = [begin + bytes(zeros) + end for zeros in range(20, -1, -1) for end in (b"\1", b"")]
    numbers, distinct = ranker.ranked_rows(rows)
    assert distinct == sorted(set(rows))
    assert [distinct[i] for i in numbers.tolist()] == rows


@pytest.mark.parametrize("ranker", RANKERS)
def test_many_rows_are_ranked(ranker: Any) -> None:
    seed = 5
    chance = random.Random(seed)
    keys = [b"key-%09d" % chance.randrange(40_000) for _ in range(50_000)]
    numbers, distinct = ranker.ranked_rows(keys)
    assert distinct == sorted(set(keys)), f"seed {seed}"
    assert [distinct[i] for i in numbers.tolist()] == keys, f"seed {seed}"


def mixed(one: int, other: int) -> int:
    """As _ranks.c has it."""
    product = one * other
    return (product ^ product >> 64) & _64_BITS


@needs_ranks
def test_nobody_who_knows_the_seed_of_hashes_can_write_keys_that_collide() -> None:
    """Spark sets it to 0 for all workers: batches of such keys took 10 000 times as long."""
    seed = hash("statestore") & _64_BITS | 1
    alike, apart = list[bytes](), list[bytes]()
    for number in range(40_000):
        state = mixed(mixed(seed, 0x9E3779B97F4A7C15) ^ number, 0xA0761D6478BD642F ^ seed)
        alike.append(number.to_bytes(8, "little") + state.to_bytes(8, "little"))
        apart.append(number.to_bytes(16, "little"))
    took_s = list[float]()
    for keys in (apart, alike):
        begun_s = time.process_time()
        _, distinct = row_ranks.ranked_rows([*keys])
        took_s.append(time.process_time() - begun_s)
        assert distinct == sorted(keys)
    # The quotient is 1, or 200 where they do collide.
    assert took_s[1] < 30 * took_s[0]


def test_without_the_extension_arrow_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ranks, "_ranks", None)
    numbers, distinct = row_ranks.ranked_rows([b"b", b"a", b"b"])
    assert (numbers.tolist(), distinct) == ([1, 0, 1], [b"a", b"b"])
    # The second key is in no window, as a null key is.
    numbers, rows = row_ranks.ranked_windows([b"b", None], np.array([0, 0]), np.array([5, 0]))
    assert (numbers.tolist(), rows) == ([1, 0], [bytes(8) + b"b", bytes(7) + b"\x05b"])


@needs_ranks
@pytest.mark.parametrize(
    ("keys", "entries"),
    [
        ((b"a",), ()),
        ([b"a", None], ()),
        ([b"a"], ([1], [0])),
        ([b"a"], ([-1], [0])),
        ([b"a"], ([0], [0, 0])),
    ],
)
def test_what_is_no_list_of_keys_is_refused(
    keys: Any, entries: tuple[list[int], list[int]]
) -> None:
    with pytest.raises((TypeError, IndexError, ValueError)):
        row_ranks._ranks.of_objects(keys, *(np.array(one, np.int64) for one in entries))


@needs_ranks
@pytest.mark.parametrize(
    ("offsets", "first", "count"),
    [
        ([0, 1, 3], 0, 2),
        ([0, 2, 1], 0, 2),
        ([-1, 1], 0, 1),
        ([0, 1], 0, 2),
        ([0, 1], 1, 1),
        ([0, 1], -1, 1),
        ([0, 1], 0, -1),
        ([], 0, 0),
    ],
)
def test_what_is_no_column_of_keys_is_refused(offsets: list[int], first: int, count: int) -> None:
    with pytest.raises(ValueError, match="offset"):
        row_ranks._ranks.of_columns(b"ab", np.array(offsets, np.int64), first, count)


@pytest.mark.parametrize("ranker", RANKERS)
@pytest.mark.parametrize("made", [*MADE, lambda rows, _: rows])
@given(
    entries=st.lists(st.tuples(st.integers(0, 9), st.integers(0, (1 << 62))), max_size=60),
    few=st.booleans(),
    keys=st.lists(st.binary(max_size=2), min_size=10, max_size=10),
)
def test_rows_of_windows_are_numbered_without_making_them(
    ranker: Any,
    made: Callable[[Rows, int], MaybePacked],
    entries: list[tuple[int, int]],
    few: bool,
    keys: list[bytes],
) -> None:
    if few:
        entries = [(place, start % 3) for place, start in entries]
    key_of, starts = (np.array([entry[at] for entry in entries], np.int64) for at in (0, 1))
    rows = [start.to_bytes(8, "big") + keys[place] for place, start in entries]
    numbers, found = ranker.ranked_windows(made([*keys], 4), key_of, starts)
    assert found == sorted(set(rows))
    assert [found[i] for i in numbers.tolist()] == rows


@pytest.mark.parametrize("limit", [1, 100, 2_000, 50_000])
@pytest.mark.parametrize("done", [0, 3, 99])
def test_a_step_weighs_columns_as_it_weighs_objects(limit: int, done: int) -> None:
    values: Rows = [None if i % 7 == 0 else b"v" * (i % 50) for i in range(100)]
    limits = MemoryLimits(limit, -1)
    steps = [
        plan_step(Usage(0, 0), None, rows, limits, done=done) for rows in (values, packed(values))
    ]
    assert steps[0] == steps[1]


def test_grouping_does_not_wait_for_pandas() -> None:
    """Arrow imports it, where it is installed, to convert what is a column already."""
    code = """
import sys
import numpy as np
from statestore.testing.packed import packed
from statestore.topology.aggregates.row_numbers import ranked_rows, ranked_windows
rows = packed([b"b", b"a", b"b"])
assert ranked_rows(rows)[1] == [b"a", b"b"]
windows = ranked_windows(rows, np.arange(3), np.zeros(3, np.int64))
assert windows[1] == [bytes(8) + b"a", bytes(8) + b"b"]
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


@needs_codec
def test_what_was_asked_for_once_is_made_at_once_from_then_on() -> None:
    log, tp = Fetched(check_crc=True), TopicPartition("in", 0)

    def polled(*rows: bytes | None) -> Batch:
        for row in rows:
            data = codec.encode([b"key"], [row], [0], None)
            end = extent(data)
            assert end is not None
            log.add(data, end, ())
        found = log.rows()
        for _ in rows:
            found.add(log.take(0, 1, 1 << 30))
        return found.batch(tp)

    first = polled(b"z")
    assert first.slice(0, 1).values.packed(serdes.BYTES) is not None
    before = polled(b"a", b"b")
    assert before.values.packed(serdes.BYTES) is not None
    assert before.slice(1, 2).values.objects == [b"b"]
    after = polled(b"c", None)
    assert after.values.packed(serdes.BYTES) is None
    assert after.values.objects == [b"c", None]
    keys = after.keys.packed(serdes.BYTES)
    assert keys is not None
    assert keys.all() == [b"key", b"key"]
    assert polled(b"d").keys.packed(serdes.BYTES) is None


@needs_codec
@pytest.mark.parametrize("look", [True, False])
def test_the_first_rows_are_there_as_objects_and_in_columns(*, look: bool) -> None:
    log, tp = Fetched(check_crc=True), TopicPartition("in", 0)
    for time_ms in range(2):
        data = codec.encode([b"key"] * 3, [b"a", b"", None], [time_ms] * 3, None)
        end = extent(data)
        assert end is not None
        log.add(data, end, ())
        found = log.rows()
        found.add(log.take(0, 3, 1 << 30))
        batch = found.batch(tp).slice(1, 3)
        packed_values = batch.values.packed(serdes.BYTES)
        if time_ms and look:
            assert packed_values is None
        else:
            assert packed_values is not None
            assert packed_values.size_bytes == 0
            assert codec.cut(packed_values.joined()) == [b"", None]
        if look or time_ms:
            assert batch.values.objects == [b"", None]
            assert batch.take([1, 0]).values.objects == [None, b""]
