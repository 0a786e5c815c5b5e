"""Keeps the rows of global tables and lookups, and opens them for stream tasks.

The run is their only writer: it holds the application's lock. At the beginning of each wave it
brings a new version of the stores up to the last stable offsets of their topics, from the offsets
in the last version's own batches, and every stream task of the wave reads that one. In a continuous
run a thread goes on doing so, and processes look for newer versions between two batches. Nothing of
it is part of a commit, and there is no changelog: the topic is the log. What belongs to the files
of lookups is in lookups.py.

Keeps I38.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from statestore.errors import (
    FormatTooNew,
    HostFailure,
    StateStoreError,
    TaskCorrupted,
    TopicMissing,
)
from statestore.faults import CrashPoint, reach
from statestore.layout.global_versions import (
    FileContent,
    GlobalContent,
    GlobalVersion,
    GlobalVersions,
)
from statestore.metrics import count_left_out
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.left_out import Cause, Fate
from statestore.operations.environment import Databases, Environment
from statestore.operations.start.lookup_files import LookedUp, look_up, write
from statestore.ports import Bounds
from statestore.stores import keyvalue
from statestore.stores.file_source import FileSource
from statestore.stores.global_store import GlobalKeyValueStore
from statestore.stores.reads import SourceRows
from statestore.topology.graph import Topology
from statestore.topology.nodes import GlobalSource

_log = logging.getLogger(__name__)
_NOTED_MS: Final = 60_000
_FILES_TOLD: Final = 100
_KEPT_MS: Final = 600_000
"""How long a version that another one has followed is kept for processes that still read it."""


class _Tail(NamedTuple):
    """What a store lacks. `since`: the folder it goes on from; None: it is made anew.

    `asked_ms`: the topic ended at these bounds at that time, or later.
    """

    source: GlobalSource
    since: Path | None
    starts: Mapping[TopicPartition, int]
    bounds: Mapping[TopicPartition, Bounds]
    topic_id: str
    asked_ms: int

    def records(self) -> int:
        """Return how many offsets there are to read."""
        return sum(self.bounds[tp].end - start for tp, start in self.starts.items())


class GlobalTables:
    """The global tables of one application, for its run. Use from one thread at a time."""

    def __init__(self, environment: Environment, topology: Topology, nonce: str) -> None:
        """`nonce` names this run as no other."""
        self._environment = environment
        self._sources = topology.global_sources
        self._lookups = topology.lookups
        self._nonce = nonce
        self._made = 0
        self._versions = GlobalVersions(environment.layout)
        self._followed: list[tuple[int, int]] = []  # versions, and when another one followed
        self._files_read: deque[tuple[str, FileContent]] = deque(maxlen=_FILES_TOLD)

    def refresh(self) -> int | None:
        """Bring all stores up to their topics; return the number of the version that has them.

        None if there are no global tables. If nothing has changed, the last version is still right.
        """
        if not self._sources and not self._lookups:
            return None
        newest, now_ms = self._versions.newest(), self._environment.clock.now_ms()
        tails = self._tails(newest)
        files = self._look_up()
        for found in files:
            self._tell_of(found)
        if newest is not None and self._is_right(newest, tails, files):
            self._note_complete(self._versions.path(newest), files, now_ms)
            return newest
        self._made += 1
        folder = self._versions.begin(f"{self._nonce}-{self._made}")
        known = {
            tail.source.spec.name: GlobalContent(tail.source.topic.name, tail.topic_id)
            for tail in tails
        }
        # The record comes first, so that a later run can go on from what this one has read.
        self._versions.note(folder, GlobalVersion(known))
        stores = {tail.source.spec.name: self._brought_up(tail, folder) for tail in tails}
        for found in files:
            write(self._environment, found, folder)
        self._versions.note(folder, GlobalVersion(stores, _contents(files)))
        number = self._versions.publish(folder)
        reach(CrashPoint.GLOBAL_PUBLISHED)
        self._sweep(newest)
        return number

    def pending(self) -> dict[str, int]:
        """Return how many records the next refresh reads at most, by store; write nothing."""
        tails = self._tails(self._versions.newest())
        return {tail.source.spec.name: tail.records() for tail in tails}

    def rows_of_files(self) -> dict[str, int]:
        """Return how many rows the file of each lookup has, by store; write nothing.

        Misuse if a file cannot be a lookup.
        """
        return {one.source.spec.name: one.content.rows for one in self._look_up()}

    def files_read(self) -> list[dict[str, object]]:
        """Return what files this run has shown to its stream tasks, the last hundred in order."""
        return [
            {
                "store": store,
                "file": content.url,
                "tag": content.tag,
                "sha256": content.sha256,
                "rows": content.rows,
            }
            for store, content in self._files_read
        ]

    def _look_up(self) -> list[LookedUp]:
        newest = self._versions.newest()
        return [look_up(self._environment, it, self._versions, newest) for it in self._lookups]

    def _tell_of(self, found: LookedUp) -> None:
        """Keep what a file had for the summary, unless it is what it had before."""
        name, content = found.source.spec.name, found.content
        before = [one.sha256 for store, one in self._files_read if store == name]
        if not before or before[-1] != content.sha256:
            self._files_read.append((name, content))

    def sweep_all(self) -> None:
        """Remove all versions but the last, and this one too if the topology has no global table.

        It is for the start of a run, when nobody else reads them.
        """
        needed = bool(self._sources or self._lookups)
        kept = self._versions.numbers()[-1:] if needed else []
        for number in self._versions.numbers():
            if number not in kept:
                self._remove(self._versions.path(number))
        if not needed and self._versions.folder.is_dir():
            self._remove(self._versions.folder)
            _log.info("removed %s: the topology has no global table", self._versions.folder)

    def _is_right(self, newest: int, tails: Sequence[_Tail], files: Sequence[LookedUp]) -> bool:
        """Return whether a version has just these stores, as their topics and files are now."""
        folder = self._versions.path(newest)
        try:
            had = self._versions.read(folder)
        except (TaskCorrupted, FormatTooNew, HostFailure):
            return False  # Whoever looked into it before has said so.
        if had.stores.keys() != {tail.source.spec.name for tail in tails}:
            return False
        if had.files.keys() != _contents(files).keys():
            return False
        if any(one.since is None for one in files):
            return False
        return all(
            tail.since is not None and tail.since.parent == folder and not tail.records()
            for tail in tails
        )

    def _note_complete(self, folder: Path, files: Sequence[LookedUp], now_ms: int) -> None:
        """Note that a version still has everything, so that it is not made anew some day (I29)."""
        had = self._versions.read(folder)
        noted = [content.complete_ms or 0 for content in had.stores.values()]
        noted += [content.read_ms for content in had.files.values()]
        if min(noted) + _NOTED_MS <= now_ms:
            fresh = {
                name: msgspec.structs.replace(content, complete_ms=now_ms)
                for name, content in had.stores.items()
            }
            self._versions.note(folder, GlobalVersion(fresh, _contents(files)))

    def _tails(self, newest: int | None) -> list[_Tail]:
        if not self._sources:
            return []
        environment, topics = self._environment, sorted({s.topic.name for s in self._sources})
        asked_ms = environment.clock.now_ms()
        counts = environment.cluster.partitions(topics)
        for source in self._sources:
            if source.topic.name not in counts:
                raise TopicMissing(
                    f"topic {source.topic.name} of global table {source.spec.name} does not exist: "
                    "create it with its records, or leave the table out of the pipeline"
                )
        ids = environment.cluster.topic_ids(topics)
        tps = [TopicPartition(topic, p) for topic in topics for p in range(counts[topic])]
        bounds = environment.changelog.bounds(tps)
        folders = list(self._versions.unfinished())
        if newest is not None:
            folders.append(self._versions.path(newest))
        tails = []
        for source in self._sources:
            topic = source.topic.name
            own = {tp: bounds[tp] for tp in tps if tp.topic == topic}
            since, starts = None, {tp: known.start for tp, known in own.items()}
            for folder in folders:
                found = self._offsets(folder, source, ids.get(topic, ""), own)
                # The last version comes last, so of two that are as far it is the one.
                if found is not None and (since is None or _sum(found) >= _sum(starts)):
                    since, starts = folder / source.spec.name, found
            tails.append(_Tail(source, since, starts, own, ids.get(topic, ""), asked_ms))
        return tails

    def _offsets(
        self,
        folder: Path,
        source: GlobalSource,
        topic_id: str,
        bounds: Mapping[TopicPartition, Bounds],
    ) -> dict[TopicPartition, int] | None:
        """Return where a store can go on in its topic; None: it has to be made anew."""
        name, path = source.spec.name, folder / source.spec.name
        try:
            content = self._versions.read(folder).stores.get(name)
            if content is None or not path.is_dir():
                return None
            if (content.topic, content.topic_id) != (source.topic.name, topic_id):
                _log.warning("global table %s is made anew: its topic is another one", name)
                return None
            if self._versions.damaged(folder):
                _log.warning("global table %s is made anew: a reader met damage", name)
                return None
            stored = self._environment.databases.offsets_of(path)
        except (TaskCorrupted, FormatTooNew, HostFailure) as error:
            _log.warning("global table %s is made anew: %s", name, error)
            return None
        if stored is None:
            return None
        known = stored.offsets()
        starts = {tp: known.get(tp, bound.start) for tp, bound in bounds.items()}
        if known.keys() - bounds.keys() or any(
            not bounds[tp].start <= starts[tp] <= bounds[tp].end for tp in bounds
        ):
            _log.warning("global table %s is made anew: its topic was truncated", name)
            return None
        if self._may_lack_deletes(content, starts, bounds):
            _log.warning(
                "global table %s is made anew: it stands so far back that %s may have forgotten "
                "deletes since (delete.retention.ms)",
                name,
                source.topic.name,
            )
            return None
        return starts

    def _may_lack_deletes(
        self,
        content: GlobalContent,
        starts: Mapping[TopicPartition, int],
        bounds: Mapping[TopicPartition, Bounds],
    ) -> bool:
        """Return whether a compacted topic may have forgotten deletes after these offsets (I29)."""
        if content.complete_ms is None or all(starts[tp] == bounds[tp].end for tp in starts):
            return False
        told = self._environment.cluster.topic_settings([content.topic]).get(content.topic, {})
        if "compact" not in told.get("cleanup.policy", ""):
            return False
        age_ms = self._environment.clock.now_ms() - content.complete_ms
        return age_ms >= int(told.get("delete.retention.ms", 86_400_000))

    def _brought_up(self, tail: _Tail, folder: Path) -> GlobalContent:
        """Put a store that has all of its topic into the folder of a new version."""
        spec, topic = tail.source.spec, tail.source.topic.name
        path, clock = folder / spec.name, self._environment.clock
        if tail.since is not None:
            self._environment.databases.link(tail.since, path, True)  # a port
            reach(CrashPoint.GLOBAL_LINKED)
        ends = dict(tail.starts)
        started, records = clock.monotonic(), 0
        if tail.records() or tail.since is None:
            store = self._environment.open_store(spec, path)
            assert isinstance(store, keyvalue.TransactionalKeyValueStore)
            with closing(store.staged):
                for tp, start in tail.starts.items():
                    for batch, at in self._replayed(tp, start, tail.bounds[tp].end):
                        ends[tp] = at
                        kept = _with_keys(spec.name, batch)
                        keys, values = kept.keys.objects, kept.values.objects
                        store.table.restore(keys, values, kept.timestamps, {tp: at})
                        reach(CrashPoint.GLOBAL_ROWS_WRITTEN)
                        records += len(kept)
        took_s = clock.monotonic() - started
        how = "from its start" if tail.since is None else "from where it was"
        _log.info(
            "global table %s: read %d records of %s %s, %.1f s",
            spec.name,
            records,
            topic,
            how,
            took_s,
        )
        offsets = {tp.partition: end for tp, end in ends.items()}
        return GlobalContent(topic, tail.topic_id, offsets, tail.asked_ms)

    def _replayed(self, tp: TopicPartition, start: int, end: int) -> Iterator[tuple[Batch, int]]:
        if start < end:
            for stretch in self._environment.changelog.replay(tp, start, end):
                yield stretch.batch, stretch.offset_next

    def _sweep(self, followed: int | None) -> None:
        """Remove what nobody reads any more, now that a version has followed another."""
        now_ms = self._environment.clock.now_ms()
        if followed is not None:
            self._followed.append((followed, now_ms))
        for folder in self._versions.unfinished():
            self._remove(folder)
        while self._followed and self._followed[0][1] + _KEPT_MS <= now_ms:
            self._remove(self._versions.path(self._followed.pop(0)[0]))

    def _remove(self, folder: Path) -> None:
        try:
            self._versions.remove(folder)
        except HostFailure as error:
            _log.warning("%s; the next run tries again", error)


class Refresher:
    """Refreshes global tables in a thread of its own, until it is closed.

    A refresh that fails is tried again after the next interval: the rows are older meanwhile.
    """

    def __init__(self, tables: GlobalTables, every_ms: int) -> None:
        self._tables = tables
        self._every_s = every_ms / 1000
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="global tables", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the refresh that it is at."""
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._tables.refresh()
            except StateStoreError as error:
                _log.warning("global tables are as they were, and tried again: %s", error)


class GlobalStores:
    """The stores of global tables for the stream tasks of one process. Close it when done."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology,
        names: Iterable[str],
        number: int | None,
        *,
        bounded: bool,
    ) -> None:
        """Open version `number` of these stores; Unavailable if it is gone.

        In a continuous run, open the last version, as `number` may have been removed since.
        """
        wanted = set(names)
        self.stores = {
            name: GlobalKeyValueStore[Any, Any](spec)
            for name, spec in topology.shared_specs.items()
            if name in wanted
        }
        self._versions = GlobalVersions(environment.layout)
        self._databases = environment.databases
        self._clock = environment.clock
        self._every_s = environment.settings.global_refresh_ms / 1000
        self._looked_s = self._clock.monotonic()
        self._number = 0
        self._open: list[FileSource] = []
        if self.stores:
            assert number is not None, "a wave that reads global tables has a version of them"
            newest = None if bounded else self._versions.newest()
            self._show(number if newest is None else newest)

    def look(self) -> None:
        """Go on with a newer version if there is one; ask for it between two batches."""
        now_s = self._clock.monotonic()
        if self.stores and now_s - self._looked_s >= self._every_s:
            self._looked_s = now_s
            newest = self._versions.newest()
            if newest is not None and newest != self._number:
                self._show(newest)

    def close(self) -> None:
        """Close the files. Closing twice is harmless."""
        while self._open:
            self._open.pop().close()

    def _show(self, number: int) -> None:
        folder = self._versions.require(number)
        before, self._open = self._open, []
        for name, store in self.stores.items():
            source: FileSource = _VersionSource(self._versions, number, name, self._databases)
            self._open.append(source)
            store.show(SourceRows(source, keyvalue.TABLE))
        self._number = number
        for source in before:
            source.close()
        _log.debug("global tables are those of %s", folder)


class _VersionSource(FileSource):
    """The files of one store of one version; a damaged one is marked, so that it is made anew."""

    def __init__(
        self, versions: GlobalVersions, number: int, name: str, databases: Databases
    ) -> None:
        self._versions = versions
        self._number = number
        try:
            engine = databases.read(versions.path(number) / name)
        except TaskCorrupted as error:
            raise self._damaged(error, name) from error
        super().__init__(name, engine, lambda: None)

    def failure(self, error: Exception) -> Exception:
        ours = super().failure(error)
        return self._damaged(ours, self.name) if isinstance(ours, TaskCorrupted) else ours

    def _damaged(self, error: TaskCorrupted, name: str) -> TaskCorrupted:
        self._versions.mark_damaged(self._number)
        return TaskCorrupted(
            f"global table {name}: {error}; the next run makes it anew from its topic or file"
        )


def _contents(files: Iterable[LookedUp]) -> dict[str, FileContent]:
    return {found.source.spec.name: found.content for found in files}


def _with_keys(store: str, batch: Batch) -> Batch:
    nulls = batch.keys.nulls()
    if not nulls:
        return batch
    count_left_out("global", {str(Cause(Fate.DROPPED, store, "null_key")): len(nulls)})
    _log.warning(
        "global table %s drops %d records of %s without a key", store, len(nulls), batch.topic
    )
    return batch.without(nulls)


def _sum(offsets: Mapping[TopicPartition, int]) -> int:
    return sum(offsets.values())
