"""Store folders that outlive processes: batches in order, of which the last may be lost.

As RocksDB without its log: a write is atomic over all tables, durable at the next flush or earlier,
as the engine may flush by itself at any time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from statestore.engines.memory import MemoryEngine
from statestore.errors import HostFailure, StateStoreError
from statestore.ports import Table, Writes
from tests.simulation.world import Process

_LINKED = "linked"


@dataclass
class _Files:
    """A store's folder: batches in order, the first `flushed` of them on disk for sure."""

    batches: list[tuple[Mapping[str, Writes], Mapping[str, Sequence[tuple[bytes, bytes]]]]] = field(
        default_factory=list
    )
    flushed: int = 0
    user: "VolumeEngine | None" = None
    newest: int = 0


class Volume:
    """Store folders that outlive processes."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._files: dict[Path, _Files] = {}
        self._linked: list[_Files] = []

    def link(self, source: Path, target: Path, process: Process) -> None:
        """What is on disk of `source`, for another owner; the one it has may go on."""
        process.visit("volume.link")
        files = self._files.setdefault(source, _Files())
        files.flushed = self._rng.randint(files.flushed, len(files.batches))
        self._linked.append(_Files(files.batches[: files.flushed], files.flushed))
        target.mkdir()
        # The folder is renamed later.
        (target / _LINKED).write_text(str(len(self._linked) - 1))

    def open(self, path: Path, tables: Sequence[str], process: Process) -> "VolumeEngine":
        """The store as its last owner left it; whoever lost it writes where nobody reads."""
        process.visit("engine.open")
        if path not in self._files and (path / _LINKED).exists():
            self._files[path] = self._linked[int((path / _LINKED).read_text())]
        files = self._files.setdefault(path, _Files())
        if process.number < files.newest:
            return VolumeEngine(_Files(files.batches[: files.flushed]), tables, process)
        if files.user is not None:
            self._take(files)
        files.newest = process.number
        engine = files.user = VolumeEngine(files, tables, process)
        return engine

    def crash(self, process: Process) -> None:
        """The process is gone: the engine may have flushed by itself, whole batches only."""
        for files in self._files.values():
            if files.user is not None and files.user.process is process:
                self._take(files)

    def rows(self, path: Path, table: str) -> dict[bytes, bytes]:
        """What is durable."""
        files = self._files.get(path, _Files())
        engine = MemoryEngine((table, *{t for batch, _ in files.batches for t in batch} - {table}))
        for writes, ranges in files.batches[: files.flushed]:
            engine.write(writes, ranges=ranges)
        return dict(engine.table(table).scan())

    def _take(self, files: _Files) -> None:
        assert files.user is not None
        files.user.detach()
        kept = self._rng.randint(files.flushed, len(files.batches))
        del files.batches[kept:]
        files.flushed = kept


class VolumeEngine:
    """`ports.Engine` on a volume: like RocksDB without its log, atomic over all tables."""

    def __init__(self, files: _Files, tables: Sequence[str], process: Process) -> None:
        self.process = process
        self._files: _Files | None = files
        self._memory = MemoryEngine(tables)
        for writes, ranges in files.batches:
            self._memory.write(writes, ranges=ranges)

    def table(self, name: str) -> Table:
        return self._memory.table(name)

    def write(
        self,
        writes: Mapping[str, Writes],
        *,
        ranges: Mapping[str, Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        self.process.visit("engine.write")
        self._memory.write(writes, ranges=ranges)
        if self._files is not None:
            copied = {table: dict(rows) for table, rows in writes.items()}
            self._files.batches.append((copied, dict(ranges or {})))

    def flush(self) -> None:
        self.process.visit("engine.flush")
        if self._files is not None:
            self._files.flushed = len(self._files.batches)

    def checkpoint(self, target: Path) -> None:
        raise HostFailure(f"no files to link into {target}")

    def persistent(self) -> bool:
        return True

    def failure(self, _error: Exception) -> StateStoreError | None:
        return None

    def close(self) -> None:
        self.flush()
        if self._files is not None:
            self._files.user = None
        self.detach()
        self._memory.close()

    def detach(self) -> None:
        """From now on nobody reads what is written here."""
        self._files = None
