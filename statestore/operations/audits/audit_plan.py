"""The plan of an audit: which stores, live or in an export, and the offset of each in its log.

snapshots    one per stream task, leased until the audit ends; none for an export
ends         the logs' last stable offsets, read after the snapshots were taken
offsets      those of the live stores in the previous audit, except of stores quarantined since
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from statestore.errors import (
    ExportDamaged,
    Misuse,
    StateStoreError,
    TaskCorrupted,
    TopicMissing,
    UnknownStore,
)
from statestore.layout.audits import LIVE, AuditFailure, Audits
from statestore.layout.folders import StateLayout
from statestore.layout.snapshots import StoreOffsets
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.audits.both_sides import AuditFacts, Subject, facts_of
from statestore.operations.audits.checks import AuditCheck
from statestore.operations.audits.commits import Releases, StoreSays, mismatches
from statestore.operations.deployed import Deployed, DeployedStore, read_deployed
from statestore.operations.environment import Databases, Environment
from statestore.operations.exports.catalog import Exports, FetchedStore
from statestore.operations.looking.task_snapshots import Snapshot, Snapshots
from statestore.ports import Cluster
from statestore.stores import keyvalue
from statestore.stores.kinds.registry import kind_named
from statestore.stores.specs import ANY_START
from statestore.stores.versioned import layout as versioned_layout

_RENEW_S = 1.0


class AuditedFiles(NamedTuple):
    """The files of a store of one stream task, without what the brokers know of its log.

    `path` is "" if the files are in an export, or if `is_missing`; in that case `offset_next` is
    not known. `now_ms` and `offsets`: as in `Subject`.
    """

    store: str
    task: TaskId
    kind: str
    path: str
    offset_next: int
    bound_ms: int
    is_whole: bool = True
    interval_ms: int | None = None
    shown_path: str = ""
    is_missing: bool = False
    now_ms: int | None = None
    offsets: StoreOffsets | None = None


class FoundStores(NamedTuple):
    """The stores to audit, the failures of unreadable ones, and the stores that are not checked."""

    files: list[AuditedFiles]
    failures: list[AuditFailure]
    not_checked: dict[str, str]

    def fail(self, check: AuditCheck, store: str, task: TaskId, why: str) -> None:
        """Note a failure of a whole store of a stream task."""
        self.failures.append(AuditFailure(check, store, str(task), 1, [], why))

    def add(
        self,
        store: str,
        task: TaskId,
        kind: str,
        facts: AuditFacts,
        offset_next: int,
        *,
        path: str = "",
        shown_path: str = "",
        offsets: StoreOffsets | None = None,
    ) -> None:
        """Note the files of a store of that kind; a failure if they are of another one."""
        if facts.kind not in {None, kind}:
            why = f"its files say that it is {facts.kind}, and {kind} was deployed"
            self.fail(AuditCheck.FORMAT, store, task, why)
            return
        self.files.append(
            AuditedFiles(
                store,
                task,
                kind,
                path,
                offset_next,
                facts.bound_ms,
                facts.is_whole,
                facts.interval_ms,
                shown_path,
                now_ms=facts.now_ms,
                offsets=offsets,
            )
        )


class AuditPlan:
    """The subjects of an audit and their snapshots, which are released when `with` ends."""

    def __init__(
        self,
        subjects: list[Subject],
        found: FoundStores,
        source: str,
        held: Sequence[Snapshot] = (),
    ) -> None:
        self.subjects = subjects
        self.failures = found.failures
        self.not_checked = found.not_checked
        self.source = source
        self._held = held

    def by_store(self) -> Iterator[tuple[str, list[Subject]]]:
        """Yield each store with its subjects, one per partition."""
        for store in sorted({subject.store for subject in self.subjects}):
            yield store, [one for one in self.subjects if one.store == store]

    def renew(self) -> None:
        """Renew the leases of the snapshots; Unavailable if a snapshot is gone."""
        for snapshot in self._held:
            snapshot.renew()

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew the leases from another thread while this one waits for other processes."""
        done = threading.Event()
        lost: list[StateStoreError] = []

        def keep() -> None:
            while not done.wait(_RENEW_S):
                try:
                    self.renew()
                except StateStoreError as error:
                    lost.append(error)
                    return

        thread = threading.Thread(target=keep, name="audit leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        if lost:
            raise lost[0]

    def close(self) -> None:
        """Release the snapshots. Closing twice is harmless."""
        for snapshot in self._held:
            snapshot.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def plan_live(environment: Environment, stores: Collection[str] = ()) -> AuditPlan:
    """Plan the audit of the live stores as of their last commits.

    `stores` names the stores to audit; all if it is empty, UnknownStore if one does not exist,
    Misuse if one has no changelog to compare with.
    """
    layout, cluster, snapshots = environment.layout, environment.cluster, Snapshots(environment)
    deployed = read_deployed(layout)
    for name in deployed.global_stores.keys() & set(stores):
        raise Misuse(
            f"store {name!r} is that of a global table, which has no changelog: there is nothing "
            "to compare it with; name other stores, or none for all of them"
        )
    there = {
        store for task in layout.tasks() for store in layout.stores(task)
    } | deployed.stores.keys()
    wanted = _wanted(there, stores, str(layout.application_dir))
    releases = Releases(layout)
    with ExitStack() as taken:
        held = [
            taken.enter_context(snapshots.take(task))
            for task in layout.tasks()
            if wanted.intersection(layout.stores(task))
        ]
        found = FoundStores([], [], {})
        for snapshot in held:
            _look(snapshot, layout, deployed, wanted, environment.databases, found)
        _look_at_commits(held, layout, deployed, cluster, found, releases)
        for name in sorted(wanted & deployed.stores.keys()):
            if not deployed.stores[name].persistent:
                found.not_checked[name] = "it is in memory and has no files to read"
        _look_for_missing(layout.application_id, deployed, wanted, cluster, found)
        before = last_offsets(layout)
        subjects = _subjects(found.files, layout.application_id, deployed, cluster, before)
        taken.pop_all()
    return AuditPlan(subjects, found, LIVE, held)


def plan_export(environment: Environment, export: str, stores: Collection[str] = ()) -> AuditPlan:
    """Plan the audit of the stores in an export; their files are fetched when they are read."""
    exports, cluster = Exports.of(environment), environment.cluster
    manifest = exports.read(export)
    left_out = {store: why for task in manifest.tasks for store, why in task.left_out.items()}
    there = {at.name for at in manifest.stores()} | left_out.keys()
    wanted = _wanted(there, stores, f"export {manifest.export_id}")
    not_checked = {
        store: left_out[store]
        for store in wanted & left_out.keys()
        if not _is_built_in(manifest.deployed, store)
    }
    found = FoundStores([], [], not_checked)
    for at in manifest.stores():
        if at.name in wanted:
            log = _log_of(manifest.deployed, manifest.application_id, at.name, at.task)
            offset_next = at.store.offsets.offsets().get(log, 0)
            kind = _deployed_kind(manifest.deployed, at.name) or at.store.kind
            facts = AuditFacts(at.store.kind)
            if kind_named(at.store.kind).keeps_history:
                try:
                    with FetchedStore(exports, at) as fetched:
                        path = fetched.store_dir(at.name)
                        facts = _facts(path, environment.databases, kind)
                except (TaskCorrupted, ExportDamaged) as error:
                    found.fail(AuditCheck.READABLE, at.name, at.task, str(error))
                    continue
            found.add(at.name, at.task, kind, facts, offset_next, offsets=at.store.offsets)
    _look_for_missing(manifest.application_id, manifest.deployed, wanted, cluster, found)
    subjects = _subjects(
        found.files,
        manifest.application_id,
        manifest.deployed,
        cluster,
        {},
        export=manifest.export_id,
    )
    return AuditPlan(subjects, found, manifest.export_id)


def last_offsets(layout: StateLayout) -> dict[TopicPartition, int]:
    """Return the offsets in the last audit of the live stores, by log.

    Stores that were quarantined since then are absent.
    """
    last = Audits(layout).last(LIVE)
    if last is None:
        return {}
    moved = {
        (record.store, record.partition)
        for _, record in layout.quarantined()
        if record.since_ms >= last.time_ms
    }
    return {
        TopicPartition(place.topic, place.partition): place.offset_next
        for place in last.places
        if (place.store, place.partition) not in moved
    }


def _wanted(there: set[str], stores: Collection[str], where: str) -> set[str]:
    for store in stores:
        if store not in there:
            known = ", ".join(sorted(there)) or "none"
            raise UnknownStore(f"no store {store!r} in {where}; it has: {known}")
    return set(stores) or there


def _look(
    snapshot: Snapshot,
    layout: StateLayout,
    deployed: Deployed,
    wanted: set[str],
    databases: Databases,
    found: FoundStores,
) -> None:
    """Add the wanted stores of a snapshot to `found`."""
    manifest = snapshot.manifest
    task = TaskId.parse(manifest.stream_task)

    for store in sorted(wanted & manifest.left_out.keys()):
        if store in manifest.unreadable:
            found.fail(AuditCheck.READABLE, store, task, manifest.left_out[store])
        elif not _is_built_in(deployed, store):
            found.not_checked[store] = manifest.left_out[store]
    for store in sorted(wanted & manifest.stores.keys()):
        path, shown_path = snapshot.store_dir(store), str(layout.store_dir(task, store))
        kind = _deployed_kind(deployed, store)
        try:
            facts = _facts(path, databases, kind)
        except TaskCorrupted as error:
            why = str(error).replace(str(path), shown_path)
            found.fail(AuditCheck.READABLE, store, task, why)
            continue
        log = _log_of(deployed, layout.application_id, store, task)
        offset_next = manifest.stores[store].offsets().get(log)
        if offset_next is None and facts.occupied and store in deployed.stores:
            found.fail(AuditCheck.READABLE, store, task, f"it has rows but no offset of {log}")
            continue
        kind = kind or facts.kind or keyvalue.KIND
        found.add(store, task, kind, facts, offset_next or 0, path=str(path), shown_path=shown_path)


def _look_at_commits(
    held: Sequence[Snapshot],
    layout: StateLayout,
    deployed: Deployed,
    cluster: Cluster,
    found: FoundStores,
    releases: Releases,
) -> None:
    """Add the stores that say something else of the last commit than the group does."""
    snapshots = {snapshot.manifest.stream_task: snapshot.manifest for snapshot in held}
    says = []
    for files in found.files:
        manifest, known = snapshots[str(files.task)], deployed.stores.get(files.store)
        says.append(
            StoreSays(
                files.task,
                files.store,
                manifest.commit_number,
                manifest.stores[files.store].positions(),
                _log_of(deployed, layout.application_id, files.store, files.task)
                if deployed.has_changelog(files.store)
                else None,
                files.offset_next,
                known is not None and _expires(files.kind, known) and known.source_topic is None,
                files.now_ms,
            )
        )
    inputs = {
        task: [
            TopicPartition(topic, task.partition)
            for part in deployed.sub_topologies
            if part.ordinal == task.sub_topology
            for topic in part.topics(layout.application_id)
        ]
        for task in {one.task for one in says}
    }
    exactly_once = deployed.processing_guarantee is ProcessingGuarantee.EXACTLY_ONCE
    for one in mismatches(says, inputs, cluster, releases, exactly_once=exactly_once):
        found.fail(one.check, one.store, one.task, one.why)


def _expires(kind: str, known: DeployedStore) -> bool:
    return kind_named(kind).expires(known.terms)


def _look_for_missing(
    application_id: str, deployed: Deployed, wanted: set[str], cluster: Cluster, found: FoundStores
) -> None:
    """Add the stores that were deployed and have no files, according to the topology."""
    seen = {(files.store, files.task.partition) for files in found.files}
    seen |= {
        (failed.store, TaskId.parse(failed.stream_task).partition)
        for failed in found.failures
        if failed.stream_task is not None
    }
    tasks = {part.ordinal: part.tasks for part in deployed.sub_topologies}
    known = {name: store for name, store in deployed.stores.items() if name in wanted}
    counts = cluster.partitions(sorted({deployed.log_of(application_id, name) for name in known}))
    for name, store in sorted(known.items()):
        if not store.persistent or name in found.not_checked:
            continue
        if not _is_built_in(deployed, name):
            found.not_checked[name] = "it is of a user's class, which alone can read its files"
            continue
        width = counts.get(deployed.log_of(application_id, name), 0)
        task_count = tasks.get(store.sub_topology)
        for partition in range(width if task_count is None else min(width, task_count)):
            if (name, partition) not in seen:
                task = TaskId(store.sub_topology, partition)
                bound_ms = versioned_layout.TIME_MIN
                files = AuditedFiles(name, task, store.kind, "", 0, bound_ms, is_missing=True)
                found.files.append(files)


def _is_built_in(deployed: Deployed, store: str) -> bool:
    """Return whether it was deployed as a built-in kind of store, so that its files must exist."""
    known = deployed.stores.get(store)
    return known is not None and kind_named(known.kind).is_readable


def _deployed_kind(deployed: Deployed, store: str) -> str | None:
    return deployed.stores[store].kind if _is_built_in(deployed, store) else None


def _facts(path: Path, databases: Databases, kind: str | None) -> AuditFacts:
    with closing(databases.read(path)) as engine:
        return facts_of(engine, str(path), kind)


def _log_of(deployed: Deployed, application_id: str, store: str, task: TaskId) -> TopicPartition:
    return TopicPartition(deployed.log_of(application_id, store), task.partition)


def _writers(known: DeployedStore) -> dict[int, str]:
    return {one.generation: one.serde for one in known.value_writers}


def _subjects(
    located: Sequence[AuditedFiles],
    application_id: str,
    deployed: Deployed,
    cluster: Cluster,
    before: Mapping[TopicPartition, int],
    *,
    export: str | None = None,
) -> list[Subject]:
    """Add to the stores' files what the brokers say about their logs."""
    logs = [_log_of(deployed, application_id, files.store, files.task) for files in located]
    topics = sorted({log.topic for log in logs})
    counts = cluster.partitions(topics)
    missing = [topic for topic in topics if topic not in counts]
    if missing:
        raise TopicMissing(
            f"there is no topic {', '.join(missing)} to compare with: restore it, or let a run "
            "create it"
        )
    bounds = cluster.bounds(logs)
    subjects = []
    for files, log in zip(located, logs, strict=True):
        known = deployed.stores.get(files.store)
        subjects.append(
            Subject(
                files.store,
                str(files.task),
                files.kind,
                files.path,
                *log,
                partitions=counts[log.topic],
                offset_next=bounds[log].end if files.is_missing else files.offset_next,
                log_end=bounds[log].end,
                last_offset=before.get(log),
                bound_ms=files.bound_ms,
                is_whole=files.is_whole,
                key_serde=None if known is None else known.key_serde,
                value_serde=None if known is None else known.value_serde,
                is_source=known is not None and known.source_topic is not None,
                is_missing=files.is_missing,
                shown_path=files.shown_path,
                export=export,
                placed_apart=known is not None and known.placed_apart is True,
                writers={} if known is None else _writers(known),
                retention_ms=None if known is None else known.retention_least_ms,
                any_start=known is not None and known.advance_ms == ANY_START,
                expires=known is not None and _expires(files.kind, known),
                interval_ms=files.interval_ms,
                timed=known is not None and known.row_times is True and known.source_topic is None,
                now_ms=files.now_ms,
                offsets=files.offsets,
            )
        )
    return subjects
