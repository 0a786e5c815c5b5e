"""Splits of a store: together they have its rows, once each, all of one commit."""

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import GreaterThanOrEqual, In, LessThan

import statestore as ss
from statestore import serdes
from statestore.engines.memory import MemoryEngine
from statestore.errors import Misuse, Unavailable
from statestore.layout.folders import StateLayout
from statestore.layout.snapshots import TaskSnapshots
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import Deployed, DeployedStore, publish_deployed
from statestore.reading.row_ranges import row_ranges
from statestore.spark.reading.read_options import plan_of
from statestore.spark.reading.store_reader import FilteringReader, StorePartition

TASK = TaskId(0, 0)
RETENTION_MS = 10_000
BYTES: Any = {"key_serde": serdes.BYTES, "value_serde": serdes.BYTES}
SPECS: dict[str, Any] = {
    "rows": ss.persistent_key_value_store("rows", **BYTES),
    # A task would write this one, and rows of a store that did not expire before have no times.
    "expiring": ss.persistent_key_value_store("expiring", **BYTES),
    "windows": ss.persistent_window_store("windows", 10, RETENTION_MS, **BYTES),
    "sessions": ss.persistent_session_store("sessions", RETENTION_MS, **BYTES),
    "versions": ss.persistent_versioned_key_value_store("versions", RETENTION_MS, **BYTES),
}
EDGES = [b"", b"\0", b"\0\0", b"a", b"a\0", b"ab", b"\x7f", b"\x80", b"t", b"\xff", b"\xff\xff"]
PREFIX = b"a long prefix that all of these share " * 8
KEYS = st.one_of(
    st.sampled_from(EDGES),
    st.binary(max_size=3),
    st.binary(max_size=3).map(lambda tail: PREFIX + tail),
    st.integers(0, 200).map(lambda n: b"%06d" % n),
    st.integers(0, 60).map(lambda n: b"a" * n),
    st.integers(0, 60).map(lambda n: b"\xff" * n),
)


def kept(name: str, keys: list[bytes], folder: Path) -> Path:
    """Make a store of these keys, each with several versions or windows where there are any."""
    layout, spec = StateLayout(folder, "shop"), SPECS[name]
    with ss.open_store(spec, layout.task_dir(TASK) / "rocksdb") as store:
        write(store, name, keys)
        store.commit({TopicPartition(f"shop-{name}-changelog", 0): 1})
    expires = name != "rows"
    described = DeployedStore(
        0,
        spec.key_serde.name,
        serdes.BYTES.name,
        persistent=True,
        kind=spec.kind,
        retention_ms=RETENTION_MS if expires else None,
        advance_ms=getattr(spec, "advance_ms", None),
    )
    publish_deployed(layout, Deployed(stores={name: described}))
    return folder


def write(store: Any, name: str, keys: list[bytes]) -> None:
    match name:
        case "rows" | "expiring":
            store.put_all([(key, b"v") for key in keys])
        case "windows":
            store.put_all([(key, b"v", start) for key in keys for start in (0, 10, 500)])
        case "sessions":
            spans = [(0, 5), (0, 300), (700, 701)]
            store.put_all([(ss.Windowed(key, *span), b"v") for key in keys for span in spans])
        case "versions":
            store.put_all([(key, b"%d" % at, at) for key in keys for at in (5, 10, 9_000)])
            for key in keys[::3]:
                store.delete(key, 9_500)


def reader(folder: Path, store: str, **options: str) -> FilteringReader:
    named = {"state_dir": str(folder), "application_id": "shop", "store": store}
    return FilteringReader(plan_of({**named, **options}))


def read(source: FilteringReader) -> list[list[tuple[Any, ...]]]:
    """What each Spark task reads."""

    def rows(part: Any) -> Iterator[tuple[Any, ...]]:
        for batch in pickle.loads(pickle.dumps(source)).read(pickle.loads(pickle.dumps(part))):
            yield from (tuple(row.values()) for row in batch.to_pylist())

    return [list(rows(part)) for part in source.partitions()]


def split_parts(source: FilteringReader) -> list[StorePartition]:
    parts = source.partitions()
    assert all(isinstance(part, StorePartition) and part.split is not None for part in parts)
    return parts  # type: ignore[return-value]  # asserted


def whole(folder: Path, store: str, **options: str) -> Counter[tuple[Any, ...]]:
    (rows,) = read(reader(folder, store, splits="1", **options))
    return Counter(rows)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("splits", ["2", "13"])
def test_splits_have_each_row_once(name: str, splits: str, tmp_path: Path) -> None:
    keys = [*EDGES, *(b"%04d" % n for n in range(60)), *(PREFIX + b"%d" % n for n in range(40))]
    kept(name, keys, tmp_path)
    asked: list[dict[str, str]] = [{}]
    if name == "versions":
        asked += [{"as_of": "7"}, {"as_of": "9600"}, {"from_time": "6", "to_time": "9499"}]
    for options in asked:
        expected = whole(tmp_path, name, **options)
        parts = read(reader(tmp_path, name, splits=splits, **options))
        assert 1 < len(parts) <= int(splits)
        assert sum(map(Counter, parts), Counter()) == expected
        assert expected


@given(st.lists(KEYS, unique=True, max_size=300), st.integers(1, 40))
@example(EDGES, 11)
@example([PREFIX * n for n in range(50)], 5)
def test_ranges_have_each_row_once_whatever_the_keys_are(keys: list[bytes], count: int) -> None:
    engine = MemoryEngine(["data"])
    engine.write({"data": dict.fromkeys(keys, b"v")})
    table = engine.table("data")
    spans = row_ranges(table, rows_each=1, count=count, count_max=1000).spans
    found: list[bytes] = []
    for after, last in spans:
        with closing(table.scan(None if after is None else after + b"\0", last)) as rows:
            found += [key for key, _ in rows]
    assert found == sorted(keys)
    assert len(spans) <= count
    assert all(after != last for after, last in spans) or len(spans) == 1


def test_ranges_have_about_as_many_rows_each() -> None:
    engine = MemoryEngine(["data"])
    keys = [b"customer-%06d" % n for n in range(20_000)] + [b"z" * n for n in range(1, 50)]
    engine.write({"data": dict.fromkeys(keys, b"v")})
    found = row_ranges(engine.table("data"), rows_each=2_000, count_max=1000)
    assert 5 <= len(found.spans) <= 20
    assert 10_000 < found.rows < 40_000
    sizes = [
        sum((after is None or key > after) and (last is None or key <= last) for key in keys)
        for after, last in found.spans
    ]
    assert max(sizes) < 10_000


def test_filters_hold_in_splits_and_keys_that_are_looked_up_are_not_split(tmp_path: Path) -> None:
    keys = [b"%04d" % n for n in range(200)]
    for name in ("rows", "windows"):
        kept(name, keys, tmp_path / name)
        source = reader(tmp_path / name, name, splits="8")
        low, high = GreaterThanOrEqual(("key",), b"0050"), LessThan(("key",), b"0150")
        assert list(source.pushFilters([low, high])) == []
        parts = read(source)
        assert len(parts) == 8
        found = Counter(row[2] for rows in parts for row in rows)
        assert set(found) == set(keys[50:150])
        assert len(set(found.values())) == 1
        if name == "rows":
            # Only what is asked for is divided.
            assert max(map(len, parts)) < 50
        source = reader(tmp_path / name, name, splits="8")
        assert list(source.pushFilters([In(("key",), (b"0007", b"0190"))])) == []
        (rows,) = read(source)
        assert {row[2] for row in rows} == {b"0007", b"0190"}


def test_all_splits_are_of_the_commit_that_was_last_when_they_were_planned(tmp_path: Path) -> None:
    keys = [b"%04d" % n for n in range(200)]
    kept("rows", keys, tmp_path)
    source = reader(tmp_path, "rows", splits="5")
    parts = split_parts(source)
    layout = StateLayout(tmp_path, "shop")
    with ss.open_store(SPECS["rows"], layout.task_dir(TASK) / "rocksdb") as store:
        for key in keys[::2]:
            store.delete(key)
        store.put(b"0000 later", b"v")
        store.commit({TopicPartition("shop-rows-changelog", 0): 2})
    found = [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]
    assert [row["key"] for row in found] == keys
    again = reader(tmp_path, "rows", splits="5")
    assert sum(map(len, read(again))) == 101


def test_a_split_whose_snapshot_is_gone_names_the_way_out(tmp_path: Path) -> None:
    kept("rows", [b"%04d" % n for n in range(200)], tmp_path)
    source = reader(tmp_path, "rows", splits="3")
    parts = split_parts(source)
    snapshots = TaskSnapshots(StateLayout(tmp_path, "shop").task_dir(TASK))
    assert parts[0].split is not None
    snapshots.drop(parts[0].split.pins[0].snapshot_id)
    with pytest.raises(Unavailable, match=r'task 0_0.*load the DataFrame again.*"splits", "1"'):
        list(source.read(parts[1]))


def test_each_split_keeps_the_snapshots_of_all_of_them(tmp_path: Path) -> None:
    kept("rows", [b"%04d" % n for n in range(200)], tmp_path)
    source = reader(tmp_path, "rows", splits="3")
    parts = split_parts(source)
    snapshots = TaskSnapshots(StateLayout(tmp_path, "shop").task_dir(TASK))
    assert parts[0].split is not None
    (pin,) = parts[0].split.pins
    leased_ms = snapshots.expires_ms(pin.snapshot_id)
    assert leased_ms is not None
    snapshots.renew(pin.snapshot_id, leased_ms - 500_000)
    list(source.read(parts[2]))
    renewed_ms = snapshots.expires_ms(pin.snapshot_id)
    assert renewed_ms is not None
    assert renewed_ms > leased_ms - 100_000
    # One that nobody reads goes with the next that is planned, once its lease has run out.
    snapshots.renew(pin.snapshot_id, 1)
    source.partitions()
    assert snapshots.manifest(pin.snapshot_id) is None


@pytest.mark.parametrize("count", [0, 1])
def test_a_store_with_no_row_or_one_is_one_split_and_leaves_no_snapshot(
    count: int, tmp_path: Path
) -> None:
    kept("rows", [b""] * count, tmp_path)
    source = reader(tmp_path, "rows", splits="9")
    (part,) = source.partitions()
    assert isinstance(part, StorePartition)
    assert part.split is None
    assert sum(map(len, read(source))) == count
    folder = StateLayout(tmp_path, "shop").task_dir(TASK) / "snapshots"
    assert not [path for path in folder.iterdir() if path.is_dir()]


@pytest.mark.parametrize("name", SPECS)
def test_a_store_of_three_keys_has_each_row_once_in_64_splits(name: str, tmp_path: Path) -> None:
    kept(name, [b"", b"\0", b"\xff" * 9], tmp_path)
    parts = read(reader(tmp_path, name, splits="64"))
    assert 1 < len(parts) < 64
    assert sum(map(Counter, parts), Counter()) == whole(tmp_path, name)


def test_a_small_store_is_not_split_unless_that_is_asked_for(tmp_path: Path) -> None:
    kept("rows", [b"%04d" % n for n in range(200)], tmp_path)
    (part,) = reader(tmp_path, "rows").partitions()
    assert isinstance(part, StorePartition)
    assert part.split is None
    assert not (StateLayout(tmp_path, "shop").task_dir(TASK) / "snapshots").exists()


@pytest.mark.parametrize("wrong", ["0", "-1", "1e9", "1000000000", "", "two", "\u0662"])
def test_wrong_numbers_are_refused(wrong: str, tmp_path: Path) -> None:
    kept("rows", [b"a"], tmp_path)
    with pytest.raises(Misuse, match=r"splits = .*want a whole number from 1 to 1000"):
        reader(tmp_path, "rows", splits=wrong)
    with pytest.raises(Misuse, match="splits or rows_per_split, not both"):
        reader(tmp_path, "rows", splits="2", rows_per_split="2")
    with pytest.raises(Misuse, match="leave rows_per_split out"):
        reader(tmp_path, "rows", rows_per_split="2", changelog="true")
