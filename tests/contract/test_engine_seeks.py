"""What every Engine promises of seeks (`ports.Seeker`), on each of them."""

import random
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
