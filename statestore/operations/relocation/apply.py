"""Does what a relocation plan says: fenced, locked, journalled, and finished by whoever comes next.

    lock        every task folder; Locked names an owner
    settle      the transactional ids of the last deployment
    topics      those the new topology lacks, if whoever starts makes them
    marks       what tasks remember of inputs, to who reads them now   relocate.settled
    journal     relocation.json                                        relocate.journalled
    owners      epochs of all folders touched, so that a zombie sees   relocate.owners-raised
    rename      copies to quarantine, stores to their places           relocate.renaming, .renamed
    entries     each `.checkpoint` entry goes with its store           relocate.entries-written
    deploy      topology.json says what is deployed now                relocate.deployed
    close       the journal is removed                                 relocate.done

Until the journal is written nothing has moved; from then on the next start does the rest of it,
whatever the settings say (SEMANTICS R2). Whoever calls `apply` holds the application's lock (R4).
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from statestore import metrics
from statestore.errors import HostFailure, Misuse, TopologyMismatch
from statestore.faults import CrashPoint, reach
from statestore.layout import files, owners
from statestore.layout.folders import QUARANTINE_RECORD, Quarantined, StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import Deployed, deployed, publish_deployed, read_deployed
from statestore.operations.kept_stores import KeptStores, nobody_looks
from statestore.operations.relocation.disk import (
    Aside,
    Entry,
    Journal,
    apply_entries,
    check_places,
    checkpoint_entries,
    journal_file,
    look,
    read_journal,
)
from statestore.operations.relocation.plan import Choices, Move, Plan, placement, plan
from statestore.operations.source_logs import check_unchanged
from statestore.ports import Clock
from statestore.stores.offsets import Format
from statestore.tasks import input_checkpoint
from statestore.tasks.plan import transactional_ids
from statestore.topology.graph import TopicName, Topology
from statestore.topology.logs import log_of

_log = logging.getLogger(__name__)


def may_hold_rows(_path: Path) -> bool:
    """For `is_empty` where no database can be opened: none is said to be empty."""
    return False


def may_have_records(_store: str) -> bool:
    """For `has_records` where no broker is asked."""
    return True


class RelocationReport(msgspec.Struct, frozen=True):
    """What a relocation did (`applied`) or would do; `begun`: what an earlier one left undone."""

    application_id: str
    applied: bool
    begun: list[Move]
    plan: Plan


@dataclass(frozen=True)
class Relocation:
    """A topology about to be deployed over the state of an application.

    `settle` None: no broker is to be asked, so every task must have been closed cleanly.
    `automatic` False: a move is refused, with all places and the command that does it. `locks`
    False: file locks do not work, so that nobody is kept out; who still thinks a folder is his sees
    a newer epoch, and what he has open is left behind by the next owner (SEMANTICS E10). `logs`:
    by store, the source topic that is its log. `make_topics` makes the internal topics that are
    missing, and tells by store what its changelog is called; None: the next start does.
    `format_of` and `has_records`: see `KeptStores`.
    """

    topology: Topology
    layout: StateLayout
    clock: Clock
    guarantee: ProcessingGuarantee
    settle: Callable[[Sequence[str]], None] | None
    lock_wait_ms: int = 0
    locks: bool = True
    automatic: bool = True
    counts: Mapping[TopicName, int] | None = None
    choices: Choices = Choices()
    logs: Mapping[str, str] = field(default_factory=dict)
    is_empty: Callable[[Path], bool] = may_hold_rows
    make_topics: Callable[[], Mapping[str, str]] | None = None
    format_of: Callable[[Path], Format | None] = nobody_looks
    has_records: Callable[[str], bool] = may_have_records
    accept_new_serdes: bool = False

    def unfinished(self) -> Journal | None:
        """A relocation begun and not finished; TopologyMismatch if this topology wants another."""
        journal = read_journal(self.layout)
        if journal is None:
            return None
        places = placement(self.topology).places
        for move in journal.moves:
            if places.get(move.store) != TaskId.parse(move.target).sub_topology:
                raise TopologyMismatch(
                    f"{journal_file(self.layout)}: a relocation for another topology (fingerprint "
                    f"{journal.deployed.fingerprint}) was begun and not finished: it puts "
                    f"{move.store} into {move.target}, where this one does not look for it; start "
                    "the application with that topology, or finish with `statestore relocate` and "
                    "its pipeline, then deploy this one"
                )
        return journal

    def plan(self, *, sizes: bool = False) -> Plan:
        """What is to be done now, nothing touched; refuses what cannot or may not be done."""
        disk = look(self.layout, self.is_empty, locks=self.locks, sizes=sizes)
        previous = read_deployed(self.layout)
        check_unchanged(self.layout.application_id, self.topology, previous, self.logs)
        made = plan(
            placement(self.topology),
            disk,
            previous,
            self._log_of,
            self.choices,
            guarantee=self.guarantee,
        )
        self._check_kept(previous)
        check_places(self.topology, self.layout, made, self.counts)
        if made.moves and not self.automatic:
            raise TopologyMismatch(
                f"{self.layout.application_dir}: the topology changed and stores lie elsewhere: "
                f"{made.misplaced()}; automatic.state.relocation is false: move them with "
                f"`statestore relocate --application-id {self.layout.application_id}`, or bring "
                "the old topology back"
            )
        return made if self.automatic else msgspec.structs.replace(made, set_aside=[])

    def _check_kept(self, previous: Deployed) -> None:
        kept = KeptStores(
            self.topology,
            self.layout,
            previous,
            self.choices.renames,
            self.format_of,
            self.has_records,
            locks=self.locks,
            accept_new_serdes=self.accept_new_serdes,
        )
        kept.check()

    def report(self) -> RelocationReport:
        """What `apply` would do, with sizes; of one begun before, what is left of it."""
        journal = self.unfinished()
        begun = [] if journal is None else [m for m in journal.moves if self._undone(m)]
        made = self.plan(sizes=True) if journal is None else Plan()
        return RelocationReport(self.layout.application_id, False, begun, made)

    def apply_locked(self) -> RelocationReport:
        """`apply` between taking the application's lock and letting go of it (SEMANTICS R4)."""
        self.check()  # a refusal leaves nothing behind, not even a raised epoch
        claim = self.layout.claim(wait_ms=self.lock_wait_ms, clock=self.clock, locks=self.locks)
        try:
            sized = self.report()
            made = self.apply()
        finally:
            claim.release()
        plan_done = sized.plan if sized.plan.touches_disk else made
        return msgspec.structs.replace(sized, applied=True, plan=plan_done)

    def check(self) -> None:
        """Raise what `apply` would refuse, as far as it can be told without a lock."""
        if self.unfinished() is None:
            self.plan()

    def apply(self) -> Plan:
        """Bring everything to its place and publish the fingerprint; what was planned.

        Idempotent: repeated after a death at any point, it ends where it would have ended.
        """
        journal = self.unfinished()
        if journal is not None:
            _log.warning("relocation: finishing the one that was begun before")
            with self._locked(journal.tasks()):
                self._finish(journal)
        made = self.plan()
        there = list(self.layout.tasks())
        with self._locked(there if made.touches_disk or made.settle else ()):
            self._settle(made.settle, there)
            # Before anything says that a store is deployed: its changelog was there from then on.
            wanted = self._deployed(self._changelog_ids())
            self._carry_marks(there)
            if not made.touches_disk:
                publish_deployed(self.layout, wanted)
                return made
            reach(CrashPoint.RELOCATE_SETTLED)
            journal = self._journal(made, wanted)
            with self._locked([task for task in journal.tasks() if task not in there]):
                files.publish(journal_file(self.layout), msgspec.json.encode(journal))
                reach(CrashPoint.RELOCATE_JOURNALLED)
                self._finish(journal)
        return made

    def _undone(self, move: Move) -> bool:
        return self.layout.store_dir(TaskId.parse(move.source), move.old_name).exists()

    def _log_of(self, store: str) -> str:
        application_id = self.layout.application_id
        if store in self.topology.stores:
            return log_of(application_id, store, self.logs)
        return read_deployed(self.layout).log_of(application_id, store)

    def _changelog_ids(self) -> Mapping[str, str]:
        if self.make_topics is not None:
            return self.make_topics()
        known = read_deployed(self.layout).stores.items()
        return {name: made for name, store in known if (made := store.changelog_id) is not None}

    def _deployed(self, changelog_ids: Mapping[str, str]) -> Deployed:
        return deployed(self.topology, self.guarantee, self.counts, self.logs, changelog_ids)

    @contextmanager
    def _locked(self, tasks: Iterable[TaskId]) -> Iterator[None]:
        """Keep owners out of these folders.

        No claims: how their last owners left must stay known.
        """
        with ExitStack() as locks:
            for task in tasks:
                folder = self.layout.task_dir(task)
                self.layout.create(folder)
                if not self.locks:
                    continue
                what = f"task {task}"
                locks.enter_context(owners.at_rest(folder, what=what, wait_ms=self.lock_wait_ms))
            yield

    def _settle(self, tasks: Sequence[str], there: Iterable[TaskId]) -> None:
        """End what the last deployment left open, for good (SEMANTICS R4)."""
        if self.settle is not None:
            if tasks:
                _log.info("relocation: settling the transactions of %s", ", ".join(tasks))
                application = self.layout.application_id
                self.settle([name for t in tasks for name in transactional_ids(application, t)])
            return
        for task in there:
            owner = owners.read_owner(self.layout.task_dir(task))
            if owner is not None and not owner.released:
                raise Misuse(
                    f"--offline: task {task} was not closed cleanly by {owner.describe()}: it may "
                    "have left a transaction open, which only a broker can end: leave out --offline"
                )

    def _carry_marks(self, there: Iterable[TaskId]) -> None:
        """What tasks remember of their inputs goes to the tasks that read them now."""
        readers = {
            topic.full(self.layout.application_id): part.ordinal
            for part in self.topology.sub_topologies
            for topic in part.source_topics
        }

        def home(tp: TopicPartition) -> Path | None:
            ordinal = readers.get(tp.topic)
            return None if ordinal is None else self.layout.task_dir(TaskId(ordinal, tp.partition))

        input_checkpoint.carry(map(self.layout.task_dir, there), home, self.clock)

    def _journal(self, made: Plan, wanted: Deployed) -> Journal:
        entries = checkpoint_entries(self.layout, made.moves, made.set_aside, self._log_of)
        quarantine = self.layout.application_dir / "quarantine"
        now_ms = self.clock.now_ms()
        asides: list[Aside] = []
        for gone in made.set_aside:
            since_ms, taken = now_ms, {aside.folder for aside in asides}
            while True:
                name = f"{gone.store}-{since_ms}-{gone.reason}"
                if name not in taken and not (quarantine / name).exists():
                    break
                since_ms += 1
            asides.append(Aside(gone, name, since_ms))
        return Journal(self.layout.application_id, made.moves, asides, list(entries), wanted)

    def _finish(self, journal: Journal) -> None:
        """Everything after the journal, or what is left of it."""
        layout = self.layout
        _raise_owners(layout, journal)
        reach(CrashPoint.RELOCATE_OWNERS_RAISED)
        changed = {layout.application_dir}
        for aside in journal.asides:
            changed |= _put_aside(layout, aside)
        for move in journal.moves:
            changed |= _move(layout, move)
        for folder in sorted(changed):
            files.sync_folder(folder)
        by_task: dict[str, list[Entry]] = defaultdict(list)
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


def _raise_owners(layout: StateLayout, journal: Journal) -> None:
    """One epoch more for every folder touched: whoever still thinks it is his finds out (E10).

    A folder inherits from the folders its stores come from: if one of their owners may be alive, a
    later claim must not take this one for left cleanly.
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
            # Else the next owner leaves what lies there behind, and works in a folder of its own.
            good = all(
                owners.left_for_good(layout.task_dir(heir), owner) for heir, owner in known.items()
            )
            raised = msgspec.structs.replace(least_dead, epoch=epoch, in_place=good)
            files.publish(layout.task_dir(task) / "owner.json", msgspec.json.encode(raised))


def _put_aside(layout: StateLayout, aside: Aside) -> set[Path]:
    """A copy into quarantine, with a record as any other; the folders that changed."""
    task = TaskId.parse(aside.what.task)
    source = layout.store_dir(task, aside.what.store)
    target = layout.application_dir / "quarantine" / aside.folder
    if target.exists():
        return set()
    layout.create(target.parent)
    record = Quarantined(aside.what.store, task.partition, aside.what.reason, aside.since_ms)
    with suppress(HostFailure):  # as in StateLayout.quarantine
        files.publish(source / QUARANTINE_RECORD, msgspec.json.encode(record))
    _take_position_along(layout, task, aside.what.store)
    _rename(source, target)
    metrics.count_quarantine(aside.what.store, aside.what.reason)
    _log.warning("relocation: %s set aside as %s", source, target)
    return {source.parent, target.parent}


def _move(layout: StateLayout, move: Move) -> set[Path]:
    """One store to its place; the folders that changed."""
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
        # Of a store that is no longer here; the one that comes brings its own.
        _rename(stale, stale.with_name(f"{stale.name}.stale"))
    _rename(source, target)
    _log.info("relocation: %s is now %s", source, target)
    return {source.parent, target.parent, target.parent.parent}


def _take_position_along(layout: StateLayout, task: TaskId, store: str) -> None:
    """A `.position` file beside a store goes into its folder, where it is looked for as well."""
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
