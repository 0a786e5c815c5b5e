"""What the processes of a schedule share: broker, volume, clock; how a stream task is made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from statestore import faults
from statestore.layout.folders import StateLayout
from statestore.model.ids import Position
from statestore.operations.running.run import PlannedTask
from statestore.ports import Outbox, TopicSpec
from statestore.runtime import Runtime
from statestore.runtime.databases import RocksDatabases
from statestore.settings import Settings
from statestore.stores import keyvalue, offsets
from statestore.stores.durability import LagLimits
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.transaction import StagedEngine
from statestore.tasks.plan import TaskEdges, TaskPlan
from statestore.tasks.task import StreamTask
from statestore.testing.memory_broker import MemoryBroker
from tests.simulation.pipeline import topology
from tests.simulation.volume import Volume
from tests.simulation.wires import (
    SimulatedBrokers,
    SimulatedChangelog,
    SimulatedCluster,
    SimulatedOutbox,
    SimulatedSource,
)
from tests.simulation.world import Fate, Odds, Process, SimulatedClock, Step

APPLICATION = "sim"
TOPOLOGY = topology()
_TOPICS = ("dead", "in", "passed", "sums", "counts", "seen")


class UnopenedDatabases(RocksDatabases):
    """Says nothing of a folder: what the simulated volume keeps there is no database."""

    def is_empty(self, path: Path) -> bool:
        return False

    def format_of(self, path: Path) -> offsets.Format | None:
        return None


class Stage:
    """The shared part of a schedule; its shape is drawn from `rng`."""

    def __init__(
        self,
        rng: Random,
        folder: Path,
        interrupt: Callable[[Process], None],
        *,
        exactly_once: bool,
    ) -> None:
        self.rng = rng
        self.partitions = rng.choice((1, 1, 2))
        self.broker = MemoryBroker()
        self.clock = SimulatedClock()
        self.fate = Fate(rng, _odds(rng), interrupt)
        self.volume = Volume(rng)
        self.settings = _settings(rng, folder, exactly_once=exactly_once)
        self.layout = StateLayout(folder, APPLICATION)
        self.findings: list[str] = []
        self.running: list[Process] = []
        self._processes = 0
        specs = [TopicSpec(name, self.partitions, {}) for name in _TOPICS]
        self.broker.cluster(APPLICATION).create(specs)

    def process(self, name: str) -> Process:
        """A new process, alive."""
        self._processes += 1
        return Process(name, self._processes, self.fate)

    @contextmanager
    def acting(self, process: Process) -> Iterator[None]:
        """Crash points reached meanwhile are visits of this process."""
        self.running.append(process)
        try:
            yield
        finally:
            self.running.pop()

    def reached(self, point: faults.CrashPoint) -> None:
        """A crash point."""
        if self.running:
            if point is faults.CrashPoint.CLAIM_OWNED:
                self.running[-1].tell(Step.CLAIMS)
            self.running[-1].visit(f"· {point}")

    def runtime(self, process: Process) -> Runtime:
        """What a driver in this process has."""
        return Runtime(
            self.settings,
            clock=self.clock,
            brokers=lambda settings: SimulatedBrokers(self.broker, settings, process),
            databases=UnopenedDatabases(),
        )

    def task(self, planned: PlannedTask, process: Process) -> StreamTask:
        """The stream task, not started."""
        part = TOPOLOGY.sub_topologies[planned.task_id.sub_topology]
        ends = planned.ends()
        bounded = ends if planned.bounded else None
        plan = TaskPlan(
            planned.task_id,
            part,
            TOPOLOGY.stores,
            tuple(ends),
            bounded,
            serving=planned.serving,
        )
        return StreamTask(plan, self._edges(planned, process), self.settings, self.layout)

    def _edges(self, planned: PlannedTask, process: Process) -> TaskEdges:
        def client() -> Outbox:
            if self.settings.exactly_once:
                return self.broker.outbox(f"{APPLICATION}-{planned.task}", APPLICATION)
            return self.broker.plain_outbox(APPLICATION)

        def open_store(spec: Any, path: Path) -> TransactionalKeyValueStore[Any, Any]:
            tables = (keyvalue.TABLE, offsets.TABLE)
            path.mkdir(parents=True, exist_ok=True)
            staged = _Told(
                process,
                self.volume.open(path, tables, process),
                kind=keyvalue.KIND,
                name=spec.name,
                where=str(path),
                tables=(keyvalue.TABLE,),
                limits=LagLimits(1 << 40, self.settings.flush_lag_max_records, 500),
                clock=self.clock,
            )
            level = self.settings.effective_isolation_level
            return TransactionalKeyValueStore(
                staged, spec, isolation_level=level, owned_by_task=True
            )

        def link_store(source: Path, target: Path, _owner_dead: bool) -> None:
            self.volume.link(source, target, process)

        return TaskEdges(
            SimulatedSource(self.broker.source(), process),
            SimulatedOutbox(client, process),
            SimulatedChangelog(self.broker, process),
            SimulatedCluster(self.broker.cluster(APPLICATION), process),
            self.clock,
            open_store,
            link_store,
        )


class _Told(StagedEngine):
    """It tells when it commits."""

    def __init__(self, process: Process, *arguments: Any, **by_name: Any) -> None:
        super().__init__(*arguments, **by_name)
        self._process = process
        self._restores = False

    def commit(self, *arguments: Any, **by_name: Any) -> None:
        super().commit(*arguments, **by_name)
        if self._process.offered and not self._restores:
            self._process.tell(Step.WRITES, self._process.offered)

    def caught_up(self, position: Position) -> None:
        self._restores = True
        super().caught_up(position)
        self._restores = False


def _odds(rng: Random) -> Odds:
    return Odds(
        unavailable=rng.choice((0, 0, 0.02, 0.08)),
        unanswered=rng.choice((0, 0.2, 0.6)),
        in_trouble=rng.choice((0, 0.1, 0.3)),
        nothing_yet=rng.choice((0, 0.3)),
        interrupted=rng.choice((0, 0.01, 0.05)),
    )


def _settings(rng: Random, folder: Path, *, exactly_once: bool) -> Settings:
    return Settings.from_mapping(
        {
            "application.id": APPLICATION,
            "bootstrap.servers": "memory",
            "state.dir": str(folder),
            "processing.guarantee": "exactly_once" if exactly_once else "at_least_once",
            "statestore.lock.wait.ms": 0,
            "deserialization.exception.handler": "dead_letter",
            "processing.exception.handler": "dead_letter",
            "errors.dead.letter.queue.topic.name": "dead",
            "commit.interval.ms": rng.choice((1, 50, 500)),
            "statestore.batch.max.records": rng.choice((1, 3, 10)),
            "statestore.flush.lag.max.records": rng.choice((1, 5, 100)),
            "statestore.uncommitted.max.records": rng.choice((-1, -1, 4)),
        }
    )
