"""Versioned stores in time: what is staged, kept, expired, and seen by whom (V4, V5, V9)."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore.errors import Misuse, StoreClosed, UncommittedWrites
from statestore.model.ids import Position, TopicPartition
from statestore.model.modes import IsolationLevel
from statestore.runtime.public import open_store
from statestore.stores.versioned.layout import HISTORY
from tests.contract.versioned_worlds import Open, Store
from tests.contract.versions_text import answer, puts, shown, shown_one

LOG = TopicPartition("shop-rates-changelog", 0)


# Time: observed, staged, committed, kept.


def test_a_write_rolled_back_does_not_advance_stream_time(opened: Open) -> None:
    store = opened()
    store.put_all(puts("a1@10"))
    store.commit()
    store.put_all(puts("b9@5000"))
    assert store.observed_stream_time() == 5000
    assert store.reader("READ_COMMITTED").observed_stream_time() == 10
    assert store.reader("READ_UNCOMMITTED").observed_stream_time() == 5000
    store.rollback()
    assert store.observed_stream_time() == 10
    assert answer(store.put(b"a", b"0", 5)) == "to 10"


def test_a_savepoint_undone_takes_versions_and_stream_time_back(opened: Open) -> None:
    store = opened()
    store.put_all(puts("a1@10 a2@50"))
    undone = KeyError("a user's")
    unit = store.transaction()
    unit.__enter__()
    store.put_all(puts("a9@30 b9@5000 a-@5001"))
    assert not unit.__exit__(KeyError, undone, None)
    assert store.observed_stream_time() == 50
    assert shown(store.history(b"a")) == "1[10,50) 2[50,"
    with store.transaction():
        store.put_all(puts("a9@30"))
    assert shown(store.history(b"a")) == "1[10,30) 9[30,50) 2[50,"
    assert store.approximate_num_uncommitted_entries() == 3


def test_history_and_stream_time_survive_a_restart(on_disk: Open) -> None:
    store = on_disk()
    store.put_all(puts("a1@10 a2@50 b3@90"))
    store.commit({LOG: 3}, position=Position.of({"in": {0: 2}}))
    store = on_disk()
    assert store.observed_stream_time() == 90
    assert shown(store.history(b"a")) == "1[10,50) 2[50,"
    assert shown_one(store.get(b"a", as_of=49)) == "1[10,50)"
    assert (store.committed_offset(LOG), store.position()) == (3, Position.of({"in": {0: 2}}))


def test_a_write_rejected_before_a_restart_is_rejected_after_it(on_disk: Open) -> None:
    store = on_disk()
    store.put_all(puts("b1@500"))
    assert answer(store.put(b"a", b"1", 399)) == "late"
    store.commit()
    store = on_disk()
    assert answer(store.put(b"a", b"1", 399)) == "late"
    assert answer(store.put(b"a", b"1", 400)) == "latest"
    store.rollback()


def test_late_writes_are_counted_and_logged_once(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    store.put(b"a", b"1", 500)
    with caplog.at_level(logging.WARNING):
        store.put(b"a", b"x", 399)
        store.put_all(puts("a1@398 b1@501 b2@400 b3@401"))
    assert store.metrics()["dropped-records-total"] == 3
    assert [r.levelname for r in caplog.records if "older than its history" in r.message] == [
        "WARNING"
    ]
    assert shown(store.history(b"b")) == "3[401,501) 1[501,"


def test_lateness_is_judged_by_the_writes_before_not_by_those_after(opened: Open) -> None:
    store = opened()
    store.put_all(puts("a1@10 b9@500 a2@20 b8@400"))
    assert shown(store.history(b"a")) == "1[10,"
    assert shown(store.history(b"b")) == "8[400,500) 9[500,"


def test_a_read_older_than_history_is_none_with_a_warning(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    store.put_all(puts("a1@10 c7@20 a2@450 b9@500"))
    with caplog.at_level(logging.WARNING):
        assert store.get(b"a", as_of=200) is None
        assert shown_one(store.get(b"c", as_of=200)) == "7[20,"
        assert [key for key, _ in store.range_as_of(None, None, 200)] == [b"c"]
    assert [r.message for r in caplog.records if "history begins at 400" in r.message]


def test_a_longer_retention_does_not_bring_history_back(on_disk: Open) -> None:
    store = on_disk(retention=100)
    store.put_all(puts("a1@10 a2@20 a3@390 a4@450 b9@500"))
    store.commit()
    store = on_disk(retention=10_000)
    assert store.get(b"a", as_of=380) is None
    assert shown(store.history(b"a")) == "3[390,450) 4[450,"
    assert answer(store.put(b"a", b"x", 399)) == "late"
    store.put_all(puts("b9@600"))
    assert shown_one(store.get(b"a", as_of=440)) == "3[390,450)"
    store.commit()


@pytest.mark.parametrize("between", ["nothing", "a commit", "a refused put", "a crash"])
def test_a_retention_shrunk_and_grown_again_does_not_bring_history_back(
    on_disk: Open, tmp_path: Path, between: str
) -> None:
    """Whatever was done while it was short: what its readers saw go is gone for good."""
    store = on_disk(retention=1000)
    many = [b"k%d" % i for i in range(300)]
    store.put_all([(key, b"%d" % time, time) for time in range(0, 1000, 10) for key in many])
    store.commit()
    assert len(list(store.history(many[7]))) == 100
    store = on_disk(retention=50)
    kept = shown(store.history(many[7]))
    assert kept.count("[") == 6
    if between == "a commit":
        store.commit()
    if between == "a refused put":
        assert answer(store.put(many[7], b"x", 100)) == "late"
        store.commit()
    if between == "a crash":
        shutil.copytree(
            tmp_path / "rates", tmp_path / "died", ignore=shutil.ignore_patterns("LOCK")
        )
        store.close()
        shutil.rmtree(tmp_path / "rates")
        (tmp_path / "died").rename(tmp_path / "rates")
    store = on_disk(retention=1000)
    assert shown(store.history(many[7])) == kept
    assert store.get(many[7], as_of=500) is None
    assert answer(store.put(many[7], b"x", 500)) == "late"
    with store.range_as_of(None, None, 930) as scan:
        assert list(scan) == []


# Segments.


def history_rows(store: Store) -> int:
    with store.table.history.scan() as rows:
        return sum(key[:1] == b"v" for key, _ in rows)


def test_segments_go_whole_and_the_latest_never(opened: Open) -> None:
    store = opened()
    store.put_all([(b"k%d" % i, b"%d" % t, t) for t in range(0, 100, 5) for i in range(3)])
    store.commit()
    assert history_rows(store) == 3 * 19
    store.put(b"other", b"x", 152)
    store.commit()
    # The bound is 52: what ended up to 49 lay in segments that are over.
    assert history_rows(store) == 3 * 10
    assert len(list(store.history(b"k0"))) == 10
    store.put(b"other", b"y", 10_000)
    store.commit()
    assert history_rows(store) == 1  # of other, until the second write to it
    assert shown(store.history(b"k0")) == "95[95,"


def test_deletes_older_than_history_are_cleared_away(opened: Open) -> None:
    store = opened()
    store.put_all(puts("a1@10 a-@20 b1@10 b-@20 b2@30 c-@10"))
    store.commit()
    store.put_all(puts("d1@1000"))
    store.commit()
    assert [key for key, _ in store.staged.table("data").scan()] == [b"b", b"d"]
    assert answer(store.put(b"a", b"9", 950)) == "latest"
    store.rollback()


def test_the_interval_on_disk_is_kept_and_another_refused(on_disk: Open) -> None:
    on_disk(interval=7).commit()
    assert on_disk(interval=None).table.interval_ms == 7
    with pytest.raises(Misuse, match="segments of 7 ms, not 10 ms"):
        on_disk(interval=10)
    assert on_disk(interval=None).table.interval_ms == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rates", -1), "negative"),
        (("rates", 10, 0), "pass 1 or more"),
        (("rates", 10, -5), "pass 1 or more"),
        (("", 10), "name"),
        ((None, 10), "name"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(arguments: Any, message: str) -> None:
    for make in (
        ss.persistent_versioned_key_value_store,
        ss.in_memory_versioned_key_value_store,
    ):
        with pytest.raises(ValueError, match=message):
            make(*arguments)


def test_a_folder_of_the_other_kind_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    plain = ss.persistent_key_value_store("rates")
    versioned = ss.persistent_versioned_key_value_store("rates", 10)
    with open_store(plain, tmp_path / "p") as store:
        store.put(b"a", b"1")
        store.commit()
    with open_store(versioned, tmp_path / "v") as history:
        history.put(b"a", b"1", 5)
        history.commit()
    for _ in range(2):
        with pytest.raises(Misuse, match=r"holds a keyvalue store.*upgrade-to-versioned"):
            open_store(versioned, tmp_path / "p")
        with pytest.raises(Misuse, match="holds a versioned store, not a keyvalue one"):
            open_store(plain, tmp_path / "v")
    with open_store(plain, tmp_path / "p") as store:
        assert store.get(b"a") == b"1"
    with open_store(versioned, tmp_path / "v") as history:
        assert shown(history.history(b"a")) == "1[5,"


# The transaction, as key-value stores have it.


def test_each_level_sees_its_own(opened: Open) -> None:
    store = opened()
    store.put_all(puts("a1@10 a3@30 b1@10"))
    store.commit()
    committed, uncommitted = (store.reader(level) for level in IsolationLevel)
    store.put_all(puts("a2@20 a4@40 b-@50"))
    assert shown(committed.history(b"a")) == "1[10,30) 3[30,"
    assert shown(uncommitted.history(b"a")) == "1[10,20) 2[20,30) 3[30,40) 4[40,"
    assert (shown_one(committed.get(b"b")), uncommitted.get(b"b")) == ("1[10,", None)
    assert shown_one(committed.get(b"a", as_of=25)) == "1[10,30)"
    assert shown_one(uncommitted.get(b"a", as_of=25)) == "2[20,30)"
    store.rollback()
    assert shown(uncommitted.history(b"a")) == "1[10,30) 3[30,"


def test_iterators_are_of_the_moment_they_were_opened(opened: Open) -> None:
    store = opened()
    store.put_all([(b"%03d" % i, b"old", t) for i in range(600) for t in (10, 30)])
    store.commit()
    store.put_all([(b"%03d" % i, b"pending", 20) for i in range(0, 600, 2)])
    scans = [
        reads.range_as_of(None, None, 25) for reads in (store, store.reader("READ_UNCOMMITTED"))
    ]
    committed = store.reader("READ_COMMITTED").range_as_of(None, None, 25)
    history = store.history(b"000")
    for scan in (*scans, committed):
        next(scan)
    store.put_all([(b"%03d" % i, b"new", 22) for i in range(600)])
    store.commit()
    store.put(b"x", b"1", 100_000)
    store.commit()
    for scan in scans:
        assert [(int(k), one.value) for k, one in scan] == [
            (i, b"old" if i % 2 else b"pending") for i in range(1, 600)
        ]
    assert {one.value for _, one in committed} == {b"old"}
    assert [one.value for one in history] == [b"old", b"pending", b"old"]
    last = store.range_as_of(None, None, 100_000)
    store.close()
    for ended in (last, history):
        with pytest.raises(StoreClosed):
            next(ended)


def test_pending_versions_are_counted_once_and_lost_loudly(opened: Open) -> None:
    store = opened()
    store.put_all(puts("a1@10 a2@20 a0@5"))
    assert store.approximate_num_uncommitted_entries() == 3
    assert store.approximate_num_uncommitted_bytes() > 0
    store.commit()
    assert store.approximate_num_uncommitted_entries() == 0
    assert store.approximate_num_uncommitted_bytes() == 0
    with pytest.raises(UncommittedWrites, match="1 writes to 'rates'"), store:
        store.put(b"a", b"3", 30)


def test_what_is_pending_takes_about_the_same_before_and_after_somebody_asks(opened: Open) -> None:
    store = opened(retention=100_000)
    store.put_all([(b"%d" % (i % 300), b"v" * 50, i) for i in range(900)])
    store.commit()
    sizes = []
    for i in range(900):
        store.put(b"%d" % (i % 300), b"w" * 50, 1000 + i)
        sizes.append(store.approximate_num_uncommitted_bytes())
    assert sizes == sorted(sizes)
    assert len(list(store.history(b"7"))) == 6
    assert 0.7 < store.approximate_num_uncommitted_bytes() / sizes[-1] < 1.4
    with store.transaction():
        store.put(b"7", b"x", 5000)
    store.rollback()
    assert store.approximate_num_uncommitted_bytes() == 0


def test_a_closed_store_says_so(opened: Open) -> None:
    store = opened()
    reader = store.reader()
    store.close()
    for use in (
        lambda: store.put(b"a", b"1", 1),
        lambda: store.put_all(puts("a1@1")),
        lambda: store.get(b"a"),
        lambda: store.get(b"a", as_of=1),
        lambda: store.history(b"a"),
        lambda: store.range_as_of(None, None, 1),
        lambda: reader.get(b"a", as_of=1),
        lambda: reader.get(b"a"),
        reader.observed_stream_time,
        store.commit,
    ):
        with pytest.raises(StoreClosed):
            use()


def test_the_history_lies_beside_the_latest_versions_in_one_database(on_disk: Open) -> None:
    store = on_disk()
    store.put_all(puts("a1@10 a2@20"))
    store.commit()
    assert [key for key, _ in store.staged.table("data").scan()] == [b"a"]
    assert len(list(store.staged.table(HISTORY).scan())) == 2  # the version, and the clock
