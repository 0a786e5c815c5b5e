"""The nodes of a stream task, connected, and what they work with: stores, stream time, counts.

Each attempt of a task makes a new TaskContext, and with it new processors. So nothing that a
processor kept in memory outlives the records it was made of, if these are not committed.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from statestore.errors import RecordFailed, UnknownStore, log_left
from statestore.metrics import (
    count_messages,
    count_processing,
    input_attributes,
)
from statestore.model import time_marks
from statestore.model.batch import Batch, Column
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.left_out import NO_MATCH, Cause, Fate
from statestore.model.modes import PunctuationType, Span
from statestore.model.records import APPLICATION, SIDES, Header
from statestore.ports import Clock, Outbox, Records
from statestore.serdes import composed
from statestore.stores.global_store import GlobalKeyValueStore
from statestore.stores.row_times import WriteTime
from statestore.stores.staged_table import StagedTable
from statestore.stores.versioned.table import VersionedTable
from statestore.tasks.announcer import Announcer, InputProgress
from statestore.tasks.intake import InputBatch
from statestore.tasks.left_out_counts import LeftOutRecords
from statestore.tasks.owned import OwnedStore
from statestore.tasks.plan import NO_GLOBAL_STORES, GlobalStoresByName
from statestore.tasks.poison import Poison
from statestore.tasks.watermarks import NO_TIME, UNBOUNDED, Watermarks
from statestore.topology.failures import NodeFailed, Stage, encoded, encoded_for, failed
from statestore.topology.nodes import (
    Advance,
    Earliest,
    Forward,
    Held,
    HeldBack,
    OperatorNode,
    Push,
    SinkNode,
    SourceNode,
    running,
)
from statestore.topology.partitioners import choice
from statestore.topology.punctuation import Alarm, Fire, Firing, Punctuation, Punctuations
from statestore.topology.sub_topologies import SubTopology

_log = logging.getLogger(__name__)


class TaskContext:
    """The NodeContext of one attempt of a stream task, and the nodes that it is for.

    `pushes`: by source topic, where its batches go. `seen_ms`: the largest timestamp so far, and
    `stream_time_ms` the same as far as no upstream task holds it back (watermarks.py).
    `commit_requested`, `records_out`, `consumed`, `sent`, `left_out`: since the last commit.
    """

    def __init__(
        self,
        task_id: TaskId,
        part: SubTopology,
        stores: Mapping[str, OwnedStore],
        outbox: Outbox,
        *,
        application_id: str,
        stream_time_ms: int | None,
        seen_ms: int | None,
        watermarks: Watermarks,
        announcer: Announcer,
        clock: Clock,
        poison: Poison,
        held_back: HeldBack,
        left_out: LeftOutRecords,
        global_stores: GlobalStoresByName = NO_GLOBAL_STORES,
    ) -> None:
        """`stream_time_ms` and `seen_ms`: at the last commit; None: the latter is the former."""
        self.task_id = task_id
        self.stream_time_ms = stream_time_ms
        self.seen_ms = stream_time_ms if seen_ms is None else seen_ms
        self.kept_back: dict[str, Earliest] = {}
        self._latest: dict[str, int] = {}
        """By source topic, the latest time of its records in this attempt."""
        self._watermarks = watermarks
        self._announcer = announcer
        self._advances: list[tuple[str, Advance]] = []
        self._part = part
        self.retiming: set[str] = set()
        """The nodes in which a function may set the times of records."""
        self._began_ms: int | None = None
        """While records are processed: how late it is at the first of them."""
        self._passed_bound_ms = NO_TIME
        self.commit_requested = False
        self.records_out = 0
        self.consumed: Counter[TopicPartition] = Counter()
        self.sent: Counter[str] = Counter()
        self.left_out = left_out
        self.punctuations = Punctuations(self._fire)
        self.held_back = held_back
        self._stores = stores
        self._global_stores = global_stores
        self._clock = clock
        self._poison = poison
        self._application_id = application_id
        self._inputs: dict[TopicPartition, dict[str, str]] = {}
        """What metrics tell of the records of each input."""
        self._closers: list[Callable[[], None]] = []
        self._keeps_stream_times = False
        self._hold_stores()
        alone = part.one_by_one()
        self._overtakes = bool(alone.nodes or alone.topics)
        try:
            self.pushes = _wire(part, self, outbox, application_id)
            self._all_marked = watermarks.marks_all(self.pushes)
        except BaseException:
            self.close()
            raise
        self.punctuations.opened(clock.now_ms())

    def stream_time(self) -> int | None:
        return self.stream_time_ms

    def keep_stream_times(self) -> None:
        self._keeps_stream_times = True

    def time_bound(self) -> int | None:
        return self._watermarks.limit_ms(self.stream_time_ms)

    def when_time_passes(self, node: str, advance: Advance) -> None:
        if self._watermarks.are_any:
            # Nodes are made before those above them.
            self._advances.insert(0, (node, advance))

    def sets_times(self, node: str) -> None:
        self.retiming.add(node)

    def keeps_back(self, node: str, earliest: Earliest) -> None:
        self.kept_back[node] = earliest

    @property
    def had_input(self) -> bool:
        """Whether there were records in this attempt."""
        return bool(self._latest)

    def progress(self, topics: frozenset[str]) -> InputProgress:
        """Return how far the task has come with the inputs of these topics."""
        bound_ms = self._watermarks.bound_of(topics)
        if topics >= self.pushes.keys():
            return InputProgress(self.stream_time_ms, bound_ms)
        latest = max((self._latest[it] for it in topics & self._latest.keys()), default=None)
        return InputProgress(None if latest is None else min(latest, bound_ms), bound_ms)

    def table(self, store: str) -> StagedTable:
        return self._open(store).table()

    def versions(self, store: str) -> VersionedTable:
        return self._open(store).versions()

    def store(self, name: str) -> Any:
        return self._global_stores[name] if name in self._global_stores else self._open(name).store

    def global_store(self, name: str) -> GlobalKeyValueStore[Any, Any]:
        return self._global_stores[name]

    def clocks(self, stores: Sequence[str]) -> list[WriteTime]:
        found = [self._open(name).clock for name in stores if name not in self._global_stores]
        return [clock for clock in found if clock is not None]

    def request_commit(self) -> None:
        self.commit_requested = True

    def schedule(
        self,
        node: str,
        every: Span,
        by: PunctuationType,
        fire: Fire,
        start_ms: int | None = None,
    ) -> Punctuation:
        return self.punctuations.add(node, every, by, fire, self._clock.now_ms(), start_ms)

    def keep_alarm(self, alarm: Alarm) -> None:
        self.punctuations.keep_alarm(alarm)

    def wall_clock_ms(self) -> int:
        return self._clock.now_ms()

    @property
    def judges_singly(self) -> bool:
        return self._poison.judges_singly

    def release(self, node: str, held: Held, hand_on: Push) -> None:
        self._poison.release(node, held, hand_on, self)

    def count_left_out(self, causes: Iterable[Cause]) -> None:
        for cause in causes:
            self.left_out.add(cause, 1)

    def drop(self, node: str, batch: Batch, indices: Sequence[int], reason: str) -> None:
        self.left_out.add(Cause(Fate.DROPPED, node, reason), len(indices))
        self.left_out.tell(node, batch, indices, reason)

    def count_unmatched(self, node: str, records: int) -> None:
        self.left_out.add(Cause(Fate.UNMATCHED, node, NO_MATCH), records)

    def on_close(self, action: Callable[[], None]) -> None:
        self._closers.append(action)

    def close(self) -> None:
        """Close the processors in reverse order; nothing is fired any more.

        All of them are closed, even if one raises an error.
        """
        self.punctuations.clear()
        while self._closers:
            action = self._closers.pop()
            try:
                action()
            except Exception as error:  # noqa: BLE001 - a user's class raised it; stores and claim must be released
                log_left(_log, error, f"task {self.task_id}: a processor's close")

    def process(self, batch: InputBatch) -> None:
        """Push records of one input, and fire the punctuations that fall between them."""
        outer, began_s = APPLICATION.set(self._application_id), self._clock.monotonic()
        failed: Exception | None = None
        try:
            self._process(batch)
        except Exception as error:
            failed = error
            raise
        finally:
            self._began_ms = None
            APPLICATION.reset(outer)
            count_processing(self._clock.monotonic() - began_s, self._attributes(batch.tp), failed)

    def _attributes(self, tp: TopicPartition) -> dict[str, str]:
        found = self._inputs.get(tp)
        if found is None:
            found = input_attributes(self._application_id, str(self.task_id), tp)
            self._inputs[tp] = found
        return found

    def _process(self, batch: InputBatch) -> None:
        push, records = self.pushes[batch.tp.topic], batch.records
        start, count, has_timers = 0, len(records), self.punctuations.has_alarms
        times, held = self._taken_in(batch), self._watermarks.are_any
        while start < count:
            before_ms = times[start] if held else self.stream_time_ms
            stop = self.punctuations.cut(before_ms, times, start)
            if has_timers and self._overtakes:
                # A timer may share a store with nodes that its node's own records do not reach.
                stop = start + 1
                self.punctuations.timers_pass(times[start])
            part = records if stop - start == count else records.slice(start, stop)
            passed = times if stop - start == count else times[start:stop]
            if self._keeps_stream_times:
                part = part.with_stream_times(running(before_ms, passed))
            if self._announcer:
                self._began_ms = before_ms if held else _later(before_ms, times[start])
            push(part)
            latest_ms = max(passed)
            if before_ms is None or latest_ms > before_ms:
                self._rise(latest_ms, (batch.tp, batch.offsets[stop - 1]))
            start = stop

    def _taken_in(self, batch: InputBatch) -> list[int]:
        """Note the times of records; return how late it is at each, but for what was before."""
        times, watermarks = batch.records.timestamps, self._watermarks
        if self._announcer:
            topic, latest_ms = batch.tp.topic, max(times)
            self._latest[topic] = max(latest_ms, self._latest.get(topic, latest_ms))
        if not watermarks.are_any:
            return times
        latest_ms = max(times)
        self.seen_ms = latest_ms if self.seen_ms is None else max(latest_ms, self.seen_ms)
        # Only a mark lets time pass.
        held_ms = NO_TIME if self.stream_time_ms is None else self.stream_time_ms
        return [held_ms] * len(times)

    def _rise(self, now_ms: int, after: tuple[TopicPartition, int]) -> None:
        before_ms, self.stream_time_ms = self.stream_time_ms, now_ms
        self.punctuations.timers_pass(now_ms)
        self.punctuations.stream_time_rose(before_ms, now_ms, after)

    def _hold_stores(self) -> None:
        bound_ms = self.time_bound()
        for opened in self._stores.values():
            opened.hold_time(bound_ms)

    def waits_for_time(self) -> bool:
        """Return whether something would happen if no upstream task held time back."""
        if not self._watermarks.are_any or self._watermarks.bound_ms == UNBOUNDED:
            return False
        return bool(self._advances) or self.punctuations.has_alarms or self.punctuations.by_stream

    def time_may_pass(self) -> bool:
        """Return whether `let_time_pass` would tell anybody anything."""
        if not self._watermarks.are_any:
            return False
        bound_ms = self._watermarks.bound_ms
        is_new = bound_ms != self._passed_bound_ms and bool(self.retiming)
        return is_new or self.due_ms() is not None

    def due_ms(self) -> int | None:
        """Return the time to which stream time may rise now; None: it stays."""
        watermarks, seen_ms = self._watermarks, self.seen_ms
        # An input that nobody marks may still bring a record that is earlier than what was sent.
        if watermarks.sent_ms is not None and (self._all_marked or watermarks.has_seen_all):
            seen_ms = watermarks.sent_ms if seen_ms is None else max(seen_ms, watermarks.sent_ms)
            self.seen_ms = seen_ms
        if seen_ms is None:
            return None
        due_ms = min(seen_ms, watermarks.bound_ms)
        now_ms = NO_TIME if self.stream_time_ms is None else self.stream_time_ms
        return due_ms if due_ms > now_ms else None

    def let_time_pass(self, after: tuple[TopicPartition, int]) -> None:
        """Let stream time rise as far as no upstream task holds it back; `after`: what said so."""
        now_ms = self.due_ms()
        outer = APPLICATION.set(self._application_id)
        try:
            bound_ms = self._passed_bound_ms = self._watermarks.bound_ms
            told_ms = NO_TIME if self.stream_time_ms is None else self.stream_time_ms
            retimed = self._part.below(self.retiming) if self.retiming else ()
            for node, advance in self._advances:
                passed_ms = told_ms if now_ms is None else now_ms
                advance(NO_TIME if node in retimed else passed_ms, bound_ms)
            if now_ms is not None:
                self._rise(now_ms, after)
            self._hold_stores()
        finally:
            APPLICATION.reset(outer)

    def has_timers_before(self, batch: InputBatch) -> bool:
        """Return whether timers may be due that fire before the first of these records."""
        return self.punctuations.timers_due(self._before(batch))

    def fire_timers_before(self, batch: InputBatch) -> bool:
        """Fire some timers that are due before these records; return whether some may be left."""
        outer = APPLICATION.set(self._application_id)
        try:
            return self.punctuations.timers_near(self._before(batch))
        finally:
            APPLICATION.reset(outer)

    def _before(self, batch: InputBatch) -> int:
        if self._watermarks.are_any:
            return NO_TIME if self.stream_time_ms is None else self.stream_time_ms
        return batch.records.timestamps[0]

    def wrote(self, topic: str, batch: Batch) -> None:
        """Note records written into an internal topic."""
        if len(batch):
            now_ms = self.stream_time_ms if self._began_ms is None else self._began_ms
            self._announcer.wrote(topic, batch.timestamps, now_ms)

    def punctuate(self, now_ms: int) -> None:
        """Fire what is due by wall-clock time."""
        outer = APPLICATION.set(self._application_id)
        try:
            self.punctuations.wall_clock_is(now_ms)
            if self.stream_time_ms is not None:
                self.punctuations.timers_pass(self.stream_time_ms)
        finally:
            APPLICATION.reset(outer)

    def committed(self) -> None:
        """Take what was counted since the last commit as final, and start counting again."""
        self.left_out.committed()
        self.held_back.committed()
        consumed = {tp: (count, self._attributes(tp)) for tp, count in self.consumed.items()}
        count_messages(str(self.task_id), consumed, self.sent)
        self.consumed.clear()
        self.sent.clear()
        self.records_out = 0
        self.commit_requested = self.punctuations.has_fired = False

    def check_of(self, store: str) -> Push:
        return self._open(store).log.check

    def has_written(self) -> bool:
        """Return whether records went out or a commit was requested since the last commit."""
        return self.records_out > 0 or self.commit_requested

    def _fire(self, firing: Firing, fire: Fire, time_ms: int) -> bool:
        outer = APPLICATION.set(self._application_id)
        try:
            return self._poison.fire(firing, fire, time_ms, counters=self)
        finally:
            APPLICATION.reset(outer)

    def _open(self, name: str) -> OwnedStore:
        try:
            return self._stores[name]
        except KeyError:
            known = ", ".join(self._stores) or "none"
            raise UnknownStore(
                f"task {self.task_id} has no store {name!r}; it has: {known}"
            ) from None


def _wire(
    part: SubTopology, context: TaskContext, outbox: Outbox, application_id: str
) -> dict[str, Push]:
    """Connect the nodes; return by full topic name where to push the batches of each source."""
    pushes: dict[str, Push] = {}
    children: dict[str, list[str]] = {}
    for node in part.nodes:
        for parent in node.parents:
            children.setdefault(parent, []).append(node.name)
    entries: dict[str, Push] = {}
    alone = part.one_by_one()
    for node in reversed(part.nodes):
        forward = _forwarding(node.name, {n: pushes[n] for n in children.get(node.name, ())})
        if node.name in alone.nodes:
            forward = _forwarding_each(forward)
        match node:
            case SinkNode():
                pushes[node.name] = _sink(node, context, outbox, application_id)
            case OperatorNode():
                push = node.build(context, forward)
                # It also takes them one by one, because it may choose among its children.
                pushes[node.name] = _pushing_each(push) if node.name in alone.nodes else push
            case SourceNode():
                push = _source(node, forward, _checks(part, node, context))
                for topic in node.topics:
                    full = topic.full(application_id)
                    entries[full] = _both(push, entries.get(full))
    for topic in alone.topics:
        full = topic.full(application_id)
        entries[full] = _pushing_each(entries[full])
    return entries


def _later(time_ms: int | None, other_ms: int) -> int:
    return other_ms if time_ms is None else max(time_ms, other_ms)


def _checks(part: SubTopology, source: SourceNode, context: TaskContext) -> list[Push]:
    """Return the checks that the logs of tables run on a source's records."""
    return [
        context.check_of(node.stores[0])
        for node in part.nodes
        if isinstance(node, OperatorNode) and node.keeps and node.parents == (source.name,)
    ]


def _sink(node: SinkNode, context: TaskContext, outbox: Outbox, application_id: str) -> Push:
    topic, internal = node.topic.full(application_id), node.topic.internal
    contextual = node.key_serde.contextual or node.value_serde.contextual
    written = _written_for if contextual else _written

    def push(batch: Batch) -> None:
        nulls = batch.keys.nulls() if node.drops_null_keys else None
        if nulls:
            context.drop(node.name, batch, nulls, "null_key")
            if len(nulls) == len(batch):
                return
            batch = batch.without(nulls)
        keys, values, headers = written(topic, node, batch)
        if internal:
            _check_unmarked(node, batch, keys, values)
        try:
            placing = composed.placing(node.key_serde, keys)
            choose = None
            if node.partitioner is not None:
                choose = choice(node.name, topic, batch, node.partitioner)
            times = batch.timestamps
            outbox.send(Records(topic, keys, values, times, None, headers, placing, choose))
        except NodeFailed:
            raise
        except Exception as error:
            # The client's own errors count too: times and headers come from a user's code.
            at = error.at if isinstance(error, RecordFailed) else None
            found = [] if at is None else [(at, error)]
            raise failed(
                Stage.PRODUCTION, node.name, batch, error, found=found, certain=True
            ) from error
        context.records_out += len(batch)
        context.sent[topic] += len(batch)
        if internal:
            context.wrote(topic, batch)

    return push


def _check_unmarked(
    node: SinkNode, batch: Batch, keys: list[bytes | None], values: list[bytes | None]
) -> None:
    """NodeFailed for records that those below would take for time marks."""
    if None not in values:
        return
    written = batch.with_columns(keys=Column(raw=keys), values=Column(raw=values))
    if places := time_marks.among(written):
        error = ValueError("a record without a value has the key of a time mark of statestore")
        found: list[tuple[int, Exception]] = [(place, error) for place in places]
        raise failed(Stage.PRODUCTION, node.name, batch, error, found=found, certain=True)


_Written = tuple[list[bytes | None], list[bytes | None], Sequence[tuple[Header, ...]] | None]
"""Keys, values and headers as they go out."""


def _written(_topic: str, node: SinkNode, batch: Batch) -> _Written:
    stage, taker = Stage.PRODUCTION, node.taker
    keys = encoded(node.name, batch, "key", node.key_serde, stage, taker=taker)
    values = encoded(node.name, batch, "value", node.value_serde, stage, taker=taker)
    return keys, values, batch.headers


def _written_for(topic: str, node: SinkNode, batch: Batch) -> _Written:
    """Write the records of a sink whose serdes see the topic and may add headers."""
    headers = [list(some) for some in batch.headers or [()] * len(batch)]
    made: list[list[bytes | None]] = []
    for side, serde in zip(SIDES, (node.key_serde, node.value_serde), strict=True):
        if serde.contextual:
            one = encoded_for(topic, headers, node.name, batch, side, serde, taker=node.taker)
        else:
            one = encoded(node.name, batch, side, serde, Stage.PRODUCTION, taker=node.taker)
        made.append(one)
    keys, values = made
    return keys, values, list(map(tuple, headers)) if any(headers) else None


def _forwarding(name: str, children: Mapping[str, Push]) -> Forward:
    every = tuple(children.values())
    if len(every) == 1:
        only = every[0]

        def forward_one(batch: Batch, to: str | None) -> None:
            if to is None or to in children:
                only(batch)
            else:
                raise UnknownStore(
                    f"node {name} has no child {to!r}; it has: {', '.join(children)}"
                )

        return forward_one

    def forward(batch: Batch, to: str | None) -> None:
        if to is None:
            for push in every:
                push(batch)
        elif to in children:
            children[to](batch)
        else:
            raise UnknownStore(f"node {name} has no child {to!r}; it has: {', '.join(children)}")

    return forward


def _source(node: SourceNode, forward: Forward, checks: Sequence[Push]) -> Push:
    def push(batch: Batch) -> None:
        batch = batch.read_by(node.key_serde, node.value_serde)
        for check in checks:
            check(batch)
        forward(batch, None)

    return push


def _forwarding_each(forward: Forward) -> Forward:
    def forward_each(batch: Batch, to: str | None) -> None:
        for i in range(len(batch)):
            forward(batch.slice(i, i + 1), to)

    return forward_each


def _pushing_each(push: Push) -> Push:
    def push_each(batch: Batch) -> None:
        for i in range(len(batch)):
            push(batch.slice(i, i + 1))

    return push_each


def _both(first: Push, second: Push | None) -> Push:
    if second is None:
        return first
    other = second

    def push(batch: Batch) -> None:
        first(batch)
        other(batch)

    return push
