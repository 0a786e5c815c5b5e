"""What all transactional stores of an owner share: commit, rollback, offsets, close (KIP-892).

It is a base class, to which each built-in store adds its reads and writes. Only the owner's thread
uses it.
"""

import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Self

from statestore.errors import CommitInsideProcessor, UncommittedWrites
from statestore.model.ids import Position, TopicPartition
from statestore.model.modes import IsolationLevel
from statestore.stores.transaction import StagedEngine

_log = logging.getLogger(__name__)


CommitStore = Callable[[Mapping[TopicPartition, int | None], Position | None], None]


class TransactionalBase:
    """The part of `contracts.StateStore` that does not depend on the kind of store."""

    def __init__(
        self,
        staged: StagedEngine,
        commit: CommitStore,
        *,
        isolation_level: IsolationLevel,
        owned_by_task: bool,
    ) -> None:
        """`owned_by_task`: commit, rollback and close are left to the stream task."""
        self.staged = staged
        self._commit = commit
        self.name = staged.name
        self._isolation_level = isolation_level
        self.owned_by_task = owned_by_task

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | None] | None = None,
        *,
        position: Position | None = None,
    ) -> None:
        """Commit pending writes, changelog offsets and position in one atomic batch (S3)."""
        self._refuse_inside_task("commit")
        self._commit(offsets or {}, position)

    def rollback(self) -> None:
        """Drop the pending writes and nothing else."""
        self._refuse_inside_task("rollback")
        self.staged.rollback()

    def transaction(self) -> AbstractContextManager[None]:
        """Open a savepoint, merged at normal exit and undone on an exception.

        It is not a commit (SEMANTICS S8).
        """
        return self.staged.savepoint()

    def committed_offset(self, tp: TopicPartition) -> int | None:
        """Return the committed changelog offset, NEXT to read; None if none or in memory."""
        return self.staged.committed_offset(tp)

    def durable_offset(self, tp: TopicPartition) -> int | None:
        """Return a lower bound of what `committed_offset` would be after a crash now."""
        return self.staged.durable_offset(tp)

    def position(self) -> Position:
        """Return the input position as the owner sees it, with what is pending."""
        return self.staged.position(pending=True)

    def metrics(self) -> dict[str, float]:
        """Return Kafka Streams' metrics: latencies in ms, rates per second since the opening."""
        return self.staged.metrics_dict()

    def approximate_num_uncommitted_bytes(self) -> int:
        """Return the bytes of pending keys and values, and a fixed cost for each."""
        return self.staged.uncommitted_bytes()

    def approximate_num_uncommitted_entries(self) -> int:
        """Return the number of pending keys."""
        return self.staged.uncommitted_entries()

    def persistent(self) -> bool:
        return self.staged.persistent()

    def manages_offsets(self) -> bool:
        return True

    def is_open(self) -> bool:
        return self.staged.is_open()

    def flush(self) -> None:
        """Do nothing; deprecated (KIP-892)."""
        warnings.warn(
            "flush() does nothing: a commit request or close() is what you want",
            DeprecationWarning,
            stacklevel=2,
        )

    def close(self) -> None:
        """Roll back what is pending, with a warning, flush and release.

        Closing twice is harmless.
        """
        self._refuse_inside_task("close")
        pending = self.staged.uncommitted_entries()
        if pending:
            _log.warning(
                "store %r closed with %d writes not committed: dropped", self.name, pending
            )
        self.staged.close()

    def __enter__(self) -> Self:
        self._refuse_inside_task("close")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        pending = self.staged.uncommitted_entries()
        self.staged.close()
        if kind is None and pending:
            raise UncommittedWrites(
                f"{pending} writes to {self.name!r} not committed: call commit() or rollback()"
            )

    def _refuse_inside_task(self, verb: str) -> None:
        if self.owned_by_task:
            raise CommitInsideProcessor(
                f"store {self.name!r}: {verb} belongs to the stream task; "
                "call context.commit() to ask for a commit"
            )

    def level_of(self, asked: IsolationLevel | str | None) -> IsolationLevel:
        """Return what a new reader sees; the default is the setting of the store (SEMANTICS S9)."""
        self.staged.check_open()
        return IsolationLevel(asked or self._isolation_level)
