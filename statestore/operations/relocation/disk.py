"""What relocation reads from the state directory, and the journal that it keeps there.

    <application id>/relocation.json     exists from before the first rename until all is done

The journal holds everything that the rest of the work needs, so that any later start can finish it,
whichever process began it (SEMANTICS R2). Nothing here renames anything.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from statestore.errors import HostFailure, StateStoreError, TopologyMismatch
from statestore.layout import documents, files, owners
from statestore.layout.documents import (
    ApplicationName,
    Count,
    FolderName,
    Number,
    Ordinal,
    TaskName,
    TimeMs,
    Topic,
)
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import Deployed
from statestore.operations.looking.at_rest import size_of
from statestore.operations.relocation.relocation_plan import (
    Copy,
    Disk,
    Move,
    RelocationPlan,
    SetAside,
)
from statestore.topology.graph import Topology
from statestore.topology.nodes import TopicName

VERSION = 1


class CheckpointEntry(msgspec.Struct, frozen=True):
    """The new `.checkpoint` entry of a changelog partition in a task; None: it is to have none."""

    task: TaskName
    topic: Topic
    partition: Ordinal
    offset: Number | None


class Aside(msgspec.Struct, frozen=True):
    """A copy on its way to quarantine, and the name that it gets there, which is chosen once."""

    what: SetAside
    folder: FolderName
    since_ms: TimeMs


class RelocationJournal(msgspec.Struct, frozen=True):
    """A relocation that has begun: all its moves, and what is deployed when it is done."""

    application_id: ApplicationName
    moves: list[Move]
    asides: list[Aside]
    entries: list[CheckpointEntry]
    deployed: Deployed
    version: Count = VERSION

    def tasks(self) -> list[TaskId]:
        """Every task folder that it touches, in order."""
        names = {name for move in self.moves for name in (move.source, move.target)}
        return sorted(map(TaskId.parse, names | {aside.what.task for aside in self.asides}))


def look(
    layout: StateLayout,
    is_empty: Callable[[Path], bool],
    *,
    locks: bool = True,
    sizes: bool = False,
) -> Disk:
    """The stores and tasks on disk; databases are opened only to tell which of two copies is empty.

    `locks`: whether file locks work there. `sizes`: also add up the bytes of every store, which
    looks at every file.
    """
    tasks = list(layout.tasks())
    places = [(task, store) for task in tasks for store in layout.stores(task)]
    by_partition: dict[tuple[str, int], int] = defaultdict(int)
    for task, store in places:
        by_partition[store, task.partition] += 1
    copies = []
    for task, store in places:
        path = layout.store_dir(task, store)
        several = by_partition[store, task.partition] > 1
        copies.append(
            Copy(
                store,
                task,
                empty=several and _judged_empty(layout, task, path, is_empty, locks=locks),
                size_bytes=size_of(path) if sizes else None,
                volume=_volume(path, follow=False),
                parent_volume=_volume(path.parent),
            )
        )
    volumes = {task: _volume(_nearest(layout.stores_dir(task))) for task in tasks}
    home = _volume(_nearest(layout.application_dir))
    return Disk(copies, frozenset(tasks), volumes, home)


def check_places(
    topology: Topology,
    layout: StateLayout,
    made: RelocationPlan,
    counts: Mapping[TopicName, int] | None,
) -> None:
    """TopologyMismatch names what is not a folder and should be, before anything is renamed."""
    tasks = list(layout.tasks())
    if counts is not None:
        tasks = [task for found in topology.tasks(counts).values() for task in found]
    needed = [layout.application_dir / "quarantine"] if made.set_aside else []
    places = {(TaskId.parse(move.target), move.store) for move in made.moves}
    for part in topology.sub_topologies:
        stores = [store for store in part.stores if topology.stores[store].persistent]
        places |= {(task, store) for task in tasks for store in stores if task[0] == part.ordinal}
    for task, store in sorted(places):
        folder = layout.stores_dir(task)
        needed += [layout.task_dir(task), folder, folder / store]
    for path in dict.fromkeys(needed):
        if os.path.lexists(path) and not path.is_dir():
            raise TopologyMismatch(
                f"{path} is not a folder, where a folder of the application has to be: move it "
                "away, then start again"
            )


def journal_file(layout: StateLayout) -> Path:
    """The file of the journal, which exists during a relocation."""
    return layout.application_dir / "relocation.json"


def read_journal(layout: StateLayout) -> RelocationJournal | None:
    """Read the journal of an unfinished relocation; HostFailure or FormatTooNew if that fails."""
    path = journal_file(layout)
    way_out = "remove it if you know where every store lies: the next start plans again"
    too_new = "finish the relocation with the statestore that began it"
    found = documents.read(
        path, RelocationJournal, way_out=way_out, version=VERSION, too_new=too_new
    )
    if found is None:
        return None
    if found.application_id != layout.application_id:
        raise HostFailure(
            f"{path} is of application {found.application_id}, not {layout.application_id}: the "
            "folder was copied while it was relocated: copy it again, or remove the file"
        )
    return found


def checkpoint_entries(
    layout: StateLayout,
    moves: Sequence[Move],
    set_aside: Sequence[SetAside],
    log_of: Callable[[str], str],
) -> Iterator[CheckpointEntry]:
    """The entries of the `.checkpoint` files after the relocation: each goes with its store."""
    read = {
        task: _checkpoint(layout, task)
        for task in {name for move in moves for name in (move.source, move.target)}
    }
    for gone in set_aside:
        partition = TaskId.parse(gone.task).partition
        yield CheckpointEntry(gone.task, log_of(gone.store), partition, None)
    for move in moves:
        topic = log_of(move.store)
        offset = read[move.source].get(TopicPartition(topic, move.partition))
        if move.source != move.target:
            yield CheckpointEntry(move.source, topic, move.partition, None)
        yield CheckpointEntry(move.target, topic, move.partition, offset)


def apply_entries(layout: StateLayout, task: str, entries: Sequence[CheckpointEntry]) -> bool:
    """Write the entries into a task's `.checkpoint`; whether that changed anything."""
    offsets = _checkpoint(layout, task)
    changed = dict(offsets)
    for entry in entries:
        tp = TopicPartition(entry.topic, entry.partition)
        changed.pop(tp, None)
        if entry.offset is not None:
            changed[tp] = entry.offset
    if changed == offsets:
        return False
    files.write_checkpoint(layout.task_dir(TaskId.parse(task)), changed)
    return True


def _judged_empty(
    layout: StateLayout, task: TaskId, path: Path, is_empty: Callable[[Path], bool], *, locks: bool
) -> bool:
    """Whether the store is empty; one that cannot be looked into may hold something."""
    if not any(found.is_file() for found in path.rglob("*")):
        return True
    lock = owners.at_rest(layout.task_dir(task), what=f"task {task}", wait_ms=0, locks=locks)
    with suppress(StateStoreError), lock:
        return is_empty(path)
    return False


def _checkpoint(layout: StateLayout, task: str) -> dict[TopicPartition, int]:
    """The entries of a file; one that cannot be read has none, as at a start (SEMANTICS S5)."""
    with suppress(HostFailure):
        return files.read_checkpoint(layout.task_dir(TaskId.parse(task)))
    return {}


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _volume(path: Path, *, follow: bool = True) -> int:
    try:
        return path.stat(follow_symlinks=follow).st_dev
    except OSError as error:
        raise HostFailure(f"cannot look at {path}: {error.strerror}; make it readable") from error
