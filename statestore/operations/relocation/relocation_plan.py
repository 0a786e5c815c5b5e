"""Where a changed topology looks for its stores, and how they get there: values, and a pure plan.

A store's place is `<sub-topology>_<partition>/rocksdb/<store>`. A topology change moves the store
by giving its sub-topology another number (SEMANTICS R1, KAFKA-13627). Each place names the store it
is for, so two moves never have the same target, and swaps and cycles of sub-topologies need no
detour. Only a second copy of the same store can claim the same place. That is refused, unless the
caller says which copy is right, or all but one are empty (R3).

`plan_relocation` looks at nothing but its arguments; `disk` looks at the disk, `apply` acts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from statestore.errors import Misuse, TopologyMismatch
from statestore.layout.documents import Count, StoreName, TaskName, Text, Word
from statestore.model.ids import TaskId
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import Deployed
from statestore.serdes import composed
from statestore.stores.kinds.registry import kind_of
from statestore.stores.specs import ANY_START
from statestore.topology.graph import Topology

EMPTY = "empty"
OTHER_COPY = "other-copy"


@dataclass(frozen=True)
class Placement:
    """Where a topology looks for its persistent stores, by sub-topology, and its stores in memory.

    `windows`: of each window store, how long its windows are and how far apart they start, in ms.
    `apart`: the stores whose rows a partitioner of the user's puts into partitions.
    """

    fingerprint: str
    places: Mapping[str, int]
    in_memory: frozenset[str] = frozenset()
    windows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Copy:
    """A store's folder as found; `empty`: it holds no rows and no offset.

    `size_bytes` None: not counted. Volumes are distinguished by device numbers: that of the folder
    and that of the folder that contains it.
    """

    store: str
    task: TaskId
    empty: bool = False
    size_bytes: int | None = None
    volume: int = 0
    parent_volume: int = 0


@dataclass(frozen=True)
class Disk:
    """The state of an application: stores, tasks, and the volume of each task's folder.

    `volume`: that of a task folder that has yet to be made.
    """

    copies: Sequence[Copy] = ()
    tasks: frozenset[TaskId] = frozenset()
    volumes: Mapping[TaskId, int] = field(default_factory=dict)
    volume: int = 0


@dataclass(frozen=True)
class Choices:
    """What only a person can say: which copies are right, and which stores were renamed (old: new).

    A choice about what an earlier attempt has already done is not an error, so an attempt can be
    repeated.
    """

    keep: frozenset[TaskId] = frozenset()
    renames: Mapping[str, str] = field(default_factory=dict)


class Move(msgspec.Struct, frozen=True):
    """One rename: the store of `source` becomes `store` of `target`."""

    store: StoreName
    source: TaskName
    target: TaskName
    why: Text
    size_bytes: Count | None = None
    was: StoreName | None = None
    """The store's old name, if it was renamed."""

    @property
    def old_name(self) -> str:
        return self.was or self.store

    @property
    def partition(self) -> int:
        return TaskId.parse(self.target).partition


class SetAside(msgspec.Struct, frozen=True):
    """A copy that goes to quarantine, so that the right one is the only one."""

    store: StoreName
    task: TaskName
    reason: Word
    size_bytes: Count | None = None


class Stay(msgspec.Struct, frozen=True):
    """A store that the topology does not look for; it stays and is reported (SEMANTICS R3)."""

    store: str
    task: str
    why: str
    size_bytes: int | None = None


class RelocationPlan(msgspec.Struct, frozen=True):
    """What is to be done; `settle`: the tasks whose transactional ids may hold something open."""

    moves: list[Move] = []
    set_aside: list[SetAside] = []
    stays: list[Stay] = []
    settle: list[str] = []

    @property
    def touches_disk(self) -> bool:
        return bool(self.moves or self.set_aside)

    def misplaced(self) -> str:
        """Every store that lies elsewhere: where it is, and where it should be."""
        return "; ".join(f"{m.store}: in {m.source}, should be in {m.target}" for m in self.moves)


def placement(topology: Topology) -> Placement:
    """Where a topology looks for its stores."""
    where = {name: part.ordinal for part in topology.sub_topologies for name in part.stores}
    kept = {name: o for name, o in where.items() if topology.stores[name].persistent}
    in_memory = frozenset(where.keys() - kept.keys())
    terms = {name: kind_of(spec).terms(spec) for name, spec in topology.stores.items()}
    windows = {
        name: (told.window_ms, _distance_ms(told.advance_ms, told.window_ms))
        for name, told in terms.items()
        if told.window_ms is not None
    }
    apart = frozenset(topology.placed_apart())
    return Placement(topology.fingerprint(), kept, in_memory, windows, apart)


def plan_relocation(
    wanted: Placement,
    disk: Disk,
    previous: Deployed,
    log_of: Callable[[str], str],
    choices: Choices | None = None,
    *,
    guarantee: ProcessingGuarantee = ProcessingGuarantee.EXACTLY_ONCE,
) -> RelocationPlan:
    """Plan how every store of `wanted` gets to its place.

    TopologyMismatch lists what cannot be done. Stores are looked for by name and partition. Misuse
    if a choice makes no sense. `guarantee`: the processing guarantee under which the tasks are
    about to run.
    """
    choices = choices or Choices()
    _check_renames(wanted, disk, log_of, choices.renames)
    _check_windows(wanted, previous)
    _check_partitioners(wanted, previous, choices.renames)
    found: dict[tuple[str, int], list[Copy]] = defaultdict(list)
    stays = []
    for copy in sorted(disk.copies, key=lambda copy: (copy.store, copy.task)):
        name = choices.renames.get(copy.store, copy.store)
        if name in wanted.places:
            found[name, copy.task.partition].append(copy)
        else:
            why = "in memory now" if name in wanted.in_memory else "not in the topology"
            stays.append(Stay(copy.store, str(copy.task), why, copy.size_bytes))
    moves: list[Move] = []
    set_aside: list[SetAside] = []
    problems: list[str] = []
    for (name, partition), copies in sorted(found.items()):
        target = TaskId(wanted.places[name], partition)
        right = _right_one(copies, target, choices.keep)
        if right is None:
            problems.append(_ambiguous(name, partition, copies))
            continue
        for copy in copies:
            if copy is not right:
                reason = EMPTY if copy.empty else OTHER_COPY
                set_aside.append(SetAside(copy.store, str(copy.task), reason, copy.size_bytes))
        if (right.store, right.task) != (name, target):
            moves.append(_move(name, right, target))
            problems += _across_volumes(right, target, disk)
    if problems:
        raise TopologyMismatch("cannot relocate: " + "; ".join(problems))
    # A task that runs under exactly_once opens its own ids; under at_least_once nobody does.
    plain = guarantee is ProcessingGuarantee.AT_LEAST_ONCE
    settle = _to_settle(wanted, disk, previous, anything=bool(moves) or plain)
    return RelocationPlan(moves, set_aside, stays, settle)


def _right_one(copies: list[Copy], target: TaskId, keep: frozenset[TaskId]) -> Copy | None:
    """The copy that holds the store; None if two may hold it."""
    filled = [copy for copy in copies if not copy.empty]
    if len(filled) > 1:
        filled = [copy for copy in filled if copy.task in keep]
        return filled[0] if len(filled) == 1 else None
    if filled:
        return filled[0]
    # All are empty: take the one that is in its place, if there is one.
    return min(copies, key=lambda copy: (copy.task != target, copy.task))


def _ambiguous(name: str, partition: int, copies: list[Copy]) -> str:
    where = [f"{copy.task}/rocksdb/{copy.store}" for copy in copies if not copy.empty]
    flags = " or ".join(f"--keep {copy.task}" for copy in copies if not copy.empty)
    return (
        f"store {name}, partition {partition} lies in {len(where)} places, {', '.join(where)}: "
        f"say which is right with `statestore relocate {flags}`; the others go to quarantine"
    )


def _move(name: str, copy: Copy, target: TaskId) -> Move:
    renamed = copy.store != name
    why = f"sub-topology {target.sub_topology} has it now"
    if renamed:
        why = f"{copy.store} is now called {name}"
    return Move(
        name, str(copy.task), str(target), why, copy.size_bytes, copy.store if renamed else None
    )


def _across_volumes(copy: Copy, target: TaskId, disk: Disk) -> list[str]:
    there = disk.volumes.get(target, disk.volume)
    if copy.volume == copy.parent_volume == there:
        return []
    where = f"{copy.task}/rocksdb/{copy.store}"
    problem = (
        f"store {copy.store}: {where} and the folder of task {target} are on different volumes, so "
        "it cannot be renamed: bring the task folders onto one volume while the application is "
        "stopped"
    )
    return [problem]


def _check_renames(
    wanted: Placement,
    disk: Disk,
    log_of: Callable[[str], str],
    renames: Mapping[str, str],
) -> None:
    on_disk = {copy.store for copy in disk.copies}
    for old, new in renames.items():
        flag = f"--rename {old}={new}"
        if old not in on_disk and new not in on_disk:
            raise Misuse(f"{flag}: no store {old} on disk; there are: {_listed(on_disk)}")
        if old in wanted.places or old in wanted.in_memory:
            raise Misuse(f"{flag}: the topology still has a store {old}: it was not renamed")
        if new not in wanted.places:
            known = _listed(wanted.places)
            raise Misuse(f"{flag}: the topology has no persistent store {new}; it has: {known}")
        if log_of(old) != log_of(new):
            raise TopologyMismatch(
                f"{flag}: its log would change from {log_of(old)} to "
                f"{log_of(new)}, of which the offsets in the store know nothing: keep the "
                f"name {old} in the pipeline, or leave out --rename and let {new} start empty"
            )
        if sum(target == new for target in renames.values()) > 1:
            raise Misuse(f"{flag}: two stores cannot both become {new}")


def _check_windows(wanted: Placement, previous: Deployed) -> None:
    for name, now in wanted.windows.items():
        known = previous.stores.get(name)
        windowed = None if known is None else composed.of_windowed(known.key_serde)
        if known is None or windowed is None or windowed.size_ms is None:
            continue
        before = windowed.size_ms, _distance_ms(known.advance_ms, windowed.size_ms)
        if before != now:
            raise TopologyMismatch(
                f"store {name}: it and its changelog have windows of {_windows_text(*before)}, the "
                f"pipeline makes windows of {_windows_text(*now)}: give the store another name, so "
                "that it starts empty"
            )


def _check_partitioners(wanted: Placement, previous: Deployed, renames: Mapping[str, str]) -> None:
    now_called = {name: renames.get(name, name) for name in previous.stores}
    for old, name in now_called.items():
        before, now = previous.stores[old].placed_apart, name in wanted.apart
        if name in wanted.places.keys() | wanted.in_memory and before not in {None, now}:
            ways = "the hash of its key", "a partitioner of the pipeline's own"
            was, is_now = ways[::-1] if before else ways
            raise TopologyMismatch(
                f"store {name}: {was} put each of its rows into a partition, and from now on "
                f"{is_now} does, so a key would have rows in two partitions: take the partitioner "
                f"{'back' if before else 'out'}, or give the store and the topic before it other "
                "names, so that both start empty"
            )


def _distance_ms(advance_ms: int | None, size_ms: int) -> int:
    return size_ms if advance_ms is None else advance_ms


def _windows_text(size_ms: int, distance_ms: int) -> str:
    if distance_ms == ANY_START:
        return f"{size_ms} ms from any time"
    return f"{size_ms} ms" if distance_ms == size_ms else f"{size_ms} ms every {distance_ms} ms"


def _to_settle(wanted: Placement, disk: Disk, previous: Deployed, *, anything: bool) -> list[str]:
    """All tasks of the last deployment, if another one follows it (SEMANTICS R4, E4a).

    If the deployment does not say which tasks it had, every task with a folder counts: each made
    its folder when it started.
    """
    if previous.fingerprint == wanted.fingerprint and not anything:
        return []
    if previous.processing_guarantee is ProcessingGuarantee.AT_LEAST_ONCE:
        return []  # It opened no transaction.
    tasks = previous.tasks()
    return [str(task) for task in sorted(disk.tasks if tasks is None else tasks)]


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, names))) or "none"
