"""What every Engine promises (`ports.Engine`), on each of them and behind their backs."""

import random
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.engines.rocks import RocksTuning, open_rocks
from statestore.errors import Misuse, StoreClosed
from statestore.ports import Engine
from tests.contract.conftest import MEMORY, TABLES, EngineUnderTest, fails

Pair = tuple[bytes, bytes]
ROWS = {key: b"v-" + key for key in (b"a", b"b", b"key", b"key\x00", b"key2", b"z\xff")}

# lo, hi, keys found
BOUNDS = [
    (None, None, [b"a", b"b", b"key", b"key\x00", b"key2", b"z\xff"]),
    (b"b", b"key2", [b"b", b"key", b"key\x00", b"key2"]),
    (b"key", b"key", [b"key"]),
    (b"key", b"key1", [b"key", b"key\x00"]),
    (b"", b"a", [b"a"]),
    (b"aa", b"az", []),
    (b"key2", None, [b"key2", b"z\xff"]),
    (None, b"b", [b"a", b"b"]),
    (b"zz", None, [b"z\xff"]),
    (b"\xff", None, []),
    (None, b"A", []),
    (b"key2", b"key", []),
    (b"z\xff", b"a", []),
]


def test_a_write_is_seen_in_every_table_by_every_kind_of_read(
    under_test: EngineUnderTest, engine: Engine
) -> None:
    engine.write({"data": ROWS, "offsets": {b"t-0": b"42"}})
    data, offsets = engine.table("data"), engine.table("offsets")
    assert data.get(b"key") == b"v-key"
    assert data.get_many([b"z\xff", b"absent", b"a", b"a"]) == [b"v-z\xff", None, b"v-a", b"v-a"]
    assert dict(data.scan()) == ROWS
    assert list(offsets.scan()) == [(b"t-0", b"42")]
    assert under_test.rows(engine, "data") == ROWS
    assert under_test.rows(engine, "offsets") == {b"t-0": b"42"}


def test_absent_keys_are_none(engine: Engine) -> None:
    table = engine.table("data")
    assert (table.get(b"a"), table.get_many([b"a"]), table.get_many([])) == (None, [None], [])
    assert list(table.scan()) == []


def test_empty_bytes_are_a_key_and_a_value_while_none_deletes(
    under_test: EngineUnderTest, engine: Engine
) -> None:
    engine.write({"data": {b"": b"nothing", b"empty": b"", b"gone": b"1"}})
    engine.write({"data": {b"gone": None, b"never": None}})
    table = engine.table("data")
    assert (table.get(b""), table.get(b"empty"), table.get(b"gone")) == (b"nothing", b"", None)
    assert table.get_many([b"", b"empty", b"gone"]) == [b"nothing", b"", None]
    assert list(table.scan(hi=b"")) == [(b"", b"nothing")]
    assert under_test.rows(engine, "data") == {b"": b"nothing", b"empty": b""}


@pytest.mark.parametrize(("lo", "hi", "keys"), BOUNDS)
def test_scan_includes_both_bounds_in_byte_order(
    engine: Engine, lo: bytes | None, hi: bytes | None, keys: list[bytes]
) -> None:
    engine.write({"data": ROWS, "offsets": {b"key1": b"never in data"}})
    pairs = [(key, ROWS[key]) for key in keys]
    assert list(engine.table("data").scan(lo, hi)) == pairs
    assert list(engine.table("data").scan(lo, hi, reverse=True)) == pairs[::-1]


def test_long_scans_pass_every_row_once(engine: Engine) -> None:
    rows = {b"%05d" % number: b"%d" % number for number in range(3000)}
    engine.write({"data": rows})
    table = engine.table("data")
    assert list(table.scan()) == list(rows.items())
    assert list(table.scan(reverse=True)) == list(rows.items())[::-1]
    assert list(table.scan(b"00100", b"02500")) == list(rows.items())[100:2501]


def test_many_keys_come_back_in_the_order_asked(engine: Engine) -> None:
    engine.write({"data": {b"%d" % number: b"v%d" % number for number in range(0, 20_000, 2)}})
    numbers = random.Random(5).choices(range(20_000), k=25_000)
    expected = [None if number % 2 else b"v%d" % number for number in numbers]
    table = engine.table("data")
    for count in (1, 256, 257, 1000, 25_000):
        asked = [b"%d" % number for number in numbers[:count]]
        assert table.get_many(asked) == expected[:count]


@pytest.mark.parametrize("written", ["the same", "the same, some deleted", "fewer", "others"])
def test_keys_looked_up_to_be_written_are_found_and_any_write_may_follow(
    engine: Engine, written: str
) -> None:
    rng = random.Random(6)
    there: dict[bytes, bytes | None] = {b"%d" % number: b"v" for number in range(0, 8000, 2)}
    engine.write({"data": there})
    for count in (0, 1, 300, 5000):
        asked = [b"%d" % number for number in rng.sample(range(8000), count)]
        keys, values = engine.table("data").get_many_to_write(asked)
        assert sorted(keys) == sorted(asked)
        assert values == [there.get(key) for key in keys]
        rows: dict[bytes, bytes | None] = dict.fromkeys(asked, b"%d" % count)
        match written:
            case "the same, some deleted":
                rows |= dict.fromkeys(asked[::3])
            case "fewer":
                rows = dict(list(rows.items())[::2])
            case "others":
                rows = {key + b"x": value for key, value in reversed(rows.items())}
        engine.write({"data": rows, "offsets": rows})
        there |= rows
        expected = {key: value for key, value in there.items() if value is not None}
        assert dict(engine.table("data").scan()) == expected


@pytest.mark.parametrize("prefix", [b"", b"\x00", b"customer-"], ids=repr)
def test_large_batches_of_any_keys_hold_what_a_dict_would(
    under_test: EngineUnderTest, engine: Engine, prefix: bytes
) -> None:
    rng = random.Random(7)

    def rows(deletes: float) -> dict[bytes, bytes | None]:
        keys = [prefix + rng.randbytes(rng.randrange(13)).rstrip(b"\x00") for _ in range(3000)]
        some = dict.fromkeys([prefix, prefix + b"\x00", prefix + b"\x00\x00", *keys])
        return {
            key: None if rng.random() < deletes else rng.choice([b"", b"v", key]) for key in some
        }

    first, second = rows(0), rows(0.5)
    second |= dict.fromkeys(list(first)[::3])
    for batch in (first, second):
        engine.write({"data": batch})
    expected = {key: value for key, value in (first | second).items() if value is not None}
    assert list(engine.table("data").scan()) == sorted(expected.items())
    assert under_test.rows(engine, "data") == expected


def test_range_deletes_come_before_the_writes_of_their_batch_and_exclude_their_end(
    under_test: EngineUnderTest, engine: Engine
) -> None:
    engine.write({"data": ROWS, "offsets": {b"key": b"1"}})
    nothing = [(b"b", b"b"), (b"z", b"a")]
    engine.write({"data": {b"key": b"new"}}, ranges={"data": [(b"b", b"key2"), *nothing]})
    left = {b"a": b"v-a", b"key": b"new", b"key2": b"v-key2", b"z\xff": b"v-z\xff"}
    assert dict(engine.table("data").scan()) == left
    assert engine.table("data").get_many([b"b", b"key\x00"]) == [None, None]
    assert under_test.rows(engine, "data") == left
    assert under_test.rows(engine, "offsets") == {b"key": b"1"}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_cursor_shows_the_moment_it_was_opened(engine: Engine, reverse: bool) -> None:
    engine.write({"data": ROWS})
    table = engine.table("data")
    untouched, begun = table.scan(reverse=reverse), table.scan(reverse=reverse)
    first = next(begun)
    engine.write({"data": dict.fromkeys(ROWS, b"later") | {b"c": b"later"}})
    engine.write({"data": {b"a": None, b"z\xff": None}})
    engine.write({}, ranges={"data": [(b"", b"\xff\xff")]})
    engine.flush()
    expected = list(ROWS.items())[:: -1 if reverse else 1]
    assert list(untouched) == expected
    assert [first, *begun] == expected
    assert list(table.scan()) == []


def test_a_cursor_goes_on_where_a_loop_over_it_broke_off(engine: Engine) -> None:
    engine.write({"data": ROWS})
    cursor = engine.table("data").scan()
    first = next(cursor)
    for second in cursor:
        third = next(cursor)
        assert [first[0], second[0], third[0]] == [b"a", b"b", b"key"]
        break
    assert [key for key, _ in cursor] == [b"key\x00", b"key2", b"z\xff"]
    with pytest.raises(StopIteration):
        next(cursor)


@pytest.mark.parametrize("taken", [0, 1, 5, 6])
@pytest.mark.parametrize("by", ["cursor", "engine"])
def test_a_closed_cursor_raises_at_any_stage(engine: Engine, taken: int, by: str) -> None:
    engine.write({"data": ROWS})
    cursor = engine.table("data").scan()
    inner = iter(cursor)
    for _ in range(taken):
        next(inner)
    (cursor if by == "cursor" else engine).close()
    for action in (lambda: next(inner), lambda: next(cursor), lambda: list(cursor)):
        assert isinstance(fails(engine, action), StoreClosed)
    cursor.close()


def test_a_loop_ends_with_an_error_when_its_cursor_is_closed_inside(engine: Engine) -> None:
    engine.write({"data": {b"%03d" % number: b"" for number in range(200)}})
    seen: list[bytes] = []
    cursor = engine.table("data").scan()

    def loop() -> None:
        for key, _ in cursor:
            seen.append(key)
            if key == b"100":
                cursor.close()

    assert isinstance(fails(engine, loop), StoreClosed)
    assert seen[-1] == b"100"


def test_everything_raises_store_closed_after_close(engine: Engine) -> None:
    engine.write({"data": ROWS})
    table = engine.table("data")
    get, get_many = table.get, table.get_many
    engine.close()
    engine.close()
    for action in (
        lambda: get(b"a"),
        lambda: get_many([b"a"]),
        lambda: get_many([b"a"] * 30_000),
        table.scan,
        table.approximate_count,
        lambda: engine.write({"data": ROWS}),
        engine.flush,
    ):
        assert isinstance(fails(engine, action), StoreClosed)


def test_an_unknown_table_is_misuse_and_changes_nothing(
    under_test: EngineUnderTest, engine: Engine
) -> None:
    assert isinstance(fails(engine, lambda: engine.table("dato")), Misuse)
    with pytest.raises(Misuse, match=r"'dato'.*data, offsets"):
        engine.write({"data": ROWS, "dato": ROWS})
    with pytest.raises(Misuse):
        engine.write({"data": ROWS}, ranges={"dato": [(b"a", b"b")]})
    assert under_test.rows(engine, "data") == {}


def test_reopening_finds_exactly_what_a_persistent_engine_was_given(
    under_test: EngineUnderTest,
) -> None:
    engine = under_test.open()
    engine.write({"data": ROWS, "offsets": {b"t-0": b"7"}})
    engine.close()
    again = under_test.open()
    kept = again.persistent()
    assert kept is (under_test.kind == "rocks")
    assert dict(again.table("data").scan()) == (ROWS if kept else {})
    assert again.table("offsets").get(b"t-0") == (b"7" if kept else None)


def test_counts_are_about_right(engine: Engine) -> None:
    assert engine.table("data").approximate_count() == 0
    engine.write({"data": {b"%d" % number: b"" for number in range(500)}})
    engine.flush()
    assert 400 <= engine.table("data").approximate_count() <= 600
    assert engine.table("offsets").approximate_count() == 0


def test_errors_of_others_are_not_the_engines(engine: Engine) -> None:
    for error in (ValueError("x"), Exception("x"), StoreClosed("ours already")):
        assert engine.failure(error) is None


def test_readers_on_other_threads_never_see_half_a_write(engine: Engine) -> None:
    """Rows of one scan are of one write; a table read second is never behind the one read first."""
    data, offsets = engine.table("data"), engine.table("offsets")
    keys = [b"%02d" % number for number in range(40)]
    engine.write({"data": dict.fromkeys(keys, b"0"), "offsets": {b"o": b"0"}})
    done = threading.Event()
    faults: list[object] = []

    def read() -> None:
        while not done.is_set():
            first = int(data.get(keys[-1]) or b"-1")
            second = int(offsets.get(b"o") or b"-1")
            scanned = {value for _, value in data.scan()}
            listed = set(data.get_many(keys))
            if second < first or len(scanned) != 1 or len(listed) != 1:
                faults.append((first, second, scanned, listed))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 400):
        value = b"%d" % number
        engine.write({"data": dict.fromkeys(keys, value), "offsets": {b"o": value}})
        if number % 100 == 0:
            engine.flush()
    done.set()
    for thread in threads:
        thread.join()
    assert faults == []


keys_drawn = st.binary(max_size=3)
batches = st.lists(
    st.tuples(
        st.dictionaries(keys_drawn, st.none() | st.binary(max_size=4), max_size=8),
        st.lists(st.tuples(keys_drawn, keys_drawn), max_size=2),
        st.booleans(),
    ),
    max_size=6,
)


@given(batches, keys_drawn, keys_drawn)
def test_any_sequence_of_batches_leaves_what_a_dict_would_hold(
    written: list[tuple[dict[bytes, bytes | None], list[Pair], bool]], lo: bytes, hi: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("memory", "rocks"):
            tested = EngineUnderTest(kind, Path(folder) / "db")
            check_against_dict(tested, written, (lo, hi))


def check_against_dict(
    tested: EngineUnderTest,
    written: Iterable[tuple[dict[bytes, bytes | None], list[Pair], bool]],
    bounds: Pair,
) -> None:
    engine, model = tested.open(), dict[bytes, bytes]()
    for writes, ranges, flush in written:
        engine.write({"data": writes}, ranges={"data": ranges})
        for start, end in ranges:
            model = {key: value for key, value in model.items() if not start <= key < end}
        for key, value in writes.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        if flush:
            engine.flush()
    lo, hi = bounds
    expected = sorted(model.items())
    within = [(key, value) for key, value in expected if lo <= key <= hi]
    table = engine.table("data")
    assert list(table.scan()) == expected
    assert list(table.scan(lo, hi)) == within
    assert list(table.scan(lo, hi, reverse=True)) == within[::-1]
    assert table.get_many([lo, hi]) == [model.get(lo), model.get(hi)]
    assert (table.get(lo), table.get(hi)) == (model.get(lo), model.get(hi))
    assert tested.rows(engine, "data") == model
    engine.close()


def test_a_checkpoint_is_a_whole_database_or_refused(
    under_test: EngineUnderTest, engine: Engine, tmp_path: Path
) -> None:
    target = tmp_path / "checkpoint"
    engine.write({"data": ROWS})
    engine.flush()
    engine.write({"data": {b"unflushed": b"1"}, "offsets": {b"t-0": b"9"}})
    if under_test.kind == "memory":
        with pytest.raises(Misuse, match="in memory"):
            engine.checkpoint(target)
        return
    engine.checkpoint(target)
    engine.write({"data": {b"later": b"1"}})
    copy = open_rocks(target, tables=TABLES, tuning=RocksTuning(memory=MEMORY))
    assert dict(copy.table("data").scan()) == ROWS | {b"unflushed": b"1"}
    assert copy.table("offsets").get(b"t-0") == b"9"
    copy.close()
    for bad in (target, tmp_path / "no" / "such"):
        with pytest.raises(Misuse, match="new folder"):
            engine.checkpoint(bad)
