"""What an audit looks at, live stores or an export, and where each store stands in its log.

snapshots    of every stream task, leased until the audit ends; of an export none are needed
ends         the logs' last stable offsets, asked for after the snapshots
memory       the offsets the audit before saw of the live stores, but of those quarantined since
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from statestore.errors import (
    ExportDamaged,
    StateStoreError,
    TaskCorrupted,
    TopicMissing,
    UnknownStore,
)
from statestore.layout.audits import LIVE, AuditFailure, Audits
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.audits.audit import Check
from statestore.operations.audits.rows import Subject, facts_of
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.environment import Databases, Environment
from statestore.operations.exports.catalog import Exports, FetchedStore
from statestore.operations.snapshots import Snapshot, Snapshots
from statestore.ports import Clock, Cluster
from statestore.stores import keyvalue, versioned_layout
from statestore.stores.specs import StoreSupplier

_RENEW_S = 1.0


class Stand(NamedTuple):
    """A store of one stream task, before anybody asked the brokers.

    `path` "": in an export, or, with `is_missing`, nowhere; then `offset_next` is not known.
    """

    store: str
    task: TaskId
    kind: str
    path: str
    offset_next: int
    bound_ms: int
    home: str = ""
    is_missing: bool = False


class Found(NamedTuple):
    """The stores there are to audit, those that cannot be read, and those nobody can read."""

    stands: list[Stand]
    failures: list[AuditFailure]
    not_checked: dict[str, str]


class AuditPlan:
    """Subjects listed, their snapshots held. Use `with`: at its end those are released."""

    def __init__(
        self, subjects: list[Subject], found: Found, source: str, held: Sequence[Snapshot] = ()
    ) -> None:
        self.subjects = subjects
        self.failures = found.failures
        self.not_checked = found.not_checked
        self.source = source
        self._held = held

    def by_store(self) -> Iterator[tuple[str, list[Subject]]]:
        """Each store with its partitions."""
        for store in sorted({subject.store for subject in self.subjects}):
            yield store, [one for one in self.subjects if one.store == store]

    def renew(self) -> None:
        """Keep the snapshots for another while; Unavailable if one is gone."""
        for snapshot in self._held:
            snapshot.renew()

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Keep the snapshots from another thread, while this one waits for others' work."""
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
        """Release the snapshots. Twice is harmless."""
        for snapshot in self._held:
            snapshot.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def plan_live(environment: Environment, stores: Collection[str] = ()) -> AuditPlan:
    """Of the stores as committed last; `stores`: only these, all if empty, UnknownStore."""
    layout, cluster, snapshots = environment.layout, environment.cluster, Snapshots(environment)
    said = read_deployed(layout)
    there = {store for task in layout.tasks() for store in layout.stores(task)} | said.stores.keys()
    wanted = _wanted(there, stores, str(layout.application_dir))
    with ExitStack() as taken:
        held = [
            taken.enter_context(snapshots.take(task))
            for task in layout.tasks()
            if wanted.intersection(layout.stores(task))
        ]
        found = Found([], [], {})
        for snapshot in held:
            _look(snapshot, layout, said, wanted, environment.databases, found)
        for name in sorted(wanted & said.stores.keys()):
            if not said.stores[name].persistent:
                found.not_checked[name] = "it is in memory: it has no files to look into"
        _look_for_missing(layout.application_id, said, wanted, cluster, found)
        before = last_offsets(layout)
        subjects = _subjects(
            found.stands, layout.application_id, said, cluster, environment.clock, before
        )
        taken.pop_all()
    return AuditPlan(subjects, found, LIVE, held)


def plan_export(environment: Environment, export: str, stores: Collection[str] = ()) -> AuditPlan:
    """Of the stores in an export, whose files are fetched when they are read."""
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
    found = Found([], [], not_checked)
    for at in manifest.stores():
        if at.name in wanted:
            log = _log_of(manifest.deployed, manifest.application_id, at.name, at.task)
            offset_next = at.store.offsets.offsets().get(log, 0)
            bound_ms = versioned_layout.TIME_MIN
            if at.store.kind == versioned_layout.KIND:
                try:
                    with FetchedStore(exports, at) as fetched:
                        _, bound_ms = _facts(fetched.store_dir(at.name), environment.databases)
                except (TaskCorrupted, ExportDamaged) as error:
                    task, why = str(at.task), str(error)
                    failure = AuditFailure(Check.READABLE, at.name, task, 1, [], why)
                    found.failures.append(failure)
                    continue
            stand = Stand(at.name, at.task, at.store.kind, "", offset_next, bound_ms)
            found.stands.append(stand)
    _look_for_missing(manifest.application_id, manifest.deployed, wanted, cluster, found)
    subjects = _subjects(
        found.stands,
        manifest.application_id,
        manifest.deployed,
        cluster,
        environment.clock,
        {},
        export=manifest.export_id,
    )
    return AuditPlan(subjects, found, manifest.export_id)


def last_offsets(layout: StateLayout) -> dict[TopicPartition, int]:
    """Where the last audit of the live stores saw each, by log; what was quarantined since: not."""
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
    said: Deployed,
    wanted: set[str],
    databases: Databases,
    found: Found,
) -> None:
    """What a snapshot has of the stores wanted."""
    manifest = snapshot.manifest
    task = TaskId.parse(manifest.stream_task)

    def unreadable(store: str, why: str) -> None:
        found.failures.append(AuditFailure(Check.READABLE, store, str(task), 1, [], why))

    for store in sorted(wanted & manifest.left_out.keys()):
        if store in manifest.unreadable:
            unreadable(store, manifest.left_out[store])
        elif not _is_built_in(said, store):
            found.not_checked[store] = manifest.left_out[store]
    for store in sorted(wanted & manifest.stores.keys()):
        path = snapshot.store_dir(store)
        try:
            kind, bound_ms = _facts(path, databases)
        except TaskCorrupted as error:
            unreadable(store, str(error))
            continue
        if kind is None:
            kind = said.stores[store].kind if store in said.stores else keyvalue.KIND
        log = _log_of(said, layout.application_id, store, task)
        offset_next = manifest.stores[store].offsets().get(log, 0)
        home = str(layout.store_dir(task, store))
        found.stands.append(Stand(store, task, kind, str(path), offset_next, bound_ms, home))


def _look_for_missing(
    application_id: str, said: Deployed, wanted: set[str], cluster: Cluster, found: Found
) -> None:
    """What was deployed and is nowhere: asked of the topology, not of what lies there."""
    seen = {(stand.store, stand.task.partition) for stand in found.stands}
    seen |= {
        (failed.store, TaskId.parse(failed.stream_task).partition)
        for failed in found.failures
        if failed.stream_task is not None
    }
    tasks = {part.ordinal: part.tasks for part in said.sub_topologies}
    known = {name: store for name, store in said.stores.items() if name in wanted}
    counts = cluster.partitions(sorted({said.log_of(application_id, name) for name in known}))
    for name, store in sorted(known.items()):
        if not store.persistent or name in found.not_checked:
            continue
        if not _is_built_in(said, name):
            found.not_checked[name] = "it is of a class of its own, which alone can read it"
            continue
        width = counts.get(said.log_of(application_id, name), 0)
        deployed = tasks.get(store.sub_topology)
        for partition in range(width if deployed is None else min(width, deployed)):
            if (name, partition) not in seen:
                task = TaskId(store.sub_topology, partition)
                bound_ms = versioned_layout.TIME_MIN
                stand = Stand(name, task, store.kind, "", 0, bound_ms, is_missing=True)
                found.stands.append(stand)


def _is_built_in(said: Deployed, store: str) -> bool:
    """Whether it was deployed as a store that anybody can read: then it must be there."""
    known = said.stores.get(store)
    return known is not None and known.kind != StoreSupplier.kind


def _facts(path: Path, databases: Databases) -> tuple[str | None, int]:
    with closing(databases.read(path)) as engine:
        return facts_of(engine, str(path))


def _log_of(said: Deployed, application_id: str, store: str, task: TaskId) -> TopicPartition:
    return TopicPartition(said.log_of(application_id, store), task.partition)


def _subjects(
    stands: Sequence[Stand],
    application_id: str,
    said: Deployed,
    cluster: Cluster,
    clock: Clock,
    before: Mapping[TopicPartition, int],
    *,
    export: str | None = None,
) -> list[Subject]:
    """The stands with what the brokers say of their logs."""
    logs = [_log_of(said, application_id, stand.store, stand.task) for stand in stands]
    topics = sorted({log.topic for log in logs})
    counts = cluster.partitions(topics)
    missing = [topic for topic in topics if topic not in counts]
    if missing:
        raise TopicMissing(
            f"there is no topic {', '.join(missing)} to compare with: bring it back, or let a "
            "run make it"
        )
    bounds, settings = cluster.bounds(logs), cluster.topic_settings(topics)
    now_ms = clock.now_ms()
    subjects = []
    for stand, log in zip(stands, logs, strict=True):
        known = said.stores.get(stand.store)
        lag_ms = int(settings[log.topic].get("min.compaction.lag.ms") or 0)
        subjects.append(
            Subject(
                stand.store,
                str(stand.task),
                stand.kind,
                stand.path,
                *log,
                partitions=counts[log.topic],
                offset_next=bounds[log].end if stand.is_missing else stand.offset_next,
                log_end=bounds[log].end,
                last_offset=before.get(log),
                bound_ms=stand.bound_ms,
                compactable_ms=now_ms - lag_ms,
                key_serde=None if known is None else known.key_serde,
                value_serde=None if known is None else known.value_serde,
                is_source=known is not None and known.source_topic is not None,
                is_missing=stand.is_missing,
                home=stand.home,
                export=export,
            )
        )
    return subjects
