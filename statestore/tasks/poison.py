"""What a stream task cannot take, and therefore passes over (SEMANTICS E9, E8a, docs/adr/0009).

Three kinds of things fail: a record of the input, an item that waited in an operator until a later
record let stream time pass, and a punctuation. All three go the same way:

    judge      the attempt failed: its handler condemns what failed, or a search for it begins
    portion    the next attempt stops after what it is about to pass over, and commits there
    pass over  it is left out; its dead letter goes into the transaction that leaves it out
    committed  the verdict is carried out for good

In between the task goes back to its last commit, so that nothing of what failed stays in any store
or topic. A verdict that a crash takes away is found again.

Keeps I12 and I23.
"""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from statestore import serdes
from statestore.model.batch import Column
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.left_out import Cause
from statestore.ports import Outbox
from statestore.settings import Settings
from statestore.tasks.dead_letters import DeadLetter, DeadLetters, HandlerVerdict
from statestore.tasks.intake import InputBatch
from statestore.tasks.origins import Origins, from_inputs
from statestore.tasks.suspects import HeldItem, HeldTrials, SuspectBatch, Suspects
from statestore.topology.failures import NodeFailed, Stage
from statestore.topology.nodes import Held, Push
from statestore.topology.punctuation import Fire, Firing
from statestore.topology.sub_topologies import SubTopology

_log = logging.getLogger(__name__)
_NEGATIVE_TIME = "negative_timestamp"
_PUNCTUATION = "punctuation"


class InputRecord(NamedTuple):
    """A record of the input, by its place."""

    tp: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.tp} offset {self.offset}"


Condemned = InputRecord | HeldItem | Firing
"""What can be passed over."""


class HeldFailed(NodeFailed):
    """An item that waited cannot be handed on; `items` is empty if it may be any of them."""

    def __init__(
        self, failed: NodeFailed, items: list[tuple[HeldItem, Exception]], handed_on: int
    ) -> None:
        """`handed_on`: the number of items handed on before the first suspect."""
        self.items = items
        self.handed_on = handed_on
        super().__init__(
            failed.stage, failed.place, failed.cause, node=failed.node, where="what waited"
        )


class PunctuationFailed(NodeFailed):
    """A punctuation raised, or a node to which it forwarded did: no record is to blame."""

    def __init__(self, firing: Firing, time_ms: int, failed: NodeFailed) -> None:
        self.firing = firing
        self.time_ms = time_ms
        where = f"punctuation at {time_ms}"
        super().__init__(failed.stage, failed.place, failed.cause, node=failed.node, where=where)


class Rehearsed(Exception):
    """A trial went through up to its commit, which is not made."""


class Counters(Protocol):
    """Where an attempt counts what it passes over."""

    def count_left_out(self, causes: Iterable[Cause]) -> None: ...
    def request_commit(self) -> None: ...


class Portion(NamedTuple):
    """How many records of a batch to process now.

    `alone`: in a transaction of their own. `commit`: commit after them.
    """

    take: int
    alone: bool
    commit: bool


class Poison:
    """What one stream task passes over, and what it searches for, in all its attempts."""

    def __init__(
        self,
        task_id: TaskId,
        part: SubTopology,
        settings: Settings,
        outbox: Outbox,
        origins: Origins | None = None,
    ) -> None:
        """`origins`: which inputs of the user's records behind a repartition come from."""
        self._origins = origins or Origins()
        self._batch: InputBatch | None = None
        self._task_id = task_id
        self._part = part
        self._independent = _independent(part)
        self._letters = DeadLetters(task_id, settings, outbox)
        self._verdicts: dict[Condemned, list[HandlerVerdict]] = {}
        self._suspects = Suspects(task_id)
        self._trials = HeldTrials(task_id)
        # Since the last commit:
        self._passed: Counter[Condemned] = Counter()
        self._taken: dict[TopicPartition, SuspectBatch] = {}
        self._working: SuspectBatch | None = None
        self._sent_held_letter = False

    @property
    def on_trial(self) -> bool:
        """Whether a trial is running, which is not committed."""
        return self._trials.is_on

    @property
    def judges_singly(self) -> bool:
        """Whether some of what waited may not be handed on."""
        return bool(self._verdicts) or self._trials.is_on

    # Records of the input.

    def portion(self, batch: InputBatch) -> Portion:
        """Return how many records of a batch to take at once."""
        tp, offsets = batch.tp, batch.offsets
        take, alone = self._suspects.cut(tp, offsets)
        if not self._verdicts:
            return Portion(take, alone, commit=alone)
        known = self._condemned_among(tp, offsets[:take])
        if known:
            # A later failure must not bring them back.
            take = known[-1] + 1
        fires = self._first_firing_among(tp, offsets[:take])
        if fires is not None:
            take = fires + 1
        return Portion(take, alone, commit=alone or bool(known) or fires is not None)

    def pass_over(self, batch: InputBatch, counters: Counters) -> InputBatch:
        """Return the records to process; send dead letters of the others in the transaction."""
        tp, offsets = batch.tp, batch.offsets
        before = self._taken.get(tp)
        first = offsets[0] if before is None else before.first
        count = len(offsets) + (0 if before is None else before.records)
        self._taken[tp] = SuspectBatch(tp, first, offsets[-1], count)
        if self._verdicts and (known := self._condemned_among(tp, offsets)):
            self._write_dead_letters(batch.take(known), counters)
            batch = batch.without(known)
        self._batch = batch
        if len(batch):
            self._working = SuspectBatch(tp, batch.offsets[0], batch.offsets[-1], len(batch))
        return batch

    def passed(self) -> None:
        """Note that the records returned last went through every node."""
        self._working = None

    def condemn(self, batch: InputBatch, failed: NodeFailed) -> None:
        """Pass over every culprit from now on, or raise for the first, as the handler decides."""
        for offset, cause in failed.culprits:
            self._condemn_record(InputRecord(batch.tp, offset), failed, cause, batch)

    def drop_negative_times(self, node: str, tp: TopicPartition, offsets: Sequence[int]) -> None:
        """Pass over records whose extracted time is negative, as Kafka Streams does."""
        for offset in offsets:
            record = InputRecord(tp, offset)
            negative = HandlerVerdict(_NEGATIVE_TIME, None, node)
            (verdict,) = self._verdicts.setdefault(record, [negative])
            if verdict.reason == _NEGATIVE_TIME:
                _log.warning("task %s: %s dropped: negative timestamp", self._task_id, record)

    # What waited in an operator.

    def release(self, node: str, held: Held, hand_on: Push, counters: Counters) -> None:
        """Hand on what waited, except what is passed over; HeldFailed if an item fails."""
        places = self._admitted(held, counters)
        batch = held.batch if places is None else held.batch.take(places)
        if not len(batch):
            return
        before = self._trials.handed_on
        self._trials.handed_on += len(batch)
        # Without a topic, offsets are places among what is handed on.
        batch = replace(batch, offsets=range(len(batch)))
        try:
            hand_on(batch)
        except HeldFailed:
            raise
        except NodeFailed as failed:
            culprits = failed.culprits
            first = culprits[0].offset if culprits else len(batch) - 1
            known = []
            if failed.certain and failed.node in _independent_below(self._part, node):
                items = _items(held)
                handed_on = items if places is None else [items[place] for place in places]
                known = [(handed_on[place], cause) for place, cause in culprits]
            raise HeldFailed(failed, known, before + first) from failed.cause

    # Punctuations.

    def fire(self, firing: Firing, function: Fire, time_ms: int, counters: Counters) -> bool:
        """Call the function, or return False to pass over it. PunctuationFailed if it fails."""
        verdict = self._take_verdict(firing, counters)
        if verdict is not None:
            if verdict.headers is not None:
                letter = DeadLetter(None, None, max(verdict.time_ms, 1), verdict.headers)
                what = f"dead letter of a punctuation of node {firing.node}"
                self._letters.send(what, [letter])
            return False
        try:
            function(time_ms)
        except HeldFailed:
            raise
        except NodeFailed as failed:
            raise PunctuationFailed(firing, time_ms, failed) from failed.cause
        return True

    # What became of the attempt.

    def judge(self, failed: NodeFailed, *, punctuated: bool) -> None:
        """Condemn what failed, or search for it, so that the next attempt gets further.

        An error that is raised here ends the run. `punctuated`: writes of a punctuation since the
        last commit may be the cause as well.
        """
        if isinstance(failed, HeldFailed) and failed.items:
            self._trials.stop()
            for item, cause in failed.items:
                self._condemn_held(item, failed, cause)
            return
        is_tried = self._trials.is_on
        if is_tried and self._trial_ended(failed):
            return
        if isinstance(failed, PunctuationFailed):
            self._condemn_firing(failed)
            return
        work = self._working
        if work is not None and failed.certain and failed.node in self._independent:
            for offset, cause in failed.culprits:
                self._condemn_record(InputRecord(work.tp, offset), failed, cause, self._batch)
            return
        self._search(failed, is_tried=is_tried, punctuated=punctuated)

    def rehearsed(self) -> None:
        """Note that a trial went through up to its commit."""
        self._trial_ended(None)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that the inputs are committed up to these offsets, exclusive."""
        for what, verdicts in list(self._verdicts.items()):
            left = [] if _is_behind(what, offsets) else verdicts[self._passed[what] :]
            if left:
                self._verdicts[what] = left
            else:
                del self._verdicts[what]
        self._suspects.committed(offsets)
        self.went_back()

    def went_back(self) -> None:
        """Note that the task is back at its last commit: nothing has been processed since."""
        self._passed.clear()
        self._taken.clear()
        self._working = self._batch = None
        self._trials.went_back()
        self._sent_held_letter = False

    def _search(self, failed: NodeFailed, *, is_tried: bool, punctuated: bool) -> None:
        """Narrow down which record or item failed; a record that failed alone is condemned.

        `is_tried`: trials have shown that no waiting item is the cause.
        """
        work = self._working
        # The log may refuse a record long after it was sent.
        anywhere = work is None or (failed.stage is Stage.PRODUCTION and not failed.culprits)
        lots = list(self._taken.values()) if anywhere or work is None else [work]
        if sum(lot.records for lot in lots) > 1:
            for lot in lots:
                self._suspects.divide(lot, failed)
            return
        hint = failed.handed_on if isinstance(failed, HeldFailed) else None
        if not is_tried and self._trials.begin(failed, hint):
            for lot in lots:
                self._suspects.isolate(lot)
            return
        if not lots:
            raise failed.error("without any record", failed.cause) from failed.cause
        record = InputRecord(lots[0].tp, lots[0].first)
        if anywhere and punctuated:
            where = f"{self._told(record, self._batch)} or a punctuation at it"
            raise failed.error(where, failed.cause) from failed.cause
        if record in self._verdicts:
            raise failed.error(f"dead letter of {record}", failed.cause) from failed.cause
        self._condemn_record(record, failed, failed.cause, self._batch)

    def _trial_ended(self, failed: NodeFailed | None) -> bool:
        """Return whether the next attempt tries on or passes over an item that was condemned."""
        found = self._trials.ended(failed)
        if found is None:
            return True
        if found.item is not None:
            self._condemn_held(found.item, found.failed, found.failed.cause)
            return True
        end = found.failed
        if self._sent_held_letter and end.stage is Stage.PRODUCTION and not end.node:
            raise end.error("dead letter of what waited", end.cause) from end.cause
        return False

    # Verdicts.

    def _condemn_record(
        self, record: InputRecord, failed: NodeFailed, cause: Exception, batch: InputBatch | None
    ) -> None:
        if record not in self._verdicts:
            place = self._place(record.tp, record.offset)
            verdict = self._letters.verdict(self._told(record, batch), place, failed, cause)
            self._verdicts[record] = [verdict]

    def _place(self, tp: TopicPartition, offset: int) -> dict[str, str]:
        """Return where an input record is, for headers of its dead letter."""
        place = {"topic": tp.topic, "partition": str(tp.partition), "offset": str(offset)}
        return place | _from(self._origins.of_topic(tp.topic))

    def _told(self, record: InputRecord, batch: InputBatch | None) -> str:
        """Return a record for messages; behind a repartition, with what people know of it."""
        inputs = self._origins.of_topic(record.tp.topic)
        if not inputs:
            return str(record)
        told = [f"which came {from_inputs(inputs)}"]
        if batch is not None and batch.tp == record.tp and record.offset in batch.offsets:
            one = batch.take([list(batch.offsets).index(record.offset)]).records
            key = _stored(one.keys)[0]
            name = "no key" if key is None else f"key b'{serdes.printable(key)}'"
            told = [f"{name} and time {one.timestamps[0]}", *told]
        return f"{record} ({', '.join(told)})"

    def _condemn_held(self, item: HeldItem, failed: NodeFailed, cause: Exception) -> None:
        place, what = {"store": item.store, "time": str(item.time_ms)}, str(item)
        if item.origin is not None:
            tp, offset = item.origin
            inputs = self._origins.of_topic(tp.topic)
            place = self._place(tp, offset) | place
        else:
            inputs = self._origins.of_store(self._part.ordinal, item.store)
            place |= _from(inputs)
        if inputs:
            what = f"{what} ({from_inputs(inputs)})"
        verdict = self._letters.verdict(what, place, failed, cause)
        self._verdicts.setdefault(item, []).append(verdict)

    def _condemn_firing(self, failed: PunctuationFailed) -> None:
        firing, time_ms = failed.firing, failed.time_ms
        place = {
            "punctuation": "wall_clock_time" if firing.after is None else "stream_time",
            "node": firing.node,
            "time": str(time_ms),
            "task": str(self._task_id),
        }
        inputs = self._origins.of_node(self._part.ordinal, firing.node)
        place |= _from(inputs)
        what = f"punctuation at {time_ms}"
        if inputs:
            what = f"{what} (its node gets records {from_inputs(inputs)})"
        verdict = self._letters.verdict(what, place, failed, failed.cause)
        self._verdicts[firing] = [verdict._replace(reason=_PUNCTUATION, time_ms=time_ms)]

    def _take_verdict(self, what: HeldItem | Firing, counters: Counters) -> HandlerVerdict | None:
        """Return the verdict to carry out now, and request a commit; None: do not pass over it."""
        verdicts, done = self._verdicts.get(what, ()), self._passed[what]
        if done >= len(verdicts):
            return None
        self._passed[what] += 1
        counters.count_left_out(verdicts[done].causes())
        counters.request_commit()
        return verdicts[done]

    def _condemned_among(self, tp: TopicPartition, offsets: Sequence[int]) -> list[int]:
        """Return the indices of condemned records among records with these offsets."""
        known = sorted(
            w.offset for w in self._verdicts if isinstance(w, InputRecord) and w.tp == tp
        )
        return _places(known, offsets)

    def _first_firing_among(self, tp: TopicPartition, offsets: Sequence[int]) -> int | None:
        """Return the index of the first record after which a firing is passed over."""
        after = [w.after for w in self._verdicts if isinstance(w, Firing) and w.after is not None]
        found = _places(sorted(offset for at, offset in after if at == tp), offsets)
        return found[0] if found else None

    def _write_dead_letters(self, batch: InputBatch, counters: Counters) -> None:
        """Count condemned records, and send the dead letters of those that get one."""
        records = batch.records
        keys, values = records.keys.encoded(serdes.BYTES), records.values.encoded(serdes.BYTES)
        letters, places = [], []
        for i, offset in enumerate(batch.offsets):
            (verdict,) = self._verdicts[InputRecord(batch.tp, offset)]
            counters.count_left_out(verdict.causes())
            if verdict.headers is not None:
                kept = () if records.headers is None else records.headers[i]
                time_ms = records.timestamps[i]
                letters.append(DeadLetter(keys[i], values[i], time_ms, (*kept, *verdict.headers)))
                places.append(offset)
        if letters:
            what = f"dead letters of {batch.tp} offset {places[0]} to {places[-1]}"
            self._letters.send(what, letters)

    def _admitted(self, held: Held, counters: Counters) -> list[int] | None:
        """Return the indices of the items to hand on; None: all."""
        if not self._verdicts and not self._trials.is_on:
            return None
        places = []
        for place, item in enumerate(_items(held)):
            verdict = self._take_verdict(item, counters)
            if verdict is None:
                if self._trials.admits(item):
                    places.append(place)
                if self._trials.is_on:
                    counters.request_commit()
            elif verdict.headers is not None:
                headers = (*item.headers, *verdict.headers)
                letter = DeadLetter(item.key, item.value, max(item.time_ms, 1), headers)
                self._letters.send(f"dead letter of {item}", [letter])
                self._sent_held_letter = True
        return places


def _from(inputs: Sequence[str]) -> dict[str, str]:
    """Return the header of a dead letter that names the inputs of the user's; none: no header."""
    return {"inputs": ",".join(inputs)} if inputs else {}


def _places(known: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """Return the indices of known offsets among others; both are sorted."""
    found = [(bisect_left(offsets, offset), offset) for offset in known]
    return [i for i, offset in found if i < len(offsets) and offsets[i] == offset]


def _is_behind(what: Condemned, offsets: Mapping[TopicPartition, int]) -> bool:
    """Return whether the input is committed past it."""
    match what:
        case InputRecord(tp, offset):
            return offset < offsets.get(tp, 0)
        case Firing(after=(tp, offset)):
            return offset < offsets.get(tp, 0)
        case _:
            return False


def _items(held: Held) -> list[HeldItem]:
    batch = held.batch
    count = len(batch)
    columns = (
        _stored(batch.keys),
        _stored(batch.values),
        batch.timestamps,
        [()] * count if batch.headers is None else batch.headers,
        [None] * count if held.origins is None else held.origins,
    )
    return [HeldItem(held.store, *row, held.what) for row in zip(*columns, strict=True)]


def _stored(column: Column) -> list[bytes | None]:
    return column.with_serde(serdes.BYTES).encoded(serdes.BYTES)


def _independent(part: SubTopology) -> frozenset[str]:
    """Return the nodes whose input does not depend on earlier records: no store is above them."""
    found: set[str] = set()
    stateless: set[str] = set()
    for node in part.nodes:
        if stateless.issuperset(node.parents):
            found.add(node.name)
            if not node.stores:
                stateless.add(node.name)
    return frozenset(found)


def _independent_below(part: SubTopology, node: str) -> frozenset[str]:
    """Return `node` and those below it whose input does not depend on earlier items."""
    found, stateless = {node}, {node}
    for below in part.nodes:
        if not stateless.isdisjoint(below.parents):
            found.add(below.name)
            if not below.stores:
                stateless.add(below.name)
    return frozenset(found)
