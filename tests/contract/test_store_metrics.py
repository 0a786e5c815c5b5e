"""What a store counts (S11): as a dict for whoever asks, as instruments for whoever listens."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore.stores.pending import ENTRY_COST
from tests.builders import DEADLINE_S, ManualClock, child, staged_engine
from tests.contract.store_worlds import WORLDS, StoreWorld

RATES = ("put", "delete", "get", "range", "restore", "commit")


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    with StoreWorld(*WORLDS[request.param], tmp_path) as made:
        yield made


def test_a_fresh_store_has_every_metric_of_the_kip_at_zero(world: StoreWorld) -> None:
    metrics = world.open().metrics()
    assert set(metrics) == {
        *(f"{name}-rate" for name in (*RATES, "flush")),
        *(f"{name}-latency-{kind}" for name in ("commit", "flush") for kind in ("avg", "max")),
        "uncommitted-bytes",
        "late-record-drop-total",
    }
    assert set(metrics.values()) == {0.0}


def test_rows_are_counted_when_committed_reads_and_ranges_at_once(world: StoreWorld) -> None:
    store = world.open()
    counted = store.staged.metrics
    store.put_all(world.pairs("a=1 b=2 c=3"))
    store.discard(world.key("d"))
    assert counted.rows_written == 0
    store.commit()
    store.put_all(world.pairs("a=2 a"))
    store.rollback()
    store.commit()
    assert (counted.commits, counted.rows_written, counted.rows_deleted) == (2, 4, 1)
    for key in world.keys("a b nothing"):
        store.get(key)
    assert world.key("a") in store
    store.get_many(world.keys("a b"))
    store.reader().get_many(world.keys("a b c"))
    store.reader().get(world.key("a"))
    assert counted.gets == 10
    for scan in (store.all(), store.range(), store.reader().all()):
        scan.close()
    assert counted.ranges == 3


WRITES = {
    "a=1 a=2 b": (2, 1),
    "a a=1": (1, 0),
    "a=1 a": (1, 1),
    "a a b=1": (2, 1),
}


@pytest.mark.parametrize("writes", WRITES)
def test_a_key_counts_once_a_commit_as_what_it_was_last(world: StoreWorld, writes: str) -> None:
    for many in (False, True):
        store = world.open()
        pairs = world.pairs(writes)
        more = [(world.key(f"x{i}"), world.value("1")) for i in range(20)]
        if many:
            store.put_all(more)
            store.put_all([*pairs, *more])
        else:
            for pair in pairs:
                store.put(*pair)
        store.commit()
        rows, deletes = WRITES[writes]
        counted = store.staged.metrics
        assert counted.rows_written == rows + 20 * many
        assert counted.rows_deleted == deletes
        store.close()


def test_an_undone_unit_is_not_counted(world: StoreWorld) -> None:
    store = world.holding("a=1 b=1")
    before = store.staged.metrics.rows_deleted
    store.put(world.key("b"), None)
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012  # the block is the point
        store.put_all(world.pairs("a b=2 c"))
        raise KeyError
    store.commit()
    assert store.staged.metrics.rows_deleted - before == 1


def test_rates_are_per_second_since_open_and_latencies_in_milliseconds() -> None:
    clock = ManualClock()
    staged = staged_engine(clock=clock)
    for key in (b"a", b"b"):
        staged.overlay("data").put(key, b"1")
        staged.commit({})
    staged.overlay("data").put(b"c", None)
    staged.restore("data", {b"r": b"1"}, {})
    clock.advance(4000)
    found = staged.metrics_dict()
    assert (found["commit-rate"], found["put-rate"], found["restore-rate"]) == (0.5, 0.5, 0.25)
    assert found["uncommitted-bytes"] == 1 + ENTRY_COST
    assert found["commit-latency-max"] >= found["commit-latency-avg"] == 0


def test_flush_metrics_exist_and_record_nothing(tmp_path: Path) -> None:
    with ss.open_store(ss.persistent_key_value_store("prices"), tmp_path) as store:
        for _ in range(3):
            store.put(b"a", b"1")
            store.commit()
            store.staged.make_durable()
            with pytest.warns(DeprecationWarning, match="does nothing"):
                store.flush()
        found = store.metrics()
    assert found["flush-rate"] == found["flush-latency-avg"] == found["flush-latency-max"] == 0


LISTENING = """
import json, sys
import statestore as ss
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

def heard():
    found = {}
    data = reader.get_metrics_data()
    for scope in data.resource_metrics[0].scope_metrics if data else ():
        for metric in scope.metrics:
            for point in metric.data.data_points:
                assert dict(point.attributes) == {"store": "prices"}
                value = point.count if hasattr(point, "count") else point.value
                found[metric.name.removeprefix("statestore.")] = value
    print(json.dumps(found))

store = ss.open_store(ss.persistent_key_value_store("prices"), sys.argv[1])
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
store.put(b"a", b"123")
store.get(b"a")
heard()
store.commit()
heard()
store.discard(b"a")
store.get_many([b"a", b"b"])
store.all().close()
store.commit()
store.flush()
store.get(b"a")
store.close()
heard()
"""


def test_a_listener_hears_of_reads_with_the_next_commit_and_at_close_and_of_no_flush(
    tmp_path: Path,
) -> None:
    with child(LISTENING, tmp_path) as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    pending, committed, closed = map(json.loads, output.splitlines())
    assert pending == {"uncommitted": 1 + 3 + ENTRY_COST}
    assert committed == {
        "commits": 1,
        "commit.duration": 1,
        "records.written": 1,
        "records.read": 1,
        "uncommitted": 0,
    }
    assert closed == {
        "commits": 2,
        "commit.duration": 2,
        "records.written": 2,
        "records.deleted": 1,
        "records.read": 4,
        "ranges": 1,
    }
