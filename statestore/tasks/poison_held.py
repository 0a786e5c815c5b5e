"""What waited in an operator and failed when it was handed on (SEMANTICS E8a, docs/adr/0009).

A record that waits for its table, or the result of a window that closes, is handed on because some
later record let stream time pass. It is judged by itself: the record that woke it is none of its
failure. Where a node says which one it was, that one is passed over. Else the task goes back and
tries: in a transaction that is never committed, with the first few of what is handed on and without
the rest. The last of the fewest that fail is the one.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from statestore.errors import RecordFailed, TopicMissing
from statestore.model.batch import Column
from statestore.model.ids import TaskId
from statestore.model.modes import OnError
from statestore.model.records import Header
from statestore.ports import Outbox, Records
from statestore.stores import serdes
from statestore.tasks.dead_letters import error_headers
from statestore.topology.failures import NodeFailed, Stage
from statestore.topology.nodes import Held, Origin, Push
from statestore.topology.sub_topologies import SubTopology

_log = logging.getLogger(__name__)
_UNKNOWN = -1


class Item(NamedTuple):
    """One thing that waited in `store`: equal ones are interchangeable."""

    store: str
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: tuple[Header, ...]
    origin: Origin | None

    def __str__(self) -> str:
        if self.origin is not None:
            tp, offset = self.origin
            return f"{tp} offset {offset}, which waited in store {self.store!r}"
        key = serdes.printable(self.key or b"")
        return f"the result of key b'{key}' up to {self.time_ms} in store {self.store!r}"


class HeldFailed(NodeFailed):
    """Something that waited cannot be handed on; `items` are those known, none: it may be any."""

    def __init__(self, failed: NodeFailed, items: list[tuple[Item, Exception]], at: int) -> None:
        """`at`: how many had been handed on before the first suspect, in this transaction."""
        self.items = items
        self.at = at
        super().__init__(
            failed.stage, failed.place, failed.cause, node=failed.node, where="what waited"
        )


class Rehearsed(Exception):
    """A trial went through up to its commit, which is not made."""


class Tally(Protocol):
    """What is to know of something passed over."""

    def count_dropped(self, reason: str) -> None: ...
    def request_commit(self) -> None: ...


class _Verdict(NamedTuple):
    """Why it is passed over, and what its dead letter says of itself, if it gets one."""

    reason: str
    headers: tuple[Header, ...] | None


class _Trial:
    """The first `passing` go through, the first `failing` do not; `limit` are tried now."""

    def __init__(self, failed: NodeFailed, failing: int, hint: int) -> None:
        self.failed = failed
        self.passing = _UNKNOWN
        self.failing = failing
        self.limit = 0
        self.hint = hint

    def narrow(self) -> None:
        """Choose the next limit."""
        low, high, hint = self.passing, self.failing, self.hint
        self.limit = (low + high) // 2
        if low < hint < high:
            self.limit = hint
        elif low < hint + 1 < high:
            self.limit = hint + 1


class PoisonHeld:
    """What waited in one stream task and is passed over, through all its rewinds."""

    def __init__(
        self,
        task_id: TaskId,
        part: SubTopology,
        handlers: Mapping[Stage, OnError],
        outbox: Outbox,
        dead_letter_topic: str,
    ) -> None:
        self._task_id = task_id
        self._part = part
        self._handlers = handlers
        self._outbox = outbox
        self._topic = dead_letter_topic
        self._condemned: dict[Item, list[_Verdict]] = {}
        self._trial: _Trial | None = None
        # Of this transaction.
        self._passed: Counter[Item] = Counter()
        self._handed_on = 0
        self._tried: list[Item] = []
        self._wrote_letter = False

    @property
    def on_trial(self) -> bool:
        """Whether what is being done is not to be committed."""
        return self._trial is not None

    def release(self, node: str, held: Held, hand_on: Push, tally: Tally) -> None:
        """Hand on what waited, without what is passed over; HeldFailed if it cannot be."""
        chosen = self._chosen(held, tally)
        batch = held.batch if chosen is None else held.batch.take(chosen)
        if not len(batch):
            return
        before = self._handed_on
        self._handed_on += len(batch)
        # Without a topic, offsets are places among what is handed on.
        batch = replace(batch, offsets=range(len(batch)))
        try:
            hand_on(batch)
        except HeldFailed:
            raise
        except NodeFailed as failed:
            places = [(culprit.offset, culprit.cause) for culprit in failed.culprits]
            first = places[0][0] if places else len(batch) - 1
            known = []
            if failed.certain and failed.node in _independent_below(self._part, node):
                at = range(len(held.batch)) if chosen is None else chosen
                known = [(_item(held, at[place]), cause) for place, cause in places]
            raise HeldFailed(failed, known, before + first) from failed.cause

    def settle(self, ended: NodeFailed | Rehearsed) -> bool:
        """Whether this was about what waited, and going back leads on; raises the run's end."""
        trial = self._trial
        if isinstance(ended, HeldFailed) and ended.items:
            self._trial = None
            for item, cause in ended.items:
                self._condemn(item, ended, cause)
            return True
        if trial is None:
            return False
        if isinstance(ended, NodeFailed):
            if trial.limit == 0:
                # It fails without any of them.
                self._trial = None
                if self._wrote_letter and ended.stage is Stage.PRODUCTION and not ended.node:
                    raise ended.error("dead letter of what waited", ended.cause) from ended.cause
                return False
            trial.failing, trial.failed = trial.limit, ended
        else:
            trial.passing = trial.limit
        if trial.passing + 1 < trial.failing:
            trial.narrow()
            return True
        self._trial = None
        if trial.passing >= len(self._tried):
            where = "what waited, but not twice alike"
            raise trial.failed.error(where, trial.failed.cause) from trial.failed.cause
        self._condemn(self._tried[trial.passing], trial.failed, trial.failed.cause)
        return True

    def try_out(self, failed: NodeFailed) -> bool:
        """Go back and try whether what was handed on in this transaction was to blame."""
        if not self._handed_on:
            return False
        hint = failed.at if isinstance(failed, HeldFailed) else _UNKNOWN
        self._trial = _Trial(failed, self._handed_on, hint)
        _log.info(
            "task %s: %s; to find out which, the %d that waited are tried in part",
            self._task_id,
            failed,
            self._handed_on,
        )
        return True

    def committed(self) -> None:
        """What was passed over is so for good."""
        for item, count in self._passed.items():
            left = self._condemned[item][count:]
            if left:
                self._condemned[item] = left
            else:
                del self._condemned[item]
        self.went_back()

    def went_back(self) -> None:
        """Nothing since the last commit happened."""
        self._passed.clear()
        self._tried = []
        self._handed_on = 0
        self._wrote_letter = False

    def _chosen(self, held: Held, tally: Tally) -> list[int] | None:
        """The places of those to hand on; None: all."""
        trial = self._trial
        if trial is None and not self._condemned:
            return None
        chosen = []
        for place in range(len(held.batch)):
            item = _item(held, place)
            if self._pass_over(item, tally):
                continue
            if trial is None or len(self._tried) < trial.limit:
                chosen.append(place)
            if trial is not None:
                self._tried.append(item)
                tally.request_commit()
        return chosen

    def _pass_over(self, item: Item, tally: Tally) -> bool:
        """Whether it is condemned; its dead letter goes into the open transaction."""
        verdicts, done = self._condemned.get(item, ()), self._passed[item]
        if done >= len(verdicts):
            return False
        verdict = verdicts[done]
        self._passed[item] += 1
        tally.count_dropped(verdict.reason)
        tally.request_commit()
        if verdict.headers is not None:
            headers = [(*item.headers, *verdict.headers)]
            # Kafka's client takes 0 for "now".
            at = [max(item.time_ms, 1)]
            try:
                self._outbox.send(Records(self._topic, [item.key], [item.value], at, None, headers))
            except (RecordFailed, TopicMissing) as error:
                raise type(error)(f"dead letter of {item}: {error}") from error
            self._wrote_letter = True
        return True

    def _condemn(self, item: Item, failed: NodeFailed, cause: Exception) -> None:
        error = failed.error(str(item), cause)
        handler = self._handlers[failed.stage]
        if handler is OnError.FAIL:
            raise error from cause
        buried = handler is OnError.DEAD_LETTER
        headers = error_headers(cause, _place(item)) if buried else None
        self._condemned.setdefault(item, []).append(_Verdict(failed.stage, headers))
        done = f"goes to {self._topic}" if buried else "is passed over"
        trace = cause if failed.stage is Stage.PROCESSING else None
        _log.error("task %s: %s %s: %s", self._task_id, item, done, error, exc_info=trace)


def _item(held: Held, place: int) -> Item:
    batch = held.batch
    return Item(
        held.store,
        _stored(batch.keys)[place],
        _stored(batch.values)[place],
        batch.timestamps[place],
        () if batch.headers is None else batch.headers[place],
        None if held.origins is None else held.origins[place],
    )


def _stored(column: Column) -> list[bytes | None]:
    return column.with_serde(serdes.BYTES).encoded(serdes.BYTES)


def _place(item: Item) -> dict[str, str]:
    place = {"store": item.store, "time": str(item.time_ms)}
    if item.origin is None:
        return place
    (topic, partition), offset = item.origin
    return {"topic": topic, "partition": str(partition), "offset": str(offset), **place}


def _independent_below(part: SubTopology, node: str) -> frozenset[str]:
    """`node` and those below it to which each comes the same, whatever came before it."""
    found, stateless = {node}, {node}
    for below in part.nodes:
        if not stateless.isdisjoint(below.parents):
            found.add(below.name)
            if not below.stores:
                stateless.add(below.name)
    return frozenset(found)
