"""The global tables and lookups of a TopologyTestDriver, which have no files and no versions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from statestore.model.ids import TopicPartition
from statestore.operations.start.lookup_files import BYTES_MAX, rows_of
from statestore.ports import Changelog, Replayed
from statestore.stores.global_store import GlobalKeyValueStore
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.specs import StoreSpec
from statestore.stores.staged_table import StagedTable
from statestore.targets import read_file
from statestore.topology.graph import Topology
from statestore.topology.nodes import GlobalSource, LookupSource


class _LookupFile(NamedTuple):
    """The file of a lookup as it was read last, and the keys of its rows."""

    content: bytes
    keys: frozenset[bytes]


class DriverTables:
    """The global tables and lookups of a topology under test: up to date before each step."""

    def __init__(
        self, topology: Topology, open_store: Callable[[StoreSpec, Path], BuiltIn]
    ) -> None:
        self.stores: dict[str, GlobalKeyValueStore[Any, Any]] = {}
        self._tables: list[tuple[GlobalSource, StagedTable]] = []
        self._read: dict[TopicPartition, int] = {}
        for source in topology.global_sources:
            table = open_store(source.spec, Path()).table
            assert isinstance(table, StagedTable)
            self.stores[source.spec.name] = GlobalKeyValueStore(source.spec, table)
            self._tables.append((source, table))
        self._lookups: list[tuple[LookupSource, StagedTable]] = []
        self._files: dict[str, _LookupFile] = {}
        for lookup in topology.lookups:
            table = open_store(lookup.spec, Path()).table
            assert isinstance(table, StagedTable)
            self.stores[lookup.spec.name] = GlobalKeyValueStore(lookup.spec, table)
            self._lookups.append((lookup, table))

    def refresh(self, changelog: Changelog, partitions: int) -> None:
        """Take over what the topics got, and what the files of lookups have."""
        for lookup, table in self._lookups:
            name, content = lookup.spec.name, read_file(lookup.url, BYTES_MAX).content
            before = self._files.get(name)
            if before is None or before.content != content:
                now = rows_of(lookup, content)
                gone = () if before is None else before.keys - now.keys()
                keys = [*now, *gone]
                table.restore(keys, [now.get(key) for key in keys], [0] * len(keys), {})
                self._files[name] = _LookupFile(content, frozenset(now))
        for source, table in self._tables:
            tps = [TopicPartition(source.topic.name, p) for p in range(partitions)]
            for tp, bounds in changelog.bounds(tps).items():
                start = self._read.get(tp, bounds.start)
                if start < bounds.end:
                    for stretch in changelog.replay(tp, start, bounds.end):
                        self._apply(table, tp, stretch)

    def _apply(self, table: StagedTable, tp: TopicPartition, stretch: Replayed) -> None:
        keyless = set(stretch.batch.keys.nulls())
        batch = stretch.batch.take([i for i in range(len(stretch.batch)) if i not in keyless])
        table.restore(
            batch.keys.objects,
            batch.values.objects,
            batch.timestamps,
            {tp: stretch.offset_next},
        )
        self._read[tp] = stretch.offset_next
