"""The changelog of a store with history: what it says, and logs that began as plain ones."""

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

import statestore as ss
from statestore import serdes
from statestore.errors import TopologyMismatch
from statestore.faults import CrashPoint, on_reach
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.stores.logged import (
    Forgotten,
    of_the_log,
    read_versions,
    sendable,
    versions,
)
from statestore.stores.versioned.layout import version_row
from statestore.tasks import rewriting
from statestore.tasks.store_log import OwnChangelog
from statestore.testing import TopologyTestDriver
from tests.builders import log_batch, log_rows

LOG = TopicPartition("topology-test-rates-changelog", 0)
TIMES = st.integers(-(2**63), 2**63 - 1)
VALUES = st.none() | st.binary(max_size=3) | st.binary(max_size=9).map(lambda b: bytes(len(b)))


@given(st.lists(st.tuples(st.binary(max_size=12), VALUES, TIMES), max_size=8))
def test_versions_come_back_from_their_records(
    found: list[tuple[bytes, bytes | None, int]],
) -> None:
    keys, rows = [key for key, *_ in found], [version_row(value, time) for _, value, time in found]
    made = log_rows(versions(keys, rows))
    assert {(time, headers) for *_, time, headers in made} <= {(1, ())}
    assert None not in {value for _, value, *_ in made}, "compaction would forget it"
    read = read_versions(log_batch(made), is_whole=False)
    assert list(zip(read.keys, read.values, read.times, strict=True)) == found


def test_what_a_log_says_besides_is_told_apart_from_plain_records() -> None:
    forgotten = Forgotten(90, 60, 50)
    said = log_rows(of_the_log([b"a" + bytes(8)], [b"b" + bytes(8)], [b"p"], forgotten, 1))
    plain = [(b"k" * 9, b"v", 7, ()), (b"k" * 9, None, 1, (("statestore-time", b"-5"),))]
    read = read_versions(log_batch([*plain, *said]), is_whole=False)
    assert read.times == [7, -5, -(2**63)]
    assert (read.keys, read.values) == ([b"k" * 9, b"k" * 9, b"b"], [b"v", None, None])
    assert (read.forgotten, read.is_whole) == (forgotten, True)
    assert read_versions(log_batch([*said, *plain]), is_whole=True).is_whole is False


def test_a_plain_store_refuses_a_log_of_versions_and_takes_any_times_of_its_own() -> None:
    log = OwnChangelog(LOG, exactly_once=True)
    with pytest.raises(TopologyMismatch, match="history_retention again"):
        log.rows(log_batch(log_rows(versions([b"key"], [version_row(b"v", 2**40)]))))
    times, headers = sendable([-5, 0, 1, 2])
    rows = zip([b"long enough a key"] * 4, [b"v"] * 4, times, headers or (), strict=True)
    assert log.rows(log_batch(list(rows))).batch.timestamps == [-5, 0, 1, 2]


class Died(Exception):
    """The process ends here."""


def rates(retention_ms: int = 100) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    kept = ss.Materialized("rates", history_retention=retention_ms)
    b.table("rates", materialized=kept)
    return b.build()


def shown(driver: TopologyTestDriver) -> dict[str, list[tuple[str, int, int | None]]]:
    store = driver.store("rates")
    return {key: [tuple(row) for row in store.history(key)] for key in ("a", "b", "gone")}


def logged_plain(driver: TopologyTestDriver) -> None:
    """Records as a store without history, or an older version, wrote them."""
    for key, value, time in (
        (b"a", b"1", 10),
        (b"a", b"2", 20),
        (b"b", b"1", 30),
        (b"gone", b"1", 40),
        (b"gone", None, 50),
        (b"a", b"3", 60),
    ):
        driver._broker.produce(LOG, Record(key, value, time))


@pytest.mark.parametrize("rows_at_once", [1, 10_000])
def test_a_log_that_began_as_a_plain_one_gets_a_record_for_each_version(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "_ROWS_AT_ONCE", rows_at_once)
    with TopologyTestDriver(rates()) as driver:
        logged_plain(driver)
        driver.crash()
        wanted = {
            "a": [("3", 60, None), ("2", 20, 60), ("1", 10, 20)],
            "b": [("1", 30, None)],
            "gone": [("1", 40, 50)],
        }
        assert shown(driver) == wanted
        # Once is enough, although the plain records are still there.
        records = len(driver._broker.records(LOG.topic))
        driver.crash()
        assert len(driver._broker.records(LOG.topic)) == records
        for deletes in (False, True):
            driver._broker.compact(LOG.topic, deletes=deletes)
            driver.crash()
            assert shown(driver) == wanted
        assert {len(row.key or b"") for row in driver._broker.records(LOG.topic)} == {1, 9, 12}
        # What has expired goes, and a key that was deleted does not come back.
        driver.pipe("rates", "b", "2", 1_000)
        driver.pipe("rates", "b", "3", 1_001)
        for deletes in (False, True):
            driver._broker.compact(LOG.topic, deletes=deletes)
            driver.crash()
            assert shown(driver) == {
                "a": [("3", 60, None)],
                "b": [("3", 1_001, None), ("2", 1_000, 1_001), ("1", 30, 1_000)],
                "gone": [],
            }


def test_a_start_that_is_killed_while_it_logs_versions_anew_is_ended_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rewriting, "_ROWS_AT_ONCE", 1)
    with TopologyTestDriver(rates()) as driver:
        logged_plain(driver)
        for commits in (1, 2, 3):
            visits = iter(range(1, commits + 1))

            def die(point: CrashPoint, left: Iterator[int] = visits, last: int = commits) -> None:
                if point is CrashPoint.COMMIT_LOG_DONE and next(left) == last:
                    raise Died

            on_reach(die)
            with pytest.raises(Died):
                driver.crash()
            on_reach(None)
        driver.crash()
        wanted = shown(driver)
        driver._broker.compact(LOG.topic, deletes=True)
        driver.crash()
        assert shown(driver) == wanted
        assert len(wanted["a"]) == 3


def test_a_longer_retention_does_not_bring_back_half_a_history() -> None:
    with TopologyTestDriver(rates(100_000)) as driver:
        for value, time in (("1", 10_000), ("2", 60_000), ("3", 300_000), ("4", 310_000)):
            driver.pipe("rates", "a", value, time)
        driver.pipe("rates", "b", "-", 310_000)
        records = driver._broker.records(LOG.topic)
    with TopologyTestDriver(rates(1_000_000)) as driver:
        for row in records:
            driver._broker.produce(LOG, row)
        driver.crash()
        assert shown(driver)["a"] == [
            ("4", 310_000, None),
            ("3", 300_000, 310_000),
            ("2", 60_000, 300_000),
        ]
