"""One run of an application: checks, lock, internal topics, waves with their planned ends, summary.

The driver holds the application's lock from enter to exit. It plans only the offsets at which a
wave ends, just before the wave begins; every stream task finds its own start (SEMANTICS E3).
Nothing is written anywhere before all checks have passed.

Keeps I9.
"""

import logging
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import msgspec
from msgspec.structs import replace as replace_fields

from statestore.errors import (
    HostFailure,
    InvalidTopology,
    StateDirNotShared,
    TopicMissing,
    TopologyMismatch,
)
from statestore.layout import files
from statestore.layout.folders import StateLayout
from statestore.layout.owners import Claim
from statestore.layout.snapshots import TaskSnapshots
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.left_out import Fate, LeftOut, LeftOutSums, warning_of
from statestore.operations.deployed import read_deployed
from statestore.operations.environment import Environment
from statestore.operations.exports.lost_stores import restore_lost
from statestore.operations.relocation.apply import Relocation, RelocationReport
from statestore.operations.relocation.relocation_plan import RelocationPlan
from statestore.operations.start.changelogs import Accepted, StartingPoint, check_source_topics
from statestore.operations.start.first_offsets import commit_first_offsets
from statestore.operations.start.global_stores import GlobalTables, Refresher
from statestore.operations.start.matching import tell_of_matches
from statestore.operations.start.topics import (
    check_hashes,
    dead_letter_topics,
    internal_topics,
    largest_batches,
    missing_topics,
    written_topics,
)
from statestore.operations.unfinished import require_no_copies
from statestore.ports import Cluster, TopicSpec
from statestore.settings import Settings
from statestore.tasks.plan import TaskReport
from statestore.tasks.time_plan import TimePlan, TimePlans
from statestore.topology.graph import Topology, Wave
from statestore.topology.logs import log_of, logs
from statestore.topology.nodes import TopicName
from statestore.topology.sub_topologies import SubTopology

_log = logging.getLogger(__name__)
_NONCE_MAX = 4096


class PlannedTask(msgspec.Struct, frozen=True):
    """One stream task of a wave, as it travels to the worker that runs it.

    It carries no settings and no secret.
    """

    task: str
    inputs: list[tuple[str, int, int]]
    bounded: bool
    nonce: str
    batch_bytes: int | None = None
    """The largest batch that every topic which the task writes accepts; None: not known."""
    serving: str = ""
    """Names this serving of the task, as no other serving in any run is named; see `Tally`."""
    global_version: int | None = None
    """The version of the global tables that the task reads; None: it reads none."""
    matches: dict[str, list[str]] = {}
    """By source of its sub-topology that reads by a pattern, the topics that it reads."""
    times: TimePlan = TimePlan()

    @property
    def task_id(self) -> TaskId:
        return TaskId.parse(self.task)

    def settling(self, *, settled: bool) -> "PlannedTask":
        """Return the same task, told whether all there is lies before its planned ends."""
        return replace_fields(self, times=replace_fields(self.times, settled=settled))

    def ends(self) -> dict[TopicPartition, int]:
        """The input partitions, in the order of their declaration, and their planned ends."""
        return {TopicPartition(topic, p): end for topic, p, end in self.inputs}


@dataclass(frozen=True)
class RunRequest:
    """What a run is asked to do.

    `until_ms` None: to the ends of the logs. `run_for_ms` None: the run is bounded.
    """

    until_ms: int | None = None
    run_for_ms: int | None = None
    accept_new_topology: bool = False
    accept_empty_changelog: bool = False
    accept_forgotten_offsets: bool = False
    accept_new_serdes: bool = False


@dataclass
class RunSummary:
    """What a run did: the fields of its JSON line (INTERFACE).

    `dropped`, `dead_letters` and `unmatched`: the records that are in no result, by node and
    reason. Dead letters were dropped, too; the unmatched met no row in an inner join. `caught_up`:
    every input was processed up to its planned end. It is about inputs alone: `held_records` wait
    in operators until later input, and `held` says how many in which store.
    """

    application_id: str
    stream_tasks: int = 0
    records_in: int = 0
    records_out: int = 0
    dropped_records: int = 0
    commits: int = 0
    restored_records: int = 0
    restore_seconds: float = 0.0
    held_records: int = 0
    held: dict[str, int] = field(default_factory=dict)
    caught_up: bool = True
    lookups: list[dict[str, object]] = field(default_factory=list)
    """By lookup, what its file had: its tag on its file system, SHA-256 and number of rows."""
    lineage: dict[str, object] | None = None
    """Where data came from and went to: brokers, inputs, outputs, stores; None after a failure."""
    error: dict[str, object] | None = None
    dropped: list[LeftOut] = field(default_factory=list)
    dead_letter_records: int = 0
    dead_letters: list[LeftOut] = field(default_factory=list)
    unmatched_records: int = 0
    unmatched: list[LeftOut] = field(default_factory=list)
    _left_out: LeftOutSums = field(
        default_factory=LeftOutSums, init=False, repr=False, compare=False
    )
    _held: dict[str, dict[str, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _waits_for_time: dict[str, bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def add(self, reports: Sequence[TaskReport]) -> None:
        """Sum up the reports of a wave."""
        left_out = LeftOutSums()
        for report in reports:
            self.stream_tasks += 1
            self.records_in += report.records_in
            self.records_out += report.records_out
            left_out.add(report.stream_task, report.records_in, report.left_out)
            self.commits += report.commits
            self.restored_records += report.restored_records
            self.restore_seconds = max(self.restore_seconds, report.restore_seconds)
            self.caught_up = self.caught_up and report.caught_up
            # A cycle of sub-topologies serves its stream tasks several times.
            self._held[report.stream_task] = report.held
            self._waits_for_time[report.stream_task] = report.waits_for_time
        self.held = dict(sum(map(Counter, self._held.values()), Counter[str]()))
        self.held_records = sum(self.held.values())
        self.take_left_out(left_out)

    def waits_for_time(self, task: str) -> bool:
        """Return whether something would happen in a stream task if time were not held back."""
        return self._waits_for_time.get(task, True)

    def after(self, earlier: "RunSummary") -> "RunSummary":
        """Return this summary together with that of a run which this one went on from."""
        made = replace(
            self,
            records_in=earlier.records_in + self.records_in,
            records_out=earlier.records_out + self.records_out,
            commits=earlier.commits + self.commits,
            restored_records=earlier.restored_records + self.restored_records,
            restore_seconds=max(earlier.restore_seconds, self.restore_seconds),
        )
        made.take_left_out(earlier.left_out())
        made.take_left_out(self.left_out())
        return made

    def fields(self) -> dict[str, Any]:
        """The public fields, as they go into JSON."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}

    def warn(self) -> None:
        """Say in the log, once at the end of a run, what it left out."""
        if told := warning_of(self.dropped, self.dead_letters):
            _log.warning("%s: %s", self.application_id, told)
        for one in self.unmatched:
            _log.info("%s: %s met no row in join %s", self.application_id, one.share(), one.node)

    def left_out(self) -> LeftOutSums:
        """The sums of the records that are in no result."""
        return self._left_out

    def take_left_out(self, more: LeftOutSums) -> None:
        """Add such sums, and set the fields that tell of them."""
        self._left_out.merge(more)
        self.dropped = self._left_out.of(Fate.DROPPED)
        self.dead_letters = self._left_out.of(Fate.DEAD_LETTER)
        self.unmatched = self._left_out.of(Fate.UNMATCHED)
        self.dropped_records = sum(one.records for one in self.dropped)
        self.dead_letter_records = sum(one.records for one in self.dead_letters)
        self.unmatched_records = sum(one.records for one in self.unmatched)


class StartPreview(NamedTuple):
    """What the next start of an application would do before its first record."""

    application_id: str
    stream_tasks: int
    creates: list[str]
    relocation: RelocationReport
    global_tables: dict[str, int]
    """By store of a global table, how many records the first refresh reads at most."""
    lookups: dict[str, int]
    """By store of a lookup, how many rows its file has."""
    patterns: dict[str, list[str]]
    """By pattern of a source, the topics that match it now."""


class Run:
    """A run, from the application lock to its release; use `with`."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology,
        request: RunRequest,
    ) -> None:
        self.environment = environment
        self.topology = topology
        self.request = request
        self.summary = RunSummary(environment.settings.application_id)
        """What it has done so far, also if it fails."""
        self._settings = environment.settings
        self._layout = environment.layout
        self._clock = environment.clock
        self._nonce = secrets.token_hex(16)
        self._plans = 0
        self._counts: dict[TopicName, int] = {}
        self._claim: Claim | None = None
        self._largest_batches: dict[str, int] | None = None
        self._logs = logs(topology, environment.settings)
        self._global_tables = GlobalTables(environment, topology, self._nonce)
        self._refresher: Refresher | None = None

    @property
    def _cluster(self) -> Cluster:
        return self.environment.cluster

    def check(self) -> StartPreview:
        """What a start would do first; raises what a start would refuse. Nothing is written."""
        relocation = self._checked()
        return StartPreview(
            application_id=self._settings.application_id,
            stream_tasks=sum(map(len, self.topology.tasks(self._counts).values())),
            creates=[spec.name for spec in self._missing_internal_topics()],
            relocation=relocation.report(),
            global_tables=self._global_tables.pending(),
            lookups=self._global_tables.rows_of_files(),
            patterns=matched(self.topology),
        )

    def lookups(self) -> list[dict[str, object]]:
        """What files of lookups this run has shown to its stream tasks."""
        return self._global_tables.files_read()

    def _checked(self) -> Relocation:
        check_named(self.topology, self._settings)
        require_no_copies(self._layout, self.topology, self._cluster)
        self._check_topics()
        check_known(self.topology, self._layout, self.request)
        relocation = self._relocation()
        relocation.check()
        self._check_starting_point()
        return relocation

    def __enter__(self) -> Self:
        """Check, lock, prepare; every refusal comes before anything is written (I9)."""
        relocation = self._checked()
        self._global_tables.rows_of_files()
        self._layout.create(self._layout.application_dir)
        self._claim = self._layout.claim(
            wait_ms=self._settings.lock_wait_ms,
            clock=self._clock,
            locks=self._settings.volume_locks,
        )
        try:
            if restore_lost(self.environment, self.topology, self._counts):
                relocation = self._relocation()  # what is on disk, and deployed, has changed
            tell_of_matches(self.topology, read_deployed(self._layout))
            commit_first_offsets(self.environment, self.topology, self._counts)
            _tell_of_stays(relocation.apply())
            files.publish(self._layout.nonce_file, self._nonce.encode())
            self._sweep_quarantine()
            self._sweep_snapshots()
            self._global_tables.sweep_all()
        except BaseException:
            self._claim.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        assert self._claim is not None
        try:
            if self._refresher is not None:
                self._refresher.close()
            if kind is None:
                self._purge_repartitions()
        finally:
            self._claim.release()

    def _relocation(self) -> Relocation:
        return Relocation(
            self.environment,
            self.topology,
            cluster=self._cluster,
            counts=self._counts,
            automatic=self._settings.automatic_state_relocation,
            make_topics=self._make_topics,
            accept_new_serdes=self.request.accept_new_serdes,
        )

    def _make_topics(self) -> Mapping[str, str]:
        """Create the internal topics that are missing; by store, what its changelog is called."""
        # They are looked for again, because another driver may have created them meanwhile.
        self._cluster.create(self._missing_internal_topics())
        application_id, reused = self._settings.application_id, self._logs.topics()
        changelogs = {
            log_of(application_id, store, {}): store
            for part in self.topology.sub_topologies
            for store in part.stores
            if store not in reused
        }
        ids = self._cluster.topic_ids(sorted(changelogs))
        return {changelogs[topic]: made for topic, made in ids.items()}

    def _sweep_quarantine(self) -> None:
        """Remove quarantined stores that were replaced and restored long ago (SEMANTICS S16)."""
        retention_ms = self._settings.quarantine_retention_ms
        try:
            for folder in self._layout.sweep_quarantine(retention_ms, self._clock.now_ms()):
                _log.info("quarantine: removed %s, restored and committed to long ago", folder)
        except HostFailure as error:
            _log.warning("quarantine: %s; the next run tries again", error)

    def _sweep_snapshots(self) -> None:
        """Remove snapshots whose lease has run out, also of tasks without an owner."""
        for task in self._layout.tasks():
            TaskSnapshots(self._layout.task_dir(task)).sweep(self._clock.now_ms())

    def width(self) -> int:
        """How many stream tasks may be served at once: those of the widest wave."""
        tasks = {part: len(found) for part, found in self.topology.tasks(self._counts).items()}
        if self.request.run_for_ms is not None:
            return sum(tasks.values())
        return max(sum(tasks[part] for part in wave.ordinals) for wave in self.topology.waves)

    def waves(self) -> Iterator[list[PlannedTask]]:
        """Plan the tasks of each wave when it begins; a cycle repeats until nothing moves."""
        if self.request.run_for_ms is not None:
            version = self._global_tables.refresh()
            if version is not None:
                every_ms = self._settings.global_refresh_ms
                self._refresher = Refresher(self._global_tables, every_ms)
            planned = [task for wave in self.topology.waves for task in self._plan(wave, version)]
            if planned:
                yield planned
            return
        for wave in self.topology.waves:
            if wave.repeat:
                yield from self._repeated(wave)
            elif planned := self._plan(wave, self._global_version(wave)):
                yield planned

    def _repeated(self, wave: Wave) -> Iterator[list[PlannedTask]]:
        """Plan the tasks of a cycle until nothing moves any more.

        Only then all is seen that lies in the topics between them. What is written as time passes
        then may move them again.
        """
        before: Mapping[TopicPartition, int] | None = None
        settled: Mapping[TopicPartition, int] | None = None
        while True:
            planned = self._plan(wave, self._global_version(wave))
            ends = {tp: end for task in planned for tp, end in task.ends().items()}
            if not planned or ends == settled:
                return
            if ends != before:
                yield [task.settling(settled=False) for task in planned]
                before = ends
                continue
            settled = ends
            waiting = [task for task in planned if self.summary.waits_for_time(task.task)]
            if waiting:
                yield [task.settling(settled=True) for task in waiting]

    def _global_version(self, wave: Wave) -> int | None:
        """Refresh the global tables for a wave that reads some; return their version."""
        parts = self.topology.sub_topologies
        if not any(parts[ordinal].global_stores for ordinal in wave.ordinals):
            return None
        return self._global_tables.refresh()

    def _plan(self, wave: Wave, version: int | None) -> list[PlannedTask]:
        tasks = self.topology.tasks(self._counts)
        ours = self._settings.application_id
        times = TimePlans(self.topology, tasks, self._counts, ours, self._nonce[:8])
        self._plans += 1
        serving = f"{self._nonce}-{self._plans}"
        bounded = self.request.run_for_ms is None
        planned = []
        for ordinal in wave.ordinals:
            part = self.topology.sub_topologies[ordinal]
            ends, batch_bytes, matches = self._ends(part), self._batch_bytes(part), _matches(part)
            for task in tasks[ordinal]:
                inputs = [
                    (topic, p, end) for (topic, p), end in ends.items() if p == task.partition
                ]
                planned.append(
                    PlannedTask(
                        str(task),
                        inputs,
                        bounded,
                        self._nonce,
                        batch_bytes,
                        f"{serving}-{task}",
                        version,
                        matches,
                        times.of(task),
                    )
                )
        return planned

    def _batch_bytes(self, part: SubTopology) -> int | None:
        """The largest batch that every topic written by this part accepts; None: not known."""
        settings, logs = self._settings, self._logs.topics()
        dead = dead_letter_topics(self.topology, settings)
        if self._largest_batches is None:
            parts = self.topology.sub_topologies
            topics = set().union(*(written_topics(it, settings, dead, logs) for it in parts))
            self._largest_batches = largest_batches(self._cluster, topics)
        known = self._largest_batches
        return min(
            (known[it] for it in written_topics(part, settings, dead, logs) if it in known),
            default=None,
        )

    def _ends(self, part: SubTopology) -> dict[TopicPartition, int]:
        inputs = [
            TopicPartition(topic.full(self._settings.application_id), p)
            for topic in part.source_topics
            for p in range(self._counts[topic])
        ]
        bounds = self._cluster.bounds(inputs)
        ends = {tp: bounds[tp].end for tp in inputs}
        until_ms = self.request.until_ms
        if until_ms is not None:
            internal = {
                t.full(self._settings.application_id) for t in part.source_topics if t.internal
            }
            timed = [tp for tp in inputs if tp.topic not in internal]
            found = self._cluster.offsets_at(timed, until_ms) if timed else {}
            ends |= {tp: min(offset, ends[tp]) for tp, offset in found.items()}
        return ends

    def _check_topics(self) -> None:
        read, written = self.topology.topics()
        written |= dead_letter_topics(self.topology, self._settings)
        existing = self._cluster.partitions(sorted(read | written))
        missing = sorted((read | written) - existing.keys())
        if missing:
            raise TopicMissing(
                f"topics that do not exist: {', '.join(missing)}; create them, for example with "
                "`statestore topics create`, then start again"
            )
        self._counts = self.topology.partition_counts(existing)
        self._missing_internal_topics()
        check_source_topics(self._cluster, self._logs)
        check_hashes(self.topology, self._counts, self._cluster, self._settings)

    def _check_starting_point(self) -> None:
        """Refuse to go on from topics and offsets that do not belong together (SEMANTICS E4a)."""
        needed, request = self._internal_topics(), self.request
        point = StartingPoint(self.environment, self.topology, self._counts, needed)
        point.check(Accepted(request.accept_empty_changelog, request.accept_forgotten_offsets))

    def _internal_topics(self) -> list[TopicSpec]:
        return internal_topics(
            self.topology, self._counts, self._settings.application_id, self._logs.topics()
        )

    def _missing_internal_topics(self) -> list[TopicSpec]:
        return missing_topics(self._cluster, self._internal_topics())

    def _purge_repartitions(self) -> None:
        """Delete the records of repartition topics below the committed offsets.

        The topics keep nothing else (SEMANTICS T3).
        """
        tps = [
            TopicPartition(topic.full(self._settings.application_id), p)
            for topic, count in self._counts.items()
            if topic.internal
            for p in range(count)
        ]
        if tps:
            committed = self._cluster.group_offsets(tps)
            self._cluster.delete_before({tp: at.offset for tp, at in committed.items()})


def matched(topology: Topology) -> dict[str, list[str]]:
    """By pattern of a source, the topics that it matches."""
    return {
        node.pattern: [topic.name for topic in node.topics]
        for part in topology.sub_topologies
        for node in part.sources
        if node.pattern is not None
    }


def _matches(part: SubTopology) -> dict[str, list[str]]:
    """By source that reads by a pattern, the topics that it matches."""
    return {
        node.name: [topic.name for topic in node.topics]
        for node in part.sources
        if node.pattern is not None
    }


def _tell_of_stays(made: RelocationPlan) -> None:
    """Warn of stores that the topology does not look for; they stay where they are (R3)."""
    stays: dict[tuple[str, str], list[str]] = defaultdict(list)
    for stay in made.stays:
        stays[stay.store, stay.why].append(stay.task)
    for (store, why), tasks in stays.items():
        _log.warning(
            "store %s of stream tasks %s stays where it is, %s: if it was renamed, the new name "
            "starts empty, and the old name, once it is back in the pipeline, goes on with this "
            "store; if the store is no longer needed, remove its folders",
            store,
            ", ".join(tasks),
            why,
        )


def check_named(topology: Topology, settings: Settings) -> None:
    """InvalidTopology if a store or repartition topic has a generated name (INTERFACE rule 8)."""
    if settings.explicit_naming and topology.unnamed:
        raise InvalidTopology(
            f"no name of their own: {', '.join(topology.unnamed)}; relocation goes by "
            "name: name them, or set ensure.explicit.internal.resource.naming=false"
        )


def check_known(topology: Topology, layout: StateLayout, request: RunRequest) -> None:
    """TopologyMismatch if there are stores on disk and this topology has none of them."""
    known = {store for part in topology.sub_topologies for store in part.stores}
    on_disk = {store for task in layout.tasks() for store in layout.stores(task)}
    if on_disk and not request.accept_new_topology and not on_disk & known:
        raise TopologyMismatch(
            f"{layout.application_dir} holds {', '.join(sorted(on_disk))}, none of which this "
            "pipeline has: another application's state dir? Pass --accept-new-topology if it is "
            "right"
        )


def check_shared(layout: StateLayout, planned: PlannedTask) -> None:
    """StateDirNotShared unless this process reads the driver's nonce (SEMANTICS T5)."""
    path = layout.nonce_file
    try:
        found = files.read_whole(path, _NONCE_MAX).decode(errors="replace")
    except FileNotFoundError:
        found = ""
    except OSError as error:
        raise HostFailure(f"cannot read {path}: {error.strerror}") from error
    if found != planned.nonce:
        if found:
            raise StateDirNotShared(
                f"{path} is of another run: one began on this volume after this one, which only "
                "locks keep out: end one of them; or this worker sees another state dir than the "
                "driver: mount the driver's volume there"
            )
        raise StateDirNotShared(
            f"{path} is not there, but the driver wrote it: every worker must see the same state "
            "dir; mount the driver's volume there"
        )
