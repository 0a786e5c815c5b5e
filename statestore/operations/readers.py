"""Reads stores from files that nobody writes: at rest, in a snapshot, in an export.

A reader is that of the store's kind (stores/kinds.py), over one `FileSource` per stream task. Each
partition is as of the moment its files were taken. It is read-only, for any thread.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from statestore.errors import StateStoreError, StoreClosed, TaskCorrupted
from statestore.ports import Engine, Table
from statestore.stores.kinds import AnyReader, reader_over
from statestore.stores.specs import BuiltInSpec, WindowSpec


class HeldFiles(Protocol):
    """The files of stores of one stream task, kept for whoever reads them until released."""

    def store_dir(self, store: str) -> Path: ...
    def renew(self) -> None:
        """Keep them for longer; Unavailable if they are gone."""

    def release(self) -> None:
        """Let them go. Releasing twice is harmless."""


@dataclass
class _Uncounted:
    """Reads of files are in no store's metrics."""

    gets: int = 0
    ranges: int = 0


class FileSource:
    """The `reads.RowSource` of the files of one store of one stream task."""

    def __init__(self, name: str, engine: Engine, renew: Callable[[], None]) -> None:
        """Take over the engine. `renew` keeps the lease of the files up."""
        self.name = name
        self.counts = _Uncounted()
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
        ours = error
        if not isinstance(error, StateStoreError):
            ours = self._engine.failure(error) or error
        if isinstance(ours, TaskCorrupted):
            ours.store = self.name
        return ours

    def close(self) -> None:
        """Close the files. Closing twice is harmless."""
        self._open = False
        self._engine.close()


def open_reader(
    spec: BuiltInSpec | WindowSpec[Any, Any],
    files: Sequence[HeldFiles],
    open_files: Callable[[Path], Engine],
) -> AnyReader:
    """Return a reader over the files of all these stream tasks; use `with`, or close it.

    It takes over the files, which are released here also if some cannot be opened. Misuse if they
    are of another kind of store.
    """
    name, closing = spec.name, ExitStack()
    try:
        for one in files:
            closing.callback(one.release)
        sources = []
        for one in files:
            sources.append(FileSource(name, open_files(one.store_dir(name)), one.renew))
            closing.callback(sources[-1].close)
        return reader_over(spec, sources, f"store {name!r}", closing.close)
    except BaseException:
        closing.close()
        raise
