"""Where records wait before a stream task processes them, and in which order they go on (T2).

The batches of a single input pass straight through. Of several inputs the record with the smallest
timestamp comes first; ties go by declaration, partition and offset. Runs of one input are handed on
as one batch. In a bounded run nothing is handed on until every input has a record waiting or stands
at its planned end. In a continuous run an input without records is waited for while its log is not
known to have been read to the end, and then for `max.task.idle.ms`, once, until it has records
again (KIP-695; -1: not at all). The time marks of internal topics are set aside, and are taken once
all records before them were handed on. They part no batch: to take one later is always right.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from statestore.model import time_marks
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.modes import EVENT_TIME_MAX_MS
from statestore.model.records import Record
from statestore.model.time_marks import TimeMark
from statestore.ports import Arrival, Source
from statestore.topology.failures import NodeFailed, Stage, decoded, failed
from statestore.topology.nodes import SourceNode, TimestampExtractor

NO_TIMES: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InputBatch:
    """Records of one input partition, in offset order."""

    tp: TopicPartition
    records: Batch
    offsets: Sequence[int]

    @classmethod
    def of(cls, records: Batch) -> "InputBatch":
        """Wrap a batch as a source returns it: with topic, partition and offsets."""
        topic, partition, offsets = records.topic, records.partition, records.offsets
        if topic is None or partition is None or offsets is None:
            raise TypeError("the records of an input have a topic, a partition and offsets")
        return cls(TopicPartition(topic, partition), records, offsets)

    def __len__(self) -> int:
        return len(self.records)

    def slice(self, start: int, stop: int) -> "InputBatch":
        """Return the records from `start` to `stop`, exclusive."""
        return InputBatch.of(self.records.slice(start, stop))

    def without(self, places: Sequence[int]) -> "InputBatch":
        """Return the records but those at these places, which are in rising order."""
        return InputBatch.of(self.records.without(places))

    def take(self, indices: Sequence[int]) -> "InputBatch":
        """Return the records at `indices`, in that order."""
        return InputBatch.of(self.records.take(indices))


class MarkAt(NamedTuple):
    """A time mark, and its place in an internal topic."""

    tp: TopicPartition
    offset: int
    mark: TimeMark


class Judge(Protocol):
    """Decides on records for which an extractor has no time; either method may raise."""

    def condemn(self, batch: "InputBatch", failed: NodeFailed) -> None: ...
    def drop_negative_times(
        self, node: str, tp: TopicPartition, offsets: Sequence[int]
    ) -> None: ...


class Intake:
    """Buffers what was polled; hands on ordered batches up to the planned ends."""

    def __init__(
        self,
        inputs: Sequence[TopicPartition],
        extracted: Mapping[str, SourceNode],
        ends: Mapping[TopicPartition, int] | None,
        judge: Judge,
        idle_ms: int = 0,
        *,
        partition_times: Mapping[TopicPartition, int] = NO_TIMES,
        marked: Collection[str] = (),
    ) -> None:
        """`inputs` in order of declaration; `ends` None: no planned end, wait for `idle_ms`.

        `marked`: the topics in which there may be time marks.
        `extracted`: by topic, the sources that have a timestamp extractor. Records it has no time
        for keep the broker's and are handed on like any other: `judge` decides on them.
        `partition_times`: of inputs whose extractor needs it, the latest time of earlier records.
        """
        self._waiting: dict[TopicPartition, deque[InputBatch]] = {tp: deque() for tp in inputs}
        self._marked = {tp for tp in inputs if tp.topic in marked}
        self._marks: dict[TopicPartition, deque[MarkAt]] = {tp: deque() for tp in self._marked}
        self._extracted = extracted
        self._judge = judge
        self._ends = ends
        self._idle_s = idle_ms / 1000
        self._more: set[TopicPartition] = set()
        self._silent_since: dict[TopicPartition, float] = {}
        self._read: dict[TopicPartition, int] = {}
        self._cut: set[TopicPartition] = set()
        timed = {topic for topic, source in extracted.items() if source.takes_partition_time}
        self._times = {
            tp: _PartitionTime(partition_times.get(tp)) for tp in inputs if tp.topic in timed
        }

    def poll(self, source: Source, limit: int, timeout_ms: int) -> None:
        """Take what the source has, except from inputs with `limit` records waiting."""
        paused = self.paused(limit)
        if len(paused) < len(self._waiting):
            source.pause(sorted(paused))
            # Results of a continuous run are waited for; a bounded one reads all in few batches.
            for batch in source.poll(limit, timeout_ms, soon=self._ends is None):
                polled = InputBatch.of(batch)
                self.add(polled, source.position(polled.tp))
            source.resume(sorted(paused))
        for tp in self._waiting:
            self.at(tp, source.position(tp), more=not source.at_end(tp))

    def arrival(self, source: Source, limit: int) -> Arrival | None:
        """Return when the next `poll` may take something; None: the source can only be polled."""
        paused = sorted(self.paused(limit))
        if len(paused) == len(self._waiting):
            return Arrival((), inf)
        source.pause(paused)
        found = source.arrival()
        source.resume(paused)
        return found

    def add(self, batch: InputBatch, position: int) -> None:
        """Take a polled batch; `position` is the source's next offset after it."""
        tp = batch.tp
        self._read[tp] = position
        end = None if self._ends is None else self._ends.get(tp, 0)
        if end is not None and batch.offsets and batch.offsets[-1] >= end:
            batch = batch.slice(0, bisect_left(batch.offsets, end))
            self._cut.add(tp)
        if tp in self._marked:
            batch = self._without_marks(batch)
        source = self._extracted.get(tp.topic)
        if source is not None and source.timestamp_extractor is not None and len(batch):
            extract = source.timestamp_extractor
            times = _extracted(source, extract, batch, self._judge, self._times.get(tp))
            batch = InputBatch.of(batch.records.with_columns(timestamps=times))
        if len(batch):
            self._waiting[tp].append(batch)

    def _without_marks(self, batch: InputBatch) -> InputBatch:
        """Set aside the time marks of a batch."""
        found, tp = time_marks.among(batch.records), batch.tp
        for place, key in found.items():
            offset = batch.offsets[place]
            mark = time_marks.read(key, f"{tp} at offset {offset}")
            self._marks[tp].append(MarkAt(tp, offset, mark))
        return batch.without(list(found)) if found else batch

    def take_marks(self) -> list[MarkAt]:
        """Return the time marks before which no record waits, each once."""
        found: list[MarkAt] = []
        for tp, marks in self._marks.items():
            queue = self._waiting[tp]
            while marks and not (queue and queue[0].offsets[0] < marks[0].offset):
                found.append(marks.popleft())
        return found

    def at(self, tp: TopicPartition, position: int, *, more: bool = False) -> None:
        """Note that the source is at `position` without new records (end of log, control records).

        `more`: the source knows of no end of the log there.
        """
        self._read[tp] = max(position, self._read.get(tp, 0))
        (self._more.add if more else self._more.discard)(tp)

    def waiting(self) -> int:
        """Return the number of records buffered."""
        return sum(len(batch) for queue in self._waiting.values() for batch in queue)

    def paused(self, limit: int) -> set[TopicPartition]:
        """Return the inputs not to poll: at their end, or with `limit` records buffered."""
        return {
            tp
            for tp, queue in self._waiting.items()
            if sum(map(len, queue)) >= limit or self._at_end(tp)
        }

    def finished(self) -> bool:
        """Return whether every input was read to its planned end and nothing is buffered."""
        return self._ends is not None and all(
            self._at_end(tp) and not queue and not self._marks.get(tp)
            for tp, queue in self._waiting.items()
        )

    def reached(self, tp: TopicPartition) -> int | None:
        """Return the offset to commit once everything handed on is processed; None: not yet known.

        It is past control records, but never past a record that was not handed on. Time marks
        before it have to be taken first.
        """
        queue = self._waiting[tp]
        if queue:
            return queue[0].offsets[0]
        if self._ends is not None and tp in self._cut:
            return self._ends[tp]
        return self._read.get(tp)

    def all_reached(self) -> dict[TopicPartition, int]:
        """Return the offset to commit of each input for which it is known."""
        reached = ((tp, self.reached(tp)) for tp in self._waiting)
        return {tp: offset for tp, offset in reached if offset is not None}

    def partition_times(self) -> dict[TopicPartition, int]:
        """Return the time, in ms, of each input that has one, once what was handed on is done."""
        found = {}
        for tp, time in self._times.items():
            queue = self._waiting[tp]
            now_ms = time.before(queue[0].offsets[0] if queue else None)
            if now_ms is not None:
                found[tp] = now_ms
        return found

    def lag(self, source: Source) -> int | None:
        """Return how many offsets are left up to the known ends of the logs; None: not known."""
        lags = self.lags(source)
        return sum(lags.values()) if len(lags) == len(self._waiting) else None

    def lags(self, source: Source) -> dict[TopicPartition, int]:
        """Return the same of each input; inputs of which it is not known are absent."""
        found = {}
        for tp in self._waiting:
            end, reached = source.log_end(tp), self.reached(tp)
            if end is not None and reached is not None:
                found[tp] = max(0, end - reached)
        return found

    def at_ends_of_logs(self, source: Source) -> bool:
        """Return whether the source is at the end of every input's log."""
        return all(map(source.at_end, self._waiting))

    def next_batch(self, now_s: float = 0.0) -> InputBatch | None:
        """Return the next records in order; None if an input must be waited for or none are left.

        `now_s` is a monotonic time.
        """
        heads = {tp: queue[0].records for tp, queue in self._waiting.items() if queue}
        if not heads:
            return None
        if self._must_wait([tp for tp in self._waiting if tp not in heads], now_s):
            return None
        if len(heads) == 1:
            tp = next(iter(heads))
            return self._waiting[tp].popleft()
        order = {tp: i for i, tp in enumerate(self._waiting)}
        ranked = sorted(heads, key=lambda tp: (heads[tp].timestamps[0], order[tp]))
        first, second = ranked[0], ranked[1]
        limit = heads[second].timestamps[0]
        ties_ours = order[first] < order[second]
        times = heads[first].timestamps
        stop = 1
        while stop < len(times) and (times[stop] < limit or (ties_ours and times[stop] == limit)):
            stop += 1
        return self.front(self._waiting[first].popleft(), stop)

    def front(self, batch: InputBatch, take: int) -> InputBatch:
        """Return the first `take` records of a batch, and put the rest back."""
        count = len(batch)
        if take == count:
            return batch
        self.put_back(batch.slice(take, count))
        return batch.slice(0, take)

    def put_back(self, batch: InputBatch) -> None:
        """Return records to the front of their input."""
        self._waiting[batch.tp].appendleft(batch)

    def _must_wait(self, silent: Sequence[TopicPartition], now_s: float) -> bool:
        """Return whether an input without records may still bring the record that comes first."""
        if self._ends is not None:
            return not all(map(self._at_end, silent))
        if self._idle_s < 0:
            return False
        if not self._more.isdisjoint(silent):
            return True
        if not self._idle_s:
            return False
        # Once an input has a record again, its waiting time starts again.
        self._silent_since = {tp: self._silent_since.get(tp, now_s) for tp in silent}
        return any(now_s - since < self._idle_s for since in self._silent_since.values())

    def _at_end(self, tp: TopicPartition) -> bool:
        ends = self._ends
        return ends is not None and self._read.get(tp, -1) >= ends.get(tp, 0)


class _PartitionTime:
    """The latest time of the records of an input: of all so far, and before each that may wait."""

    def __init__(self, now_ms: int | None) -> None:
        self.now_ms = now_ms
        self._offsets: deque[int] = deque()
        self._before: deque[int | None] = deque()

    def extract(self, extract: TimestampExtractor, record: Record[Any, Any], offset: int) -> int:
        """Return the time of the next record; TypeError if it is none."""
        self._offsets.append(offset)
        self._before.append(self.now_ms)
        time_ms = _time(extract(record, self.now_ms))
        if time_ms >= 0:
            self.now_ms = time_ms if self.now_ms is None else max(time_ms, self.now_ms)
        return time_ms

    def before(self, offset: int | None) -> int | None:
        """Return the time before a record that waits, None: after all; forget what was before."""
        while self._offsets and (offset is None or self._offsets[0] < offset):
            self._offsets.popleft()
            self._before.popleft()
        return self._before[0] if self._before else self.now_ms


def _extracted(
    source: SourceNode,
    extract: TimestampExtractor,
    batch: InputBatch,
    judge: Judge,
    partition: _PartitionTime | None,
) -> list[int]:
    """Return the times that the source's extractor returns for the decoded records."""
    tp, records = batch.tp, batch.records
    readable = records.read_by(source.key_serde, source.value_serde)
    times = list(records.timestamps)
    kept = _decodable(source.name, InputBatch.of(readable), judge)
    found: list[tuple[int, Exception]] = []
    for i, record in zip(kept, readable.take(kept).records(), strict=True):
        try:
            if partition is None:
                times[i] = _time(extract(record))
            else:
                times[i] = partition.extract(extract, record, batch.offsets[i])
        except Exception as error:  # noqa: BLE001  # whatever a user's code raises is the finding
            found.append((i, error))
    if found:
        first = found[0][1]
        unfit = failed(Stage.PROCESSING, source.name, records, first, found=found, certain=True)
        if not isinstance(unfit, NodeFailed):
            raise unfit from first
        judge.condemn(batch, unfit)
    negative = [i for i, time_ms in enumerate(times) if time_ms < 0]
    if negative:
        judge.drop_negative_times(source.name, tp, [batch.offsets[i] for i in negative])
    return times


def _decodable(node: str, batch: InputBatch, judge: Judge) -> list[int]:
    """Return the indices of the records that can be decoded; the others are judged."""
    bad: set[int] = set()
    for side in ("key", "value"):
        try:
            decoded(node, batch.records, side)
        except NodeFailed as unfit:
            judge.condemn(batch, unfit)
            bad.update(culprit.offset for culprit in unfit.culprits)
    return [i for i, offset in enumerate(batch.offsets) if offset not in bad]


def _time(found: Any) -> int:
    if type(found) is not int:
        raise TypeError(f"the timestamp extractor gave {found!r}, not milliseconds")
    if found > EVENT_TIME_MAX_MS:
        raise ValueError(f"the timestamp extractor gave {found}, more than 64 bits hold")
    return found
