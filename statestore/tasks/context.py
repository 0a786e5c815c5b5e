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
from statestore.model.batch import Batch
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.left_out import NO_MATCH, Cause, Fate
from statestore.model.modes import PunctuationType, Span
from statestore.model.records import APPLICATION, SIDES, Header
from statestore.ports import Clock, Outbox, Records
from statestore.stores import serdes
from statestore.stores.global_store import GlobalKeyValueStore
from statestore.stores.row_times import WriteTime
from statestore.stores.staged_table import StagedTable
from statestore.stores.versioned.table import VersionedTable
from statestore.tasks.intake import InputBatch
from statestore.tasks.left_out import LeftOutRecords
from statestore.tasks.owned import OwnedStore
from statestore.tasks.plan import NO_GLOBAL_STORES, GlobalStoresByName
from statestore.tasks.poison import Poison
from statestore.topology.failures import NodeFailed, Stage, encoded, encoded_for, failed
from statestore.topology.nodes import (
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

    `pushes`: by source topic, where its batches go. `stream_time_ms`: the largest timestamp so far.
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
        clock: Clock,
        poison: Poison,
        held_back: HeldBack,
        left_out: LeftOutRecords,
        global_stores: GlobalStoresByName = NO_GLOBAL_STORES,
    ) -> None:
        self.task_id = task_id
        self.stream_time_ms = stream_time_ms
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
        alone = part.one_by_one()
        self._overtakes = bool(alone.nodes or alone.topics)
        try:
            self.pushes = _wire(part, self, outbox, application_id)
        except BaseException:
            self.close()
            raise
        self.punctuations.opened(clock.now_ms())

    def stream_time(self) -> int | None:
        return self.stream_time_ms

    def keep_stream_times(self) -> None:
        self._keeps_stream_times = True

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
        while start < count:
            before_ms = self.stream_time_ms
            stop = self.punctuations.cut(before_ms, records.timestamps, start)
            if has_timers and self._overtakes:
                # A timer may share a store with nodes that its node's own records do not reach.
                stop = start + 1
                self.punctuations.timers_pass(records.timestamps[start])
            part = records if stop - start == count else records.slice(start, stop)
            if self._keeps_stream_times:
                part = part.with_stream_times(running(before_ms, part.timestamps))
            push(part)
            latest_ms = max(part.timestamps)
            if before_ms is None or latest_ms > before_ms:
                self.stream_time_ms = latest_ms
                after = batch.tp, batch.offsets[stop - 1]
                self.punctuations.timers_pass(latest_ms)
                self.punctuations.stream_time_rose(before_ms, latest_ms, after)
            start = stop

    def has_timers_before(self, batch: InputBatch) -> bool:
        """Return whether timers may be due that fire before the first of these records."""
        return self.punctuations.timers_due(batch.records.timestamps[0])

    def fire_timers_before(self, batch: InputBatch) -> bool:
        """Fire some timers that are due before these records; return whether some may be left."""
        outer = APPLICATION.set(self._application_id)
        try:
            return self.punctuations.timers_near(batch.records.timestamps[0])
        finally:
            APPLICATION.reset(outer)

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
        count_messages(str(self.task_id), consumed.values(), self.sent)
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


def _checks(part: SubTopology, source: SourceNode, context: TaskContext) -> list[Push]:
    """Return the checks that the logs of tables run on a source's records."""
    return [
        context.check_of(node.stores[0])
        for node in part.nodes
        if isinstance(node, OperatorNode) and node.keeps and node.parents == (source.name,)
    ]


def _sink(node: SinkNode, context: TaskContext, outbox: Outbox, application_id: str) -> Push:
    topic = node.topic.full(application_id)
    contextual = node.key_serde.contextual or node.value_serde.contextual
    written = _written_for if contextual else _written

    def push(batch: Batch) -> None:
        nulls = set(batch.keys.nulls()) if node.drops_null_keys else None
        if nulls:
            context.drop(node.name, batch, sorted(nulls), "null_key")
            if len(nulls) == len(batch):
                return
            batch = batch.take([i for i in range(len(batch)) if i not in nulls])
        keys, values, headers = written(topic, node, batch)
        try:
            placing = serdes.placing(node.key_serde, keys)
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

    return push


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
