"""A copy of the stores of one stream task, always as of one commit, for many threads to read.

The files are those of a snapshot, which its holder alone has. Commits that the owner sends are
applied to them as they were written to the stores: one batch per store, and all of a commit while
the copy's turn is held. A reader takes the turn while it opens its question and reads where the
copy stands, so that an answer and its freshness are of the same commit.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import NamedTuple

from statestore.errors import (
    Misuse,
    StateStoreError,
    StoreClosed,
    TaskCorrupted,
    UnknownStore,
    one_line,
)
from statestore.layout.commit_feeds import FedCommit, FeedReader, StoreWrites
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.operations.environment import Databases
from statestore.operations.looking.task_snapshots import Snapshot
from statestore.ports import Engine, Table
from statestore.stores import offsets
from statestore.stores.transaction import named_failure

_log = logging.getLogger(__name__)
_AT_ONCE = 10_000
"""How many rows are written at once: RocksDB lets no other thread work meanwhile."""


class StorePosition(NamedTuple):
    """How far one store of a copy has come: offsets of its log NEXT, of its inputs LAST."""

    commit_number: int | None
    committed_ms: int | None
    changelog: dict[TopicPartition, int]
    position: Position


class Replica:
    """The stores of one stream task; it closes when it is retired and nobody reads it any more."""

    def __init__(self, task: TaskId, snapshot: Snapshot, databases: Databases) -> None:
        """Take over the snapshot. An error releases it."""
        manifest = snapshot.manifest
        self.task = task
        self.turn = threading.RLock()
        self.commit_number = manifest.commit_number
        self.committed_ms = manifest.committed_ms
        self.feed: FeedReader | None = snapshot.feed()
        self._left_out = dict(manifest.left_out)
        self._unreadable = set(manifest.unreadable)
        self._snapshot = snapshot
        self._engines: dict[str, Engine] = {}
        self._positions: dict[str, StorePosition] = {}
        self._readers = 0
        self._retired = False
        self._closes = ExitStack()
        self._closes.callback(snapshot.release)
        try:
            for store, path in snapshot.store_dirs().items():
                engine = databases.rewrite(path)
                self._closes.callback(engine.close)
                self._engines[store] = engine
        except BaseException:
            self._closes.close()
            raise

    def stores(self) -> Iterable[str]:
        """Return the names of the stores that it has."""
        return self._engines.keys()

    def knows(self, store: str) -> bool:
        """Return whether it has the store, or at least knows why it has not."""
        return store in self._engines or store in self._left_out

    def source(self, store: str) -> "ReplicaSource":
        """Return the store for a reader; an error says why the copy does not have it."""
        why = self._left_out.get(store)
        if why is not None:
            kind = TaskCorrupted if store in self._unreadable else Misuse
            raise kind(f"store {store!r} of task {self.task} cannot be served: {why}")
        if store not in self._engines:
            known = ", ".join(sorted(self._engines)) or "none"
            raise UnknownStore(f"task {self.task} has no store {store!r}; it has {known}")
        return ReplicaSource(store, self._engines[store], self.turn)

    def store_position(self, store: str) -> StorePosition:
        """Return how far a store has come. Hold the turn if the answer belongs to a read."""
        with self.turn:
            found = self._positions.get(store)
            if found is None:
                table = self._engines[store].table(offsets.TABLE)
                found = self._positions[store] = StorePosition(
                    self.commit_number,
                    self.committed_ms,
                    offsets.read_offsets(table, store),
                    offsets.read_position(table, store),
                )
            return found

    def apply(self, commit: FedCommit) -> None:
        """Apply one commit of the owner."""
        with self.turn:
            for batch in commit.batches:
                if batch.store in self._engines:
                    _write(self._engines[batch.store], batch)
                    self._positions.pop(batch.store, None)
            # A restore after a failure brings rows of commits that were counted before.
            self.commit_number = commit.number
            self.committed_ms = commit.committed_ms or self.committed_ms
            self._positions.clear()

    def renew(self) -> None:
        """Keep the files; Unavailable if they are gone."""
        self._snapshot.renew()

    # Readers keep it open.

    def borrow(self) -> bool:
        """Keep it open until `give_back`; False if it has been closed."""
        with self.turn:
            if self._retired:
                return False
            self._readers += 1
            return True

    def give_back(self) -> None:
        """End what `borrow` began."""
        with self.turn:
            self._readers -= 1
            done = self._retired and not self._readers
        if done:
            self._close()

    def retire(self) -> None:
        """Close it, now or when its last reader gives it back. Retiring twice is harmless."""
        with self.turn:
            done = not self._retired and not self._readers
            self._retired = True
        if done:
            self._close()

    def _close(self) -> None:
        try:
            self._closes.close()
        except StateStoreError as error:
            # Its files went with its lease, which another copy makes up for.
            _log.warning("task %s: while closing a copy: %s", self.task, one_line(error))


class _Reads:
    """Reads of copies are counted by whoever asks."""

    def __init__(self) -> None:
        self.gets = 0
        self.ranges = 0


class ReplicaSource:
    """The `reads.RowSource` of one store of a copy. The replica closes it, not its reader."""

    def __init__(self, name: str, engine: Engine, turn: threading.RLock) -> None:
        self.name = name
        self.turn = turn
        self.counts = _Reads()
        self.bounded = False
        self._engine = engine
        self._open = True

    def table(self, name: str, /) -> Table:
        return self._engine.table(name)

    def is_open(self) -> bool:
        return self._open

    def check_open(self) -> None:
        """Raise StoreClosed after the close of its reader."""
        if not self._open:
            raise StoreClosed(f"the reader of {self.name!r} is closed: ask again")

    check_ready = check_open

    def failure(self, error: Exception, /) -> Exception:
        """Return an engine's error as one of ours that names the store."""
        return named_failure(error, self._engine, self.name)

    def close(self) -> None:
        self._open = False


def _write(engine: Engine, batch: StoreWrites) -> None:
    """Write a batch in parts: nobody reads meanwhile, and after a crash there is a new copy."""
    ranges: Mapping[str, list[tuple[bytes, bytes]]] | None = batch.ranges or None
    for table, rows in batch.writes.items():
        if len(rows) <= _AT_ONCE:
            continue
        left = iter(rows.items())
        if ranges is not None:
            engine.write({}, ranges=ranges)
            ranges = None
        while part := dict(islice(left, _AT_ONCE)):
            engine.write({table: part})
    small = {table: rows for table, rows in batch.writes.items() if len(rows) <= _AT_ONCE}
    if small or ranges:
        engine.write(small, ranges=ranges)
