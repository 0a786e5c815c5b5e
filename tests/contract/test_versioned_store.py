"""One contract for versioned stores, persistent and in memory (SEMANTICS V1-V7, V9, V12)."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, SerdeMismatch
from statestore.runtime.public import open_store
from tests.builders import table_rows
from tests.contract.versioned_worlds import Open
from tests.contract.versions_text import answer, puts, shown, shown_one

# Puts of key a, what each said, and the history they leave; retention 100, segments of 10.
SCENARIOS = """
    | puts                        | answers                | history of a
    | a1@10                       | latest                 | 1[10,
    | a1@10 a2@20                 | latest latest          | 1[10,20) 2[20,
    | a2@20 a1@10                 | latest to_20           | 1[10,20) 2[20,
    | a1@10 a3@30 a2@20           | latest latest to_30    | 1[10,20) 2[20,30) 3[30,
    | a1@10 a4@90 a2@20 a3@50     | latest latest to_90 to_90 | 1[10,20) 2[20,50) 3[50,90) 4[90,
    | a1@10 a9@10                 | latest latest          | 9[10,
    | a1@10 a2@20 a9@10           | latest latest to_20    | 9[10,20) 2[20,
    | a1@10 a-@20                 | latest latest          | 1[10,20)
    | a1@10 a-@20 a3@30           | latest latest latest   | 1[10,20) 3[30,
    | a-@20 a1@10                 | latest to_20           | 1[10,20)
    | a1@10 a3@30 a-@20           | latest latest to_30    | 1[10,20) 3[30,
    | a3@30 a-@20 a1@10           | latest to_30 to_20     | 1[10,20) 3[30,
    | a1@10 a-@20 a2@20           | latest latest latest   | 1[10,20) 2[20,
    | a1@10 a2@20 a-@10           | latest latest to_20    | 2[20,
    | a@10 a1@20                  | latest latest          | [10,20) 1[20,
    | a1@10 b2@110 a3@10          | latest latest latest   | 3[10,
    | a1@10 b2@111 a3@10          | latest latest late     | 1[10,
    | a1@10 a2@12 b2@113          | latest latest latest   | 2[12,
    | a1@10 a2@12 b2@112 a3@12    | latest latest latest latest | 3[12,
    | a1@10 a2@60 b2@150 a3@55    | latest latest latest to_60 | 1[10,55) 3[55,60) 2[60,
    | a1@-5 a2@3                  | latest latest          | 1[-5,3) 2[3,
"""


@pytest.mark.parametrize(("line", "answers", "history"), table_rows(SCENARIOS))
def test_puts_answer_and_leave_the_history_they_should(
    opened: Open, line: str, answers: str, history: str
) -> None:
    store = opened()
    said = [answer(store.put(*one)).replace(" ", "_") for one in puts(line)]
    assert said == answers.split()
    assert shown(store.history(b"a")) == history
    store.commit()
    assert shown(store.history(b"a")) == history


@pytest.mark.parametrize(("line", "_answers", "history"), table_rows(SCENARIOS))
def test_put_all_is_the_same_as_one_put_after_the_other(
    opened: Open, line: str, _answers: str, history: str
) -> None:
    store = opened()
    store.put_all(puts(line))
    assert shown(store.history(b"a")) == history


AS_OF = """
    | puts                    | as of | found
    | a1@10 a2@20 a-@30 a4@40 | 9     | -
    | a1@10 a2@20 a-@30 a4@40 | 10    | 1[10,20)
    | a1@10 a2@20 a-@30 a4@40 | 19    | 1[10,20)
    | a1@10 a2@20 a-@30 a4@40 | 20    | 2[20,30)
    | a1@10 a2@20 a-@30 a4@40 | 35    | -
    | a1@10 a2@20 a-@30 a4@40 | 40    | 4[40,
    | a1@10 a2@20 a-@30 a4@40 | 9999  | 4[40,
    | a1@10 a2@99             | 50    | 1[10,99)
    | b1@10 a2@99             | 50    | -
    | a1@10 b9@500            | 400   | 1[10,
    | a1@10 b9@500            | 50    | 1[10,
    | a1@10 a2@300 b9@500     | 350   | 2[300,
    | a1@10 a2@450 b9@500     | 400   | 1[10,450)
    | a1@10 a2@450 b9@500     | 399   | -
"""


@pytest.mark.parametrize(("line", "time", "found"), table_rows(AS_OF))
def test_a_read_as_of_a_time_finds_the_version_valid_then(
    opened: Open, line: str, time: str, found: str
) -> None:
    store = opened()
    store.put_all(puts(line))
    assert shown_one(store.get(b"a", as_of=int(time))) == found
    in_range = {key: shown_one(one) for key, one in store.range_as_of(None, None, int(time))}
    assert in_range.get(b"a", "-") == found
    store.commit()
    for reads in (store, store.reader("READ_COMMITTED"), store.reader("READ_UNCOMMITTED")):
        assert shown_one(reads.get(b"a", as_of=int(time))) == found


SPANS = """
    | from | to  | history of a1@10 a2@20 a-@30 a4@40
    |      |     | 1[10,20) 2[20,30) 4[40,
    | 10   | 10  | 1[10,20)
    | 19   | 20  | 1[10,20) 2[20,30)
    | 20   | 20  | 2[20,30)
    | 30   | 39  | -
    | 30   | 40  | 4[40,
    |      | 9   | -
    |      | 15  | 1[10,20)
    | 29   |     | 2[20,30) 4[40,
    | 41   | 99  | 4[40,
"""


@pytest.mark.parametrize(("first", "last", "history"), table_rows(SPANS))
@pytest.mark.parametrize("descending", [True, False])
def test_history_gives_what_was_valid_at_some_time_of_the_closed_interval(
    opened: Open, first: str, last: str, history: str, descending: bool
) -> None:
    store = opened()
    store.put_all(puts("a1@10 a2@20 a-@30 a4@40"))
    span: dict[str, Any] = {
        "from_time": int(first) if first else None,
        "to_time": int(last) if last else None,
    }
    for reads in (store, store.reader("READ_UNCOMMITTED")):
        found = list(reads.history(b"a", **span, descending=descending))
        assert (shown(found) or "-") == history
        times = [one.timestamp_ms for one in found]
        assert times == sorted(times, reverse=descending)


def test_the_interval_of_a_history_may_not_end_before_it_begins(opened: Open) -> None:
    store = opened()
    with pytest.raises(ValueError, match="from 3 to 2"):
        store.history(b"a", from_time=3, to_time=2)


def test_delete_gives_the_version_valid_then_and_ends_it(opened: Open) -> None:
    store = opened()
    store.put_all(puts("a1@10 a2@20"))
    assert shown_one(store.delete(b"a", 15)) == "1[10,20)"
    assert shown(store.history(b"a")) == "1[10,15) 2[20,"
    assert shown_one(store.delete(b"a", 30)) == "2[20,"
    assert store.get(b"a") is None
    assert store.delete(b"absent", 40) is None
    assert store.observed_stream_time() == 40
    assert store.delete(b"a", 40) is None
    store.put(b"b", b"x", 500)
    assert store.delete(b"b", 399) is None
    assert shown(store.history(b"b")) == "x[500,"
    assert store.metrics()["dropped-records-total"] == 1


def test_times_may_be_aware_datetimes_and_spans_timedeltas(tmp_path: Path) -> None:
    spec = ss.in_memory_versioned_key_value_store(
        "rates", timedelta(days=1), timedelta(hours=1), key_serde=serdes.STRING
    )
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    with open_store(spec, tmp_path) as store:
        store.put("a", b"1", noon)
        store.put_all([("a", b"2", noon + timedelta(hours=1)), ("b", b"3", 5)])
        found = store.get("a", as_of=noon + timedelta(minutes=59))
        assert found is not None
        assert (found.value, found.timestamp_ms) == (b"1", int(noon.timestamp() * 1000))
        with pytest.raises(Misuse, match="no time zone"):
            store.put("a", b"4", datetime(2013, 1, 1))  # noqa: DTZ001 - what is refused
        with pytest.raises(Misuse, match="is no time"):
            store.put("a", b"4", 2**63)
        with pytest.raises(Misuse, match="is no time"):
            store.put_all([("a", b"4", "yesterday")])  # type: ignore[list-item]  # what is refused
        store.rollback()


@pytest.mark.parametrize(
    ("serde", "value"),
    [(serdes.JSON, 0), (serdes.JSON, ""), (serdes.JSON, False), (serdes.BYTES, b"")],
)
def test_falsy_values_are_values(opened: Open, serde: Any, value: Any) -> None:
    store = opened(value_serde=serde)
    store.put(b"a", value, 10)
    store.put(b"a", value, 20)
    for reads in (store, store.reader("READ_UNCOMMITTED")):
        found = [reads.get(b"a"), reads.get(b"a", as_of=10), *reads.history(b"a")]
        assert [None if one is None else one.value for one in found] == [value] * 4
        assert [one.value for _, one in reads.range_as_of(None, None, 15)] == [value]


def test_a_serializer_that_gives_none_writes_a_tombstone(opened: Open) -> None:
    def forget(text: str) -> Any:
        return None if text == "gone" else text.encode()

    forgetful: ss.Serde[str] = ss.Serde("forgetful", forget, bytes.decode)
    store = opened(value_serde=forgetful)
    store.put_all([(b"a", "here", 10), (b"a", "gone", 20)])
    assert shown(one._replace(value=one.value.encode()) for one in store.history(b"a")) == (
        "here[10,20)"
    )


def test_a_none_key_and_a_value_that_does_not_fit_are_refused_with_nothing_staged(
    opened: Open,
) -> None:
    store = opened(key_serde=serdes.STRING)
    for attempt in (
        lambda: store.put(None, b"x", 1),
        lambda: store.get(None),
        lambda: store.delete(None, 1),
        lambda: store.history(None),
        lambda: store.put_all([("a", b"1", 1), (None, b"x", 2)]),
    ):
        with pytest.raises(Misuse, match="key is None"):
            attempt()
    with pytest.raises(SerdeMismatch):
        store.put_all([("a", b"1", 1), ("b", 7, 2)])
    assert store.approximate_num_uncommitted_entries() == 0
    assert store.observed_stream_time() is None


def test_the_rows_of_many_versions_do_not_depend_on_how_they_come_or_who_asks(
    opened: Open,
) -> None:
    """One by one, in batches, and in batches with a look at a history after each."""
    chance, now = random.Random(3), 0
    names = [b"name-%d" % i for i in range(900)]
    versions: list[tuple[bytes, bytes | None, int]] = []
    for _ in range(6000):
        now += chance.choice((0, 0, 1, 5))
        late = chance.choice((0,) * 20 + (3, 400))
        value = None if chance.random() < 0.05 else b"%d" % chance.randrange(10**6)
        versions.append((chance.choice(names), value, now - late))
    found = []
    for how in ("one by one", "in batches", "and ask"):
        store = opened(retention=100_000, interval=2_000, name=how.replace(" ", "-"))
        for start in range(0, len(versions), 250):
            batch = versions[start : start + 250]
            if how == "one by one":
                for version in batch:
                    store.put(*version)
            else:
                store.put_all(batch)
            if how == "and ask":
                shown(store.history(names[start % 7]))
            if start % 2000 == 1750:
                store.commit()
        rows = {table: list(store.staged.table(table).scan()) for table in ("data", "history")}
        # Which deletes it remembers depends on who asked meanwhile.
        rows["history"] = [row for row in rows["history"] if row[0][:1] == b"v"]
        found.append(rows)
    assert len(found[0]["data"]) == len({key for key, _, _ in versions})
    assert len(found[0]["history"]) > 3000
    assert found[1:] == found[:1] * 2


def test_keys_that_begin_alike_do_not_see_each_others_versions(opened: Open) -> None:
    store = opened()
    keys = [b"", b"k", b"key", b"key2", b"k\x80\x00\x00\x00\x00\x00\x00\x00", b"k\xff"]
    for time in (10, 20, 30):
        store.put_all([(key, b"%d" % i, time + i) for i, key in enumerate(keys)])
    for i, key in enumerate(keys):
        expected = [(b"%d" % i, time + i) for time in (30, 20, 10)]
        assert [(one.value, one.timestamp_ms) for one in store.history(key)] == expected
    found = [(key, one.timestamp_ms) for key, one in store.range_as_of(b"k", b"key2", 24)]
    assert found == [(b"k", 21), (b"key", 22), (b"key2", 23)]


def test_a_retention_of_nothing_keeps_the_latest_only(opened: Open) -> None:
    store = opened(retention=0)
    store.put_all(puts("a1@10 b2@10 a2@11"))
    assert answer(store.put(b"b", b"x", 10)) == "late"
    assert shown(store.history(b"a")) == "2[11,"
    assert shown_one(store.get(b"b", as_of=11)) == "2[10,"
    store.commit()
    assert [k for k, _ in store.table.history.scan() if k[:1] == b"v"] == []
