"""Opens an export under another application id, for drills and for trying out changes.

    check     the id is free: no folder, topic or group offset has that name
    begin     clone.json, which names the clone's topics             clone.begun
    topics    changelogs, repartition and sink topics of its own     clone.topics-created
    copy      what the original wrote to topics it reads and has
              not read yet; the changelogs of stores in memory       clone.copied
    stores    fetched; their changelogs seeded from their rows       clone.seeded
              their offsets rewritten, renamed into place            clone.placed
    group     the original's offsets, as the export has them         clone.committed
    finish    topology.json and clone.json                           clone.finished

The original's topics are read and never written; its group and its transactional ids are not
touched. If a process dies while it makes a clone, the next one drops the half-made clone and starts
again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import msgspec

from statestore.errors import Misuse, TaskCorrupted, Unavailable
from statestore.faults import CrashPoint, reach
from statestore.layout.activity_files import Progress, Unit
from statestore.layout.files import remove, sync_folder
from statestore.model import time_marks
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.operations.activities import activities_in
from statestore.operations.clone_record import (
    CloneRecord,
    own_topics,
    publish_record,
    read_record,
    renamed,
)
from statestore.operations.deployed import (
    continuing,
    describe_deployment,
    publish_deployed,
)
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import LATEST, Exports
from statestore.operations.exports.manifest import ExportManifest, LogCut, StoreOfTask
from statestore.operations.start.matching import OwnTopics, with_matches
from statestore.operations.start.topics import ANY_TIME, dead_letter_topics, internal_topics
from statestore.ports import Bounds, Changelog, Engine, Outbox, Records, TopicSpec
from statestore.stores import offsets
from statestore.stores.kinds.kind import StoreKind
from statestore.stores.kinds.registry import kind_named
from statestore.tasks.commit import CommitStamp
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of, logs
from statestore.topology.nodes import TopicName

_SINK = {"retention.ms": "-1", **ANY_TIME}
_AGAIN = "drop the clone again"
_AT_ONCE = 20_000


class CloneReport(msgspec.Struct, frozen=True):
    """What was made."""

    application_id: str
    original: str
    export_id: str
    topics: dict[str, str]
    stores: int
    bytes: int
    records_copied: int
    seconds: float


def clone_export(
    environment: Environment,
    topology: Topology,
    clone_id: str,
    *,
    export: str = LATEST,
    progress: Progress | None = None,
) -> CloneReport:
    """Open an export of an application under `clone_id`, in the same state directory.

    The clone then runs like any application, with `application.id` = `clone_id` and otherwise the
    same pipeline and settings; its sinks are topics of its own (`CloneReport.topics`). Nothing of
    the original is touched.
    """
    settings = environment.settings
    settings.require("application.id", "state.dir", "bootstrap.servers")
    exports = Exports.of(environment)
    manifest = exports.read(export)
    own = environment.with_settings(replace(settings, application_id=clone_id))
    topology = with_matches(environment, topology)
    return Clone(own, topology, exports, manifest, progress).apply()


def drop_clone(environment: Environment) -> Sequence[str]:
    """Remove the clone with the `application.id` of the settings: topics, group and folder.

    Returns the topics. Misuse if it is not a clone, Locked while it runs.
    """
    settings = environment.settings
    settings.require("application.id", "state.dir", "bootstrap.servers")
    layout = environment.layout
    record = read_record(layout)
    if record is None:
        raise Misuse(f"{layout.application_dir} is not a clone: nothing is removed")
    folder = layout.application_dir
    with layout.alone(wait_ms=0, clock=environment.clock, locks=settings.volume_locks):
        topics = own_topics(layout, record)
        environment.cluster.remove(topics, layout.application_id)
        for task in layout.tasks():
            layout.remove_task(task, _AGAIN)
        # The file that names the topics goes last, so that a removal can be repeated after a death.
        for path in sorted(folder.iterdir(), key=lambda path: path.name == "clone.json"):
            if path.name not in {".lock", "owner.json"}:
                remove(path, _AGAIN)
    remove(folder, _AGAIN)
    return topics


class Clone:
    """Opens one export of the application `exports` belongs to under the id of `environment`."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology,
        exports: Exports,
        manifest: ExportManifest,
        progress: Progress | None = None,
    ) -> None:
        self._topology = topology
        self._exports = exports
        self._manifest = manifest
        self._progress = progress
        self._environment = environment
        self._settings = environment.settings
        self._layout = environment.layout
        self._cluster = environment.cluster
        self._changelog = environment.changelog
        self._outbox = environment.outbox
        self._clock = environment.clock
        self._logs = logs(topology, environment.settings).topics()

    def apply(self) -> CloneReport:
        """Make the clone. Misuse if the id is taken, or if the export was not made for clones."""
        began_s = self._clock.monotonic()
        cut = self._check()
        counts = self._counts(self._topology)
        topics = self._own_topics(counts)
        half_made = read_record(self._layout)
        if half_made is not None:
            drop_clone(self._environment)
        self._check_free(topics, counts)
        with self._claimed():
            self._record(topics, finished=False)
            reach(CrashPoint.CLONE_BEGUN)
            self._create_topics(topics, counts)
            reach(CrashPoint.CLONE_TOPICS_CREATED)
            self._outbox.open()
            copied = self._copy(cut, topics, counts)
            reach(CrashPoint.CLONE_COPIED)
            stores = list(self._manifest.stores())
            activities = activities_in(self._environment)
            with activities.underway("clone", Unit.BYTES, self._progress) as told:
                told.expect(sum(at.store.size_bytes for at in stores))
                for at in stores:
                    self._place(at, cut, topics, counts, told)
            self._commit_group(cut, topics)
            reach(CrashPoint.CLONE_COMMITTED)
            own = renamed(self._topology, topics)
            guarantee = self._settings.processing_guarantee
            # Its rows are those of the original, so they were written by the same serdes.
            known = self._manifest.deployed.stores.items()
            writers = {name: store.writers() for name, store in known}
            said = describe_deployment(
                own, guarantee, self._counts(own), self._logs, writers=writers
            )
            publish_deployed(self._layout, continuing(said, self._manifest.deployed.stores))
            self._record(topics, finished=True)
            reach(CrashPoint.CLONE_FINISHED)
        return CloneReport(
            self._layout.application_id,
            self._original,
            self._manifest.export_id,
            topics,
            len(stores),
            sum(at.store.size_bytes for at in stores),
            copied,
            round(self._clock.monotonic() - began_s, 3),
        )

    @property
    def _original(self) -> str:
        return self._manifest.application_id

    def _check(self) -> LogCut:
        manifest, clone_id = self._manifest, self._layout.application_id
        if clone_id == self._original:
            raise Misuse(f"a clone of {clone_id} needs another id than the original's")
        if manifest.cut is None:
            raise Misuse(
                f"export {manifest.export_id} was made beside a run, or without the group's "
                "offsets: make one with `statestore export --for-clone`"
            )
        if manifest.deployed.fingerprint != self._topology.fingerprint():
            raise Misuse(
                f"export {manifest.export_id} is of topology {manifest.deployed.fingerprint}, this "
                f"pipeline is {self._topology.fingerprint()}: name the one that was deployed then"
            )
        record = read_record(self._layout)
        if self._is_used() and (record is None or record.finished):
            raise Misuse(
                f"{self._layout.application_dir} exists already: name another id"
                + (f", or `statestore exports drop-clone {clone_id}` first" if record else "")
            )
        return manifest.cut

    def _is_used(self) -> bool:
        """Whether the folder holds more than the lock of a process that died at once."""
        folder = self._layout.application_dir
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        return bool(there - {".lock", "owner.json"})

    def _check_free(self, topics: Mapping[str, str], counts: Mapping[TopicName, int]) -> None:
        taken = sorted(self._cluster.partitions(sorted(topics.values())))
        if taken:
            raise Misuse(f"topics {', '.join(taken)} exist already: name another id for the clone")
        for pattern in self._topology.patterns.values():
            read = OwnTopics(self._original).matching(pattern, topics.values())
            if read:
                raise Misuse(
                    f"{self._original} reads what {pattern!r} matches, and that would be topics of "
                    f"the clone's own: {', '.join(read)}; name another id for the clone"
                )
        inputs = [
            TopicPartition(topic.full(self._original), p)
            for topic, count in counts.items()
            for p in range(count)
            if not topic.internal
        ]
        if self._cluster.group_offsets(inputs):
            raise Misuse(
                f"group {self._layout.application_id} has offsets of {inputs[0].topic}: "
                "name another id for the clone"
            )

    def _counts(self, topology: Topology) -> dict[TopicName, int]:
        read, _ = topology.topics()
        return topology.partition_counts(self._cluster.partitions(sorted(read)))

    def _own_topics(self, counts: Mapping[TopicName, int]) -> dict[str, str]:
        """By every topic that the original writes, the one that the clone writes in its place."""
        clone_id = self._layout.application_id
        _, written = self._topology.topics()
        written |= dead_letter_topics(self._topology, self._settings)
        for store, topic in self._logs.items():
            if topic in written:
                raise Misuse(
                    f"store {store!r} is restored from topic {topic}, which the application writes "
                    "itself: it cannot be cloned"
                )
        for source in self._topology.global_sources:
            if source.topic.name in written:
                raise Misuse(
                    f"global table {source.spec.name!r} is made of topic {source.topic.name}, "
                    "which the application writes itself: it cannot be cloned"
                )
        internal = [spec.name for spec in self._internal(self._original, counts)]
        own = {name: f"{clone_id}-{name.removeprefix(f'{self._original}-')}" for name in internal}
        return {name: f"{clone_id}-{name}" for name in sorted(written)} | own

    def _internal(self, application_id: str, counts: Mapping[TopicName, int]) -> list[TopicSpec]:
        return internal_topics(self._topology, counts, application_id, self._logs)

    def _record(self, topics: dict[str, str], *, finished: bool) -> None:
        record = CloneRecord(self._original, self._manifest.export_id, topics, finished)
        publish_record(self._layout, record)

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        layout = self._layout
        layout.create(layout.application_dir)
        locks = self._settings.volume_locks
        with layout.alone(wait_ms=0, clock=self._clock, locks=locks), closing(self._outbox):
            yield

    def _create_topics(self, topics: Mapping[str, str], counts: Mapping[TopicName, int]) -> None:
        specs = self._internal(self._layout.application_id, counts)
        internal = {spec.name for spec in specs}
        sinks = [name for name, own in topics.items() if own not in internal]
        for name, count in self._cluster.partitions(sinks).items():
            specs.append(TopicSpec(topics[name], count, _SINK))
        self._cluster.create(specs)

    def _copy(self, cut: LogCut, topics: Mapping[str, str], counts: Mapping[TopicName, int]) -> int:
        """Copy records that were not read yet, and the changelogs of stores without files."""
        group, logs, count = cut.group_offsets(), cut.bounds(), 0
        for topic, partitions in counts.items():
            name = topic.full(self._original)
            for tp in (TopicPartition(name, p) for p in range(partitions)):
                if name in topics and tp in logs:
                    start = group[tp].offset if tp in group else logs[tp].start
                    bounds = Bounds(start, logs[tp].end)
                    count += copy(self._changelog, tp, bounds, self._outbox, topics[name])
        there = {(at.task, at.name) for at in self._manifest.stores()}
        for task, store in self._stores(counts):
            tp = TopicPartition(log_of(self._original, store, self._logs), task.partition)
            if (task, store) in there or tp.topic not in topics:
                continue
            now = self._cluster.bounds([tp])[tp]
            if now.end != logs[tp].end:
                raise Unavailable(
                    f"store {store!r} of task {task} is in no export, and its changelog {tp} has "
                    f"gone on from {logs[tp].end} to {now.end}: export for a clone again, and "
                    "clone before the next run"
                )
            count += copy(self._changelog, tp, now, self._outbox, topics[tp.topic])
        return count

    def _stores(self, counts: Mapping[TopicName, int]) -> Iterator[tuple[TaskId, str]]:
        tasks = self._topology.tasks(counts)
        for part in self._topology.sub_topologies:
            for task in tasks[part.ordinal]:
                for store in part.stores:
                    yield task, store

    def _place(
        self,
        at: StoreOfTask,
        cut: LogCut,
        topics: Mapping[str, str],
        counts: Mapping[TopicName, int],
        told: Progress,
    ) -> None:
        layout = self._layout
        making = layout.task_dir(at.task) / f".import-{at.name}"
        target = layout.store_dir(at.task, at.name)
        layout.create(target.parent)
        self._exports.fetch(at, making, told)
        engine = self._environment.databases.rewrite(making)
        try:
            self._rewrite(at, engine, self._stream_time_ms(at.task, cut, counts), topics)
            engine.flush()
        finally:
            engine.close()
        making.rename(target)
        sync_folder(target.parent)
        reach(CrashPoint.CLONE_PLACED)

    def _rewrite(
        self, at: StoreOfTask, engine: Engine, stream_time_ms: int, topics: Mapping[str, str]
    ) -> None:
        """Seed the changelog, and set the offset of the store to its end."""
        log = TopicPartition(log_of(self._original, at.name, self._logs), at.task.partition)
        rows: dict[bytes, bytes | None] = {}
        if log.topic in topics:
            own = TopicPartition(topics[log.topic], log.partition)
            kind, now_ms = kind_named(at.store.kind), self._clock.now_ms()
            end = seed(self._outbox, own, engine, kind, stream_time_ms, now_ms)
            reach(CrashPoint.CLONE_SEEDED)
            rows = offsets.offset_rows({log: None, own: end}, Position())
            rows |= kind.seeded_rows
        gone = [tp for tp in at.store.position() if tp.topic in topics]
        rows |= offsets.position_gone(gone)
        engine.write({offsets.TABLE: rows})

    def _stream_time_ms(self, task: TaskId, cut: LogCut, counts: Mapping[TopicName, int]) -> int:
        group = cut.group_offsets()
        part = self._topology.sub_topologies[task.sub_topology]
        inputs = [
            TopicPartition(topic.full(self._original), task.partition)
            for topic in part.source_topics
            if task.partition < counts[topic]
        ]
        stamp = CommitStamp.latest({tp: group[tp] for tp in inputs if tp in group})
        return stamp.stream_time_ms or 0

    def _commit_group(self, cut: LogCut, topics: Mapping[str, str]) -> None:
        """Commit the offsets of the original with their metadata; the clone's topics begin at 0."""
        by_text: dict[str, dict[TopicPartition, int]] = {}
        for tp, at in cut.group_offsets().items():
            own = TopicPartition(topics.get(tp.topic, tp.topic), tp.partition)
            offset = at.offset if own == tp else 0
            by_text.setdefault(at.metadata, {})[own] = offset
        for text, found in by_text.items():
            self._outbox.send_offsets(found, text)


def seed(
    outbox: Outbox,
    log: TopicPartition,
    engine: Engine,
    kind: StoreKind,
    stream_time_ms: int,
    now_ms: int,
) -> int | None:
    """Write the rows of a store into its new changelog; the offset after them, None if no row."""
    outbox.begin()
    topic, partition = log
    for keys, values, times, headers in kind.logged_rows(engine, stream_time_ms, now_ms):
        outbox.send(Records(topic, keys, values, times, partition, headers), tracked=True)
    outbox.flush()
    return outbox.ends().get(log)


def copy(
    changelog: Changelog, source: TopicPartition, bounds: Bounds, outbox: Outbox, into: str
) -> int:
    """Copy committed records in [start, end) to the same partition of another topic; how many.

    Time marks among them are copied, too, but are no records of the pipeline.

    Unavailable if some of them are gone.
    """
    outbox.begin()
    count = 0
    try:
        for stretch in changelog.replay(source, bounds.start, bounds.end):
            batch = stretch.batch
            keys, values = batch.keys.objects, batch.values.objects
            count += len(batch) - len(time_marks.among(batch))
            records = Records(into, keys, values, batch.timestamps, source.partition, batch.headers)
            outbox.send(records)
    except TaskCorrupted as error:
        raise Unavailable(
            f"{source} has no records from {bounds.start} on any more: the application has gone on "
            "since: export it for a clone again"
        ) from error
    outbox.flush()
    return count
