"""The operator's three questions: am I behind, is my data right, how long until I am back?

Read from what lies there and what the broker says; no lock is taken, no snapshot asked for, no
group joined, so a run in progress notices nothing. Without a broker everything but the lag is told.
What is estimated is said to be: times left go by the rates of each stream task's last run.
"""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from statestore.errors import StateStoreError, Unavailable
from statestore.layout import files, owners
from statestore.layout.audits import LIVE, Audits, Verdict
from statestore.layout.folders import StateLayout
from statestore.layout.owners import Owner
from statestore.model import TaskId, TopicPartition
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.manifest import made_after
from statestore.operations.relocation.disk import read_journal
from statestore.ports import Bounds, Clock, InputFacts, Onlooker
from statestore.tasks.commit import CommitStamp
from statestore.tasks.progress import Progress, read_progress

_INTERNAL = "-repartition"
_SILENT_MS = 60_000
"""How long an owner on another host may write nothing before it counts as silent."""


class State(StrEnum):
    """What a stream task, or the application, is doing."""

    NEW = "new"  # nobody ever claimed it
    RESTORING = "restoring"  # claimed, and not processing yet
    RUNNING = "running"
    STOPPED = "stopped"  # its last owner released it
    CRASHED = "crashed"  # its last owner is dead and did not
    SILENT = "silent"  # its owner is on another host and says nothing


class TaskStatus(msgspec.Struct, frozen=True):
    """One stream task; None where it is not known or does not apply.

    `lag_records` counts offsets, so it is at most that; `lag_seconds` is event time: from what was
    processed last to the newest record. Rates are records a second.
    """

    stream_task: str
    state: State
    owner: str | None
    lag_records: int | None = None
    lag_seconds: float | None = None
    last_commit_ms: int | None = None
    last_commit_age_seconds: float | None = None
    process_rate: float | None = None
    restore_rate: float | None = None
    catch_up_seconds: float | None = None
    restore_records: int | None = None
    restore_seconds: float | None = None


class AuditStatus(msgspec.Struct, frozen=True):
    """What the last audit said, of the live stores or of an export."""

    verdict: Verdict
    time_ms: int
    age_seconds: float
    source: str
    link: str | None


class ExportStatus(msgspec.Struct, frozen=True):
    """The newest export at the target; `export_id` None: there is none, or `problem` says why."""

    target: str
    export_id: str | None = None
    age_seconds: float | None = None
    problem: str | None = None


class Status(msgspec.Struct, frozen=True):
    """An application, its stream tasks summed up: lags and ages of the worst, records of all.

    `broker`: why it could not be asked, None if it answered. `relocation`: what is pending.
    `catch_up_seconds`: with the slots of the last run; `restore_seconds`: of the slowest task.
    """

    application_id: str
    state: State
    at_ms: int
    owner: str | None
    broker: str | None
    stream_tasks: list[TaskStatus]
    lag_records: int | None
    lag_seconds: float | None
    last_commit_age_seconds: float | None
    catch_up_seconds: float | None
    restore_seconds: float | None
    audit: AuditStatus | None
    export: ExportStatus | None
    relocation: str | None
    free_bytes: int | None


class _Facts(NamedTuple):
    """What the broker said; all empty where it did not answer."""

    broker: str | None = None
    inputs: Mapping[TopicPartition, InputFacts] = {}
    changelogs: Mapping[TopicPartition, Bounds] = {}
    tasks: Mapping[TaskId, Sequence[TopicPartition]] = {}


@dataclass(frozen=True)
class Onlooking:
    """An application, and whom to ask about it.

    `onlooker` None: there is no broker to ask. `wanted`: what the pipeline says, where it is at
    hand: it tells of inputs before the first run, and of stores that are to move.
    `flush_lag_max_records`: bounds what a crash replays; negative: nothing does. `exports`: None if
    no target is set.
    """

    layout: StateLayout
    onlooker: Onlooker | None
    clock: Clock
    wanted: Deployed | None = None
    flush_lag_max_records: int = -1
    exports: Exports | None = None

    def now(self) -> Status:
        """How it is; an application nobody ever ran is one too."""
        layout = self.layout
        known = read_deployed(layout)
        shape = known if known.sub_topologies else (self.wanted or known)
        facts = _ask(self.onlooker, shape, layout.application_id)
        now_ms = self.clock.now_ms()
        names = sorted({*layout.tasks(), *facts.tasks, *(shape.tasks() or ())})
        progress = {task: read_progress(layout.task_dir(task)) for task in names}
        tasks = [self._task(task, progress[task], shape, facts, now_ms) for task in names]
        owner = owners.read_owner(layout.application_dir)
        return Status(
            application_id=layout.application_id,
            state=_overall(owner, tasks, now_ms),
            at_ms=now_ms,
            owner=None if owner is None else owner.describe(),
            broker=facts.broker,
            stream_tasks=tasks,
            lag_records=_sum([task.lag_records for task in tasks]),
            lag_seconds=_worst([task.lag_seconds for task in tasks]),
            last_commit_age_seconds=_least([task.last_commit_age_seconds for task in tasks]),
            catch_up_seconds=_together(
                [task.catch_up_seconds for task in tasks],
                max((noted.slots for noted in progress.values()), default=1),
            ),
            restore_seconds=_worst([task.restore_seconds for task in tasks]),
            audit=self._audit(now_ms),
            export=None if self.exports is None else _export(self.exports, now_ms),
            relocation=_relocation(layout, known, self.wanted),
            free_bytes=_free_bytes(layout),
        )

    def _task(
        self, task: TaskId, noted: Progress, shape: Deployed, facts: _Facts, now_ms: int
    ) -> TaskStatus:
        owner = owners.read_owner(self.layout.task_dir(task))
        state = state_of(owner, noted, now_ms)
        lag_records = lag_seconds = to_restore = None
        if facts.broker is None:
            lag_records, lag_seconds = _lag([facts.inputs[tp] for tp in facts.tasks.get(task, ())])
            to_restore = 0
            if state is not State.RUNNING:
                to_restore = self._to_restore(task, shape, facts.changelogs)
        process_rate = noted.process_rate
        restore_rate = noted.restore_rate or process_rate
        last_ms = noted.last_commit_ms
        return TaskStatus(
            stream_task=str(task),
            state=state,
            owner=None if owner is None else owner.describe(),
            lag_records=lag_records,
            lag_seconds=lag_seconds,
            last_commit_ms=last_ms,
            last_commit_age_seconds=None if last_ms is None else max(0, now_ms - last_ms) / 1000,
            process_rate=process_rate,
            restore_rate=restore_rate,
            catch_up_seconds=_left(lag_records, process_rate),
            restore_records=to_restore,
            restore_seconds=_left(to_restore, restore_rate),
        )

    def _audit(self, now_ms: int) -> AuditStatus | None:
        last = Audits(self.layout).last(LIVE)
        if last is None:
            return None
        age_s = max(0, now_ms - last.time_ms) / 1000
        return AuditStatus(last.verdict, last.time_ms, age_s, last.source, last.link)

    def _to_restore(
        self, task: TaskId, shape: Deployed, logs: Mapping[TopicPartition, Bounds]
    ) -> int:
        """How many records the next start replays, at most.

        A clean end says where its stores stand. After a crash they stand no further back than what
        was not flushed, which is bounded; a store without a folder begins at its log's start.
        """
        layout, flush_lag = self.layout, self.flush_lag_max_records
        there = set(layout.stores(task))
        checkpoint = files.read_checkpoint(layout.task_dir(task))
        total = 0
        for name, store in shape.stores.items():
            tp = TopicPartition(shape.log_of(layout.application_id, name), task.partition)
            if store.sub_topology != task.sub_topology or tp not in logs:
                continue
            start, end = logs[tp]
            if name in there and store.persistent:
                behind = end - max(start, checkpoint.get(tp, start))
                total += behind if flush_lag < 0 else min(behind, flush_lag)
            else:
                total += end - start
        return total


def state_of(owner: Owner | None, progress: Progress, now_ms: int) -> State:
    """The word for a folder with that `owner.json` and that note of a stream task."""
    if owner is None:
        return State.NEW
    if owner.released:
        return State.STOPPED
    if owner.provably_dead():
        return State.CRASHED
    heard_ms, state = owner.since_ms, State.RESTORING
    if progress.pid == owner.pid and progress.written_ms >= heard_ms:
        heard_ms, state = progress.written_ms, State.RUNNING
    if not owner.is_here() and heard_ms + _SILENT_MS < now_ms:
        return State.SILENT
    return state


def _ask(onlooker: Onlooker | None, shape: Deployed, application_id: str) -> _Facts:
    if onlooker is None:
        return _Facts("no bootstrap.servers: pass --bootstrap-servers to learn of the lag")
    sources = {topic for part in shape.sub_topologies for topic in part.source_topics}
    # A repartition topic is deployed without the application's id before it.
    internal = {
        topic: f"{application_id}-{topic}" for topic in sources if topic.endswith(_INTERNAL)
    }
    logs = [shape.log_of(application_id, name) for name in sorted(shape.stores)]
    try:
        counts = onlooker.partitions([*sorted(sources), *internal.values(), *logs])
        full = {topic: name for topic, name in internal.items() if name in counts}
        tasks: dict[TaskId, list[TopicPartition]] = defaultdict(list)
        for part in shape.sub_topologies:
            for topic in (full.get(topic, topic) for topic in part.source_topics):
                for p in range(counts.get(topic, 0)):
                    tasks[TaskId(part.ordinal, p)].append(TopicPartition(topic, p))
        inputs = onlooker.inputs([tp for tps in tasks.values() for tp in tps])
        there = [TopicPartition(name, p) for name in logs for p in range(counts.get(name, 0))]
        return _Facts(None, inputs, onlooker.bounds(there), tasks)
    except Unavailable as error:
        return _Facts(str(error))


def _lag(inputs: Sequence[InputFacts]) -> tuple[int, float]:
    """Records and seconds of event time between what was processed last and what there is."""
    behind = [one for one in inputs if one.next_ms is not None]
    records = sum(
        one.bounds.end - max(one.bounds.start, one.committed.offset if one.committed else 0)
        for one in behind
    )
    if not behind:
        return 0, 0.0
    stamp = CommitStamp.latest(
        {TopicPartition("", i): one.committed for i, one in enumerate(inputs) if one.committed}
    )
    since = [one.next_ms for one in behind if one.next_ms is not None]
    if stamp.stream_time_ms is not None:
        since.append(stamp.stream_time_ms)
    newest = max(one.newest_ms for one in behind if one.newest_ms is not None)
    return records, max(0, newest - min(since)) / 1000


def _left(records: int | None, rate: float | None) -> float | None:
    if records == 0:
        return 0.0
    return records / rate if records and rate else None


def _overall(owner: Owner | None, tasks: Sequence[TaskStatus], now_ms: int) -> State:
    """That of the driver, unless stream tasks are restoring or know better."""
    states = [task.state for task in tasks]
    for telling in (State.RESTORING, State.RUNNING, State.SILENT):
        if telling in states:
            return telling
    if owner is not None and not owner.released and not owner.provably_dead():
        # A driver writes no notes: of one on another host only its tasks could tell.
        return State.RUNNING if owner.is_here() else State.SILENT
    if State.CRASHED in states:
        return State.CRASHED
    return state_of(owner, Progress(), now_ms)


def _export(exports: Exports, now_ms: int) -> ExportStatus:
    target = exports.target.url
    try:
        ids = exports.ids()
    except StateStoreError as error:
        return ExportStatus(target, problem=str(error))
    if not ids:
        return ExportStatus(target)
    return ExportStatus(target, ids[-1], max(0, now_ms - made_after(ids[-1])) / 1000)


def _relocation(layout: StateLayout, known: Deployed, wanted: Deployed | None) -> str | None:
    """What the next start will move; None: nothing."""
    journal = read_journal(layout)
    if journal is not None:
        return f"begun and not finished, {len(journal.moves)} stores: the next start finishes it"
    shape = wanted or known
    places = {name: store.sub_topology for name, store in shape.stores.items() if store.persistent}
    misplaced = [
        f"{store}: in {task}, should be in {TaskId(places[store], task.partition)}"
        for task in layout.tasks()
        for store in layout.stores(task)
        if store in places and places[store] != task.sub_topology
    ]
    return "; ".join(misplaced) or None


def _free_bytes(layout: StateLayout) -> int | None:
    """What is left on the volume; full disks are the commonest way to stand still."""
    folder = layout.application_dir
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _worst(numbers: Sequence[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _least(numbers: Sequence[float | None]) -> float | None:
    return min((number for number in numbers if number is not None), default=None)


def _together(seconds: Sequence[float | None], slots: int) -> float | None:
    """How long tasks with that much work each take on so many slots; None: one is not known."""
    known = [each for each in seconds if each is not None]
    if not known or len(known) < len(seconds):
        return None
    return max(*known, sum(known) / slots) if len(known) > 1 else known[0]
