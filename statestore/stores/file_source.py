"""The rows in files that nobody writes: a snapshot, an export, a version of a global table."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from statestore.errors import StoreClosed
from statestore.ports import Engine, Table
from statestore.stores.transaction import named_failure


@dataclass
class _Uncounted:
    """Reads of files are in no store's metrics."""

    gets: int = 0
    ranges: int = 0


class FileSource:
    """The `reads.RowSource` of the files of one store."""

    def __init__(self, name: str, engine: Engine, renew: Callable[[], None]) -> None:
        """Take over the engine. `renew` keeps the lease of the files up."""
        self.name = name
        self.counts = _Uncounted()
        self.bounded = False
        self.table: Callable[[str], Table] = engine.table
        self._engine = engine
        self._renew = renew
        self._open = True

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """Return a context that waits for nothing, as nobody writes."""
        return nullcontext()

    def is_open(self) -> bool:
        return self._open

    def check_open(self) -> None:
        """Raise StoreClosed after the close. While it is open, keep the lease of the files up."""
        if not self._open:
            raise StoreClosed(f"the reader of {self.name!r} is closed: open a new one")
        self._renew()

    check_ready = check_open

    def failure(self, error: Exception) -> Exception:
        """Return an engine's error as one of ours that names the store."""
        if not self._open:
            return StoreClosed(f"the reader of {self.name!r} is closed: open a new one")
        return named_failure(error, self._engine, self.name)

    def close(self) -> None:
        """Close the files. Closing twice is harmless."""
        self._open = False
        self._engine.close()
