"""The changes of stores as a stream, called as Spark calls it: offsets, batches, what is lost."""

import json
import pickle
import re
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, RecordFailed, UnknownStore
from statestore.model.ids import TopicPartition
from statestore.operations.reset import ResetTo, reset
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import serve_here, start_run
from statestore.ports import TopicSpec
from statestore.reading.changes import STARTS, ChangePlan, Reached, logged_parts
from statestore.runtime import Runtime
from statestore.spark.datasource import TransactionalStore
from tests.builders import ManualClock
from tests.contract.test_all_stores_beside import World, begun, every_store
from tests.relocation_rig import in_memory_folder

WEEK_MS = 7 * 86_400_000
STORES = sorted(every_store().stores)
HISTORIES = {"times", "past"}


@pytest.fixture(scope="module")
def pristine() -> Iterator[World]:
    """One that is only copied."""
    with in_memory_folder() as folder:
        yield begun(folder)


@pytest.fixture
def world(pristine: World) -> Iterator[World]:
    with in_memory_folder() as folder:
        yield pristine.copied(folder)


@pytest.fixture(autouse=True)
def _brokers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "statestore.spark.reading.change_reader.Runtime",
        lambda settings: Runtime(settings, brokers=world.broker.clients),
    )


class Query:
    """A query with its checkpoint: what Spark would keep, as JSON, and what it got."""

    def __init__(self, world: World, store: str, **options: str) -> None:
        self.options = {
            "state_dir": str(world.state_dir),
            "application_id": "app",
            "bootstrap_servers": "memory:9092",
            "store": store,
            "changes": "true",
            **options,
        }
        self.offset: str | None = None
        self.reader = self.start()

    def start(self) -> DataSourceStreamReader:
        """A driver that knows only the checkpoint."""
        source = TransactionalStore(self.options)
        return source.streamReader(source.schema())

    def batch(self) -> list[dict[str, Any]]:
        """The rows of the next batch; none if nothing is new."""
        if self.offset is None:
            self.offset = json.dumps(self.reader.initialOffset())
        limit = self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(json.loads(self.offset), limit))
        rows = [] if end == self.offset else self.read(self.offset, end)
        self.offset = end
        return rows

    def read(self, start: str, end: str) -> list[dict[str, Any]]:
        parts = self.reader.partitions(json.loads(start), json.loads(end))
        return [row for part in parts for row in self._rows(part)]

    def _rows(self, part: InputPartition) -> list[dict[str, Any]]:
        reader = pickle.loads(pickle.dumps(self.reader))
        return [
            row
            for batch in reader.read(pickle.loads(pickle.dumps(part)))
            for row in batch.to_pylist()
        ]


def applied(rows: list[dict[str, Any]], *, history: bool = False) -> list[tuple[Any, ...]]:
    """What is there once all changes were made."""
    state: dict[tuple[Any, ...], Any] = {}
    for row in rows:
        place = tuple(
            repr(row[name])
            for name in ("partition", "key", "valid_from", "window_start", "window_end")
            if name in row
        )
        if row["change"] == "upsert":
            state[place] = row["value"]
        elif history:
            state[place] = None
        else:
            state.pop(place, None)
    return sorted((*place, repr(value)) for place, value in state.items() if value is not None)


def held(world: World, store: str) -> list[tuple[Any, ...]]:
    """What the changelog makes of the store, as `spark.read` shows it."""
    options = {
        "state_dir": str(world.state_dir),
        "application_id": "app",
        "bootstrap_servers": "memory:9092",
        "store": store,
        "changelog": "true",
    }
    source = TransactionalStore(options)
    reader = source.reader(source.schema())
    rows = [
        {**row, "change": "upsert"}
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()  # type: ignore[union-attr]  # batches of Arrow
    ]
    return applied(rows, history=store in HISTORIES)


@pytest.mark.parametrize("starting", STARTS)
def test_every_change_of_every_store_is_in_one_batch(
    world: World, starting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "statestore.spark.reading.store_reader.Runtime",
        lambda settings: Runtime(settings, brokers=world.broker.clients),
    )
    queries = {store: Query(world, store, startingOffsets=starting) for store in STORES}
    before = {store: held(world, store) for store in STORES}
    found = {store: query.batch() for store, query in queries.items()}
    world.send(60)
    world.run()
    for query in queries.values():
        query.reader = query.start()
    after = {store: query.batch() for store, query in queries.items()}
    for store, query in queries.items():
        history = store in HISTORIES
        assert query.batch() == [], store
        assert after[store], store
        if starting == "latest":
            assert found[store] == [], store
            continue
        if starting == "state":
            assert applied(found[store], history=history) == before[store], store
            assert {row["offset"] for row in found[store]} <= {None}
        offsets = [row["offset"] for row in found[store] + after[store] if row["offset"]]
        assert len(offsets) == len(set(offsets)), store
        both = applied(found[store] + after[store], history=history)
        # What has expired meanwhile is not shown as a row, and its delete is logged later.
        assert set(held(world, store)) <= set(both), store


def test_a_delete_has_no_value_and_a_batch_can_be_read_again(world: World) -> None:
    query = Query(world, "rows", startingOffsets="latest")
    assert query.batch() == []
    start = query.offset
    world.send(3)
    world.run()
    rows = query.batch()
    assert rows
    assert {row["change"] for row in rows} == {"upsert"}
    assert all(row["value"] is not None and row["timestamp"] is not None for row in rows)
    assert start is not None
    assert query.offset is not None
    assert query.read(start, query.offset) == rows
    world.broker.produce(
        TopicPartition("app-rows-changelog", 0), ss.Record(b"a", None, world.sent * 7)
    )
    (gone,) = query.batch()
    assert (gone["key"], gone["value"], gone["change"]) == ("a", None, "delete")


def test_the_state_of_a_history_has_the_deletes_that_ended_versions(world: World) -> None:
    time = 1000 + 7 * world.sent
    world.broker.produce(TopicPartition("right", 0), ss.Record(b"a", None, time))
    world.run()
    rows = Query(world, "past").batch()
    (gone,) = [row for row in rows if row["change"] == "delete"]
    assert (gone["key"], gone["value"], gone["offset"]) == ("a", None, None)
    assert gone["valid_from"].timestamp() * 1000 == time
    assert max(row["valid_from"] for row in rows if row["key"] == "a") == gone["valid_from"]


def test_a_limit_makes_batches_of_about_so_many_offsets(world: World) -> None:
    whole = Query(world, "counts", startingOffsets="earliest").batch()
    query = Query(world, "counts", startingOffsets="earliest", maxOffsetsPerTrigger="2")
    parts = []
    while batch := query.batch():
        assert len(batch) <= 2
        parts += batch
    assert parts == whole
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxRows)


def test_a_query_of_what_is_there_now_ends(world: World) -> None:
    query = Query(world, "counts", startingOffsets="earliest")
    start = query.reader.initialOffset()
    query.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]  # as Spark calls it
    first = query.reader.latestOffset(start, ReadAllAvailable())
    world.send(30)
    world.run()
    assert query.reader.latestOffset(first, ReadAllAvailable()) == first
    assert query.start().latestOffset(first, ReadAllAvailable()) != first


def planned(world: World, clock: ManualClock, **options: Any) -> ChangePlan:
    runtime = Runtime(world.runtime().settings, clock=clock, brokers=world.broker.clients)
    return ChangePlan(runtime, logged_parts(runtime, "counts"), **options)


def test_a_log_that_was_created_again_is_lost_changes(world: World) -> None:
    plan = planned(world, ManualClock())
    reached = plan.first("earliest")
    other = Reached("another-id", reached.complete_ms, reached.offsets)
    with pytest.raises(RecordFailed, match=r"was created again.*another checkpoint"):
        plan.following(other)
    lenient = planned(world, ManualClock(), lossless=False)
    until = lenient.following(other)
    (span,) = lenient.spans(other, until).values()
    assert (span.start, span.end) == (0, until.offsets["0"])


def test_offsets_that_were_purged_or_cut_off_are_lost_changes(world: World) -> None:
    plan = planned(world, ManualClock())
    end = plan.first("latest").offsets["0"]
    reached = plan.first("earliest")
    world.broker.cluster("app").delete_before({TopicPartition("app-counts-changelog", 0): end - 1})
    with pytest.raises(RecordFailed, match=rf"begins at {end - 1} now"):
        plan.following(reached)
    assert planned(world, ManualClock(), lossless=False).following(reached).offsets == {"0": end}
    ahead = Reached(reached.topic_id, reached.complete_ms, {"0": end + 5})
    with pytest.raises(RecordFailed, match=f"ends at {end}, before offset {end + 5}"):
        plan.following(ahead)
    query = Query(world, "counts")
    with pytest.raises(RecordFailed, match="has no offset 0: begin again"):
        query.read(
            json.dumps({"topic_id": reached.topic_id, "complete_ms": 0, "offsets": {"0": 0}}),
            json.dumps({"topic_id": reached.topic_id, "complete_ms": 0, "offsets": {"0": end}}),
        )


def test_deletes_that_compaction_may_have_removed_are_lost_changes(world: World) -> None:
    clock = ManualClock()
    plan = planned(world, clock)
    reached = plan.following(plan.first("earliest"))
    clock.advance(WEEK_MS + 1)
    assert plan.following(reached) == reached, "nothing was written since"
    world.send(30)
    world.run()
    assert plan.following(reached) != reached, "this reader saw that nothing was missing"
    with pytest.raises(RecordFailed, match=r"keeps deletes for 604800 s \(delete.retention.ms\)"):
        planned(world, clock).following(reached)
    lenient = planned(world, clock, lossless=False).following(reached)
    assert lenient.offsets["0"] > reached.offsets["0"]


def began_again(world: World, count: int) -> None:
    """Reset the application, and have it process `count` records more."""
    with world.runtime() as runtime:
        reset(runtime, ResetTo(earliest=True))
    world.send(count)
    world.run()


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_batch_of_a_log_that_is_gone_has_no_rows_of_the_new_one(
    world: World, lenient: str
) -> None:
    query = Query(world, "counts", startingOffsets="earliest", failOnDataLoss=lenient)
    start = json.dumps(query.reader.initialOffset())
    query.offset = start
    assert query.batch()
    end = query.offset
    began_again(world, 60)
    # The driver died within that batch: Spark reads it again, and asks for the next one then.
    query.reader = query.start()
    if lenient == "true":
        with pytest.raises(RecordFailed, match=r"was created again.*another checkpoint"):
            query.read(start, end)
    else:
        assert query.read(start, end) == []
        whole = Query(world, "counts", startingOffsets="earliest").batch()
        assert query.batch() == whole


def test_a_log_that_was_created_again_is_not_mistaken_for_one_with_nothing_new(
    world: World,
) -> None:
    query = Query(world, "counts", startingOffsets="earliest", failOnDataLoss="false")
    assert query.batch()
    began_again(world, 0)
    # The same input makes as many changes as before: the log ends where the old one did.
    ends = planned(world, ManualClock()).first("latest").offsets
    assert ends == json.loads(query.offset or "")["offsets"]
    assert query.batch() == Query(world, "counts", startingOffsets="earliest").batch()
    assert query.batch() == []


def test_who_goes_on_without_what_was_cut_off_goes_on_at_the_end(world: World) -> None:
    query = Query(world, "counts", startingOffsets="earliest", failOnDataLoss="false")
    assert query.batch()
    known = json.loads(query.offset or "")
    known["offsets"]["0"] += 5
    query.offset = json.dumps(known)
    assert query.batch() == []
    world.send(2)  # one of them is counted
    world.run()
    assert len(query.batch()) == 1


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_the_checkpoint_of_another_store_is_refused(world: World, lenient: str) -> None:
    query = Query(world, "counts", startingOffsets="earliest", failOnDataLoss=lenient)
    start = json.dumps(query.reader.initialOffset())
    query.offset = start
    query.batch()
    query.options["store"] = "rows"
    query.reader = query.start()
    told = "has the changes of app-counts-changelog, and this query those of app-rows-changelog"
    with pytest.raises(Misuse, match=told):
        query.batch()
    with pytest.raises(Misuse, match=told):
        query.read(start, query.offset)


def test_a_query_that_goes_on_reads_the_partitions_that_it_began_with(world: World) -> None:
    query = Query(world, "counts", startingOffsets="earliest")
    query.batch()
    known = json.loads(query.offset or "")
    query.offset = json.dumps({**known, "offsets": {**known["offsets"], "1": 4}})
    told = "the checkpoint has partitions 0, 1, and this query reads 0"
    with pytest.raises(Misuse, match=told):
        query.batch()
    # The driver died within that batch, which Spark reads again.
    query.reader = query.start()
    with pytest.raises(Misuse, match=told):
        query.read(json.dumps({**known, "offsets": {"0": 0, "1": 0}}), query.offset)


def test_a_query_goes_on_while_its_store_moves(world: World) -> None:
    query = Query(world, "counts", startingOffsets="latest")
    assert query.batch() == []
    world.send(30)
    world.run(every_store(moved=True))
    moved = query.batch()
    with world.runtime() as runtime:
        (task,) = logged_parts(runtime, "counts").tasks
    assert task[0] != "0_0"
    assert {row["stream_task"] for row in moved} == {task[0]}


def test_a_query_does_not_decode_what_was_deployed_since(world: World) -> None:
    def pipeline(value: ss.Serde[Any]) -> ss.Topology:
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
        kept = ss.Materialized("kept", value_serde=value)
        b.stream("in").group_by_key().aggregate(int, lambda _k, _v, old: old + 1, kept)
        return b.build()

    world.run(pipeline(serdes.INT64), "other")
    lenient = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    query = Query(world, "kept", application_id="other", **lenient)
    assert query.batch()
    with world.runtime("other") as runtime:
        reset(runtime, ResetTo(earliest=True))
    world.run(pipeline(serdes.FLOAT64), "other")
    with pytest.raises(Misuse, match=r"store 'kept' was deployed anew .*: start the query again"):
        query.batch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "first"}, "startingOffsets = 'first': want state, earliest, latest"),
        ({"maxOffsetsPerTrigger": "0"}, "want a number above 0"),
        ({"failOnDataLoss": "no"}, "want true or false"),
        ({"as_of": "5"}, "has no option 'as_of'"),
        ({"changes": "false"}, r'a stream has the changes of a store: pass .option\("changes"'),
        ({"partition": "7"}, "has no partition 7; it has 1"),
        ({"partition": "x"}, "partition = 'x': want a whole number from 0"),
        ({"maxOffsetsPerTrigger": "²"}, "want a number above 0"),
        ({"partition": "9" * 5000}, "want a whole number from 0"),
    ],
)
def test_a_wrong_option_is_refused(world: World, options: dict[str, str], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        Query(world, "counts", **options)


def test_stores_without_a_changelog_are_refused_by_name(world: World) -> None:
    with pytest.raises(UnknownStore, match="no store 'nobody' is deployed"):
        Query(world, "nobody")
    named = Query(world, "counts").options
    with pytest.raises(Misuse, match=re.escape("changes are a stream: use spark.readStream")):
        TransactionalStore(named).reader(TransactionalStore(named).schema())


def test_a_table_on_its_source_topic_shows_what_the_application_committed(world: World) -> None:
    world.broker.cluster("app").create([TopicSpec("prices", 1, {"cleanup.policy": "compact"})])
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.table("prices", materialized=ss.Materialized("prices"))
    topology, prices = b.build(), TopicPartition("prices", 0)
    settings = {
        "application.id": "table",
        "state.dir": str(world.state_dir),
        "bootstrap.servers": "memory:9092",
        "topology.optimization": "reuse.ktable.source.topics",
        "deserialization.exception.handler": "continue",
    }

    def run() -> None:
        with (
            Runtime(settings, clock=ManualClock(), brokers=world.broker.clients) as runtime,
            start_run(runtime, topology, RunRequest()) as started,
        ):
            serve_here(started, Event())

    value = serdes.INT64.serialize
    for n, (key, data) in enumerate([(b"a", value(1)), (None, value(2)), (b"b", b"no number")]):
        world.broker.produce(prices, ss.Record(key, data, 10 + n))
    world.broker.produce(prices, ss.Record(b"c", value(3), 20))
    run()
    world.broker.produce(prices, ss.Record(b"a", None, 30))
    query = Query(world, "prices", application_id="table", startingOffsets="earliest")
    assert [(row["key"], row["value"]) for row in query.batch()] == [("a", 1), ("c", 3)]
    run()
    assert [(row["key"], row["change"]) for row in query.batch()] == [("a", "delete")]
