"""What an audit looks at: a snapshot of every stream task, and where each store stands in its log.

snapshots    of every stream task, leased until the audit ends
ends         the logs' last stable offsets, asked for after the snapshots
memory       the offsets the audit before saw, unless the store was quarantined since
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from statestore.errors import (
    StateStoreError,
    TaskCorrupted,
    TopicMissing,
    UnknownStore,
)
from statestore.layout.audits import AuditFailure, Audits
from statestore.layout.folders import StateLayout
from statestore.model import TaskId, TopicPartition
from statestore.operations.audit import Check
from statestore.operations.audit_rows import Subject, facts_of
from statestore.operations.deployed import read_deployed
from statestore.operations.snapshots import Snapshot, Snapshots
from statestore.ports import Bounds, Clock, Cluster, Engine
from statestore.stores import keyvalue

LIVE = "live"
_RENEW_S = 1.0


class _Stand(NamedTuple):
    """A store of one stream task in a snapshot, before anybody asked the brokers."""

    store: str
    task: TaskId
    kind: str
    path: Path
    log: TopicPartition
    offset_next: int
    bound_ms: int


class AuditPlan:
    """Snapshots held, subjects listed. Use `with`: at its end the snapshots are released."""

    def __init__(
        self,
        layout: StateLayout,
        snapshots: Snapshots,
        cluster: Cluster,
        open_files: Callable[[Path], Engine],
        clock: Clock,
        stores: Collection[str] = (),
    ) -> None:
        """`stores`: only these, all if empty; UnknownStore names what there is."""
        self.subjects: list[Subject] = []
        self.failures: list[AuditFailure] = []
        self.not_checked: dict[str, str] = {}
        self._layout = layout
        self._deployed = read_deployed(layout)
        self._cluster = cluster
        self._open_files = open_files
        self._clock = clock
        self._wanted = self._known(stores)
        self._closing = ExitStack()
        self._held: list[Snapshot] = []
        with ExitStack() as taken:
            for task in layout.tasks():
                if self._wanted.intersection(layout.stores(task)):
                    self._held.append(taken.enter_context(snapshots.take(task)))
            stands = [stand for snapshot in self._held for stand in self._stands(snapshot)]
            self.subjects = self._subjects(stands)
            self._closing = taken.pop_all()
        for name in sorted(self._wanted.intersection(self._deployed.stores)):
            if not self._deployed.stores[name].persistent:
                self.not_checked[name] = "it is in memory: it has no files to look into"

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
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _known(self, stores: Collection[str]) -> set[str]:
        there = {store for task in self._layout.tasks() for store in self._layout.stores(task)}
        there.update(self._deployed.stores)
        for store in stores:
            if store not in there:
                raise UnknownStore(
                    f"no store {store!r} in {self._layout.application_dir}; "
                    f"it has: {', '.join(sorted(there)) or 'none'}"
                )
        return set(stores) or there

    def _stands(self, snapshot: Snapshot) -> Iterator[_Stand]:
        manifest = snapshot.manifest
        task = TaskId.parse(manifest.stream_task)
        for store, why in sorted(manifest.left_out.items()):
            if store not in self._wanted:
                continue
            if store in manifest.unreadable:
                self._fail(store, task, why)
            else:
                self.not_checked[store] = why
        for store, at in sorted(manifest.stores.items()):
            if store not in self._wanted:
                continue
            path = snapshot.store_dir(store)
            try:
                with closing(self._open_files(path)) as engine:
                    kind, bound_ms = facts_of(engine, str(path))
            except TaskCorrupted as error:
                self._fail(store, task, str(error))
                continue
            said = self._deployed.stores.get(store)
            kind = kind or (keyvalue.KIND if said is None else said.kind)
            topic = self._deployed.log_of(self._layout.application_id, store)
            log = TopicPartition(topic, task.partition)
            yield _Stand(store, task, kind, path, log, at.offsets().get(log, 0), bound_ms)

    def _fail(self, store: str, task: TaskId, why: str) -> None:
        failure = AuditFailure(Check.READABLE, store, str(task), 1, [], why)
        self.failures.append(failure)

    def _subjects(self, stands: list[_Stand]) -> list[Subject]:
        topics = sorted({stand.log.topic for stand in stands})
        counts = self._cluster.partitions(topics)
        missing = [topic for topic in topics if topic not in counts]
        if missing:
            raise TopicMissing(
                f"there is no topic {', '.join(missing)} to compare with: bring it back, or let a "
                "run make it"
            )
        bounds = self._cluster.bounds([stand.log for stand in stands])
        lags = {
            topic: int(settings.get("min.compaction.lag.ms", 0))
            for topic, settings in self._cluster.topic_settings(topics).items()
        }
        before = last_offsets(self._layout)
        now_ms = self._clock.now_ms()
        return [
            self._subject(
                stand, counts, bounds, before.get(stand.log), now_ms - lags[stand.log.topic]
            )
            for stand in stands
        ]

    def _subject(
        self,
        stand: _Stand,
        counts: Mapping[str, int],
        bounds: Mapping[TopicPartition, Bounds],
        last_offset: int | None,
        compactable_ms: int,
    ) -> Subject:
        known = self._deployed.stores.get(stand.store)
        return Subject(
            stand.store,
            str(stand.task),
            stand.kind,
            str(stand.path),
            stand.log.topic,
            stand.log.partition,
            counts[stand.log.topic],
            stand.offset_next,
            bounds[stand.log].end,
            last_offset,
            stand.bound_ms,
            compactable_ms,
            None if known is None else known.key_serde,
            None if known is None else known.value_serde,
            known is not None and known.source_topic is not None,
        )


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
