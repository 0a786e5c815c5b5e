"""Filters that the Data Source takes over from Spark: the same rows, and less that is read."""

import datetime as dt
import operator
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

import statestore as ss
from statestore import serdes
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import Deployed, DeployedStore, publish_deployed
from statestore.spark.reading.read_options import plan_of
from statestore.spark.reading.store_reader import FilteringReader, StoreReader

WORDS = ["", "a", "ab", "abc", "b", "ba", "\u00e9", "\U0001f600", "z"]
NUMBERS = [-(1 << 63), -2, -1, 0, 1, 2, 7]
TIMES = [0, 10, 20, 30, 45, 60, 90]
TYPED: Any = {"key_serde": serdes.STRING, "value_serde": serdes.INT64}
SPECS: tuple[Any, ...] = (
    ss.persistent_key_value_store("words", **TYPED),
    ss.persistent_key_value_store("numbers", key_serde=serdes.INT64, value_serde=serdes.INT64),
    ss.persistent_key_value_store("floats", key_serde=serdes.FLOAT64, value_serde=serdes.INT64),
    ss.persistent_window_store("windows", 10, 10_000, **TYPED),
    ss.persistent_session_store("sessions", 10_000, **TYPED),
    ss.persistent_versioned_key_value_store("versions", 10_000, **TYPED),
)
COMPARED: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def at(ms: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def fill(store: Any, name: str, partition: int) -> None:
    some = WORDS[partition::2] + WORDS[:3]
    match name:
        case "words":
            store.put_all([(word, n) for n, word in enumerate(some)])
        case "numbers" | "floats":
            store.put_all([(n if name == "numbers" else float(n), n) for n in NUMBERS])
        case "windows":
            store.put_all([(word, n, t) for n, word in enumerate(some) for t in TIMES])
        case "sessions":
            spans = [(t, t + 5 * n) for n, t in enumerate(TIMES)]
            store.put_all(
                [(ss.Windowed(word, *span), n) for n, word in enumerate(some) for span in spans]
            )
        case "versions":
            store.put_all([(word, n, t) for n, word in enumerate(some) for t in TIMES[n:]])
            store.delete("a", 95)


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_state(tmp_path_factory.mktemp("state"))


def made_state(folder: Path) -> Path:
    """Make stores of every kind in two stream tasks."""
    layout, stores = StateLayout(folder, "shop"), {}
    for spec in SPECS:
        for partition in range(2):
            where = layout.task_dir(TaskId(0, partition)) / "rocksdb"
            with ss.open_store(spec, where) as store:
                fill(store, spec.name, partition)
                store.commit({TopicPartition(f"shop-{spec.name}-changelog", partition): 7})
        key = spec.key_serde.name
        stores[spec.name] = DeployedStore(
            0,
            key,
            spec.value_serde.name,
            persistent=True,
            kind=spec.kind,
            advance_ms=getattr(spec, "advance_ms", None),
            retention_ms=10_000 if spec.name in {"windows", "sessions", "versions"} else None,
        )
    publish_deployed(layout, Deployed(stores=stores))
    return folder


def rows_of(reader: StoreReader) -> list[dict[str, Any]]:
    def batches() -> Iterator[Any]:
        for part in reader.partitions():
            yield from pickle.loads(pickle.dumps(reader)).read(part)

    rows = [row for batch in batches() for row in batch.to_pylist()]
    return sorted(rows, key=repr)


def readers(state_dir: Path, store: str, **options: str) -> tuple[StoreReader, FilteringReader]:
    named = {"state_dir": str(state_dir), "application_id": "shop", "store": store}
    plan = plan_of({**named, **options})
    return StoreReader(plan), FilteringReader(plan)


def holds(one: Filter, row: dict[str, Any]) -> bool:
    """What SQL says of a row: nothing holds of null but IS NULL."""
    (column,) = one.attribute  # type: ignore[attr-defined]  # of all filters used here
    found = row[column]
    match one:
        case IsNull():
            return found is None
        case IsNotNull():
            return found is not None
        case In():
            return found in [value for value in one.value if value is not None]
        case StringStartsWith():
            return isinstance(found, str) and found.startswith(one.value)
        case StringContains():
            return one.value in found
    return found is not None and COMPARED[type(one)](found, one.value)  # type: ignore[attr-defined]


def filters_of(store: str) -> st.SearchStrategy[Filter]:
    comparisons = st.sampled_from(list(COMPARED))

    def of(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
        several = st.lists(values | st.none(), max_size=3).map(tuple)
        return st.one_of(
            st.builds(lambda kind, value: kind((column,), value), comparisons, values),
            st.builds(lambda found: In((column,), found), several),
            st.sampled_from([IsNull((column,)), IsNotNull((column,))]),
        )

    words = st.sampled_from([*WORDS, "aa", "abx"]) | st.text(max_size=2)
    keys = {
        "numbers": st.sampled_from([*NUMBERS, 3, 1 << 70]),
        "floats": st.sampled_from([-0.0, 1.0, 2.5]),
    }.get(store, words)
    some = [
        of("partition", st.integers(-1, 3)),
        of("stream_task", st.sampled_from(["0_0", "0_1", "9"])),
        of("key", keys),
        of("value", st.integers(0, 9)),
    ]
    if keys is words:
        some.append(words.map(lambda word: StringStartsWith(("key",), word)))
        some.append(words.map(lambda word: StringContains(("key",), word)))
    times = st.sampled_from([-5, 0, 9.5, 10, 20, 30.001, 40, 45, 90, 95, 120]).map(at)
    names = {"versions": ("valid_from", "valid_to")}.get(store, ("window_start", "window_end"))
    if store in {"versions", "windows", "sessions"}:
        some += [of(name, times) for name in names]
    return st.one_of(some)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("store", "options"),
    [
        *((spec.name, {}) for spec in SPECS),
        ("versions", {"as_of": "45"}),
        ("versions", {"from_time": "20", "to_time": "50"}),
    ],
)
@given(data=st.data())
def test_pushed_filters_leave_the_rows_that_spark_would_leave(
    state_dir: Path, store: str, options: dict[str, str], data: st.DataObject
) -> None:
    plain, pushing = readers(state_dir, store, **options)
    filters = data.draw(st.lists(filters_of(store), max_size=4))
    left = list(pushing.pushFilters(filters))
    found = [row for row in rows_of(pushing) if all(holds(one, row) for one in left)]
    assert found == [row for row in rows_of(plain) if all(holds(one, row) for one in filters)]


@pytest.mark.parametrize(
    ("store", "taken", "stays"),
    [
        ("words", EqualTo(("key",), "a"), StringContains(("key",), "a")),
        ("words", In(("key",), ("a", None)), Not(EqualTo(("key",), "a"))),
        ("words", StringStartsWith(("key",), "a"), EqualTo(("key", "part"), "a")),
        ("words", LessThan(("key",), "b"), EqualTo(("value",), 1)),
        ("numbers", EqualTo(("key",), -1), GreaterThan(("key",), 1)),
        ("numbers", EqualTo(("partition",), 1), EqualTo(("key",), 1 << 70)),
        ("floats", IsNotNull(("key",)), EqualTo(("key",), 0.0)),
        ("windows", GreaterThan(("window_start",), at(5)), EqualTo(("window_start",), "5")),
        ("versions", IsNull(("valid_to",)), IsNull(("value",))),
    ],
)
def test_a_filter_that_bytes_cannot_answer_stays_with_spark(
    state_dir: Path, store: str, taken: Filter, stays: Filter
) -> None:
    _, pushing = readers(state_dir, store)
    assert list(pushing.pushFilters([taken, stays])) == [stays]


def test_windows_of_a_key_may_start_at_any_time(state_dir: Path) -> None:
    plain, pushing = readers(state_dir, "windows")
    assert list(pushing.pushFilters([EqualTo(("key",), "a")])) == []
    assert rows_of(pushing) == [row for row in rows_of(plain) if row["key"] == "a"]


def test_only_the_stream_tasks_that_are_asked_for_are_planned(state_dir: Path) -> None:
    _, pushing = readers(state_dir, "words")
    assert list(pushing.pushFilters([EqualTo(("partition",), 1)])) == []
    assert [part.partition for part in pushing.partitions()] == [1]  # type: ignore[attr-defined]
    _, pushing = readers(state_dir, "words")
    assert list(pushing.pushFilters([In(("stream_task",), ("7_7",))])) == []
    assert pushing.partitions() == []


def test_keys_are_looked_up_and_nothing_else_is_read(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pushing = readers(state_dir, "words")
    assert list(pushing.pushFilters([In(("key",), ("ab", "nobody"))])) == []
    monkeypatch.setattr("statestore.reading.rows._chunks", None)
    assert [row["key"] for row in rows_of(pushing)] == ["ab", "ab"]
