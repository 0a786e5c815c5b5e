"""Where the inputs of a stream task continue, and what its folder remembers of them.

The broker forgets a group's offset together with its topic, and a week after its last commit
(offsets.retention.minutes). A task that took such an input for a new one would read it again. So
the input checkpoint, `inputs.json` in the task's folder, says how far each input was committed and
when, whether or not the task has stores. An input in it that the group has forgotten is refused
(I11), and an idle input is committed again before the broker forgets it.

The checkpoint is written after the log has committed, never before: it may lag behind, but claims
nothing that did not happen. A task that commits all the time writes it twice, at its first commit
and at its end.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from statestore.errors import InputLost, RecordFailed
from statestore.faults import CrashPoint, reach
from statestore.layout import documents
from statestore.layout.documents import Count, Ordinal, TimeMs, Topic
from statestore.layout.files import publish
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.ports import Clock, Cluster
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.sessions import TransactionalSessionStore
from statestore.stores.windows import TransactionalWindowStore
from statestore.tasks.commit import CommitStamp, channels_in, check_metadata, partition_times_in
from statestore.tasks.plan import TaskPlan
from statestore.tasks.watermarks import ChannelStamp

_NAME = "inputs.json"
REFRESH_MS = 86_400_000
"""How old a commit may get: well below the shortest retention of offsets that anyone sets."""

_KEYED = (TransactionalKeyValueStore, TransactionalWindowStore, TransactionalSessionStore)


class _Written(msgspec.Struct, frozen=True):
    """The file: rows of topic, partition, offset NEXT to read; when they were last committed."""

    committed_ms: TimeMs
    inputs: list[tuple[Topic, Ordinal, Count]]

    def offsets(self) -> dict[TopicPartition, int]:
        return {TopicPartition(topic, p): offset for topic, p, offset in self.inputs}


class InputCheckpoint:
    """The input checkpoint of one claimed task folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / _NAME
        self._clock = clock
        self._offsets: dict[TopicPartition, int] = {}
        self._committed_ms = 0
        self._unwritten = False

    def read(self) -> dict[TopicPartition, int]:
        """Return the offset NEXT to read, or an earlier one, of each input that was ever committed.

        An input that was only committed at its start is left out.
        """
        found = _read(self._path)
        if found is not None:
            self._committed_ms = found.committed_ms
            self._offsets = found.offsets()
        return dict(self._offsets)

    def seen(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note these offsets of the group, which does not say since when it has them."""
        self._take(offsets)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note offsets that were committed just now; write them at once if an input is new."""
        self._committed_ms = self._clock.now_ms()
        self._unwritten = True
        self._take(offsets)

    def is_old(self) -> bool:
        """Return whether the last commit is so long ago that the broker may forget it."""
        age_ms = self._clock.now_ms() - self._committed_ms
        return bool(self._offsets) and not 0 <= age_ms < REFRESH_MS

    def write(self) -> None:
        """Write what is not yet written, at the end of the task's life."""
        if self._unwritten and self._offsets:
            _write(self._path, self._committed_ms, self._offsets)
            self._unwritten = False

    def _take(self, offsets: Mapping[TopicPartition, int]) -> None:
        # At offset 0 nothing was read, so it is right to start there again.
        begun = {tp: offset for tp, offset in offsets.items() if offset > 0}
        unknown = begun.keys() - self._offsets.keys()
        self._offsets |= begun
        if unknown:
            self._unwritten = True
            self.write()


def read_all(folders: Iterable[Path]) -> dict[TopicPartition, int]:
    """Return what the checkpoints of several tasks say together: the furthest offset per input."""
    found: dict[TopicPartition, int] = {}
    for folder in folders:
        written = _read(folder / _NAME)
        for tp, offset in ({} if written is None else written.offsets()).items():
            found[tp] = max(offset, found.get(tp, 0))
    return found


def carry(
    folders: Iterable[Path], home: Callable[[TopicPartition], Path | None], clock: Clock
) -> None:
    """Give the task that reads an input, after a topology change, what any task remembers of it.

    This only adds, so repeating it is harmless. `home`: the folder of the task that reads an input,
    None if there is none. HostFailure, before anything is written, if a checkpoint is unreadable.
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


class CommittedInputs(NamedTuple):
    """The NEXT offset of each input, the last commit's stamp, and what the group itself has.

    `partition_times`: of the inputs whose commit says it, the latest time of their records.
    `channels`: by topic, what its upstream tasks had said.
    """

    offsets: dict[TopicPartition, int]
    stamp: CommitStamp
    group: dict[TopicPartition, int]
    partition_times: dict[TopicPartition, int]
    channels: dict[str, ChannelStamp]


def committed_inputs(
    plan: TaskPlan,
    cluster: Cluster,
    stores: Iterable[object],
    checkpoint: Mapping[TopicPartition, int],
) -> CommittedInputs:
    """Return where the inputs continue: at the group's offsets, or at the start of a new input.

    `stores`: those whose positions the group's offsets cannot be behind. `checkpoint`: what the
    input checkpoint says. RecordFailed: an input was truncated, created again or forgotten.
    Misuse: another program committed in the group.
    """
    committed = cluster.group_offsets(plan.inputs)
    check_metadata(committed)
    fresh = [tp for tp in plan.inputs if tp not in committed]
    ends = plan.ends or {}
    # The offset is past the planned end: an earlier end was requested, or the log got shorter.
    beyond = [tp for tp, at in committed.items() if at.offset > ends.get(tp, at.offset)]
    bounds = cluster.bounds(fresh + beyond) if fresh or beyond else {}
    for tp in beyond:
        if committed[tp].offset > bounds[tp].end:
            raise truncated(tp, end=bounds[tp].end, committed=committed[tp].offset)
    done = Position.of({tp: offset - 1 for tp, offset in checkpoint.items()})
    for store in stores:
        if isinstance(store, _KEYED):
            done = done.merge(store.position())
    known = done.as_dict()
    for tp in fresh:
        if tp in known:
            raise forgotten(tp, plan.task_id, known[tp])
    offsets = {
        tp: committed[tp].offset if tp in committed else bounds[tp].start for tp in plan.inputs
    }
    group = {tp: at.offset for tp, at in committed.items()}
    times = partition_times_in(committed)
    stamp = CommitStamp.latest(committed)
    return CommittedInputs(offsets, stamp, group, times, channels_in(committed))


def truncated(tp: TopicPartition, *, end: int, committed: int) -> InputLost:
    """Return the error for an input whose log ends before the group's offset."""
    return InputLost(
        f"input {tp} ends at offset {end}, the last commit ended at {committed}: the topic was "
        "truncated or created again, so input is lost: reset the group's offsets to go on without "
        "it"
    )


def forgotten(tp: TopicPartition, task: TaskId, last: int) -> RecordFailed:
    """Return the error for an input that was processed up to `last` but has no group offset."""
    return RecordFailed(
        f"the group has no offset of input {tp}, but task {task} has processed it up to {last}: "
        "the topic was created again, or the offset expired on the broker "
        f"(offsets.retention.minutes): set the group's offset, to {last + 1} to go on (further if "
        "the last run was killed), or to the topic's start to process it from there"
    )


def _read(path: Path) -> _Written | None:
    way_out = "remove it if the group still has the offsets of this task's inputs"
    return documents.read(path, _Written, way_out=way_out)


def _write(path: Path, committed_ms: int, offsets: Mapping[TopicPartition, int]) -> None:
    rows = [(*tp, offset) for tp, offset in sorted(offsets.items())]
    publish(path, msgspec.json.encode(_Written(committed_ms, rows)))
    reach(CrashPoint.INPUTS_MARKED)
