"""What is done to an application as a whole, where it has a store of every kind.

One pipeline with processors' stores of all kinds and with what every operator keeps. Moved,
exported, brought back, cloned, audited, looked at and begun again: nothing is lost, and what is
done next does not differ from what would have been done otherwise.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copytree, rmtree
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner

import statestore as ss
from statestore import serdes
from statestore.cli import cli
from statestore.layout.audits import AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.model.ids import TopicPartition
from statestore.operations.audits.perform import audit
from statestore.operations.clones.clone import clone_export, drop_clone
from statestore.operations.exports.create import create_export, create_export_for_clones
from statestore.operations.exports.restore_export import restore_export
from statestore.operations.relocation.apply import relocate
from statestore.operations.relocation.relocation_plan import Choices
from statestore.operations.reset import ResetTo, reset
from statestore.operations.running.run import RunRequest, RunSummary
from statestore.operations.running.runner import serve_here, start_run
from statestore.ports import TopicSpec
from statestore.runtime import Runtime
from statestore.spark.datasource import TransactionalStore
from statestore.testing.memory_broker import MemoryBroker
from tests.builders import ManualClock
from tests.relocation_rig import in_memory_folder

pytestmark = pytest.mark.timeout(900)

TYPED: Any = {"key_serde": serdes.STRING, "value_serde": serdes.JSON}
MERE = ss.persistent_key_value_store("mere", **TYPED)
BRIEF = ss.persistent_key_value_store("brief", ttl=60, **TYPED)
PANES = ss.persistent_window_store("panes", 10, 200, **TYPED)
VISITS = ss.persistent_session_store("visits", 200, **TYPED)
TIMES = ss.persistent_versioned_key_value_store("times", 500, **TYPED)
ENDS = ss.timer_store("ends", key_serde=serdes.STRING)
OWN = (MERE, BRIEF, PANES, VISITS, TIMES)
TOPICS = ("in", "right", "new", "out", "final")
KEYS = "abcde"


class Keep:
    """Puts the value of each record into all stores of a processor."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._mere, self._brief = context.store(MERE), context.store(BRIEF)
        self._panes, self._visits = context.store(PANES), context.store(VISITS)
        self._times = context.store(TIMES)

    def process(self, record: ss.Record[str, Any]) -> None:
        key, value, time = record.key, record.value, record.timestamp_ms
        self._mere.put(key, value)
        self._brief.put(key, value)
        self._panes.put(key, value, time - time % 10)
        self._visits.put(ss.Windowed(key, time - 3, time), value)
        self._times.put(key, value, time)


class Remind:
    """Tells of each key for which no record has come for a while, by name."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context, self._ends = context, context.timers(ENDS)

    def process(self, record: ss.Record[str, Any]) -> None:
        self._ends.schedule(record.key, record.timestamp_ms + 20, name="short")
        self._ends.schedule(record.key, record.timestamp_ms + 90, name="long")

    def on_timer(self, timer: ss.Timer[str]) -> None:
        self._context.forward(ss.Record(timer.key, timer.name, timer.time_ms))


def every_store(*, moved: bool = False) -> ss.Topology:
    """Every operator with a store. `moved`: a new sub-topology goes before all the others."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    if moved:
        b.stream("new").group_by_key().count("news")
    left, right = b.stream("in"), b.stream("right")
    left.process(Keep, *OWN, name="keep")
    left.process(Remind, ENDS, name="remind").to("out")
    aggregates(left, right)
    _joins(left, right)
    return b.build()


def aggregates(left: ss.KStream[Any, Any], right: ss.KStream[Any, Any]) -> None:
    """All aggregates, of windows of each kind and without."""
    by_key = left.group_by_key()
    by_key.count("counts")
    by_key.windowed_by(ss.SlidingWindows(20, grace=20)).count("sliding")
    by_key.windowed_by(ss.SessionWindows(15, grace=30), emit="on_window_close").count("sessions")
    by_key.windowed_by(ss.CountWindows.of(5).advance_by(3)).reduce(max, "fives")
    hops = by_key.windowed_by(ss.HoppingWindows(20, 10, grace=30)).count("hops")
    held = hops.suppress(ss.Suppressed.until_window_closes(), name="held")
    held.to_stream().to("final", key_serde=serdes.windowed(serdes.STRING, 20))
    both = by_key.cogroup(lambda _k, v, old: old + v).cogroup(
        right.group_by_key(), lambda _k, v, old: old - v
    )
    both.aggregate(int, ss.Materialized("both", value_serde=serdes.INT64))


def _joins(left: ss.KStream[Any, Any], right: ss.KStream[Any, Any]) -> None:
    def pair(one: Any, other: Any) -> Any:
        return [one, other]

    left.outer_join(right, pair, ss.JoinWindows(10, grace=10), name="near").to("out")
    rows, others = left.to_table("rows", name="rows"), right.to_table("others", name="others")
    rows.outer_join(others, pair, "met").to_stream().to("out")
    foreign = rows.join(others, pair, "foreign", foreign_key=lambda v: KEYS[v % 5], name="by-value")
    foreign.to_stream().to("out")
    grouped = rows.group_by(lambda _key, v: (KEYS[v % 2], v), name="groups-by")
    grouped.aggregate(int, lambda _k, v, old: old + v, lambda _k, v, old: old - v, "groups")
    past = right.to_table(ss.Materialized("past", history_retention=200), name="past")
    left.left_join(past, pair, grace=15, name="waiting").to("out")


@dataclass
class World:
    """A broker in memory with one partition of everything, and a state dir."""

    root: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    sent: int = 0

    def __post_init__(self) -> None:
        if not self.sent:
            self.broker.cluster("app").create([TopicSpec(name, 1, {}) for name in TOPICS])

    def copied(self, root: Path) -> "World":
        """The same at another place; what is done to one is not done to the other."""
        copytree(self.root, root, dirs_exist_ok=True)
        return replace(self, root=root, broker=deepcopy(self.broker))

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    def runtime(self, application_id: str = "app") -> Runtime:
        settings = {
            "application.id": application_id,
            "state.dir": str(self.state_dir),
            "bootstrap.servers": "memory:9092",
            "processing.guarantee": "exactly_once",
            "statestore.export.target": str(self.root / "exports"),
        }
        return Runtime(settings, clock=ManualClock(), brokers=self.broker.clients)

    def send(self, count: int) -> None:
        """Records 7 ms apart, most of them into the left topic."""
        for n in range(self.sent, self.sent + count):
            key = KEYS[n * n % 5].encode()
            topic = "right" if n % 3 == 0 else "in"
            record = ss.Record(key, json.dumps(n).encode(), 1000 + 7 * n)
            self.broker.produce(TopicPartition(topic, 0), record)
        self.sent += count

    def run(self, topology: ss.Topology | None = None, application_id: str = "app") -> RunSummary:
        with (
            self.runtime(application_id) as runtime,
            start_run(runtime, topology or every_store(), RunRequest()) as started,
        ):
            return serve_here(started, Event())

    def rows(self, application_id: str = "app") -> dict[str, list[Any]]:
        """What the Data Source shows of each store, whichever stream task has it."""
        named = {"state_dir": str(self.state_dir), "application_id": application_id}
        return {store: rows_of({**named, "store": store}) for store in every_store().stores}


def rows_of(options: dict[str, str]) -> list[Any]:
    source = TransactionalStore(options)
    reader = source.reader(source.schema())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(
        (tuple(value for name, value in row.items() if name != "stream_task") for row in rows),
        key=repr,
    )


def begun(folder: Path) -> World:
    """An application that has processed some records, so that all of its stores have rows."""
    world = World(folder)
    world.send(60)
    world.run()
    return world


@pytest.fixture(scope="module")
def pristine() -> Iterator[World]:
    """One that is only copied."""
    with in_memory_folder() as folder:
        yield begun(folder)


@pytest.fixture
def world(pristine: World) -> Iterator[World]:
    with in_memory_folder() as folder:
        yield pristine.copied(folder)


@pytest.fixture(scope="module")
def shown(pristine: World) -> Iterator[World]:
    """One at which several tests only look."""
    with in_memory_folder() as folder:
        yield pristine.copied(folder)


@pytest.fixture(scope="module")
def undisturbed() -> "Undisturbed":
    """The rows, and what came out, of an application to which nothing is done."""
    with in_memory_folder() as folder:
        world = World(folder)
        for _ in range(2):
            world.send(60)
            world.run()
        rows = world.rows()
        assert all(rows.values())
        return rows, said(world)


def said(world: World) -> list[Any]:
    """All that came out, of which only the order within a key is certain."""
    made = [*world.broker.records("out"), *world.broker.records("final")]
    return sorted((r.topic, r.partition, r.key, r.value, r.timestamp_ms) for r in made)


Undisturbed = tuple[dict[str, list[Any]], list[Any]]


def goes_on(world: World, topology: ss.Topology | None = None) -> tuple[dict[str, list[Any]], Any]:
    """The second half of the input; then the rows, and what came out."""
    world.send(60)
    assert world.run(topology).restored_records == 0
    return world.rows(), said(world)


@pytest.mark.thorough
def test_stores_that_move_have_their_rows_and_go_on(world: World, undisturbed: Undisturbed) -> None:
    before = world.rows()
    with world.runtime() as runtime:
        after = every_store(moved=True)
        report = relocate(runtime, after, Choices(), dry_run=False, offline=False)
    assert {move.store for move in report.plan.moves} == set(every_store().stores)
    assert world.rows() == before
    assert goes_on(world, after) == undisturbed


@pytest.mark.thorough
def test_stores_that_were_exported_come_back_and_go_on(
    world: World, undisturbed: Undisturbed
) -> None:
    before = world.rows()
    with world.runtime() as runtime:
        create_export(runtime)
        rmtree(world.state_dir)
        restore_export(runtime)
    assert world.rows() == before
    assert goes_on(world) == undisturbed


@pytest.mark.thorough
def test_lost_stores_are_restored_from_their_changelogs_and_go_on(
    world: World, undisturbed: Undisturbed
) -> None:
    rmtree(world.state_dir)
    assert world.run().restored_records > 0
    assert goes_on(world) == undisturbed


@pytest.mark.thorough
def test_a_clone_has_the_rows_of_all_stores_and_goes_on_by_itself(
    world: World, undisturbed: Undisturbed
) -> None:
    before = world.rows()
    with world.runtime() as runtime:
        create_export_for_clones(runtime, every_store())
        clone_export(runtime, every_store(), "trial")
    assert world.rows("trial") == before
    world.send(60)
    world.run(application_id="trial")
    assert world.rows("trial") == undisturbed[0]
    assert world.rows() == before
    with world.runtime("trial") as runtime:
        drop_clone(runtime)


def test_sound_stores_of_every_kind_pass_an_audit_alive_and_exported(shown: World) -> None:
    with shown.runtime() as runtime:
        create_export(runtime)
        for export in (None, "latest"):
            record = audit(runtime, export=export)
            assert record.verdict is AuditVerdict.RIGHT
            assert {store.store for store in record.stores} == set(every_store().stores)
            assert all(store.equal for store in record.stores)


@pytest.mark.thorough
def test_an_application_that_begins_again_does_the_same_again(world: World) -> None:
    before, out = world.rows(), said(world)
    with world.runtime() as runtime:
        reset(runtime, ResetTo(earliest=True))
    assert not list(StateLayout(world.state_dir, "app").tasks())
    world.run()
    assert world.rows() == before
    assert said(world) == sorted(2 * out)


# One store of each class; the second tier has all of them.
_OF_EACH_CLASS = {"mere", "panes", "visits", "times", "ends", "fives"}


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(store, marks=[] if store in _OF_EACH_CLASS else pytest.mark.thorough)
        for store in every_store().stores
    ],
)
def test_the_command_line_counts_and_lists_the_rows_of_every_store(
    shown: World, store: str
) -> None:
    state = ("--state-dir", str(shown.state_dir), "--application-id", "app")
    counted, listed = (
        CliRunner().invoke(cli, ["stores", what, store, *state, *more, "--json"])
        for what, more in (("count", ()), ("range", ("--limit", "100000")))
    )
    assert (counted.exit_code, listed.exit_code) == (0, 0)
    count = json.loads(counted.output)["count"]
    assert count == len(listed.output.splitlines()) > 0
    rows = rows_of({"state_dir": str(shown.state_dir), "application_id": "app", "store": store})
    assert count <= len(rows)
