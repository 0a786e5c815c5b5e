"""What a stream task's folder remembers of its inputs: how far they were committed, and when.

The broker forgets a group's offset a week after its last commit (offsets.retention.minutes), and
with its topic. The mark, `inputs.json`, tells such an input from a new one, whether or not the task
has stores; and when it is time to commit an idle input's offset again, so that it is not forgotten.

Written after the log has committed, never before: it may lag behind, but claims nothing that did
not happen. A task that commits all the time writes it twice: at its first commit and at its end.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from statestore.faults import CrashPoint, reach
from statestore.layout import documents
from statestore.layout.documents import Count, Ordinal, TimeMs, Topic
from statestore.layout.files import publish
from statestore.model.ids import TopicPartition
from statestore.ports import Clock

_NAME = "inputs.json"
REFRESH_MS = 86_400_000
"""How old a commit may get: well below the least retention anyone gives a group's offsets."""


class _Written(msgspec.Struct, frozen=True):
    """The file: rows of topic, partition, offset NEXT to read; when they were last committed."""

    committed_ms: TimeMs
    inputs: list[tuple[Topic, Ordinal, Count]]

    def offsets(self) -> dict[TopicPartition, int]:
        return {TopicPartition(topic, p): offset for topic, p, offset in self.inputs}


class InputCheckpoint:
    """The mark of one claimed task folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / _NAME
        self._clock = clock
        self._offsets: dict[TopicPartition, int] = {}
        self._committed_ms = 0
        self._unwritten = False

    def read(self) -> dict[TopicPartition, int]:
        """Per input ever committed beyond its start: the offset next to read, or one before it."""
        found = _read(self._path)
        if found is not None:
            self._committed_ms = found.committed_ms
            self._offsets = found.offsets()
        return dict(self._offsets)

    def seen(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group has these offsets; of when, it does not say."""
        self._take(offsets)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets were committed just now. Inputs not yet known are written down at once."""
        self._committed_ms = self._clock.now_ms()
        self._unwritten = True
        self._take(offsets)

    def is_old(self) -> bool:
        """Whether the last commit is so long ago that the broker may come to forget it."""
        age_ms = self._clock.now_ms() - self._committed_ms
        return bool(self._offsets) and not 0 <= age_ms < REFRESH_MS

    def write(self) -> None:
        """Write down what is not yet, at the end of the task's life."""
        if self._unwritten and self._offsets:
            _write(self._path, self._committed_ms, self._offsets)
            self._unwritten = False

    def _take(self, offsets: Mapping[TopicPartition, int]) -> None:
        # At 0 nothing was read: to begin there again is right.
        begun = {tp: offset for tp, offset in offsets.items() if offset > 0}
        unknown = begun.keys() - self._offsets.keys()
        self._offsets |= begun
        if unknown:
            self._unwritten = True
            self.write()


def read_all(folders: Iterable[Path]) -> dict[TopicPartition, int]:
    """What the marks of several tasks say together: per input the furthest offset."""
    found: dict[TopicPartition, int] = {}
    for folder in folders:
        written = _read(folder / _NAME)
        for tp, offset in ({} if written is None else written.offsets()).items():
            found[tp] = max(offset, found.get(tp, 0))
    return found


def carry(
    folders: Iterable[Path], home: Callable[[TopicPartition], Path | None], clock: Clock
) -> None:
    """After a topology change: what any task remembers of an input goes to the task that reads it.

    Only adds, so that repeating it is harmless. `home`: the folder of the task that reads an input,
    None if there is none. HostFailure before anything is written if a mark is not readable.
    """
    found = {folder: read for folder in folders if (read := _read(folder / _NAME)) is not None}
    wanted: dict[Path, list[tuple[TopicPartition, int, int]]] = defaultdict(list)
    for read in found.values():
        for tp, offset in read.offsets().items():
            if (target := home(tp)) is not None:
                wanted[target].append((tp, offset, read.committed_ms))
    for target, rows in wanted.items():
        there = found.get(target, _Written(clock.now_ms(), []))
        offsets, committed_ms = there.offsets(), there.committed_ms
        for tp, offset, since_ms in rows:
            if offset > offsets.get(tp, 0):
                offsets[tp] = offset
                committed_ms = min(committed_ms, since_ms)
        if offsets != there.offsets():
            target.mkdir(exist_ok=True)
            _write(target / _NAME, committed_ms, offsets)


def _read(path: Path) -> _Written | None:
    way_out = "remove it if the group still has the offsets of this task's inputs"
    return documents.read(path, _Written, way_out=way_out)


def _write(path: Path, committed_ms: int, offsets: Mapping[TopicPartition, int]) -> None:
    rows = [(*tp, offset) for tp, offset in sorted(offsets.items())]
    publish(path, msgspec.json.encode(_Written(committed_ms, rows)))
    reach(CrashPoint.INPUTS_MARKED)
