"""Makes an export the application on another cluster, over mirrors of its inputs.

    check     nothing of the application is on the cluster or in its folder
    places    each input's offset, found in its mirror; nothing was changed so far
    begin     move.json, which names the topics to create            move.begun
    topics    changelogs and repartition topics, empty               move.topics-created
    stores    fetched; their changelogs seeded from their rows       move.seeded
              their offsets rewritten, renamed into place            move.placed
    group     the places, with the metadata that the export has      move.committed
    deploy    topology.json                                          move.deployed
    finish    move.json removed                                      move.finished

Where it dies before the end, no start goes on with what is there, and the next move makes it anew.
The old cluster is not asked and not written.

Keeps I45.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import NamedTuple

import msgspec

from statestore.errors import Misuse
from statestore.faults import CrashPoint, reach
from statestore.layout.activity_files import Progress, Unit
from statestore.layout.files import remove, sync_folder
from statestore.model.ids import Position, TopicPartition
from statestore.operations.activities import activities_in
from statestore.operations.clone_record import renamed
from statestore.operations.clones.clone import seed
from statestore.operations.deployed import (
    Deployed,
    continuing,
    describe_deployment,
    publish_deployed,
)
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import LATEST, Exports
from statestore.operations.exports.manifest import ExportManifest, InputMark, LogCut, StoreOfTask
from statestore.operations.move_record import (
    NAME,
    MoveRecord,
    end_move,
    publish_move,
    read_move,
)
from statestore.operations.moves.offset_syncs import read_syncs
from statestore.operations.moves.translation import Mirror, MirrorPlace
from statestore.operations.start.matching import with_matches
from statestore.operations.start.topics import internal_topics
from statestore.ports import Engine, GroupOffset, TopicSpec
from statestore.stores import offsets
from statestore.stores.kinds.registry import kind_named
from statestore.tasks.commit import CommitStamp, topic_digest
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of, logs

_AGAIN = "repeat `statestore restore --moved`"


class Mirrored(NamedTuple):
    """How the new cluster has the inputs.

    `prefix`: what their names begin with here, and not at the source, such as `source.`.
    `offset_syncs`: the topic of MirrorMaker's offset syncs, if it is to be read.
    """

    prefix: str = ""
    offset_syncs: str | None = None


class MovedInput(msgspec.Struct, frozen=True):
    """An input partition: the group's offset at the source, and where it goes on here."""

    topic: str
    partition: int
    offset_there: int
    mirror: str
    offset: int
    found_by: str


class MoveReport(msgspec.Struct, frozen=True):
    """What was made (`applied`) or would be."""

    application_id: str
    export_id: str
    applied: bool
    inputs: list[MovedInput]
    topics: list[str]
    stores: int
    bytes: int
    seconds: float = 0.0


def move_here(
    environment: Environment,
    topology: Topology,
    mirrored: Mirrored,
    *,
    export: str = LATEST,
    progress: Progress | None = None,
    dry_run: bool = False,
) -> MoveReport:
    """Open an export that was made for a move under the same application id.

    `topology` names the mirrors as its inputs. `dry_run` only looks. Unavailable if a mirror is not
    far enough yet; Misuse if the application is here already, or cannot go on exactly.
    """
    environment.settings.require("application.id", "state.dir", "bootstrap.servers")
    manifest = Exports.of(environment).read(export)
    topology = with_matches(environment, topology)
    move = MoveIn(environment, topology, manifest, mirrored, progress)
    return move.plan() if dry_run else move.apply()


class MoveIn:
    """Moves one export in."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology,
        manifest: ExportManifest,
        mirrored: Mirrored,
        progress: Progress | None = None,
    ) -> None:
        self._environment = environment
        self._topology = topology
        self._manifest = manifest
        self._mirrored = mirrored
        self._progress = progress
        self._settings = environment.settings
        self._layout = environment.layout
        self._cluster = environment.cluster
        self._outbox = environment.outbox
        self._clock = environment.clock
        self._logs = logs(topology, environment.settings).topics()
        read, _ = topology.topics()
        self._counts = topology.partition_counts(self._cluster.partitions(sorted(read)))

    def plan(self) -> MoveReport:
        """Say what would be made; raise what would be refused."""
        cut = self._check()
        if read_move(self._layout) is None:
            self._check_free(cut)
        return self._report(self._places(cut))

    def apply(self) -> MoveReport:
        """Make it."""
        began_s = self._clock.monotonic()
        planned = self.plan()  # A refusal leaves nothing behind, not even a lock file.
        cut = self._check()
        places = self._places(cut)
        specs = self._internal()
        with self._claimed():
            self._drop_half_made({spec.name for spec in specs})
            self._check_free(cut)
            publish_move(self._layout, MoveRecord(self._manifest.export_id, planned.topics))
            reach(CrashPoint.MOVE_BEGUN)
            self._cluster.create(specs)
            reach(CrashPoint.MOVE_TOPICS_CREATED)
            self._outbox.open()
            activities = activities_in(self._environment)
            with activities.underway("move", Unit.BYTES, self._progress) as told:
                told.expect(planned.bytes)
                for at in self._manifest.stores():
                    self._place(at, cut, places, told)
            self._commit_group(cut, places)
            reach(CrashPoint.MOVE_COMMITTED)
            publish_deployed(self._layout, self._deployed())
            reach(CrashPoint.MOVE_DEPLOYED)
            end_move(self._layout)
            reach(CrashPoint.MOVE_FINISHED)
        seconds = round(self._clock.monotonic() - began_s, 3)
        return msgspec.structs.replace(planned, applied=True, seconds=seconds)

    def _report(self, places: Mapping[TopicPartition, MirrorPlace]) -> MoveReport:
        cut = self._check()
        group, stores = cut.group_offsets(), list(self._manifest.stores())
        return MoveReport(
            self._layout.application_id,
            self._manifest.export_id,
            False,
            [
                MovedInput(*tp, group[tp].offset, self._mirror_of(tp).topic, *place)
                for tp, place in sorted(places.items())
            ],
            sorted(spec.name for spec in self._internal()),
            len(stores),
            sum(at.store.size_bytes for at in stores),
        )

    def _check(self) -> LogCut:
        """Return what the export says of its topics; Misuse if it cannot be moved in."""
        manifest = self._manifest
        if manifest.cut is None or manifest.cut.marks is None:
            raise Misuse(
                f"export {manifest.export_id} was not made for a move: at the source, stop the "
                "application and run `statestore export --for-move`"
            )
        mirrors = {f"{self._mirrored.prefix}{topic}": topic for topic in self._sources()}
        there = renamed(self._topology, mirrors).fingerprint()
        if there != manifest.deployed.fingerprint:
            prefix = self._mirrored.prefix
            raise Misuse(
                f"export {manifest.export_id} is of topology {manifest.deployed.fingerprint}; this "
                f"pipeline, with the prefix {prefix!r} left out of its inputs, is {there}: name "
                "the one that was deployed then, reading the mirrors, and their --topic-prefix"
            )
        counted = {part.ordinal: part.tasks for part in manifest.deployed.sub_topologies}
        for ordinal, tasks in self._topology.tasks(self._counts).items():
            if counted.get(ordinal) != len(tasks):
                raise Misuse(
                    f"sub-topology {ordinal} had {counted.get(ordinal)} stream tasks and would "
                    f"have {len(tasks)}: give the mirrors as many partitions as the topics have "
                    "at the source"
                )
        return manifest.cut

    def _sources(self) -> set[str]:
        """The topics at the source of all inputs that were deployed."""
        return {
            topic
            for part in self._manifest.deployed.sub_topologies
            for topic in part.source_topics
            if topic not in (part.internal or [])
        } | {
            store.topic
            for store in self._manifest.deployed.global_stores.values()
            if store.topic is not None
        }

    def _check_free(self, cut: LogCut) -> None:
        folder = self._layout.application_dir
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
        if there - {".lock", "owner.json", NAME}:
            raise Misuse(
                f"{folder} exists already: an application moves into a state directory in which "
                "it has nothing"
            )
        taken = sorted(self._cluster.partitions([spec.name for spec in self._internal()]))
        if taken:
            raise Misuse(
                f"topics {', '.join(taken)} exist already: is this the new cluster? Leave them out "
                "of the mirror, and remove them here"
            )
        marked = [TopicPartition(mark.topic, mark.partition) for mark in cut.marks or ()]
        inputs = [self._mirror_of(tp) for tp in marked]
        if inputs and (found := self._cluster.group_offsets(inputs)):
            raise Misuse(
                f"group {self._layout.application_id} has an offset of {min(found)} already: leave "
                "it out of the mirror (sync.group.offsets.enabled=false, or groups.exclude), and "
                "remove the group here"
            )

    def _mirror_of(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(f"{self._mirrored.prefix}{tp.topic}", tp.partition)

    def _internal(self) -> list[TopicSpec]:
        app = self._layout.application_id
        return internal_topics(self._topology, self._counts, app, self._logs)

    def _places(self, cut: LogCut) -> dict[TopicPartition, MirrorPlace]:
        """By input at the source, where its mirror goes on."""
        topic, group = self._mirrored.offset_syncs, cut.group_offsets()
        syncs = {} if topic is None else read_syncs(self._environment, topic)
        mirror = Mirror(self._environment, syncs)

        def found(mark: InputMark) -> tuple[TopicPartition, MirrorPlace]:
            tp = TopicPartition(mark.topic, mark.partition)
            return tp, mirror.place(mark, group[tp].offset, self._mirror_of(tp))

        return dict(map(found, cut.marks or ()))

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        layout = self._layout
        layout.create(layout.application_dir)
        locks = self._settings.volume_locks
        with layout.alone(wait_ms=0, clock=self._clock, locks=locks), closing(self._outbox):
            yield

    def _drop_half_made(self, own: set[str]) -> None:
        """Remove what a move had made that died."""
        record = read_move(self._layout)
        if record is None:
            return
        if not own.issuperset(record.topics):
            raise Misuse(
                f"a move of export {record.export_id} died here, which was of another topology: "
                "repeat that one, or remove its topics and the folder"
            )
        self._cluster.remove(record.topics, self._layout.application_id)
        for task in self._layout.tasks():
            self._layout.remove_task(task, _AGAIN)
        for path in sorted(self._layout.application_dir.iterdir()):
            if path.name not in {".lock", "owner.json", NAME}:
                remove(path, _AGAIN)

    def _place(
        self,
        at: StoreOfTask,
        cut: LogCut,
        places: Mapping[TopicPartition, MirrorPlace],
        told: Progress,
    ) -> None:
        layout = self._layout
        making = layout.task_dir(at.task) / f".import-{at.name}"
        target = layout.store_dir(at.task, at.name)
        layout.create(target.parent)
        Exports.of(self._environment).fetch(at, making, told)
        engine = self._environment.databases.rewrite(making)
        try:
            self._rewrite(at, engine, self._stream_time_ms(at, cut), places)
            engine.flush()
        finally:
            engine.close()
        making.rename(target)
        sync_folder(target.parent)
        reach(CrashPoint.MOVE_PLACED)

    def _rewrite(
        self,
        at: StoreOfTask,
        engine: Engine,
        stream_time_ms: int,
        places: Mapping[TopicPartition, MirrorPlace],
    ) -> None:
        """Seed the changelog, and have the store stand at its end and at the places."""
        there = self._manifest.deployed.log_of(self._layout.application_id, at.name)
        was = TopicPartition(there, at.task.partition)
        own = TopicPartition(
            log_of(self._layout.application_id, at.name, self._logs), was.partition
        )
        kind, now_ms = kind_named(at.store.kind), self._clock.now_ms()
        rows = offsets.position_gone(at.store.position())
        done = {
            self._mirror_of(tp): places[tp].offset - 1
            for tp in at.store.position()
            if tp in places and places[tp].offset > 0
        }
        end = places[was].offset if was in places else None
        if at.name not in self._logs:
            end = seed(self._outbox, own, engine, kind, stream_time_ms, now_ms)
            reach(CrashPoint.MOVE_SEEDED)
            rows |= kind.seeded_rows
        rows |= offsets.offset_rows({was: None}, Position())
        rows |= offsets.offset_rows({own: end}, Position.of(done))
        engine.write({offsets.TABLE: rows | offsets.complete_row(now_ms)})

    def _stream_time_ms(self, at: StoreOfTask, cut: LogCut) -> int:
        group, app = cut.group_offsets(), self._layout.application_id
        part = self._manifest.deployed.sub_topologies[at.task.sub_topology]
        inputs = [TopicPartition(topic, at.task.partition) for topic in part.topics(app)]
        stamp = CommitStamp.latest({tp: group[tp] for tp in inputs if tp in group})
        return stamp.stream_time_ms or 0

    def _commit_group(self, cut: LogCut, places: Mapping[TopicPartition, MirrorPlace]) -> None:
        """Commit the places with the metadata that the export has; internal topics begin at 0."""
        by_text: dict[str, dict[TopicPartition, int]] = {}
        for tp, at in cut.group_offsets().items():
            place = places.get(tp)
            own, offset = (tp, 0) if place is None else (self._mirror_of(tp), place.offset)
            by_text.setdefault(self._text(at), {})[own] = offset
        for text, found in by_text.items():
            self._outbox.send_offsets(found, text)

    def _text(self, at: GroupOffset) -> str:
        """The stamp of a commit, with the mirrors in place of their topics."""
        stamp = CommitStamp.read(at)
        if stamp is None:
            return at.metadata
        digests = {
            topic_digest(topic): topic_digest(f"{self._mirrored.prefix}{topic}")
            for topic in self._sources()
        }
        times = {digests.get(one, one): time_ms for one, time_ms in stamp.partition_times.items()}
        return msgspec.structs.replace(stamp, partition_times=times).text()

    def _deployed(self) -> Deployed:
        manifest = self._manifest
        known = manifest.deployed.stores.items()
        guarantee = manifest.deployed.processing_guarantee or self._settings.processing_guarantee
        topics = {
            log_of(self._layout.application_id, store, self._logs): store
            for store in self._topology.stores
            if store not in self._logs
        }
        ids = self._cluster.topic_ids(sorted(topics))
        said = describe_deployment(
            self._topology,
            guarantee,
            self._counts,
            self._logs,
            {topics[topic]: found for topic, found in ids.items()},
            # Its rows are those of the export, so they were written by the same serdes.
            {name: store.writers() for name, store in known},
        )
        return continuing(said, manifest.deployed.stores)
