"""The stateless operators and a user's processors: built directly, pushed batches, looked at."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from statestore import serdes
from statestore.errors import (
    Action,
    CommitInsideProcessor,
    InvalidTopology,
    SerdeMismatch,
    Unavailable,
    UnknownStore,
)
from statestore.model.ids import TaskId
from statestore.model.records import Record
from statestore.stores.specs import KeyValueSpec, in_memory_key_value_store
from statestore.testing.driver import TopologyTestDriver
from statestore.topology import operators as ops
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.failures import NodeFailed, Stage
from statestore.topology.nodes import Build
from statestore.topology.processors.user_processors import ProcessorContext, processed
from tests.builders import NodeBench, batch, triples

ROWS = [("a", "1", 10), (None, "2", 20), ("c", None, 30), ("a", "4", 40)]
SEEN: KeyValueSpec[str, str] = in_memory_key_value_store(
    "seen", key_serde=serdes.STRING, value_serde=serdes.STRING
)


def pushed(build: Build) -> list[tuple[Any, Any, int]]:
    return NodeBench(build).push(batch(ROWS))


def test_filter_keeps_what_the_predicate_holds_for_nulls_included() -> None:
    assert pushed(ops.filtered("f", lambda key, value: key == "a" or value is None)) == [
        ROWS[0],
        ROWS[2],
        ROWS[3],
    ]


def test_filter_forwards_nothing_when_nothing_is_left_and_the_batch_itself_when_all_is() -> None:
    nothing = NodeBench(ops.filtered("f", lambda _key, _value: False))
    nothing.push(batch(ROWS))
    assert nothing.forwarded == []
    everything = NodeBench(ops.filtered("f", lambda _key, _value: True))
    given = batch(ROWS)
    everything.push(given)
    assert everything.forwarded == [(given, None)]


@pytest.mark.parametrize("build", [ops.filtered, ops.rejected, ops.filtered_records])
def test_a_filter_does_not_end_where_a_predicate_raises_stop_iteration(build: Any) -> None:
    with pytest.raises(NodeFailed, match="StopIteration"):
        pushed(build("f", lambda *_: next(iter(()))))


def test_map_changes_keys_and_values_and_keeps_times() -> None:
    assert pushed(ops.mapped("m", lambda key, value: (value, key))) == [
        ("1", "a", 10),
        ("2", None, 20),
        (None, "c", 30),
        ("4", "a", 40),
    ]


def test_map_values_sees_values_only_and_keeps_keys_as_bytes() -> None:
    bench = NodeBench(ops.mapped_values("m", lambda value: f"{value}!"))
    assert bench.push(batch(ROWS))[:3] == [("a", "1!", 10), (None, "2!", 20), ("c", "None!", 30)]
    made, _ = bench.forwarded[0]
    assert made.keys.encoded(serdes.STRING) == [b"a", None, b"c", b"a"]


def test_select_key_changes_keys_only() -> None:
    made = pushed(ops.keyed("k", lambda key, value: f"{key}{value}"))
    assert made[:2] == [("a1", "1", 10), ("None2", "2", 20)]


def test_flat_map_makes_any_number_with_the_time_and_offset_of_the_record_they_come_from() -> None:
    bench = NodeBench(
        ops.flattened("f", lambda key, value: [(value, n) for n in range(int(value or 0))])
    )
    assert bench.push(batch(ROWS)) == [
        ("1", 0, 10),
        ("2", 0, 20),
        ("2", 1, 20),
        *[("4", n, 40) for n in range(4)],
    ]
    made, _ = bench.forwarded[0]
    assert made.offsets is not None
    assert list(made.offsets) == [0, 1, 1, 3, 3, 3, 3]


def test_flat_map_values_keeps_the_key() -> None:
    assert pushed(ops.flattened_values("f", lambda value: list(value or "") * 2)) == [
        ("a", "1", 10),
        ("a", "1", 10),
        (None, "2", 20),
        (None, "2", 20),
        ("a", "4", 40),
        ("a", "4", 40),
    ]


def test_peek_shows_every_record_in_order_and_changes_none() -> None:
    shown: list[tuple[Any, Any]] = []
    assert pushed(ops.peeked("p", lambda key, value: shown.append((key, value)))) == ROWS
    assert shown == [row[:2] for row in ROWS]


def test_merge_hands_on_each_batch_as_it_is() -> None:
    bench = NodeBench(ops.passed())
    first, second = batch(ROWS), batch(ROWS, topic="other")
    bench.push(first)
    bench.push(second)
    assert bench.forwarded == [(first, None), (second, None)]


def test_branch_sends_each_record_to_the_first_that_holds_else_to_the_rest() -> None:
    predicates = [lambda key, _value: key == "a", lambda _key, value: value in {"1", "2"}]
    bench = NodeBench(ops.branched("b", predicates, ["is-a", "small", "rest"]))
    bench.push(batch(ROWS))
    assert [(child, triples(made)) for made, child in bench.forwarded] == [
        ("is-a", [ROWS[0], ROWS[3]]),
        ("small", [ROWS[1]]),
        ("rest", [ROWS[2]]),
    ]


def test_branch_asks_no_predicate_after_the_first_that_holds() -> None:
    def fail(_key: Any, _value: Any) -> bool:
        raise AssertionError("asked")

    bench = NodeBench(ops.branched("b", [lambda _key, _value: True, fail], ["x", "y", "z"]))
    assert bench.push(batch(ROWS)) == ROWS


FAILING: list[Callable[[Callable[..., Any]], Build]] = [
    lambda f: ops.filtered("node-7", f),
    lambda f: ops.mapped("node-7", f),
    lambda f: ops.mapped_values("node-7", f),
    lambda f: ops.keyed("node-7", f),
    lambda f: ops.flattened("node-7", f),
    lambda f: ops.flattened_values("node-7", f),
    lambda f: ops.peeked("node-7", f),
    lambda f: ops.branched("node-7", [f], ["x", "rest"]),
]


@pytest.mark.parametrize("made", FAILING, ids=range(len(FAILING)))
def test_a_users_error_names_node_partition_offsets_and_cause(
    made: Callable[[Callable[..., Any]], Build],
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    bench = NodeBench(made(broken))
    with pytest.raises(
        NodeFailed, match=r"node node-7, in-2 offset 5: ZeroDivisionError: by zero"
    ) as caught:
        bench.push(batch(ROWS, partition=2, first_offset=5))
    assert [culprit.offset for culprit in caught.value.culprits] == [5, 6, 7, 8]
    assert (caught.value.stage, caught.value.certain) == (Stage.PROCESSING, True)
    assert bench.forwarded == []


@pytest.mark.parametrize("made", FAILING, ids=range(len(FAILING)))
def test_those_among_many_a_function_raises_for_are_named_and_no_other(
    made: Callable[[Callable[..., Any]], Build],
) -> None:
    tried: list[Any] = []

    def picky(*row: Any) -> Any:
        tried.append(row[-1])
        if row[-1] in {"2", "4"}:
            raise ValueError(row[-1])
        return "ab", "cd"  # a pair, and a list of pairs

    bench = NodeBench(made(picky))
    rows = [("k", str(i)) for i in range(6)]
    with pytest.raises(NodeFailed) as caught:
        bench.push(batch(rows, first_offset=10))
    found = [(culprit.offset, str(culprit.cause)) for culprit in caught.value.culprits]
    assert found == [(12, "2"), (14, "4")]
    assert tried == ["0", "1", "2", "3", "4", "5"], "none is called for twice"


def test_a_function_that_raises_stop_iteration_cuts_no_batch_short() -> None:
    def empty(_value: Any) -> Any:
        return next(iter(()))

    with pytest.raises(NodeFailed, match="StopIteration"):
        pushed(ops.mapped_values("node-7", empty))


def test_a_record_that_cannot_be_decoded_is_that_records_failure() -> None:
    bench = NodeBench(ops.filtered("node-7", lambda _key, _value: True))
    rows = batch([("k", b"\xff"), ("k", b"fine"), ("k", b"\xfe")], value_serde=serdes.BYTES)
    with pytest.raises(
        NodeFailed, match=r"node node-7, in-0 offset 0: cannot decode the value as STRING: .*utf-8"
    ) as caught:
        bench.push(rows.with_columns(values=rows.values.with_serde(serdes.STRING)))
    assert [culprit.offset for culprit in caught.value.culprits] == [0, 2]
    assert (caught.value.stage, caught.value.certain) == (Stage.DESERIALIZATION, True)


def test_our_own_errors_pass_a_node_as_they_are() -> None:
    def raises(_value: Any) -> Any:
        raise Unavailable("ours")

    with pytest.raises(Unavailable, match=r"^ours$"):
        pushed(ops.mapped_values("node-7", raises))


def test_our_own_errors_about_a_record_keep_their_class() -> None:
    def raises(_value: Any) -> Any:
        raise SerdeMismatch("ours")

    with pytest.raises(NodeFailed, match="ours") as caught:
        pushed(ops.mapped_values("node-7", raises))
    error = caught.value.error("in-0 offset 3", caught.value.cause)
    assert type(error) is SerdeMismatch
    assert re.fullmatch(rf"node node-7, in-0 offset 3: ours \({__file__}:\d+\)", str(error))


# A user's processors.


class Counting:
    """Counts keys in a store, forwards, asks for a commit at every tenth."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.store(SEEN)
        self.records: list[Record[Any, Any]] = []
        self.times: list[int | None] = []
        self.closed = False

    def process(self, record: Record[Any, Any]) -> None:
        self.records.append(record)
        self.times.append(self.context.stream_time)
        if record.value == "broken":
            raise ValueError("no good")
        count = int(self.store.get(record.key or "?", "0")) + 1
        self.store.put(record.key or "?", str(count))
        self.context.forward(record.replace(value=count))
        if record.value == "commit":
            self.context.commit()

    def process_batch(self, records: list[Record[Any, Any]]) -> None:
        for record in records:
            self.process(record)

    def close(self) -> None:
        self.closed = True


def counting(*, per_record: bool) -> tuple[NodeBench, Counting]:
    made: list[Counting] = []

    def factory(context: ProcessorContext) -> Counting:
        made.append(Counting(context))
        return made[0]

    return NodeBench(processed("p", factory, ("seen",), per_record=per_record), SEEN), made[0]


@pytest.mark.parametrize("per_record", [True, False])
def test_a_processor_sees_whole_records_writes_its_store_and_forwards(per_record: bool) -> None:
    bench, processor = counting(per_record=per_record)
    out = bench.push(batch(ROWS, topic="t", partition=3, first_offset=7))
    assert processor.records[0] == Record("a", "1", 10, (), "t", 3, 7)
    assert out == [("a", 1, 10), (None, 1, 20), ("c", 1, 30), ("a", 2, 40)]
    assert bench.rows("seen") == [("?", "1"), ("a", "2"), ("c", "1")]
    assert bench.push(batch([("a", "5", 50)])) == [("a", 3, 50)]


def test_stream_time_is_the_largest_timestamp_so_far_record_by_record_or_of_the_batch() -> None:
    rows = [("a", "1", 30), ("a", "2", 10), ("a", "3", 40)]
    bench, processor = counting(per_record=True)
    bench.push(batch(rows))
    assert processor.times == [30, 30, 40]
    bench, processor = counting(per_record=False)
    bench.stream_time_ms = 99
    bench.push(batch(rows))
    assert processor.times == [99, 99, 99]


def test_a_processor_asks_for_commits_and_is_told_of_the_end() -> None:
    bench, processor = counting(per_record=True)
    bench.push(batch([("a", "1"), ("b", "commit")]))
    assert bench.commits_requested == 1
    bench.close()
    assert processor.closed


@pytest.mark.parametrize("per_record", [True, False])
def test_what_a_failing_processor_forwarded_is_dropped(per_record: bool) -> None:
    bench, _ = counting(per_record=per_record)
    where = "offset 1" if per_record else "offsets 0 to 1"
    with pytest.raises(NodeFailed, match=f"node p, in-0 {where}: ValueError: no good") as caught:
        bench.push(batch([("a", "1"), ("b", "broken")]))
    assert not caught.value.certain, "an earlier record may be to blame"
    assert bench.push(batch([("c", "1", 5)])) == [("c", 1, 5)]


def test_a_factory_that_raises_is_the_pipelines_mistake() -> None:
    def factory(_context: ProcessorContext) -> Any:
        raise KeyError("no such table")

    with pytest.raises(InvalidTopology, match="node p: its factory raised KeyError") as caught:
        NodeBench(processed("p", factory, (), per_record=True))
    assert caught.value.action is Action.FAIL


def test_a_processor_without_its_method_is_refused_before_any_record() -> None:
    with pytest.raises(InvalidTopology, match=r"node p: .* object, which has no process_batch"):
        NodeBench(processed("p", lambda _: object(), (), per_record=False))


def test_forwarding_to_a_named_child_keeps_the_order_between_children() -> None:
    class Splitting:
        def __init__(self, context: ProcessorContext) -> None:
            self.context = context

        def process(self, record: Record[Any, Any]) -> None:
            self.context.forward(record, to=record.key)

    bench = NodeBench(processed("p", Splitting, (), per_record=True))
    bench.push(batch([("x", "1"), ("x", "2"), ("y", "3"), (None, "4"), ("x", "5")]))
    assert [(to, [row[1] for row in triples(made)]) for made, to in bench.forwarded] == [
        ("x", ["1", "2"]),
        ("y", ["3"]),
        (None, ["4"]),
        ("x", ["5"]),
    ]


def context_of(*stores: str) -> ProcessorContext:
    return ProcessorContext(NodeBench(ops.passed(), SEEN), stores, "p", lambda _made, _to: None)


def test_a_store_that_is_not_connected_is_refused_naming_those_that_are() -> None:
    message = re.escape("store 'other' is not connected to this processor; connected: seen")
    with pytest.raises(UnknownStore, match=message) as caught:
        context_of("seen").store("other")
    assert isinstance(caught.value, LookupError)
    with pytest.raises(UnknownStore, match="connected: none"):
        context_of().store(SEEN)


def test_a_store_is_found_by_name_and_by_spec() -> None:
    context = context_of("seen")
    assert context.store("seen") is context.store(SEEN)
    assert context.task_id == TaskId(0, 0)


@pytest.mark.parametrize("verb", ["commit", "rollback", "close"])
def test_commit_rollback_and_close_of_a_store_belong_to_the_task(verb: str) -> None:
    store = context_of("seen").store("seen")
    store.put("k", "v")
    with pytest.raises(CommitInsideProcessor, match=rf"'seen': {verb} .*context\.commit\(\)"):
        getattr(store, verb)()
    assert store.get("k") == "v"


def test_a_with_block_does_not_close_a_store_of_a_task() -> None:
    store = context_of("seen").store("seen")
    with pytest.raises(CommitInsideProcessor), store:
        store.put("k", "v")
    assert store.is_open()


def test_foreach_sees_each_record_and_ends_the_stream() -> None:
    seen: list[tuple[str, int]] = []
    builder = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    builder.stream("in").foreach(lambda key, value: seen.append((key, value)), name="end")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe_all("in", [Record("a", 1, 0), Record("b", 2, 1)])
    assert seen == [("a", 1), ("b", 2)]
