"""What goes along with the pending writes of a store (statestore/stores/transaction.py)."""

from typing import Protocol


class Staged(Protocol):
    """What is kept in step with the pending writes: marked, merged, undone, settled with them."""

    def mark(self) -> None: ...
    def merge(self) -> None: ...
    def undo(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class StagedBytes(Staged, Protocol):
    """What also takes memory that counts as pending."""

    @property
    def size_bytes(self) -> int: ...
