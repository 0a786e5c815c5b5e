"""A stream task over RocksDB on disk and a broker in memory: it runs, dies, and starts again.

A death is taken from what lies on disk at that moment: the next start works in a copy of the state
dir, as after a SIGKILL that came before anything in memory was flushed.
"""

import random
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from statestore.engines.rocks_files import link_store
from statestore.errors import StateStoreError
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import Record
from statestore.operations.start.topics import internal_topics
from statestore.ports import TopicSpec
from statestore.runtime import Runtime
from statestore.runtime.databases import open_built_in
from statestore.settings import Settings
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.specs import StoreSpec
from statestore.stores.transactional import TransactionalBase
from statestore.tasks.memory_share import MemoryShare
from statestore.tasks.plan import TaskEdges, TaskPlan
from statestore.tasks.task import StreamTask
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.graph import Topology
from statestore.topology.logs import logs
from tests.builders import ManualClock

APPLICATION = "shop"
TASK = TaskId(0, 0)


@dataclass
class TaskRig:
    """One task, 0_0, of a topology; `settings` go over what a test wants by default."""

    topology: Topology
    root: Path
    guarantee: str = "exactly_once"
    settings: Mapping[str, object] = field(default_factory=dict)
    accept_empty_changelog: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    slot: MemoryShare | None = None
    task_id: TaskId = TASK
    serving: str = ""
    lives: int = 0
    running: list[StreamTask] = field(default_factory=list)

    def __post_init__(self) -> None:
        read, written = self.topology.topics()
        counts = self.topology.partition_counts(dict.fromkeys(read | written, 1))
        specs = [TopicSpec(name, 1, {}) for name in sorted(read | written)]
        reused = logs(self.topology, self.known()).topics()
        specs += internal_topics(self.topology, counts, APPLICATION, reused)
        self.broker.cluster(APPLICATION).create(specs)

    @property
    def layout(self) -> StateLayout:
        """Of the present life."""
        return StateLayout(self.root / f"life-{self.lives}", APPLICATION)

    @property
    def folder(self) -> Path:
        return self.layout.task_dir(self.task_id)

    def store_dir(self, store: str) -> Path:
        return self.layout.store_dir(self.task_id, store)

    def known(self) -> Settings:
        return Settings.from_mapping(
            {
                "application.id": APPLICATION,
                "bootstrap.servers": "memory",
                "state.dir": str(self.layout.state_dir),
                "processing.guarantee": self.guarantee,
                "statestore.lock.wait.ms": 0,
                "commit.interval.ms": 1000,
                **self.settings,
            }
        )

    @property
    def runtime(self) -> Runtime:
        """Of the present life, over the broker in memory."""
        return Runtime(self.known(), clock=self.clock, brokers=self.broker.clients)

    def task(self) -> StreamTask:
        """Not started."""
        known, group = self.known(), APPLICATION
        part = self.topology.sub_topologies[self.task_id.sub_topology]
        inputs = tuple(TopicPartition(topic.full(group), 0) for topic in part.source_topics)
        plan = TaskPlan(
            self.task_id,
            part,
            self.topology.stores,
            inputs,
            ends=None,
            accept_empty_changelog=self.accept_empty_changelog,
            serving=self.serving,
        )
        edges = TaskEdges(
            self.broker.source(),
            self.broker.outbox(f"{group}-{self.task_id}", group)
            if known.exactly_once
            else self.broker.plain_outbox(group),
            self.broker.changelog(),
            self.broker.cluster(group),
            self.clock,
            self._open_store,
            link_store,
        )
        return StreamTask(plan, edges, known, self.layout, self.slot)

    def start(self) -> StreamTask:
        """A started task; `end` or `crash` it."""
        task = self.task()
        try:
            task.start()
        except BaseException:
            task.close()
            raise
        self.running.append(task)
        return task

    def send(self, topic: str, rows: Iterable[tuple[str, str | None]]) -> None:
        """Input records."""
        for key, value in rows:
            data = None if value is None else value.encode()
            record: Record[bytes | None, bytes | None] = Record(key.encode(), data, 0)
            self.broker.produce(TopicPartition(topic, 0), record)

    def crash(self) -> None:
        """All die: what is on disk now is what the next life finds."""
        before = self.layout.state_dir
        self.lives += 1
        for task in self.running:
            task.abandon()
        while before.is_dir():
            try:
                shutil.copytree(before, self.layout.state_dir, symlinks=True)
            except shutil.Error:  # RocksDB compacted files away meanwhile.
                shutil.rmtree(self.layout.state_dir)
            else:
                break
        for task in self.running:
            release(task)
        self.running.clear()

    def end(self) -> None:
        """A clean end."""
        for task in self.running:
            task.finish()
            task.close()
        self.running.clear()

    def perhaps_begin_anew(self, rng: random.Random, chances: int) -> None:
        """Die after some work, or end, or neither, of so many chances; then the next life begins.

        The task that was started last is the only one.
        """
        match rng.randrange(chances):
            case 0:
                self.running[0].step(0)
                self.crash()
                self.start()
            case 1:
                self.end()
                self.start()

    def changelog(self, store: str) -> dict[bytes, bytes]:
        """The changelog folded by itself."""
        rows: dict[bytes, bytes] = {}
        for record in self.broker.records(f"{APPLICATION}-{store}-changelog"):
            assert record.key is not None
            if record.value is None:
                rows.pop(record.key, None)
            else:
                rows[record.key] = record.value
        return rows

    def quarantine(self) -> list[str]:
        """The reasons of what is in quarantine."""
        return sorted(record.reason for _, record in self.layout.quarantined())

    def _open_store(self, spec: StoreSpec, path: Path) -> BuiltIn:
        known = self.known()
        level = known.effective_isolation_level
        return open_built_in(
            spec, path, known, self.clock, wal=False, level=level, task=str(self.task_id)
        )


def release(task: StreamTask) -> None:
    """Let go of files in this process that a dead one would not hold."""
    for opened in task._stores.opened.values():
        if isinstance(opened.store, TransactionalBase):
            try:
                opened.store.staged.close()
            except StateStoreError:
                continue


def rows_of(task: StreamTask, store: str) -> dict[bytes, bytes]:
    """What a built-in store of bytes holds, committed or not."""
    found = task.store(store)
    assert isinstance(found, TransactionalKeyValueStore)
    return dict(found.table.scan())
