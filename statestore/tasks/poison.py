"""Records that a stream task cannot take, found and passed over (SEMANTICS E9, docs/adr/0009).

A record is passed over whole: the task goes back to its last commit and does without it, so that
nothing of it stays in any store or topic. Where it is not plain which record it was, the suspects
are tried in ever smaller lots, each in a transaction of its own, until one record fails alone. The
verdicts last until the input is committed past them; after a crash they are found again.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from statestore.errors import RecordFailed, TopicMissing
from statestore.model.batch import Batch
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import OnError
from statestore.model.records import Header
from statestore.ports import Outbox, Records
from statestore.settings import Settings
from statestore.stores import serdes
from statestore.tasks.context import TaskContext
from statestore.tasks.dead_letters import error_headers
from statestore.tasks.intake import Chunk
from statestore.tasks.poison_held import PoisonHeld, Rehearsed
from statestore.tasks.poison_punctuations import PoisonPunctuations, PunctuationFailed
from statestore.topology.failures import NodeFailed, Stage
from statestore.topology.sub_topologies import SubTopology

_log = logging.getLogger(__name__)
_LOTS = 16
_NEGATIVE_TIME = "negative_timestamp"


class Cut(NamedTuple):
    """How much of a chunk to process now.

    `alone`: in a transaction of its own. `commit`: commit after it.
    """

    take: int
    alone: bool
    commit: bool


class _Lot(NamedTuple):
    """Records of one input, `first` and `last` offset inclusive."""

    tp: TopicPartition
    first: int
    last: int
    records: int


class _Verdict(NamedTuple):
    """Why a record is passed over, and what its dead letter says of itself, if it gets one."""

    reason: str
    headers: tuple[Header, ...] | None


class Poison:
    """The suspects and the condemned of one stream task, through all its rewinds."""

    def __init__(
        self, task_id: TaskId, part: SubTopology, settings: Settings, outbox: Outbox
    ) -> None:
        self._task_id = task_id
        self._independent = _independent(part)
        self._outbox = outbox
        self._dead_letter_topic = settings.dead_letter_topic
        self._handlers = {
            Stage.DESERIALIZATION: settings.on_deserialization_error,
            Stage.PROCESSING: settings.on_processing_error,
            Stage.PRODUCTION: settings.on_production_error,
        }
        self.punctuations = PoisonPunctuations(
            task_id, self._handlers, outbox, settings.dead_letter_topic
        )
        self.held = PoisonHeld(task_id, part, self._handlers, outbox, settings.dead_letter_topic)
        self._condemned: dict[TopicPartition, dict[int, _Verdict]] = {}
        # Per input the offsets at which a new lot begins, and last the one after the last lot.
        self._suspects: dict[TopicPartition, list[int]] = {}
        self._working: _Lot | None = None
        self._uncommitted: dict[TopicPartition, _Lot] = {}

    def cut(self, chunk: Chunk) -> Cut:
        """What to take of a chunk at once."""
        offsets = _offsets(chunk.batch)
        take, alone = len(offsets), False
        bounds = self._suspects.get(chunk.tp)
        if bounds is not None and offsets[0] < bounds[-1]:
            take = bisect_left(offsets, bounds[bisect_right(bounds, offsets[0])])
            alone = offsets[0] >= bounds[0]
        known = self._condemned_among(chunk.tp, offsets, take)
        if known:
            # A later failure is not to bring them back.
            take = known[-1] + 1
        fires = self.punctuations.cut(chunk.tp, offsets, take)
        return Cut(fires or take, alone, commit=alone or bool(known) or fires is not None)

    def pass_over(self, chunk: Chunk, context: TaskContext) -> Batch:
        """The records of a chunk to process; dead letters of the others go into the transaction."""
        tp, batch = chunk.tp, chunk.batch
        offsets = _offsets(batch)
        before = self._uncommitted.get(tp)
        first = offsets[0] if before is None else before.first
        count = len(offsets) + (0 if before is None else before.records)
        self._uncommitted[tp] = _Lot(tp, first, offsets[-1], count)
        known = self._condemned_among(tp, offsets, len(offsets))
        if known:
            self._bury(tp, batch.take(known), context)
            gone = set(known)
            batch = batch.take([i for i in range(len(offsets)) if i not in gone])
        if len(batch):
            live = _offsets(batch)
            self._working = _Lot(tp, live[0], live[-1], len(live))
        return batch

    def passed(self) -> None:
        """The records last given out went through every node."""
        self._working = None

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The inputs are committed up to these offsets, exclusive."""
        self._forget_work()
        self.punctuations.committed(offsets)
        self.held.committed()
        for tp, offset in offsets.items():
            bounds = self._suspects.get(tp)
            if bounds is not None and bounds[-1] <= offset:
                del self._suspects[tp]
            known = self._condemned.get(tp)
            if known is not None:
                self._condemned[tp] = {at: why for at, why in known.items() if at >= offset}

    def went_back(self) -> None:
        """Nothing since the last commit happened."""
        self._forget_work()
        self.punctuations.went_back()
        self.held.went_back()

    def _forget_work(self) -> None:
        self._working = None
        self._uncommitted.clear()

    def judge(self, failed: NodeFailed | Rehearsed, *, punctuated: bool = False) -> None:
        """Condemn or suspect records, so that going back leads on; else raise the run's end.

        `punctuated`: what a punctuation wrote since the last commit may be to blame as well.
        """
        tried = self.held.on_trial
        if self.held.settle(failed):
            return
        assert isinstance(failed, NodeFailed)
        if isinstance(failed, PunctuationFailed):
            self.punctuations.condemn(failed)
            return
        work = self._working
        if work is not None and failed.certain and failed.node in self._independent:
            self.condemn(work.tp, failed)
            return
        # What the log refuses may have been sent long before it says so.
        anywhere = work is None or (failed.stage is Stage.PRODUCTION and not failed.culprits)
        lots = list(self._uncommitted.values()) if anywhere or work is None else [work]
        if sum(lot.records for lot in lots) > 1:
            for lot in lots:
                self._suspect(lot, failed)
            return
        if not tried and self.held.try_out(failed):
            for lot in lots:
                # Alone again.
                self._suspects[lot.tp] = [lot.first, lot.last + 1]
            return
        if not lots:
            raise failed.error("without any record", failed.cause) from failed.cause
        (lot,) = lots
        if anywhere and punctuated:
            where = f"{lot.tp} offset {lot.first} or a punctuation at it"
            raise failed.error(where, failed.cause) from failed.cause
        if lot.first in self._condemned.get(lot.tp, {}):
            raise failed.error(f"dead letter of {lot.tp} offset {lot.first}", failed.cause)
        self._condemn(lot.tp, lot.first, failed, failed.cause)

    def condemn(self, tp: TopicPartition, failed: NodeFailed) -> None:
        """Pass over every culprit from now on, or raise for the first, as the handler says."""
        for offset, cause in failed.culprits:
            self._condemn(tp, offset, failed, cause)

    def drop_negative_times(self, tp: TopicPartition, offsets: Sequence[int]) -> None:
        """Pass over records whose extracted time is negative, as Kafka Streams does."""
        known = self._condemned.setdefault(tp, {})
        for offset in offsets:
            if known.setdefault(offset, _Verdict(_NEGATIVE_TIME, None)).reason == _NEGATIVE_TIME:
                where = f"{tp} offset {offset}"
                _log.warning("task %s: %s dropped: negative timestamp", self._task_id, where)

    def _condemn(
        self, tp: TopicPartition, offset: int, failed: NodeFailed, cause: Exception
    ) -> None:
        known = self._condemned.setdefault(tp, {})
        if offset in known:
            return
        error = failed.error(f"{tp} offset {offset}", cause)
        handler = self._handlers[failed.stage]
        if handler is OnError.FAIL:
            raise error from cause
        buried = handler is OnError.DEAD_LETTER
        place = {"topic": tp.topic, "partition": str(tp.partition), "offset": str(offset)}
        headers = error_headers(cause, place) if buried else None
        known[offset] = _Verdict(failed.stage, headers)
        done = f"goes to {self._dead_letter_topic}" if buried else "is passed over"
        trace = cause if failed.stage is Stage.PROCESSING else None
        _log.error(
            "task %s: %s offset %d %s: %s", self._task_id, tp, offset, done, error, exc_info=trace
        )

    def _suspect(self, lot: _Lot, failed: NodeFailed) -> None:
        tp, first, after = lot.tp, lot.first, lot.last + 1
        tried = self._suspects.get(tp)
        if failed.culprits and (tried is None or not tried[0] <= first < tried[-1]):
            offset = failed.culprits[0].offset
            bounds = sorted({first, offset, offset + 1})
        else:
            bounds = [*range(first, after, -(-(after - first) // _LOTS)), after]
        self._suspects[tp] = bounds
        _log.info(
            "task %s: %s; to find the record, %s offsets %d to %d go again in %d lots",
            self._task_id,
            failed,
            tp,
            first,
            bounds[-1] - 1,
            len(bounds) - 1,
        )

    def _condemned_among(self, tp: TopicPartition, offsets: Sequence[int], take: int) -> list[int]:
        """Indices of the condemned among the first `take` of these offsets."""
        known = self._condemned.get(tp)
        if not known:
            return []
        found = []
        for offset in sorted(known):
            i = bisect_left(offsets, offset)
            if i < take and offsets[i] == offset:
                found.append(i)
        return found

    def _bury(self, tp: TopicPartition, batch: Batch, context: TaskContext) -> None:
        """Count them, and send those that get a dead letter to its topic, in this transaction."""
        known, offsets = self._condemned[tp], _offsets(batch)
        verdicts = [known[offset] for offset in offsets]
        context.dropped.update(verdict.reason for verdict in verdicts)
        told = [verdict.headers for verdict in verdicts if verdict.headers is not None]
        if not told:
            return
        batch = batch.take([i for i, verdict in enumerate(verdicts) if verdict.headers is not None])
        old = [()] * len(batch) if batch.headers is None else batch.headers
        headers = [(*kept, *added) for kept, added in zip(old, told, strict=True)]
        keys, values = batch.keys.encoded(serdes.BYTES), batch.values.encoded(serdes.BYTES)
        topic = self._dead_letter_topic
        try:
            self._outbox.send(Records(topic, keys, values, batch.timestamps, headers=headers))
        except (RecordFailed, TopicMissing) as error:
            first, last = _offsets(batch)[0], _offsets(batch)[-1]
            raise type(error)(f"dead letters of {tp} offset {first} to {last}: {error}") from error


def _independent(part: SubTopology) -> frozenset[str]:
    """The nodes to which a record comes the same, whatever came before it: no store in between."""
    found: set[str] = set()
    stateless: set[str] = set()
    for node in part.nodes:
        if stateless.issuperset(node.parents):
            found.add(node.name)
            if not node.stores:
                stateless.add(node.name)
    return frozenset(found)


def _offsets(batch: Batch) -> Sequence[int]:
    assert batch.offsets is not None, "records of an input have offsets"
    return batch.offsets
