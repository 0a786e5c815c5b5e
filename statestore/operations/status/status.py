"""Tells an operator: am I behind, is my data right, how long until I am back?

The answers come from files and brokers. No lock is taken, no snapshot requested and no group
joined, so a run in progress notices nothing. There is always an answer: whatever a broker does not
say, or a file that cannot be read would have said, is None, the reason is among the problems, and
everything else is told. Estimates are called estimates: the time left goes by the rates of each
task's last run.

Keeps I21.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

import msgspec

from statestore.errors import StateStoreError
from statestore.layout import owners
from statestore.layout.activity_files import ActivityNote
from statestore.layout.audits import LIVE, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.layout.global_versions import GlobalVersion, GlobalVersions
from statestore.layout.owners import Owner
from statestore.model.ids import TaskId
from statestore.operations.activities import (
    ActivityStatus,
    activities_in,
    activities_of,
    restores_of,
)
from statestore.operations.deployed import Deployed, describe_deployment, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.manifest import made_after
from statestore.operations.pipelines import load_pipeline
from statestore.operations.relocation.disk import read_journal
from statestore.operations.start.matching import OwnTopics
from statestore.operations.status.lags import (
    Facts,
    InputLag,
    ask,
    changed_counts,
    to_restore,
    total_of,
    totals_of,
    worst_of,
)
from statestore.operations.status.left_out_sums import (
    LeftOutStatus,
    last_run,
    of_all_runs,
    of_last_run,
)
from statestore.operations.unfinished import repartition_begun
from statestore.tasks.progress_file import TaskProgress, read_progress

T = TypeVar("T")
_SILENT_MS = 60_000
"""An owner on another host that has written nothing for this long counts as silent."""


class State(StrEnum):
    """What a stream task, or the application, is doing."""

    NEW = "new"  # nobody ever claimed it
    RESTORING = "restoring"  # it is claimed and not processing yet
    RUNNING = "running"
    STOPPED = "stopped"  # its last owner released it
    CRASHED = "crashed"  # its last owner is dead and did not release it
    SILENT = "silent"  # its owner is on another host and has written nothing for long
    UNKNOWN = "unknown"  # the file that names its owner cannot be read


class TaskStatus(msgspec.Struct, frozen=True):
    """One stream task; None where something is not known or does not apply.

    `lag_records` counts offsets, so the lag is at most that many records. `lag_seconds` is event
    time, from the last processed record to the newest one. `held_records` were read and wait in
    operators for later input, as of the last commit; `held` says how many in which store, and is
    None if an older version wrote the note. `last_run` and `all_runs`: what the commits of the run
    that goes on or was last have counted, and those of all runs; None: no run has counted yet.
    Rates are records per second.
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
    held_records: int | None = None
    held: dict[str, int] | None = None
    last_run: LeftOutStatus | None = None
    all_runs: LeftOutStatus | None = None


class GlobalTableStatus(msgspec.Struct, frozen=True):
    """A global table: how old its rows are, and how many offsets its topic has since.

    None: not known, or no run has read the topic yet. A lookup has a `file` and no topic.
    """

    store: str
    topic: str | None
    lag_records: int | None = None
    refreshed_age_seconds: float | None = None
    file: str | None = None


class AuditStatus(msgspec.Struct, frozen=True):
    """What the last audit said, of the live stores or of an export."""

    verdict: AuditVerdict
    time_ms: int
    age_seconds: float
    source: str
    link: str | None


class ExportStatus(msgspec.Struct, frozen=True):
    """The newest export at the target; `export_id` None: there is none, or it is not known.

    `problem`: why it is not known, or cannot be used. `interval_seconds`: how old it may be before
    a run makes another one; None: runs make none.
    """

    target: str
    export_id: str | None = None
    age_seconds: float | None = None
    problem: str | None = None
    interval_seconds: float | None = None


class Status(msgspec.Struct, frozen=True):
    """An application: lags and ages of its worst stream task, records of all of them.

    A sum or a worst value is None if a part of it is not known, except that the last commit is that
    of the worst task that ever had one. `broker`: why it could not be asked; None if it answered.
    `broker_refuses`: that is a mistake in the settings, which another look would meet again.
    `relocation`: what is pending. `catch_up_seconds`: with the slots of the last run.
    `restore_seconds`: of the slowest task. `problems`: what could not be read, and why, or
    has to be done before a start.
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
    problems: list[str] = []
    held_records: int | None = None
    held: dict[str, int] | None = None
    """How many of these records wait in which store; None if one stream task does not say."""
    last_start_age_seconds: float | None = None
    """Since a process last claimed the application, to run it or to move its state."""
    global_tables: list[GlobalTableStatus] = []
    works: list[ActivityStatus] = []
    """What takes long and goes on now, or ended without a word."""
    last_run: LeftOutStatus | None = None
    """What the run that goes on or was last has counted; None: no run has counted yet."""
    all_runs: LeftOutStatus | None = None
    broker_refuses: bool = False


class _Problems(list[str]):
    """What could not be told, and why."""

    def told(self, ask: Callable[[], T], otherwise: T) -> T:
        """The answer; if there is none, keep the reason and return `otherwise`."""
        try:
            return ask()
        except StateStoreError as error:
            self.append(str(error))
        except OSError as error:
            self.append(f"cannot read {error.filename}: {error.strerror}")
        return otherwise


def read_status(environment: Environment, *, pipeline: str | None = None) -> Status:
    """How the application is now.

    `pipeline`: what is to run, as module:function; it is used if it can be imported.
    """
    return StatusReader(environment, pipeline=pipeline).now()


class StatusReader:
    """Tells the status of one application, again and again, over one connection.

    Brokers are asked only if `bootstrap.servers` is set, and the newest export is looked for only
    if `statestore.export.target` is.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        wanted: Deployed | None = None,
        pipeline: str | None = None,
    ) -> None:
        """`wanted`: what the pipeline says; or `pipeline`: its name, as module:function.

        It tells the inputs before the first run, and the stores that are to move.
        """
        settings = environment.settings
        settings.require("application.id", "state.dir")
        self._unknown: list[str] = []
        self._settings = settings
        self._layout = environment.layout
        self._clock = environment.clock
        self._activities = activities_in(environment)
        self._client = environment.monitoring_client if settings.bootstrap_servers else None
        self._wanted = wanted if pipeline is None else self._deployed(pipeline)
        self._exports = self._exports_of(environment) if settings.export_target else None

    def now(self) -> Status:
        """How the application is now; one that nobody ever ran has a status, too."""
        layout, problems, now_ms = self._layout, _Problems(self._unknown), self._clock.now_ms()
        known = problems.told(lambda: read_deployed(layout), Deployed())
        shape = known if known.sub_topologies else (self._wanted or known)
        facts = Facts("no bootstrap.servers: pass --bootstrap-servers to learn of the lag")
        if self._client is not None:
            nothing_else = OwnTopics(layout.application_id)
            own = problems.told(lambda: OwnTopics.of(layout, self._settings), nothing_else)
            facts = ask(self._client, shape, own)
            problems += changed_counts(facts, shape)
        if repartition_begun(layout):
            problems.append(
                "a change of the partition count was begun and not finished: a start is refused "
                "until `statestore repartition` is repeated"
            )
        expected = {*facts.tasks, *(shape.tasks() or ())}
        there: list[TaskId] = []
        names = sorted({*problems.told(lambda: list(layout.tasks()), there), *expected})
        progress = {task: read_progress(layout.task_dir(task)) for task in names}
        sums = {task: progress[task].sums.settled(facts.tally(task)) for task in names}
        run = problems.told(lambda: last_run(layout), "")
        seen = self._activities.seen()
        restores = restores_of(seen)
        tasks = []
        for task in names:
            told = self._task(task, progress[task], shape, facts, now_ms, problems)
            told = msgspec.structs.replace(
                told,
                last_run=of_last_run({task: sums[task]}, run),
                all_runs=of_all_runs({task: sums[task]}),
            )
            tasks.append(_restoring(told, restores.get(told.stream_task)))
        # A folder left by a former topology has no inputs. What it says of itself is told.
        counted = [task for task, name in zip(tasks, names, strict=True) if name in expected]
        counted = counted if expected else tasks
        owner = problems.told(lambda: owners.read_owner(layout.application_dir), None)
        ages = [task.last_commit_age_seconds for task in counted]
        return Status(
            application_id=layout.application_id,
            state=_overall(owner, tasks, now_ms),
            at_ms=now_ms,
            owner=None if owner is None else owner.describe(),
            broker=facts.problem,
            broker_refuses=facts.is_refusal,
            stream_tasks=tasks,
            lag_records=total_of(task.lag_records for task in counted),
            lag_seconds=worst_of(task.lag_seconds for task in counted),
            last_commit_age_seconds=worst_of(age for age in ages if age is not None),
            catch_up_seconds=_together(
                [task.catch_up_seconds for task in counted],
                max((noted.slots for noted in progress.values()), default=1),
            ),
            restore_seconds=worst_of(task.restore_seconds for task in counted),
            audit=problems.told(lambda: self._audit(now_ms), None),
            export=self._export(now_ms),
            relocation=problems.told(lambda: _relocation(layout, known, self._wanted), None),
            free_bytes=problems.told(lambda: _free_bytes(layout), None),
            problems=list(dict.fromkeys(problems)),
            held_records=total_of(task.held_records for task in counted),
            held=totals_of(task.held for task in counted),
            last_start_age_seconds=None if owner is None else _age_s(owner.since_ms, now_ms),
            global_tables=self._global_tables(shape, facts, now_ms, problems),
            works=activities_of(seen, layout, _running(tasks, progress), now_ms),
            last_run=of_last_run(sums, run),
            all_runs=of_all_runs(sums),
        )

    def _global_tables(
        self, shape: Deployed, facts: Facts, now_ms: int, problems: _Problems
    ) -> list[GlobalTableStatus]:
        versions = GlobalVersions(self._layout)
        current = problems.told(versions.current, GlobalVersion())
        known, found = current.stores, []
        for store, shared in sorted(shape.global_stores.items()):
            if shared.topic is None:
                file = current.files.get(store)
                age_s = None if file is None else _age_s(file.read_ms, now_ms)
                found.append(GlobalTableStatus(store, None, None, age_s, shared.file))
                continue
            content, topic = known.get(store), shared.topic
            logs = {tp.partition: log for tp, log in facts.logs.items() if tp.topic == topic}
            lag = age_s = None
            if content is not None and content.topic == topic:
                at = content.offsets
                if logs:
                    lag = sum(max(0, e - max(s, at.get(p, s))) for p, (s, e) in logs.items())
                if content.complete_ms is not None:
                    age_s = _age_s(content.complete_ms, now_ms)
            found.append(GlobalTableStatus(store, topic, lag, age_s))
        return found

    def _task(
        self,
        task: TaskId,
        noted: TaskProgress,
        shape: Deployed,
        facts: Facts,
        now_ms: int,
        problems: _Problems,
    ) -> TaskStatus:
        owner, state = None, State.UNKNOWN
        folder, before = self._layout.task_dir(task), len(problems)
        owner = problems.told(lambda: owners.read_owner(folder), None)
        if len(problems) == before:
            state = state_of(owner, noted, now_ms)
        lag, records = InputLag(), None
        if facts.problem is None:
            lag = facts.lag(task)
            records = 0
            if state is not State.RUNNING:
                records = problems.told(
                    lambda: to_restore(
                        self._layout, task, shape, facts, self._settings.flush_lag_max_records
                    ),
                    None,
                )
        process_rate = noted.process_rate
        restore_rate = noted.restore_rate or process_rate
        last_ms = noted.last_commit_ms
        return TaskStatus(
            stream_task=str(task),
            state=state,
            owner=None if owner is None else owner.describe(),
            lag_records=lag.records,
            lag_seconds=lag.seconds,
            last_commit_ms=last_ms,
            last_commit_age_seconds=None if last_ms is None else _age_s(last_ms, now_ms),
            process_rate=process_rate,
            restore_rate=restore_rate,
            catch_up_seconds=_left(lag.records, process_rate),
            restore_records=records,
            restore_seconds=_left(records, restore_rate),
            held_records=noted.held_records,
            held=noted.held,
        )

    def _audit(self, now_ms: int) -> AuditStatus | None:
        last = Audits(self._layout).last(LIVE)
        if last is None:
            return None
        age_s = max(0, now_ms - last.time_ms) / 1000
        return AuditStatus(last.verdict, last.time_ms, age_s, last.source, last.link)

    def _deployed(self, pipeline: str) -> Deployed | None:
        try:
            return describe_deployment(load_pipeline(pipeline), self._settings.processing_guarantee)
        except StateStoreError as error:
            self._unknown.append(f"{error}; this goes by what was deployed last")
            return None

    def _export(self, now_ms: int) -> ExportStatus | None:
        if self._exports is None:
            return None
        every_ms = self._settings.export_interval_ms
        status = ExportStatus(
            self._exports.target.url, interval_seconds=every_ms / 1000 if every_ms else None
        )
        try:
            ids = self._exports.ids()
        except StateStoreError as error:
            return msgspec.structs.replace(status, problem=str(error))
        if not ids:
            return status
        newest, problem = ids[-1], None
        try:
            self._exports.read(newest)
        except StateStoreError as error:
            problem = str(error)
        age_s = max(0, now_ms - made_after(newest)) / 1000
        return msgspec.structs.replace(status, export_id=newest, age_seconds=age_s, problem=problem)

    def _exports_of(self, environment: Environment) -> Exports | None:
        try:
            return Exports.of(environment)
        except StateStoreError as error:
            self._unknown.append(f"the last export is not known: {error}")
            return None


def state_of(owner: Owner | None, progress: TaskProgress, now_ms: int) -> State:
    """The state of a folder with that `owner.json` and that progress note of a stream task."""
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


def _restoring(task: TaskStatus, note: ActivityNote | None) -> TaskStatus:
    """What the restore of a stream task itself tells is newer than what its files do."""
    if note is None:
        return task
    return msgspec.structs.replace(
        task,
        restore_records=max(0, note.expected - note.done),
        restore_rate=note.rate,
        restore_seconds=note.seconds_left,
    )


def _running(
    tasks: Iterable[TaskStatus], progress: Mapping[TaskId, TaskProgress]
) -> list[TaskProgress]:
    running = {TaskId.parse(task.stream_task) for task in tasks if task.state is State.RUNNING}
    return [progress[task] for task in sorted(running)]


def _left(records: int | None, rate: float | None) -> float | None:
    if records == 0:
        return 0.0
    return records / rate if records and rate else None


def _overall(owner: Owner | None, tasks: Sequence[TaskStatus], now_ms: int) -> State:
    """The state of the driver, unless stream tasks are restoring or know better."""
    states = [task.state for task in tasks]
    for telling in (State.RESTORING, State.RUNNING, State.SILENT, State.UNKNOWN):
        if telling in states:
            return telling
    if owner is not None and not owner.released and not owner.provably_dead():
        # A driver writes no notes. If it is on another host, only its tasks could tell.
        return State.RUNNING if owner.is_here() else State.SILENT
    if State.CRASHED in states:
        return State.CRASHED
    return state_of(owner, TaskProgress(), now_ms)


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
    """The free space of the volume; full disks are the most common reason to stand still."""
    folder = layout.application_dir
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def _age_s(time_ms: int, now_ms: int) -> float:
    """The age in seconds, which is never negative, whatever the clocks say."""
    return max(0, now_ms - time_ms) / 1000


def _together(seconds: Sequence[float | None], slots: int) -> float | None:
    """How long tasks with that much work each take on so many slots; None: one is not known."""
    known = [each for each in seconds if each is not None]
    if not known or len(known) < len(seconds):
        return None
    return max(*known, sum(known) / slots) if len(known) > 1 else known[0]
