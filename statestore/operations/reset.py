"""Begin an application again: its input offsets moved, its internal topics and its state removed.

What `kafka-streams-application-reset` and `KafkaStreams.cleanUp` do together, as one operation:

    claim          the application and every stream task: nobody runs, nobody starts
    abort          what the last owners' transactional ids left open, so that offsets are final
    reset.json     says what is to be done; a start refuses while it is there
    topics         the changelogs and repartition topics are deleted
    offsets        the group's offsets are removed, and the new ones committed
    folders        stream tasks, stores and `topology.json` are removed
    reset.json     is removed last: the next reset that finds it repeats the steps after it

Everything else stays: audits, reports, quarantine, and the record of a clone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from statestore.errors import Misuse
from statestore.faults import CrashPoint, reach
from statestore.layout import documents
from statestore.layout.documents import Count, Topic
from statestore.layout.files import folders_in, publish, remove
from statestore.layout.folders import StateLayout
from statestore.layout.global_versions import GlobalVersions
from statestore.model.ids import TopicPartition
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import existing_application
from statestore.operations.relocation.disk import journal_file
from statestore.operations.start.matching import OwnTopics, matched_now
from statestore.operations.unfinished import require_no_repartition, reset_file
from statestore.ports import Bounds, GroupOffset
from statestore.tasks.plan import transactional_ids

_AGAIN = "repeat the reset"
_WAY_OUT = "look whose state dir this is; `statestore reset` writes the file again"


class ResetTo(msgspec.Struct, frozen=True):
    """Where the inputs begin again; exactly one is set, none of them means `earliest`.

    `time_ms`: at the first record of that time or a later one. `shift`: so many records from the
    committed offset, backward if negative.
    """

    earliest: bool = False
    latest: bool = False
    time_ms: int | None = None
    shift: int | None = None

    def check(self) -> "ResetTo":
        """Return it; Misuse if two places are asked for at once."""
        asked = [self.earliest, self.latest, self.time_ms is not None, self.shift is not None]
        if sum(asked) > 1:
            raise Misuse("inputs begin again at one place: earliest, latest, a time, or a shift")
        return self


class Moved(msgspec.Struct, frozen=True):
    """An input partition: its committed offset, None if there was none, and the new one."""

    topic: Topic
    partition: Count
    before: Count | None
    after: Count


class ResetReport(msgspec.Struct, frozen=True):
    """What a reset does, or did if `applied`."""

    application_id: str
    offsets: list[Moved]
    topics: list[Topic]
    stream_tasks: list[str]
    applied: bool = False


class _Journal(msgspec.Struct, frozen=True):
    """`reset.json`: the reset that was begun."""

    offsets: list[Moved]
    topics: list[Topic]


def reset(environment: Environment, to: ResetTo, *, dry_run: bool = False) -> ResetReport:
    """Begin a stopped application again at `to`; `dry_run` only looks.

    Locked while the application runs; Misuse if nothing was deployed, or if one of the topics to
    remove belongs to another application of the same state directory.
    """
    environment.settings.require("application.id", "state.dir", "bootstrap.servers")
    require_no_repartition(environment.layout)
    made = _Reset(environment)
    return made.plan(to) if dry_run else made.apply(to)


class _Reset:
    """One application that is to begin again."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.layout = existing_application(environment.layout)
        self.cluster = environment.cluster

    def plan(self, to: ResetTo) -> ResetReport:
        """Look what would be done; a reset that was begun is planned as it was begun."""
        journal = self._journal()
        if journal is None:
            journal = self._planned(read_deployed(self.layout), to.check())
        return ResetReport(
            self.layout.application_id,
            journal.offsets,
            journal.topics,
            [str(task) for task in self.layout.tasks()],
        )

    def apply(self, to: ResetTo) -> ResetReport:
        """Take the steps above."""
        clock, locks = self.environment.clock, self.environment.settings.volume_locks
        with self.layout.alone(wait_ms=0, clock=clock, locks=locks):
            found = self.plan(to)  # refuses what cannot be done before anything is changed
            if self._journal() is None:
                self._abort(read_deployed(self.layout))
                found = self.plan(to)
                publish(self._file, msgspec.json.encode(_Journal(found.offsets, found.topics)))
            reach(CrashPoint.RESET_BEGUN)
            self.cluster.remove(found.topics, self.layout.application_id)
            reach(CrashPoint.RESET_TOPICS_REMOVED)
            self._commit(found.offsets)
            reach(CrashPoint.RESET_OFFSETS_COMMITTED)
            self._remove_folders()
            reach(CrashPoint.RESET_FOLDERS_REMOVED)
            self._file.unlink()
        return msgspec.structs.replace(found, applied=True)

    @property
    def _file(self) -> Path:
        return reset_file(self.layout)

    def _journal(self) -> _Journal | None:
        return documents.read(self._file, _Journal, way_out=_WAY_OUT)

    def _planned(self, shape: Deployed, to: ResetTo) -> _Journal:
        if not shape.sub_topologies:
            raise Misuse(
                f"nothing was deployed in {self.layout.application_dir}: there is nothing to reset"
            )
        application = self.layout.application_id
        own = OwnTopics.of(self.layout, self.environment.settings)
        inputs, internal = _topics(matched_now(shape, self.cluster, own), application)
        deployed, _ = _topics(shape, application)
        owned = sorted(internal)
        self._refuse_those_of_others(owned)
        counts = self.cluster.partitions(sorted({*inputs, *owned}))
        tps = [TopicPartition(name, p) for name in inputs for p in range(counts.get(name, 0))]
        committed = self.cluster.group_offsets(tps, stable=False)
        # A topic that a pattern matches and that no run has read yet begins where its source says.
        tps = [tp for tp in tps if tp.topic in deployed or tp in committed]
        moved = self._moved(tps, to, committed)
        return _Journal(moved, [name for name in owned if name in counts])

    def _moved(
        self,
        tps: Sequence[TopicPartition],
        to: ResetTo,
        committed: Mapping[TopicPartition, GroupOffset],
    ) -> list[Moved]:
        bounds = self.cluster.bounds(tps)
        times = {} if to.time_ms is None else self.cluster.offsets_at(tps, to.time_ms)
        found = []
        for tp in tps:
            before = committed[tp].offset if tp in committed else None
            after = _target(to, bounds[tp], before, times.get(tp))
            found.append(Moved(tp.topic, tp.partition, before, after))
        return found

    def _refuse_those_of_others(self, owned: Sequence[str]) -> None:
        """`x` with a store `y-z` and `x-y` with a store `z` name one changelog.

        Only applications of which one id continues the other can have a topic in common.
        """
        own = self.layout.application_id
        for other in folders_in(self.layout.state_dir):
            if not (other.startswith(f"{own}-") or own.startswith(f"{other}-")):
                continue
            theirs = StateLayout(self.layout.state_dir, other)
            shared = {*owned} & _topics(read_deployed(theirs), other)[1]
            if shared:
                raise Misuse(
                    f"topic {min(shared)} is also application {other}'s: a reset would remove "
                    "that application's records; give one of them another application.id first"
                )

    def _abort(self, shape: Deployed) -> None:
        """Abort what any stream task left open, those whose folders were lost included."""
        application = self.layout.application_id
        tasks = sorted({*self.layout.tasks(), *(shape.tasks() or ())})
        ids = [name for task in tasks for name in transactional_ids(application, task)]
        self.cluster.abort_open_transactions(ids)

    def _commit(self, offsets: Sequence[Moved]) -> None:
        if not offsets:
            return  # The input topics are gone.
        outbox = self.environment.outbox
        outbox.open()
        outbox.begin()
        outbox.send_offsets(
            {TopicPartition(at.topic, at.partition): at.after for at in offsets}, ""
        )

    def _remove_folders(self) -> None:
        layout = self.layout
        files = [journal_file(layout), layout.nonce_file, layout.topology_file]
        for task in layout.tasks():
            layout.remove_task(task, _AGAIN)
        for path in [GlobalVersions(layout).folder, *files]:
            remove(path, _AGAIN)


def _topics(shape: Deployed, application_id: str) -> tuple[list[str], set[str]]:
    """The inputs that others write, and the topics that only this application has."""
    inputs: set[str] = set()
    internal = {
        shape.log_of(application_id, store) for store in shape.stores if shape.has_changelog(store)
    }
    for part in shape.sub_topologies:
        full = {f"{application_id}-{topic}" for topic in part.source_topics}
        for topic in part.topics(application_id):
            (internal if topic in full and topic not in part.source_topics else inputs).add(topic)
    return sorted(inputs - internal), internal


def _target(to: ResetTo, bounds: Bounds, before: int | None, at_time: int | None) -> int:
    if to.latest:
        return bounds.end
    if at_time is not None:
        return at_time
    if to.shift is not None and before is not None:
        return min(max(before + to.shift, bounds.start), bounds.end)
    return bounds.start
