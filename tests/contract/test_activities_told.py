"""Long activities tell how far they are while they go on, as files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.layout.activity_files import FOLDER, Activities, SeenActivity
from statestore.model.ids import TopicPartition
from statestore.operations.activities import activities_in
from statestore.operations.audits.perform import audit
from statestore.operations.exports.create import create_export
from statestore.operations.exports.restore_export import Restore
from statestore.operations.rewriting.migrate import migrate
from statestore.operations.rewriting.upgrade import upgrade_to_versioned
from statestore.operations.status.status import State, Status, read_status
from statestore.ports import Replayed
from statestore.testing.memory_broker import MemoryBroker, MemoryChangelog
from tests.builders import ManualClock
from tests.contract.export_rig import ExportRig
from tests.contract.migrated_worlds import World, as_aggregate
from tests.contract.task_rig import APPLICATION, TaskRig
from tests.relocation_rig import Rig, in_memory_folder


class Looking:
    """Looks at what the files tell, whenever something is done."""

    def __init__(self, activities: Activities, clock: ManualClock) -> None:
        self._activities = activities
        self._clock = clock
        self.expected = self.finished = 0
        self.seen: list[list[SeenActivity]] = []

    def expect(self, amount: int) -> None:
        self.expected += amount

    def done(self, amount: int) -> None:
        self.finished += amount
        self.seen.append(self._activities.seen())
        self._clock.advance(1000)

    def told(self) -> list[tuple[str, int, int]]:
        """What the last file said."""
        return [(seen.note.kind, seen.note.done, seen.note.expected) for seen in self.seen[-1]]


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        yield ExportRig(folder)


def filled(rig: ExportRig) -> ExportRig:
    rig.send(*((f"k{number}", "x" * 100) for number in range(100)))
    rig.drain()
    return rig


def looking(rig: ExportRig) -> Looking:
    return Looking(activities_in(rig.runtime), rig.tasks.clock)


def nothing_left(rig: ExportRig) -> bool:
    return not (rig.tasks.layout.application_dir / FOLDER).exists()


def test_an_export_and_a_restore_count_all_their_bytes(rig: ExportRig) -> None:
    filled(rig)
    one = looking(rig)
    report = create_export(rig.runtime, one)
    assert one.finished == one.expected == report.bytes_read
    ((kind, done, expected),) = one.told()
    assert (kind, expected <= one.expected) == ("export", True)
    assert 0 < done <= one.finished
    assert nothing_left(rig)

    rig.lose_volume()
    other = looking(rig)
    manifest = rig.exports.read(report.export_id)
    Restore(rig.runtime, manifest, rig.log, progress=other).apply()
    assert other.finished == other.expected >= report.bytes
    assert [kind for kind, _, _ in other.told()] == ["restore"]
    assert nothing_left(rig)


def test_an_audit_counts_all_offsets(rig: ExportRig) -> None:
    filled(rig)
    told = looking(rig)
    audit(rig.runtime, progress=told)
    assert told.finished == told.expected > 200, "two logs"
    assert [kind for kind, _, _ in told.told()] == ["audit"]
    assert nothing_left(rig)


def test_an_audit_does_not_count_what_its_logs_have_forgotten(rig: ExportRig) -> None:
    filled(rig)
    logs = [TopicPartition(f"{APPLICATION}-{name}-changelog", 0) for name in ("latest", "copies")]
    rig.tasks.broker.cluster(APPLICATION).delete_before(dict.fromkeys(logs, 60))
    told = looking(rig)
    audit(rig.runtime, progress=told)
    assert told.finished == told.expected < 120


def test_a_relocation_counts_stores() -> None:
    with in_memory_folder() as folder:
        rig = Rig(folder)
        told = Looking(Activities(rig.layout.application_dir, rig.clock), rig.clock)
        rig.deploy("A|B").relocation("B|A", progress=told).apply()
        assert told.finished == told.expected == 4
        ((kind, _, expected),) = told.told()
        assert (kind, expected) == ("relocation", 4)
        assert not (rig.layout.application_dir / FOLDER).exists()


def test_a_migration_and_an_upgrade_count_the_stores_of_stream_tasks(tmp_path: Path) -> None:
    world = World(tmp_path, as_aggregate)
    world.deploy(0)
    world.send(a=1, b=2)
    world.process()
    world.deploy(1)
    world.rig.end()
    runtime = world.rig.runtime
    migration = Looking(activities_in(runtime), world.rig.clock)
    migrate(runtime, world.make(1), dry_run=False, progress=migration)
    upgrade = Looking(activities_in(runtime), world.rig.clock)
    upgrade_to_versioned(runtime, "kept", 1, dry_run=False, progress=upgrade)
    for kind, told in {"migration": migration, "upgrade": upgrade}.items():
        assert told.finished == told.expected == 1
        assert [name for name, _, _ in told.told()] == [kind]
    assert not (world.rig.layout.application_dir / FOLDER).exists()


class SlowBroker(MemoryBroker):
    """Its changelogs come in halves, each of which takes two seconds once it is `slow`."""

    slow = False
    rig: TaskRig

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Status] = []

    def changelog(self) -> MemoryChangelog:
        return SlowChangelog(self) if self.slow else super().changelog()


class SlowChangelog(MemoryChangelog):
    def __init__(self, broker: SlowBroker) -> None:
        super().__init__(broker.state)
        self._broker = broker

    def replay(self, tp: TopicPartition, start: int, end: int) -> Iterator[Replayed]:
        middle = (start + end) // 2
        for begin, until in ((start, middle), (middle, end)):
            self._broker.rig.clock.advance(2000)
            yield from super().replay(tp, begin, until)
            self._broker.told.append(read_status(self._broker.rig.runtime))


def test_a_stream_task_tells_of_its_restore_and_status_shows_it(rig: ExportRig) -> None:
    tasks, broker = rig.tasks, SlowBroker()
    rig.tasks = TaskRig(
        tasks.topology, rig.root / "slow", settings=tasks.settings, clock=tasks.clock, broker=broker
    )
    broker.rig = rig.tasks
    rig.deploy()
    filled(rig)
    rig.lose_volume()
    rig.deploy()
    broker.slow = True
    rig.tasks.start()
    (work,), (task,) = broker.told[0].works, broker.told[0].stream_tasks
    assert (work.kind, work.unit, work.count) == ("restore", "offsets", 1)
    assert 0 < work.done < work.expected
    assert task.state is State.RESTORING
    assert task.restore_records == work.expected - work.done
    assert task.restore_seconds == work.seconds_left is not None
    assert read_status(rig.tasks.runtime).works == []
    rig.tasks.end()
    assert nothing_left(rig)
