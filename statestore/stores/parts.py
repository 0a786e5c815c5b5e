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


class CountedWrites(StagedBytes, Protocol):
    """What counts as the pending writes of a store, where these are not the rows of its tables."""

    def __len__(self) -> int: ...
    @property
    def deletes(self) -> int: ...
    @property
    def logged_bytes(self) -> int:
        """The bytes of keys and values that a restore of these writes reads."""
