"""What every Engine promises of seeks (`ports.Seeker`), on each of them."""

import random
import threading
from bisect import bisect_left

import pytest

from statestore.errors import StoreClosed
from statestore.ports import Engine
from tests.contract.conftest import EngineUnderTest

ROWS = {key: b"v-" + key for key in (b"", b"a", b"key", b"key\x00", b"key2", b"z\xff")}


def expected(rows: dict[bytes, bytes], keys: list[bytes]) -> list[tuple[bytes, bytes] | None]:
    ordered = sorted(rows.items())
    names = [key for key, _ in ordered]
    places = [bisect_left(names, key) for key in keys]
    return [ordered[i] if i < len(ordered) else None for i in places]


def test_a_seek_finds_the_first_row_at_or_after_each_key_in_the_order_asked(engine: Engine) -> None:
    engine.write({"data": ROWS, "offsets": {b"kez": b"of another table"}})
    asked = [b"key1", b"zz", b"", b"b", b"key", b"z\xff", b"z\xff\x00", b"key1"]
    found = engine.table("data").seek_many(asked)
    assert found == expected(ROWS, asked)
    assert engine.table("data").seek_many([]) == []


def test_seeks_agree_with_a_sorted_list_over_random_writes_and_range_deletes(
    engine: Engine,
) -> None:
    chance = random.Random(8)
    table, rows = engine.table("data"), dict[bytes, bytes]()
    for _ in range(60):
        keys = [chance.randbytes(chance.randrange(1, 3)) for _ in range(20)]
        writes = {key: None if chance.random() < 0.3 else key for key in keys}
        lo, hi = sorted(chance.randbytes(1) for _ in range(2))
        engine.write({"data": writes}, ranges={"data": [(lo, hi)]})
        rows = {key: value for key, value in rows.items() if not lo <= key < hi}
        rows |= {key: value for key, value in writes.items() if value is not None}
        rows = {key: value for key, value in rows.items() if writes.get(key, b"") is not None}
        if chance.random() < 0.2:
            engine.flush()
        asked = [chance.randbytes(chance.randrange(3)) for _ in range(20)]
        assert table.seek_many(asked) == expected(rows, asked)


def test_a_seeker_is_a_snapshot_that_survives_later_writes(engine: Engine) -> None:
    engine.write({"data": ROWS})
    seeker = engine.table("data").seeker()
    engine.write({"data": {b"b": b"new", b"key": None}}, ranges={"data": [(b"key2", b"zz")]})
    engine.flush()
    asked = [b"b", b"key1", b"zz"]
    assert seeker.seek_many(asked) == expected(ROWS, asked)
    assert engine.table("data").seek_many([b"b"]) == [(b"b", b"new")]
    seeker.close()
    seeker.close()
    with pytest.raises(StoreClosed, match="seeker is closed"):
        seeker.seek_many([b"a"])


def test_a_seeker_ends_with_its_engine_and_does_not_keep_the_folder(
    under_test: EngineUnderTest,
) -> None:
    engine = under_test.open()
    engine.write({"data": ROWS})
    seeker = engine.table("data").seeker()
    assert seeker.seek_many([b"b"]) == [(b"key", b"v-key")]
    engine.close()
    with pytest.raises(StoreClosed):
        seeker.seek_many([b"b"])
    with pytest.raises(StoreClosed):
        engine.table("data").seek_many([b"b"])
    under_test.open().close()


def test_a_seeker_gets_and_scans_back_in_its_snapshot_in_any_order(engine: Engine) -> None:
    """More rows than it reads at once; other questions come between two rows of a scan."""
    rows = {b"%05d" % i: b"v%d" % i for i in range(3000)}
    engine.write({"data": rows})
    seeker = engine.table("data").seeker()
    engine.write({"data": dict.fromkeys(rows, b"new")}, ranges={"data": [(b"01000", b"02000")]})
    asked = [b"02999", b"00000", b"absent", b"01500", b"01500"]
    assert seeker.get_many(asked) == [b"v2999", b"v0", None, b"v1500", b"v1500"]
    found = []
    for pair in seeker.scan_back(b"00010", b"02900x"):
        found.append(pair)
        if len(found) % 100 == 1:
            assert seeker.get_many([b"00001"]) == [b"v1"]
    assert found == [(b"%05d" % i, b"v%d" % i) for i in range(2900, 9, -1)]
    assert list(seeker.scan_back(b"x", b"y")) == list(seeker.scan_back(b"2", b"1")) == []
    halfway = seeker.scan_back(b"", b"z")
    next(halfway)
    seeker.close()
    with pytest.raises(StoreClosed):
        list(halfway)


def test_many_values_are_read_at_once_while_another_thread_writes(engine: Engine) -> None:
    keys = [b"%06d" % (i * 7919 % 25_000) for i in range(25_000)]
    table = engine.table("data")
    engine.write({"data": dict.fromkeys(keys, b"0")})
    wrong: list[set[bytes | None]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen = set(table.get_many_at_once(keys))
            if len(seen) > 1:
                wrong.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 40):
        engine.write({"data": dict.fromkeys(keys, b"%d" % number)})
    stop.set()
    reader.join()
    assert wrong == []
    assert table.get_many_at_once([keys[3], b"absent", keys[1]]) == [b"39", None, b"39"]


def test_ranges_are_read_in_one_pass_also_where_they_overlap_or_touch(engine: Engine) -> None:
    chance = random.Random(9)
    table = engine.table("data")
    assert table.scan_many([]) == []
    assert table.scan_many([(b"a", b"z")]) == [[]]
    rows = {chance.randbytes(chance.randrange(1, 3)): b"v" for _ in range(300)}
    engine.write({"data": rows})
    for _ in range(50):
        ranges = sorted(
            (chance.randbytes(chance.randrange(3)), chance.randbytes(chance.randrange(3)))
            for _ in range(chance.randrange(40))
        )
        wanted = [[(key, b"v") for key in sorted(rows) if lo <= key <= hi] for lo, hi in ranges]
        assert table.scan_many(ranges) == wanted
