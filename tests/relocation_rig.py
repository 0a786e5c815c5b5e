"""Topologies and state for relocation tests, written as text: `A B | C` is two sub-topologies.

Stores are folders with one file that says whose rows they hold: relocation must not care what is in
them. `.checkpoint` and `.position` say so too.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

import statestore as ss
from statestore.errors import HostFailure, Locked, Misuse, TopologyMismatch
from statestore.faults import CrashPoint
from statestore.layout import files
from statestore.layout.folders import StateLayout
from statestore.layout.owners import Owner
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import describe_deployment, publish_deployed
from statestore.operations.relocation.apply import Relocation
from statestore.runtime import Runtime
from statestore.testing.memory_broker import MemoryCluster
from statestore.testing.memory_log import BrokerState
from statestore.topology.processors.user_processors import ProcessorContext
from tests.builders import ManualClock

APPLICATION = "shop"


_OWNER = Owner(
    epoch=1, host="here", boot_id="this", pid=1, since_ms=0, started_ticks=0, released=True
)


@contextmanager
def in_memory_folder() -> Iterator[Path]:
    """A folder that costs nothing to sync, where there are such: what is tested is order."""
    where = Path("/dev/shm")
    with TemporaryDirectory(dir=where if where.is_dir() else None) as folder:
        yield Path(folder)


class Idle:
    def __init__(self, _context: ProcessorContext) -> None:
        pass

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        pass


def topology_of(text: str) -> ss.Topology:
    """Sub-topologies between bars, each with its stores; one in small letters is in memory."""
    builder = ss.StreamsBuilder()
    for number, part in enumerate(text.split("|")):
        names = part.split()
        specs = [
            ss.in_memory_key_value_store(name)
            if name.islower()
            else ss.persistent_key_value_store(name)
            for name in names
        ]
        topic = f"in-{number}-{'-'.join(names)}"
        builder.stream(topic).process(Idle, *specs, name=f"n{number}")
    return builder.build()


def places_of(text: str) -> dict[str, int]:
    """Store to sub-topology."""
    return {name: i for i, part in enumerate(text.split("|")) for name in part.split()}


class SettlingCluster(MemoryCluster):
    """An empty cluster that tells which transactional ids it was asked to end."""

    def __init__(self, settle: Callable[[Sequence[str]], object]) -> None:
        super().__init__(BrokerState(), APPLICATION)
        self._settle = settle

    def abort_open_transactions(self, transactional_ids: Sequence[str]) -> None:
        self._settle(transactional_ids)


@dataclass
class Rig:
    """The state dir of one application, and what was asked of the broker."""

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    settled: list[str] = field(default_factory=list)

    @property
    def layout(self) -> StateLayout:
        return StateLayout(self.folder / "state", APPLICATION)

    def deploy(self, text: str, partitions: int = 2) -> "Rig":
        """State as a run of this topology leaves it, closed cleanly."""
        topology = topology_of(text)
        self.layout.create(self.layout.application_dir)
        for name, ordinal in places_of(text).items():
            if not name.islower():
                for partition in range(partitions):
                    self.put(name, TaskId(ordinal, partition))
        counts = {t: partitions for p in topology.sub_topologies for t in p.source_topics}
        said = describe_deployment(topology, ProcessingGuarantee.EXACTLY_ONCE, counts)
        publish_deployed(self.layout, said)
        return self

    def put(self, store: str, task: TaskId, rows: str | None = None) -> Path:
        """A store with its entries beside it, in a folder that was claimed and released."""
        path = self.layout.store_dir(task, store)
        path.mkdir(parents=True)
        owner = self.layout.task_dir(task) / "owner.json"
        owner.write_bytes(msgspec.json.encode(_OWNER))
        if rows != "":
            (path / "rows").write_text(rows or f"{store}-{task.partition}", encoding="utf-8")
        entries = files.read_checkpoint(self.layout.task_dir(task))
        entries[changelog(store, task.partition)] = 100 + ord(store[0])
        files.write_checkpoint(self.layout.task_dir(task), entries)
        beside, _ = self.layout.position_files(task, store)
        beside.write_text(f"0\n1\nin {task.partition} {ord(store[0])}\n", encoding="utf-8")
        return path

    def relocation(self, text: str, **fields: Any) -> Relocation:
        """The operation that deploys `text` over what is there.

        `settle` is called with the transactional ids to end; None: no broker may be asked.
        """
        settle = fields.pop("settle", self.settled.extend)
        settings = {
            "application.id": APPLICATION,
            "state.dir": str(self.layout.state_dir),
            "processing.guarantee": "exactly_once",
            "statestore.lock.wait.ms": 0,
            **fields.pop("settings", {}),
        }
        cluster = None if settle is None else SettlingCluster(settle)
        runtime = Runtime(settings, clock=self.clock)
        return Relocation(runtime, topology_of(text), cluster=cluster, **fields)

    def stores(self) -> dict[str, str]:
        """Place to rows of every store: `0_1/A` to `A-1`."""
        return {
            f"{task}/{store}": self._rows(self.layout.store_dir(task, store))
            for task in self.layout.tasks()
            for store in self.layout.stores(task)
        }

    def entries(self) -> dict[str, dict[TopicPartition, int]]:
        """Task to what its `.checkpoint` says, where it says anything."""
        found = {
            str(task): files.read_checkpoint(self.layout.task_dir(task))
            for task in self.layout.tasks()
        }
        return {task: said for task, said in found.items() if said}

    def quarantined(self) -> dict[str, str]:
        """Reason and store to rows, of what was set aside."""
        return {
            f"{record.store}-{record.partition} {record.reason}": self._rows(path)
            for path, record in self.layout.quarantined()
        }

    def deployed_fingerprint(self) -> str:
        said: dict[str, str] = json.loads(self.layout.topology_file.read_text(encoding="utf-8"))
        return said["fingerprint"]

    def tree(self) -> dict[str, str]:
        """Every file but locks and owners, which tell of who came, not of where things are."""
        root = self.layout.application_dir
        return {
            str(path.relative_to(root)): path.read_text(encoding="utf-8")
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.name not in {".lock", "owner.json"}
        }

    def _rows(self, path: Path) -> str:
        file = path / "rows"
        return file.read_text(encoding="utf-8") if file.exists() else ""


def changelog(store: str, partition: int) -> TopicPartition:
    return TopicPartition(f"{APPLICATION}-{store}-changelog", partition)


def expected_stores(text: str, partitions: int = 2) -> dict[str, str]:
    """What `Rig.stores` says when all is in place."""
    return {
        f"{ordinal}_{p}/{name}": f"{name}-{p}"
        for name, ordinal in places_of(text).items()
        if not name.islower()
        for p in range(partitions)
    }


def expected_entries(text: str, partitions: int = 2) -> dict[str, dict[TopicPartition, int]]:
    """What `Rig.entries` says when all is in place."""
    found: dict[str, dict[TopicPartition, int]] = {}
    for name, ordinal in places_of(text).items():
        for p in range(partitions):
            found.setdefault(f"{ordinal}_{p}", {})[changelog(name, p)] = 100 + ord(name[0])
    return found


class Died(BaseException):
    """A death at a crash point, as far as one process can act it: nothing catches it."""


def dying_at(visit: int) -> Callable[[CrashPoint], None]:
    """For faults.on_reach: the nth visit of any point is the last."""
    left = iter(range(visit - 1, -1, -1))

    def reached(point: CrashPoint) -> None:
        if next(left, -1) == 0:
            raise Died(point)

    return reached


def tasks_of(text: str, partitions: int = 2) -> Iterator[str]:
    """The tasks of a topology, in order."""
    for ordinal in range(len(text.split("|"))):
        for partition in range(partitions):
            yield f"{ordinal}_{partition}"


def refused(rig: Rig, text: str, **fields: object) -> str:
    """The message of a refusal that changed nothing."""
    before = rig.tree()
    with pytest.raises((TopologyMismatch, Misuse, HostFailure, Locked)) as caught:
        rig.relocation(text, **fields).apply()
    assert rig.tree() == before
    return str(caught.value)
