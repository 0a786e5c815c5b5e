"""What a stream task's folder remembers of its inputs: how far they were committed, and when.

The broker forgets a group's offset a week after its last commit (offsets.retention.minutes), and
with its topic. The mark, `inputs.json`, tells such an input from a new one, whether or not the task
has stores; and when it is time to commit an idle input's offset again, so that it is not forgotten.

Written after the log has committed, never before: it may lag behind, but claims nothing that did
not happen. A task that commits all the time writes it twice: at its first commit and at its end.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from statestore.errors import HostFailure
from statestore.faults import CrashPoint, reach
from statestore.layout.files import publish
from statestore.model import TopicPartition
from statestore.ports import Clock

REFRESH_MS = 86_400_000
"""How old a commit may get: well below the least retention anyone gives a group's offsets."""


class _Written(msgspec.Struct, frozen=True):
    """The file: rows of topic, partition, offset NEXT to read; when they were last committed."""

    committed_ms: int
    inputs: list[tuple[str, int, int]]


class InputMark:
    """The mark of one claimed task folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / "inputs.json"
        self._clock = clock
        self._offsets: dict[TopicPartition, int] = {}
        self._committed_ms = 0
        self._unwritten = False

    def read(self) -> dict[TopicPartition, int]:
        """Per input ever committed beyond its start: the offset next to read, or one before it."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_Written)
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise HostFailure(
                f"{self._path} is not readable: {error}; remove it if the group still has the "
                "offsets of this task's inputs"
            ) from error
        except OSError as error:
            raise HostFailure(f"cannot read {self._path}: {error.strerror}") from error
        self._committed_ms = found.committed_ms
        self._offsets = {TopicPartition(topic, p): offset for topic, p, offset in found.inputs}
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
            rows = [(*tp, offset) for tp, offset in sorted(self._offsets.items())]
            publish(self._path, msgspec.json.encode(_Written(self._committed_ms, rows)))
            self._unwritten = False
            reach(CrashPoint.INPUTS_MARKED)

    def _take(self, offsets: Mapping[TopicPartition, int]) -> None:
        # At 0 nothing was read: to begin there again is right.
        begun = {tp: offset for tp, offset in offsets.items() if offset > 0}
        unknown = begun.keys() - self._offsets.keys()
        self._offsets |= begun
        if unknown:
            self._unwritten = True
            self.write()
