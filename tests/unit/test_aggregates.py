"""The stateful operators: one update per key and batch, or every one; nulls; what is stored."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import serdes
from statestore.model.batch import Column
from statestore.model.records import Serde
from statestore.stores.specs import KeyValueSpec, in_memory_key_value_store
from statestore.topology.aggregates.folds import COUNTED, Aggregation, Fold, reduced
from statestore.topology.aggregates.stream_aggregates import by_key
from statestore.topology.failures import NodeFailed
from statestore.topology.nodes import SendOldValues
from statestore.topology.tables import from_streams
from tests.builders import NodeBench, batch

ROWS = [("a", "1", 10), ("b", "2", 20), (None, "3", 30), ("a", "4", 40), ("c", "5", 5)]
KEYS = st.none() | st.sampled_from("abc")
BATCHES = st.lists(st.lists(st.tuples(KEYS, st.integers(-5, 5)), max_size=8), max_size=4)


def spec(value_serde: Serde[Any], key_serde: Serde[Any] = serdes.STRING) -> KeyValueSpec[Any, Any]:
    return in_memory_key_value_store("totals", key_serde=key_serde, value_serde=value_serde)


def counting(*, every_update: bool = False, of: KeyValueSpec[Any, Any] | None = None) -> NodeBench:
    return keyed(of or spec(serdes.INT64), COUNTED, every_update=every_update)


def folding(
    step: Callable[[Any, Any, Any], Any],
    initial: Callable[[], Any],
    *,
    every_update: bool = False,
    value_serde: Serde[Any] = serdes.JSON,
) -> NodeBench:
    return keyed(spec(value_serde), Fold(initial, step, step), every_update=every_update)


def keyed(of: KeyValueSpec[Any, Any], fold: Fold, *, every_update: bool = False) -> NodeBench:
    how = Aggregation("n", of, fold, every_update=every_update, old_values=SendOldValues())
    return NodeBench(by_key(how), of)


def joining(*, every_update: bool = False) -> NodeBench:
    """An aggregate: key and values in one text."""
    return folding(lambda key, value, old: f"{old}{value}", lambda: ">", every_update=every_update)


# count


def test_count_emits_each_key_once_at_the_place_and_time_of_its_last_record() -> None:
    bench = counting()
    assert bench.push(batch(ROWS)) == [("b", 1, 20), ("a", 2, 40), ("c", 1, 5)]
    assert bench.rows("totals") == [("a", 2), ("b", 1), ("c", 1)]
    assert bench.push(batch([("a", "6", 60)])) == [("a", 3, 60)]


def test_count_without_caching_emits_every_update_in_order() -> None:
    bench = counting(every_update=True)
    assert bench.push(batch(ROWS)) == [("a", 1, 10), ("b", 1, 20), ("a", 2, 40), ("c", 1, 5)]
    assert bench.push(batch([("a", "6", 60), ("a", "7", 70)])) == [("a", 3, 60), ("a", 4, 70)]


@pytest.mark.parametrize("every_update", [True, False])
def test_records_with_a_null_key_count_nowhere(every_update: bool) -> None:
    bench = counting(every_update=every_update)
    bench.push(batch([(None, "1"), (None, "2")]))
    assert bench.dropped[-1] == ("null_key", 2)
    assert (bench.forwarded, bench.rows("totals")) == ([], [])


@pytest.mark.parametrize("every_update", [True, False])
@pytest.mark.parametrize("decoded", [True, False])
def test_records_with_a_null_value_count_nowhere_and_an_empty_one_counts(
    every_update: bool, decoded: bool
) -> None:
    bench = counting(every_update=every_update)
    rows = batch([("a", "1", 1), ("b", None, 2), ("a", "", 3), ("a", None, 4)])
    if decoded:
        rows = rows.with_columns(values=Column(objects=rows.values.objects))
    found = bench.push(rows)
    assert found == [("a", 1, 1), ("a", 2, 3)][not every_update :]
    assert bench.push(batch([("b", None)])) == []


def test_count_reads_keys_as_bytes_and_never_the_values() -> None:
    def fail(_data: bytes) -> Any:
        raise AssertionError("decoded")

    never: Serde[Any] = Serde("NEVER", serdes.STRING.serialize, fail)
    bench = counting(of=spec(serdes.INT64, key_serde=never))
    rows = batch([("a", "1"), ("a", "2")], key_serde=never, value_serde=never)
    bench.stores["totals"].table.put(b"a", serdes.INT64.serialize(40))
    bench._push(rows)
    assert bench.stores["totals"].table.get(b"a") == serdes.INT64.serialize(42)


# aggregate and reduce


def test_aggregate_folds_from_initial_and_emits_the_last_of_each_key() -> None:
    bench = joining()
    assert bench.push(batch(ROWS)) == [("b", ">2", 20), ("a", ">14", 40), ("c", ">5", 5)]
    assert bench.push(batch([("a", "6", 60)])) == [("a", ">146", 60)]
    assert bench.rows("totals") == [("a", ">146"), ("b", ">2"), ("c", ">5")]


def test_aggregate_without_caching_emits_every_update_in_order() -> None:
    assert joining(every_update=True).push(batch(ROWS)) == [
        ("a", ">1", 10),
        ("b", ">2", 20),
        ("a", ">14", 40),
        ("c", ">5", 5),
    ]


@pytest.mark.parametrize("every_update", [True, False])
def test_null_keys_and_null_values_are_skipped(every_update: bool) -> None:
    bench = joining(every_update=every_update)
    assert bench.push(batch([(None, "1"), ("a", None)])) == []
    assert bench.dropped == [("null_key_or_value", 2)]
    assert bench.rows("totals") == []


def test_an_aggregate_of_none_deletes_the_key_and_starts_anew_after_it() -> None:
    bench = folding(lambda _k, value, old: None if value == "x" else f"{old}{value}", lambda: ">")
    bench.push(batch([("a", "1"), ("b", "2")]))
    assert bench.push(batch([("a", "x", 7)])) == [("a", None, 7)]
    assert bench.rows("totals") == [("b", ">2")]
    assert bench.push(batch([("b", "x", 1), ("b", "3", 2)])) == [("b", ">3", 2)]
    assert bench.rows("totals") == [("b", ">3")]


def test_without_caching_a_delete_between_updates_is_emitted() -> None:
    bench = folding(
        lambda _k, value, old: None if value == "x" else f"{old}{value}",
        lambda: ">",
        every_update=True,
    )
    assert bench.push(batch([("a", "1", 1), ("a", "x", 2), ("a", "3", 3)])) == [
        ("a", ">1", 1),
        ("a", None, 2),
        ("a", ">3", 3),
    ]


def test_the_step_sees_key_value_and_aggregate_decoded() -> None:
    seen: list[tuple[Any, Any, Any]] = []

    def step(key: Any, value: Any, old: Any) -> Any:
        seen.append((key, value, old))
        return [*old, value]

    folding(step, list).push(batch([("a", "1"), ("a", "2")]))
    assert seen == [("a", "1", []), ("a", "2", ["1"])]


def test_initial_is_called_anew_for_each_key() -> None:
    def step(_key: Any, value: Any, old: list[Any]) -> list[Any]:
        old.append(value)
        return old

    bench = folding(step, list)
    assert bench.push(batch([("a", "1", 1), ("b", "2", 2)])) == [("a", ["1"], 1), ("b", ["2"], 2)]


def test_reduce_lets_the_first_value_stand_and_calls_with_old_and_new_after_that() -> None:
    bench = keyed(spec(serdes.JSON), reduced(lambda old, new: f"({old}+{new})"))
    assert bench.push(batch([("a", "1", 1), ("b", "2", 2)])) == [("a", "1", 1), ("b", "2", 2)]
    assert bench.push(batch([("a", "3", 3), ("a", "4", 4)])) == [("a", "((1+3)+4)", 4)]


@pytest.mark.parametrize("every_update", [True, False])
def test_a_failing_step_leaves_the_store_as_it_was(every_update: bool) -> None:
    bench = folding(
        lambda _k, value, old: old + 1 // int(value), lambda: 0, every_update=every_update
    )
    bench.push(batch([("a", "1")]))
    with pytest.raises(NodeFailed, match="node n, in-0 offset 1: ZeroDivisionError"):
        bench.push(batch([("a", "1"), ("b", "0")]))
    assert bench.rows("totals") == [("a", 1)]


# table


def test_a_table_keeps_the_latest_value_drops_null_keys_and_deletes_by_null_values() -> None:
    of = spec(serdes.STRING)
    bench = NodeBench(from_streams.latest("n", of, old_values=SendOldValues()), of)
    out = bench.push(
        batch([("a", "1", 1), (None, "2", 2), ("b", "3", 3), ("a", "4", 4), ("b", None, 5)])
    )
    assert out == [("a", "1", 1), ("b", "3", 3), ("a", "4", 4), ("b", None, 5)]
    assert bench.rows("totals") == [("a", "4")]
    bench.push(batch([(None, "6")]))
    assert bench.rows("totals") == [("a", "4")]
    assert bench.dropped == [("null_key", 1), ("null_key", 1)]


# Serdes that do not fit (INTERFACE rule 3).


def test_a_key_that_does_not_fit_the_stores_serde_names_node_side_and_keyword() -> None:
    bench = counting(of=spec(serdes.INT64, key_serde=serdes.INT64))
    with pytest.raises(NodeFailed, match=r"node n.*key is str.*INT64.*key_serde="):
        bench.push(batch([("a", "1")]))


def test_an_aggregate_that_does_not_fit_the_stores_serde_names_node_side_and_keyword() -> None:
    bench = folding(lambda _k, _v, _old: {"a": 1}, dict, value_serde=serdes.BYTES)
    with pytest.raises(NodeFailed, match=r"node n.*value is dict.*BYTES.*value_serde="):
        bench.push(batch([("a", "1")]))
    assert bench.rows("totals") == []


def test_a_tables_value_that_does_not_fit_names_node_side_and_keyword() -> None:
    of = spec(serdes.FLOAT64)
    bench = NodeBench(from_streams.latest("n", of, old_values=SendOldValues()), of)
    with pytest.raises(NodeFailed, match=r"node n.*value is str.*FLOAT64.*value_serde="):
        bench.push(batch([("a", "1")]))


# Any batches: the same as a dict, and each emission is the state after its record.


@given(BATCHES, st.booleans())
def test_any_batches_sum_as_a_dict_does(
    batches: list[list[tuple[str | None, int]]], every_update: bool
) -> None:
    bench = folding(lambda _key, value, old: old + value, lambda: 0, every_update=every_update)
    model: dict[str, int] = {}
    for rows in batches:
        emitted = bench.push(batch(rows, value_serde=serdes.JSON))
        updates: list[tuple[str, int, int]] = []
        for time, (key, value) in enumerate(rows):
            if key is not None:
                model[key] = model.get(key, 0) + value
                updates.append((key, model[key], time))
        last = {key: (key, total, time) for key, total, time in updates}
        expected = updates if every_update else sorted(last.values(), key=lambda row: row[2])
        assert emitted == expected
        assert dict(bench.rows("totals")) == model


@given(BATCHES, st.booleans())
def test_any_batches_count_as_a_dict_does(
    batches: list[list[tuple[str | None, int]]], every_update: bool
) -> None:
    bench = counting(every_update=every_update)
    model: dict[str, int] = {}
    for rows in batches:
        emitted = bench.push(batch(rows, value_serde=serdes.JSON))
        updates: list[tuple[str, int, int]] = []
        for time, (key, _) in enumerate(rows):
            if key is not None:
                model[key] = model.get(key, 0) + 1
                updates.append((key, model[key], time))
        last = {key: (key, total, time) for key, total, time in updates}
        expected = updates if every_update else sorted(last.values(), key=lambda row: row[2])
        assert emitted == expected
        assert dict(bench.rows("totals")) == model
