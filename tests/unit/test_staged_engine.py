"""The transactional core: durable lag, metrics, failures and savepoints around commits.

Shows I3.
"""

from collections.abc import Mapping, Sequence

import pytest

from statestore.engines.memory import MemoryEngine
from statestore.errors import HostFailure, StoreClosed, TaskCorrupted
from statestore.model.ids import Position, TopicPartition
from statestore.ports import Writes
from statestore.stores import keyvalue, offsets
from statestore.stores.durability import LagLimits
from statestore.stores.pending import ENTRY_COST
from statestore.stores.staged_table import StagedTable
from statestore.stores.transaction import StagedEngine
from tests.builders import ManualClock, staged_engine

TP = TopicPartition("shop-prices-changelog", 0)
Ranges = Mapping[str, Sequence[tuple[bytes, bytes]]]
TABLES = (keyvalue.TABLE, offsets.TABLE)


class FullDisk(MemoryEngine):
    """An engine in memory whose volume fills up; it claims to be persistent: offsets show."""

    def __init__(self) -> None:
        super().__init__(TABLES)
        self.full = False
        self.batches: list[list[str]] = []

    def persistent(self) -> bool:
        return True

    def flush(self) -> None:
        if self.full:
            raise HostFailure("no space left to flush")
        self.batches.append(["flush"])

    def write(self, writes: Mapping[str, Writes], *, ranges: Ranges | None = None) -> None:
        if self.full:
            raise HostFailure("no space left")
        self.batches.append(sorted(name for name, rows in writes.items() if rows))
        super().write(writes, ranges=ranges)


def opened(limits: LagLimits, clock: ManualClock | None = None) -> tuple[StagedEngine, StagedTable]:
    staged = staged_engine(FullDisk(), limits=limits, clock=clock)
    return staged, StagedTable(staged, keyvalue.TABLE)


def limits(
    *, max_bytes: int = 1 << 40, max_records: int = 1 << 40, max_ms: int = 1 << 40
) -> LagLimits:
    return LagLimits(max_bytes, max_records, max_ms)


# Durable lag (S10).


def test_a_commit_is_not_durable_until_the_lag_in_records_is_reached() -> None:
    staged, table = opened(limits(max_records=3))
    for offset, durable in ((1, None), (2, None), (3, 3), (4, 3), (5, 3), (6, 6)):
        table.put(str(offset).encode(), b"v")
        staged.commit({TP: offset})
        assert (staged.committed_offset(TP), staged.durable_offset(TP)) == (offset, durable)


def test_the_lag_in_bytes_counts_keys_and_values() -> None:
    staged, table = opened(limits(max_bytes=1000))
    table.put(b"k", b"v" * 998)
    staged.commit({TP: 1})
    assert staged.durable_offset(TP) is None
    table.put(b"k", b"")
    staged.commit({TP: 2})
    assert staged.durable_offset(TP) == 2


def test_the_commit_that_reaches_a_limit_asks_for_a_flush_and_the_next_one_waits_for_it() -> None:
    asked: list[StagedEngine] = []
    engine = FullDisk()
    staged = staged_engine(engine, limits=limits(max_records=2), flush_soon=asked.append)
    table = StagedTable(staged, keyvalue.TABLE)
    table.put_all({b"a": b"1", b"b": b"1"})
    staged.commit({TP: 1})
    assert (asked, staged.durable_offset(TP)) == ([staged], None)
    engine.batches.clear()
    table.put(b"c", b"1")
    staged.commit({TP: 2})
    assert engine.batches == [["flush"], [keyvalue.TABLE, offsets.TABLE]]
    assert (asked, staged.durable_offset(TP)) == ([staged], 1)
    staged.restore(keyvalue.TABLE, {b"d": b"1"}, {TP: 3})
    assert asked == [staged, staged]
    staged.catch_up()
    staged.catch_up()
    assert (staged.metrics.engine_flushes, staged.durable_offset(TP)) == (2, 3)


def test_a_flush_that_fails_stops_the_next_commit_before_it_writes() -> None:
    engine = FullDisk()
    staged = staged_engine(engine, limits=limits(max_records=1), flush_soon=lambda _staged: None)
    table = StagedTable(staged, keyvalue.TABLE)
    table.put(b"k", b"old")
    staged.commit({TP: 1})
    table.put(b"k", b"new")
    engine.full = True
    with pytest.raises(HostFailure, match="no space left to flush"):
        staged.commit({TP: 2})
    assert (staged.committed_offset(TP), staged.uncommitted_entries()) == (1, 1)
    engine.full = False
    staged.commit({TP: 2})
    assert (staged.committed_offset(TP), staged.durable_offset(TP)) == (2, 1)


def test_a_closed_store_is_not_flushed_any_more() -> None:
    staged, table = opened(limits(max_records=1))
    table.put(b"k", b"v")
    staged.commit({TP: 1})
    staged.close()
    staged.catch_up()
    assert staged.metrics.engine_flushes == 1


def test_restored_values_count_into_the_lag_as_written_ones_do() -> None:
    staged, _ = opened(limits(max_bytes=1000))
    staged.restore(keyvalue.TABLE, {b"k": b"v" * 500, b"gone": None}, {TP: 1})
    assert staged.durable_offset(TP) is None
    staged.restore(keyvalue.TABLE, {b"l": b"v" * 500}, {TP: 2})
    assert staged.durable_offset(TP) == 2


def test_the_lag_in_time_is_kept_by_maintain_on_an_idle_store() -> None:
    clock = ManualClock()
    staged, table = opened(limits(max_ms=1000), clock)
    table.put(b"k", b"v")
    staged.commit({TP: 1})
    clock.advance(999)
    staged.maintain()
    assert staged.durable_offset(TP) is None
    clock.advance(1)
    staged.maintain()
    assert staged.durable_offset(TP) == 1


def test_the_lag_in_time_is_kept_by_commits_where_nobody_calls_maintain() -> None:
    clock = ManualClock()
    staged, table = opened(limits(max_ms=1000), clock)
    for offset, durable in ((1, None), (2, None), (3, 3), (4, 3), (5, 3), (6, 6)):
        table.put(b"k", b"v")
        staged.commit({TP: offset})
        assert staged.durable_offset(TP) == durable
        clock.advance(500)


def test_the_lag_in_time_starts_with_the_first_commit_after_a_flush() -> None:
    clock = ManualClock()
    staged, table = opened(limits(max_ms=1000), clock)
    clock.advance(5000)
    staged.maintain()
    assert staged.metrics.engine_flushes == 0
    table.put(b"k", b"v")
    staged.commit({TP: 1})
    assert staged.durable_offset(TP) is None
    clock.advance(1000)
    staged.maintain()
    staged.maintain()
    assert staged.metrics.engine_flushes == 1


# One batch (S3).


def test_writes_offsets_and_position_of_a_commit_are_one_engine_batch() -> None:
    engine = FullDisk()
    staged = staged_engine(engine)
    table = StagedTable(staged, keyvalue.TABLE)
    engine.batches.clear()
    table.put_all({b"a": b"1", b"b": None})
    staged.commit({TP: 1}, Position.of({"in": {0: 0}}))
    staged.restore(keyvalue.TABLE, {b"c": b"1"}, {TP: 2})
    assert engine.batches == [[keyvalue.TABLE, offsets.TABLE]] * 2
    assert dict(engine.table(offsets.TABLE).scan()).keys() >= {
        b"oshop-prices-changelog\0\0\0\0\0",
        b"pin\0\0\0\0\0",
    }


def test_nothing_is_written_while_writes_are_pending() -> None:
    engine = FullDisk()
    staged = staged_engine(engine)
    table = StagedTable(staged, keyvalue.TABLE)
    engine.batches.clear()
    table.put_all({b"%d" % number: b"v" for number in range(100)})
    with staged.savepoint():
        table.put(b"k", b"v")
    staged.rollback()
    assert engine.batches == []


# A write that fails.


def test_a_failed_commit_leaves_the_pending_writes_and_the_last_commit_as_they_were() -> None:
    engine = FullDisk()
    staged = staged_engine(engine)
    table = StagedTable(staged, keyvalue.TABLE)
    table.put(b"k", b"old")
    staged.commit({TP: 1}, Position.of({"in": {0: 0}}))
    table.put(b"k", b"new")
    engine.full = True
    with pytest.raises(HostFailure, match="no space"):
        staged.commit({TP: 2}, Position.of({"in": {0: 1}}))
    assert table.get(b"k") == b"new"
    assert staged.committed_offset(TP) == 1
    assert staged.position(pending=False) == Position.of({"in": {0: 0}})
    staged.rollback()
    assert table.get(b"k") == b"old"
    assert staged.position(pending=True) == Position.of({"in": {0: 0}})
    engine.full = False
    table.put(b"k", b"newer")
    staged.commit({TP: 2})
    assert (table.get(b"k"), staged.committed_offset(TP)) == (b"newer", 2)


def test_a_savepoint_around_a_failed_commit_leaves_nothing() -> None:
    engine = FullDisk()
    staged = staged_engine(engine)
    table = StagedTable(staged, keyvalue.TABLE)
    table.put(b"outside", b"1")
    engine.full = True
    with pytest.raises(HostFailure), staged.savepoint():  # noqa: PT012  # the commit is inside on purpose
        table.put(b"inside", b"1")
        staged.commit({})
    assert dict(table.scan()) == {b"outside": b"1"}
    assert staged.uncommitted_entries() == 1


# Savepoints around commits and rollbacks.


def test_a_commit_inside_a_savepoint_stays_and_what_follows_is_undone() -> None:
    staged = staged_engine()
    table = StagedTable(staged, keyvalue.TABLE)
    with pytest.raises(KeyError), staged.savepoint(), staged.savepoint():  # noqa: PT012  # one unit
        table.put(b"before", b"1")
        staged.commit({})
        table.put(b"after", b"1")
        raise KeyError
    assert dict(table.scan()) == {b"before": b"1"}
    assert staged.uncommitted_entries() == 0


def test_a_rollback_inside_a_savepoint_drops_everything_before_it() -> None:
    staged = staged_engine()
    table = StagedTable(staged, keyvalue.TABLE)
    table.put(b"outside", b"1")
    with staged.savepoint():
        table.put(b"inside", b"1")
        staged.rollback()
        table.put(b"after", b"1")
    assert dict(table.scan()) == {b"after": b"1"}


def test_a_savepoint_left_after_the_store_was_closed_says_so_and_keeps_nothing() -> None:
    staged = staged_engine()
    table = StagedTable(staged, keyvalue.TABLE)
    with pytest.raises(StoreClosed, match="'prices' is closed"), staged.savepoint():  # noqa: PT012  # one unit
        table.put(b"k", b"v")
        staged.close()
    with pytest.raises(KeyError), staged_engine().savepoint():
        raise KeyError


# What a store is made of.


def test_rows_without_a_format_row_are_not_a_whole_store() -> None:
    engine = MemoryEngine(TABLES)
    engine.write({keyvalue.TABLE: {b"k": b"v"}})
    with pytest.raises(TaskCorrupted, match="data without a format row"):
        staged_engine(engine)


def test_an_offset_is_found_by_a_plain_tuple_and_given_as_a_partition() -> None:
    staged = staged_engine(FullDisk())
    staged.commit({("t", 0): 5})  # type: ignore[dict-item]  # a plain tuple matches
    assert staged.committed_offset(TopicPartition("t", 0)) == 5
    assert all(isinstance(tp, TopicPartition) for tp in staged.committed_offsets())


def test_metrics_count_commits_with_kafka_streams_names() -> None:
    clock = ManualClock()
    staged, table = opened(limits(), clock)
    for key in (b"a", b"b"):
        table.put_all({key: b"v", key * 2: b"v"})
        staged.commit({})
    table.put(b"pending", b"v")
    clock.advance(2000)
    found = staged.metrics_dict()
    assert found["commit-rate"] == pytest.approx(1.0)
    assert found["put-rate"] == pytest.approx(2.0)
    assert found["uncommitted-bytes"] == len(b"pending") + len(b"v") + ENTRY_COST
    assert (found["flush-rate"], found["flush-latency-avg"]) == (0.0, 0.0)
    assert 0.0 <= found["commit-latency-avg"] <= found["commit-latency-max"]
