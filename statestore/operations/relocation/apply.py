"""Carries out a relocation plan: fenced, locked, journalled, and finished by any later start.

    lock        every task folder; Locked names an owner
    settle      the transactional ids of the last deployment
    topics      those the new topology lacks, if this start makes them
    marks       input checkpoints go to the tasks that read the inputs now relocate.settled
    journal     relocation.json                                        relocate.journalled
    owners      the epochs of all folders touched, against zombies     relocate.owners-raised
    rename      copies to quarantine, stores to their places           relocate.renaming, .renamed
    entries     each `.checkpoint` entry goes with its store           relocate.entries-written
    deploy      topology.json says what is deployed now                relocate.deployed
    close       the journal is removed                                 relocate.done

Nothing has moved before the journal is written. From then on the next start does the rest, whatever
the settings say (SEMANTICS R2). The caller of `apply` holds the application's lock (R4).

Keeps I15.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec

from statestore import metrics
from statestore.errors import HostFailure, Misuse, TopologyMismatch
from statestore.faults import CrashPoint, reach
from statestore.layout import files, owners
from statestore.layout.activity_files import Progress, Unit
from statestore.layout.folders import QUARANTINE_RECORD, Quarantined, StateLayout
from statestore.layout.open_stores import kept_closed
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.activities import activities_in
from statestore.operations.clone_record import as_deployed
from statestore.operations.deployed import (
    Deployed,
    continuing,
    describe_deployment,
    publish_deployed,
    read_deployed,
)
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import existing_application
from statestore.operations.relocation.disk import (
    Aside,
    CheckpointEntry,
    RelocationJournal,
    apply_entries,
    check_places,
    checkpoint_entries,
    journal_file,
    look,
    read_journal,
)
from statestore.operations.relocation.relocation_plan import (
    Choices,
    Move,
    RelocationPlan,
    placement,
    plan_relocation,
)
from statestore.operations.start.changelogs import check_logs_unchanged, holds_records
from statestore.operations.start.kept_stores import Kept, KeptStores
from statestore.operations.start.matching import with_matches
from statestore.operations.unfinished import require_whole
from statestore.ports import Cluster
from statestore.tasks import input_checkpoint
from statestore.tasks.plan import transactional_ids
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of, logs
from statestore.topology.nodes import TopicName

_log = logging.getLogger(__name__)

_Kept = Callable[[Path], AbstractContextManager[object]]
"""Keeps others from opening a store while it is renamed."""


class RelocationReport(msgspec.Struct, frozen=True):
    """What a relocation did (`applied`) or would do; `begun`: what an earlier one left undone."""

    application_id: str
    applied: bool
    begun: list[Move]
    plan: RelocationPlan
    serdes: list[str] = []
    """Changes of the serdes and schemas of stores that do no harm."""


def relocate(
    environment: Environment,
    topology: Topology,
    choices: Choices,
    *,
    dry_run: bool,
    offline: bool,
    accept_new_serdes: bool = False,
    progress: Progress | None = None,
) -> RelocationReport:
    """Move the state of a stopped application to where `topology` looks for it (SEMANTICS R1-R5).

    `dry_run`: nothing is touched and no broker is asked. `offline`: no broker is asked, so every
    stream task must have been closed cleanly.
    """
    environment.settings.require("application.id", "state.dir")
    require_whole(existing_application(environment.layout))
    environment, topology = as_deployed(environment, topology)
    cluster, counts = None, None
    if not dry_run and not offline:
        cluster = environment.cluster
        topology = with_matches(environment, topology)
        read, _ = topology.topics()
        counts = topology.partition_counts(cluster.partitions(sorted(read)))
    relocation = Relocation(
        environment,
        topology,
        cluster=cluster,
        counts=counts,
        choices=choices,
        accept_new_serdes=accept_new_serdes,
        progress=progress,
    )
    return relocation.report() if dry_run else relocation.apply_locked()


class Relocation:
    """A topology about to be deployed over the state of an application."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology,
        *,
        cluster: Cluster | None,
        counts: Mapping[TopicName, int] | None = None,
        choices: Choices | None = None,
        automatic: bool = True,
        make_topics: Callable[[], Mapping[str, str]] | None = None,
        accept_new_serdes: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Nothing is read or written yet.

        `cluster` None: no broker may be asked, so every task must have been closed cleanly.
        `counts`: the partitions of the topics, if they are known. `automatic` False: a move is
        refused, with all places and the command that does it. `make_topics` makes the internal
        topics that are missing and tells, by store, what the cluster calls its changelog; None: the
        next start does that.

        Where file locks do not work (`statestore.volume.locks`), nobody is kept out. A process that
        still believes it owns a folder finds a newer epoch there, and the next owner leaves behind
        what that process has open (SEMANTICS E10).
        """
        self._topology = topology
        self._cluster = cluster
        self._counts = counts
        self._choices = choices or Choices()
        self._automatic = automatic
        self._make_topics = make_topics
        self._accept_new_serdes = accept_new_serdes
        self._progress = progress
        self._environment = environment
        self._settings = environment.settings
        self._layout = environment.layout
        self._clock = environment.clock
        self._logs = logs(topology, environment.settings).topics()
        self._kept = Kept({}, [])

    def unfinished(self) -> RelocationJournal | None:
        """Read the journal of an unfinished relocation.

        TopologyMismatch if it is for another topology.
        """
        journal = read_journal(self._layout)
        if journal is None:
            return None
        places = placement(self._topology).places
        for move in journal.moves:
            if places.get(move.store) != TaskId.parse(move.target).sub_topology:
                raise TopologyMismatch(
                    f"{journal_file(self._layout)}: a relocation for another topology (fingerprint "
                    f"{journal.deployed.fingerprint}) was begun and not finished: it puts "
                    f"{move.store} into {move.target}, where this one does not look for it; start "
                    "the application with that topology, or finish with `statestore relocate` and "
                    "its pipeline, then deploy this one"
                )
        return journal

    def plan(self, *, sizes: bool = False) -> RelocationPlan:
        """Plan what is to be done now and touch nothing; refuse what cannot or may not be done."""
        disk = look(
            self._layout,
            self._environment.databases.is_empty,
            locks=self._settings.volume_locks,
            sizes=sizes,
        )
        previous = read_deployed(self._layout)
        check_logs_unchanged(self._layout.application_id, self._topology, previous, self._logs)
        made = plan_relocation(
            placement(self._topology),
            disk,
            previous,
            self._log_of,
            self._choices,
            guarantee=self._settings.processing_guarantee,
        )
        self._kept = self._check_kept()
        check_places(self._topology, self._layout, made, self._counts)
        if made.moves and not self._automatic:
            raise TopologyMismatch(
                f"{self._layout.application_dir}: the topology changed and stores lie elsewhere: "
                f"{made.misplaced()}; automatic.state.relocation is false: move them with "
                f"`statestore relocate --application-id {self._layout.application_id}`, or bring "
                "the old topology back"
            )
        return made if self._automatic else msgspec.structs.replace(made, set_aside=[])

    def _check_kept(self) -> Kept:
        kept = KeptStores(
            self._environment,
            self._topology,
            self._choices.renames,
            self._has_records,
            accept_new_serdes=self._accept_new_serdes,
        )
        return kept.check()

    def _has_records(self, store: str) -> bool:
        """Whether the log of a store may hold anything; it may if no broker is asked."""
        if self._cluster is None:
            return True
        topic = log_of(self._layout.application_id, store, self._logs)
        return holds_records(self._cluster, self._environment.changelog, topic)

    def report(self) -> RelocationReport:
        """What `apply` would do, with sizes; of an unfinished relocation, what is left of it."""
        journal = self.unfinished()
        begun = [] if journal is None else [m for m in journal.moves if self._undone(m)]
        made = self.plan(sizes=True) if journal is None else RelocationPlan()
        return RelocationReport(
            self._layout.application_id, False, begun, made, serdes=self._kept.told
        )

    def apply_locked(self) -> RelocationReport:
        """Call `apply` while holding the application's lock (SEMANTICS R4)."""
        self.check()  # A refusal leaves nothing behind, not even a raised epoch.
        claim = self._layout.claim(
            wait_ms=self._settings.lock_wait_ms,
            clock=self._clock,
            locks=self._settings.volume_locks,
        )
        try:
            sized = self.report()
            made = self.apply()
        finally:
            claim.release()
        plan_done = sized.plan if sized.plan.touches_disk else made
        return msgspec.structs.replace(sized, applied=True, plan=plan_done)

    def check(self) -> None:
        """Raise what `apply` would refuse, as far as that can be told without a lock."""
        if self.unfinished() is None:
            self.plan()

    def apply(self) -> RelocationPlan:
        """Bring everything to its place and publish the fingerprint; return what was planned.

        It is idempotent: repeated after a death at any point, it ends where it would have ended.
        """
        journal = self.unfinished()
        if journal is not None:
            _log.warning("relocation: finishing the one that was begun before")
            with self._locked(journal.tasks()):
                self._finish(journal)
        made = self.plan()
        there = list(self._layout.tasks())
        with self._locked(there if made.touches_disk or made.settle else ()):
            self._settle(made.settle, there)
            # A store is deployed only after its changelog exists.
            wanted = self._deployed(self._changelog_ids())
            self._carry_marks(there)
            if not made.touches_disk:
                publish_deployed(self._layout, wanted)
                return made
            reach(CrashPoint.RELOCATE_SETTLED)
            journal = self._journal(made, wanted)
            with self._locked([task for task in journal.tasks() if task not in there]):
                files.publish(journal_file(self._layout), msgspec.json.encode(journal))
                reach(CrashPoint.RELOCATE_JOURNALLED)
                self._finish(journal)
        return made

    def _undone(self, move: Move) -> bool:
        return self._layout.store_dir(TaskId.parse(move.source), move.old_name).exists()

    def _log_of(self, store: str) -> str:
        application_id = self._layout.application_id
        if store in self._topology.stores:
            return log_of(application_id, store, self._logs)
        return read_deployed(self._layout).log_of(application_id, store)

    def _changelog_ids(self) -> Mapping[str, str]:
        if self._make_topics is not None:
            return self._make_topics()
        known = read_deployed(self._layout).stores.items()
        return {name: made for name, store in known if (made := store.changelog_id) is not None}

    def _deployed(self, changelog_ids: Mapping[str, str]) -> Deployed:
        said = describe_deployment(
            self._topology,
            self._settings.processing_guarantee,
            self._counts,
            self._logs,
            changelog_ids,
            self._kept.writers,
        )
        return continuing(said, read_deployed(self._layout).stores)

    @contextmanager
    def _locked(self, tasks: Iterable[TaskId]) -> Iterator[None]:
        """Keep owners out of these folders; Locked if a store there is open without an owner.

        They are not claimed, because the files must still tell how the last owners left.
        """
        with ExitStack() as locks:
            for task in tasks:
                folder = self._layout.task_dir(task)
                self._layout.create(folder)
                if not self._settings.volume_locks:
                    continue
                what = f"task {task}"
                locks.enter_context(
                    owners.at_rest(folder, what=what, wait_ms=self._settings.lock_wait_ms)
                )
                self._layout.check_closed([task])
            yield

    def _settle(self, tasks: Sequence[str], there: Iterable[TaskId]) -> None:
        """Abort what the last deployment left open, for good (SEMANTICS R4)."""
        if self._cluster is not None:
            if tasks:
                _log.info("relocation: settling the transactions of %s", ", ".join(tasks))
                application = self._layout.application_id
                ids = [name for t in tasks for name in transactional_ids(application, t)]
                self._cluster.abort_open_transactions(ids)
            return
        for task in there:
            owner = owners.read_owner(self._layout.task_dir(task))
            if owner is not None and not owner.released:
                raise Misuse(
                    f"--offline: task {task} was not closed cleanly by {owner.describe()}: it may "
                    "have left a transaction open, which only a broker can end: leave out --offline"
                )

    def _carry_marks(self, there: Iterable[TaskId]) -> None:
        """Carry the input checkpoints over to the tasks that read the inputs now."""
        readers = {
            topic.full(self._layout.application_id): part.ordinal
            for part in self._topology.sub_topologies
            for topic in part.source_topics
        }

        def home(tp: TopicPartition) -> Path | None:
            ordinal = readers.get(tp.topic)
            return None if ordinal is None else self._layout.task_dir(TaskId(ordinal, tp.partition))

        input_checkpoint.carry(map(self._layout.task_dir, there), home, self._clock)

    def _journal(self, made: RelocationPlan, wanted: Deployed) -> RelocationJournal:
        entries = checkpoint_entries(self._layout, made.moves, made.set_aside, self._log_of)
        quarantine = self._layout.application_dir / "quarantine"
        now_ms = self._clock.now_ms()
        asides: list[Aside] = []
        for gone in made.set_aside:
            since_ms, taken = now_ms, {aside.folder for aside in asides}
            while True:
                name = f"{gone.store}-{since_ms}-{gone.reason}"
                if name not in taken and not (quarantine / name).exists():
                    break
                since_ms += 1
            asides.append(Aside(gone, name, since_ms))
        return RelocationJournal(
            self._layout.application_id, made.moves, asides, list(entries), wanted
        )

    def _finish(self, journal: RelocationJournal) -> None:
        """Do everything that comes after the journal, or what is left of it."""
        layout = self._layout
        kept = kept_closed if self._settings.volume_locks else nullcontext
        _raise_owners(layout, journal)
        reach(CrashPoint.RELOCATE_OWNERS_RAISED)
        changed = {layout.application_dir}
        activities = activities_in(self._environment)
        with activities.underway("relocation", Unit.STORES, self._progress) as told:
            told.expect(len(journal.asides) + len(journal.moves))
            for aside in journal.asides:
                changed |= _put_aside(layout, aside, kept)
                told.done(1)
            for move in journal.moves:
                changed |= _move(layout, move, kept)
                told.done(1)
        for folder in sorted(changed):
            files.sync_folder(folder)
        by_task: dict[str, list[CheckpointEntry]] = defaultdict(list)
        for entry in journal.entries:
            by_task[entry.task].append(entry)
        for task, entries in sorted(by_task.items()):
            if apply_entries(layout, task, entries):
                reach(CrashPoint.RELOCATE_ENTRIES_WRITTEN)
        publish_deployed(layout, journal.deployed)
        reach(CrashPoint.RELOCATE_DEPLOYED)
        journal_file(layout).unlink()
        files.sync_folder(layout.application_dir)
        reach(CrashPoint.RELOCATE_DONE)


def _raise_owners(layout: StateLayout, journal: RelocationJournal) -> None:
    """Raise the epoch of every folder touched, so that a process that lost it finds out (E10).

    A folder inherits from the folders that its stores come from: if one of their owners may be
    alive, a later claim must not take this folder for one that was left cleanly.
    """
    last = {task: owners.read_owner(layout.task_dir(task)) for task in journal.tasks()}
    for task in last:
        heirs = {task} | {TaskId.parse(m.source) for m in journal.moves if m.target == str(task)}
        known = {heir: owner for heir in heirs if (owner := last[heir]) is not None}
        if known:
            least_dead = min(
                known.values(), key=lambda owner: (owner.provably_dead(), owner.released)
            )
            epoch = max(owner.epoch for owner in known.values()) + 1
            # Otherwise the next owner leaves the files behind and works in a folder of its own.
            good = all(
                owners.left_for_good(layout.task_dir(heir), owner) for heir, owner in known.items()
            )
            raised = msgspec.structs.replace(least_dead, epoch=epoch, in_place=good)
            files.publish(layout.task_dir(task) / "owner.json", msgspec.json.encode(raised))


def _put_aside(layout: StateLayout, aside: Aside, kept: _Kept) -> set[Path]:
    """Move a copy to quarantine, with a record; the folders that changed."""
    task = TaskId.parse(aside.what.task)
    source = layout.store_dir(task, aside.what.store)
    target = layout.application_dir / "quarantine" / aside.folder
    if target.exists():
        return set()
    layout.create(target.parent)
    record = Quarantined(aside.what.store, task.partition, aside.what.reason, aside.since_ms)
    with suppress(HostFailure):  # As `StateLayout.quarantine` does.
        files.publish(source / QUARANTINE_RECORD, msgspec.json.encode(record))
    _take_position_along(layout, task, aside.what.store)
    with kept(source):
        _rename(source, target)
    metrics.count_quarantine(aside.what.store, aside.what.reason)
    _log.warning("relocation: %s set aside as %s", source, target)
    return {source.parent, target.parent}


def _move(layout: StateLayout, move: Move, kept: _Kept) -> set[Path]:
    """Move one store to its place; the folders that changed."""
    task, target_task = TaskId.parse(move.source), TaskId.parse(move.target)
    source = layout.store_dir(task, move.old_name)
    target = layout.store_dir(target_task, move.store)
    if not source.exists():
        if target.exists():
            return set()
        raise HostFailure(
            f"{source} was to become {target}, and neither is there: bring the store back, or "
            f"remove {journal_file(layout)} to have it restored from its changelog"
        )
    if target.exists():
        raise TopologyMismatch(
            f"{source} was to become {target}, which has come to be since: move one of them away, "
            "then start again"
        )
    layout.create(target.parent)
    _take_position_along(layout, task, move.old_name)
    stale, _ = layout.position_files(target_task, move.store)
    if stale.exists():
        # It belongs to a store that is no longer here. The store that arrives brings its own.
        _rename(stale, stale.with_name(f"{stale.name}.stale"))
    with kept(source):
        _rename(source, target)
    _log.info("relocation: %s is now %s", source, target)
    return {source.parent, target.parent, target.parent.parent}


def _take_position_along(layout: StateLayout, task: TaskId, store: str) -> None:
    """Move a `.position` file beside a store into its folder, where it is also looked for."""
    beside, inside = layout.position_files(task, store)
    if beside.is_file() and not inside.exists():
        _rename(beside, inside)


def _rename(source: Path, target: Path) -> None:
    reach(CrashPoint.RELOCATE_RENAMING)
    try:
        source.rename(target)
    except OSError as error:
        raise HostFailure(
            f"cannot rename {source} to {target}: {error.strerror}; fix the volume, the next start "
            "goes on from here"
        ) from error
    reach(CrashPoint.RELOCATE_RENAMED)
