"""Moves over RocksDB and two brokers in memory: killed anywhere, refused, what is there at last.

Shows I45.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import statestore as ss
from statestore import faults
from statestore.errors import Misuse, StateStoreError, Unavailable
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import Record
from statestore.operations.clone_record import as_deployed
from statestore.operations.deployed import read_deployed
from statestore.operations.exports.create import create_export_for_clones, create_export_to_move
from statestore.operations.exports.lost_stores import restore_lost
from statestore.operations.move_record import MoveRecord, publish_move, read_move
from statestore.operations.moves.move import Mirrored, MoveReport, move_here
from statestore.ports import GroupOffset, TopicSpec
from statestore.runtime import Runtime
from statestore.runtime.databases import RocksDatabases
from statestore.targets import FsspecTarget
from statestore.tasks.commit import CommitStamp, partition_times_in, topic_digest
from statestore.testing.memory_broker import MemoryBroker
from tests.contract.export_rig import COPIES, LATEST_STORE, ExportRig, keeping
from tests.contract.task_rig import APPLICATION
from tests.relocation_rig import Died, dying_at, in_memory_folder

SOURCE = "source."
IN = TopicPartition("in", 0)
MIRROR = TopicPartition(f"{SOURCE}in", 0)
LOGS = [f"{APPLICATION}-{store}-changelog" for store in ("latest", "copies")]
VISITS = 11


class Keep:
    """Keeps the last value of each key, twice."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._stores = [context.store(spec.name) for spec in (LATEST_STORE, COPIES)]

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        for store in self._stores:
            if record.value:
                store.put(record.key, record.value)
            else:
                store.discard(record.key)


def keeping_on_disk(topic: str = "in") -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.stream(topic).process(Keep, LATEST_STORE, COPIES, name="keep")
    return builder.build()


@dataclass
class Move:
    """The old place, and a broker at the new one, whose mirror of `in` begins two offsets later."""

    old: ExportRig
    broker: MemoryBroker = field(default_factory=MemoryBroker)

    def __post_init__(self) -> None:
        self.broker.cluster(APPLICATION).create([TopicSpec(MIRROR.topic, 1, {})])
        for _ in range(2):
            self.broker.produce(MIRROR, Record(b"before", b"x", 0))
        self.broker.state.log(MIRROR).delete_before(2)

    @property
    def layout(self) -> StateLayout:
        return StateLayout(self.old.root / "new", APPLICATION)

    def runtime(self, **fields: Any) -> Runtime:
        settings = replace(
            self.old.runtime.settings, state_dir=str(self.layout.state_dir), **fields
        ).to_mapping()
        return Runtime(
            settings,
            clock=self.old.tasks.clock,
            brokers=self.broker.clients,
            open_target=FsspecTarget,
        )

    def export(self) -> None:
        create_export_to_move(self.old.runtime, self.old.tasks.topology)

    def mirror(self) -> None:
        """Copy what the mirror lacks."""
        lacks = self.old.tasks.broker.records("in")[len(self.broker.records(MIRROR.topic)) :]
        for record in lacks:
            self.broker.produce(MIRROR, record)

    def here(self, topology: ss.Topology | None = None, **how: Any) -> MoveReport:
        mirrored = Mirrored(how.pop("prefix", SOURCE))
        topology = topology or keeping_on_disk(MIRROR.topic)
        return move_here(self.runtime(), topology, mirrored, **how)

    def check(self) -> None:
        """Stores, changelogs and group are those of the old place, where the mirror has them."""
        wanted = {f"k{n}".encode(): str(n).encode() for n in range(20) if n != 3}
        for name, topic in zip(("latest", "copies"), LOGS, strict=True):
            engine = RocksDatabases().read(self.layout.store_dir(TaskId(0, 0), name))
            assert dict(engine.table("data").scan()) == wanted
            rows = dict(engine.table("offsets").scan())
            engine.close()
            logged = self.broker.records(topic)
            assert {record.key: record.value for record in logged} == wanted
            assert len(logged) == len(wanted), "seeded once"
            log, at = rows_of(rows, b"o"), rows_of(rows, b"p")
            assert log == {topic: len(wanted)}
            assert at == {MIRROR.topic: 22}
        theirs = self.old.tasks.broker.cluster(APPLICATION).group_offsets([IN])[IN]
        own = self.broker.cluster(APPLICATION).group_offsets([MIRROR, IN])
        assert own == {MIRROR: GroupOffset(theirs.offset + 2, theirs.metadata)}
        assert read_move(self.layout) is None
        as_deployed(self.runtime(), keeping_on_disk(MIRROR.topic))
        said = read_deployed(self.layout)
        assert said.sub_topologies[0].source_topics == [MIRROR.topic]
        ids = self.broker.cluster(APPLICATION).topic_ids(LOGS)
        assert {store.changelog_id for store in said.stores.values()} == set(ids.values())


def rows_of(rows: dict[bytes, bytes], kind: bytes) -> dict[str, int]:
    found = {key[1:-5].decode(): value for key, value in rows.items() if key[:1] == kind}
    return {topic: int.from_bytes(value, "big") for topic, value in found.items()}


@pytest.fixture
def move() -> Iterator[Move]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder, keeps=keeping_on_disk)
        rig.send(*((f"k{n}", str(n)) for n in range(20)), ("k3", ""))
        rig.drain()
        yield Move(rig)


def test_the_stores_the_changelogs_and_the_group_are_at_the_new_place(move: Move) -> None:
    move.export()
    move.mirror()
    planned = move.here(dry_run=True)
    assert not move.layout.application_dir.exists()
    assert set(move.broker.state.topics) == {MIRROR.topic}
    report = move.here()
    assert report.applied
    assert report.inputs == planned.inputs
    (found,) = report.inputs
    assert (found.offset_there, found.offset) == (21, 23)
    assert report.topics == sorted(LOGS)
    move.check()
    with pytest.raises(Misuse, match="exists already"):
        move.here()
    move.check()


def test_what_a_commit_knows_of_an_input_is_of_its_mirror_afterwards(move: Move) -> None:
    groups = move.old.tasks.broker.state.groups
    known = CommitStamp(3, 7, partition_times={topic_digest("in"): 5})
    groups[APPLICATION, IN] = GroupOffset(groups[APPLICATION, IN].offset, known.text())
    move.export()
    move.mirror()
    move.here()
    found = move.broker.cluster(APPLICATION).group_offsets([MIRROR])
    assert partition_times_in(found) == {MIRROR: 5}
    assert CommitStamp.latest(found).number == 3


@pytest.mark.parametrize("visit", range(1, VISITS + 1))
def test_a_move_that_dies_anywhere_is_made_anew(move: Move, visit: int) -> None:
    move.export()
    move.mirror()
    faults.on_reach(dying_at(visit))
    try:
        with pytest.raises(Died):  # its traceback would hold the lock of the dead
            move.here()
    finally:
        faults.on_reach(None)
    finished = visit == VISITS
    if read_move(move.layout) is not None:
        with pytest.raises(Misuse, match="is being moved here, or a move died"):
            as_deployed(move.runtime(), keeping_on_disk(MIRROR.topic))
    if not finished:
        move.here()
    move.check()


def test_an_export_of_the_old_place_is_not_restored_at_the_new_one_by_a_start(
    move: Move, caplog: pytest.LogCaptureFixture
) -> None:
    move.export()
    move.mirror()
    move.here()
    move.layout.remove_task(TaskId(0, 0), "again")
    topology = keeping_on_disk(MIRROR.topic)
    read, _ = topology.topics()
    counts = topology.partition_counts(dict.fromkeys(read, 1))
    assert restore_lost(move.runtime(), topology, counts)
    assert "is of another history" in caplog.text or "had another" in caplog.text
    assert not move.layout.store_dir(TaskId(0, 0), "latest").exists()


REFUSED = {
    "a clone's export": "was not made for a move",
    "mirror behind": r"is not in source\.in-0",
    "other pipeline": "is of topology",
    "no prefix": "is of topology",
    "partitions": "as many partitions",
    "changelog": "exist already: is this the new cluster",
    "group": "has an offset of source",
    "folder": "exists already: an application moves into",
    "other move": "which was of another topology",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_moved_is_refused_and_nothing_is_made(move: Move, what: str) -> None:
    if what == "a clone's export":
        create_export_for_clones(move.old.runtime, move.old.tasks.topology)
    else:
        move.export()
    if what != "mirror behind":
        move.mirror()
    how: dict[str, Any] = {}
    cluster = move.broker.cluster(APPLICATION)
    match what:
        case "other pipeline":
            how["topology"] = keeping_on_disk("source.other")
            cluster.create([TopicSpec("source.other", 1, {})])
        case "no prefix":
            how["prefix"] = ""
        case "partitions":
            cluster.remove([MIRROR.topic], "nobody")
            cluster.create([TopicSpec(MIRROR.topic, 2, {})])
        case "changelog":
            cluster.create([TopicSpec(LOGS[0], 1, {})])
        case "group":
            outbox = move.broker.plain_outbox(APPLICATION)
            outbox.open()
            outbox.send_offsets({MIRROR: 3}, "")
        case "folder":
            move.layout.create(move.layout.store_dir(TaskId(0, 0), "latest"))
        case "other move":
            move.layout.create(move.layout.application_dir)
            record = MoveRecord("20260101T000000000Z-00000000", ["another-topic"])
            publish_move(move.layout, record)
    topics, before = set(move.broker.state.topics), _tree(move)
    with pytest.raises(StateStoreError, match=REFUSED[what]):
        move.here(**how)
    assert set(move.broker.state.topics) == topics
    if what != "other move":
        assert _tree(move) == before


def _tree(move: Move) -> list[str]:
    return sorted(str(path) for path in move.layout.state_dir.rglob("*"))


def test_what_stays_behind_is_not_exported_for_a_move(move: Move) -> None:
    rig = ExportRig(move.old.root / "memory", keeps=keeping)
    rig.send(("k", "1"))
    rig.drain()
    with pytest.raises(Misuse, match="store 'recent' of task 0_0 is in memory"):
        create_export_to_move(rig.runtime, rig.tasks.topology)
    assert rig.exports.ids() == []


def test_records_between_sub_topologies_are_processed_before_a_move(move: Move) -> None:
    def between() -> ss.Topology:
        builder = ss.StreamsBuilder()
        again = builder.stream("in").repartition("again")
        again.process(Keep, LATEST_STORE, COPIES, name="keep")
        return builder.build()

    rig = ExportRig(move.old.root / "between", keeps=between)
    rig.send(("k", "1"))
    rig.drain()
    with pytest.raises(Unavailable, match="again-repartition-0 has records that were not"):
        create_export_to_move(rig.runtime, rig.tasks.topology)
