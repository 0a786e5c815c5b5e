"""Punctuations that failed, and are passed over whole (SEMANTICS E9, KIP-1033, docs/adr/0009).

As with records: the task goes back to its last commit and does without that one firing, so nothing
of it stays anywhere; its dead letter is of the transaction that passes over it, and a commit
follows at once. By stream time a firing is known by the record after which it falls; by the wall
clock the next one of the same function is passed over, as the task opens anew.
"""

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from statestore.errors import RecordFailed, TopicMissing
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import OnError
from statestore.model.records import Header
from statestore.ports import Outbox, Records
from statestore.tasks.dead_letters import error_headers
from statestore.tasks.poison_held import HeldFailed
from statestore.topology.failures import NodeFailed, Stage
from statestore.topology.punctuation import Fire, Firing

_log = logging.getLogger(__name__)
_REASON = "punctuation"


class PunctuationFailed(NodeFailed):
    """A punctuation raised, or a node to which it forwarded did: no record is to blame."""

    def __init__(self, firing: Firing, time_ms: int, failed: NodeFailed) -> None:
        self.firing = firing
        self.time_ms = time_ms
        super().__init__(
            failed.stage,
            failed.place,
            failed.cause,
            node=failed.node,
            where=f"punctuation at {time_ms}",
        )


class Tally(Protocol):
    """What is to know of a firing passed over."""

    def count_dropped(self, reason: str) -> None: ...
    def request_commit(self) -> None: ...


class _Verdict(NamedTuple):
    """When it failed, and what its dead letter says of itself, if it gets one."""

    time_ms: int
    headers: tuple[Header, ...] | None


class PoisonPunctuations:
    """Those of one stream task, through all its rewinds, until they are committed past."""

    def __init__(
        self,
        task_id: TaskId,
        handlers: Mapping[Stage, OnError],
        outbox: Outbox,
        dead_letter_topic: str,
    ) -> None:
        self._task_id = task_id
        self._handlers = handlers
        self._outbox = outbox
        self._topic = dead_letter_topic
        self._condemned: dict[Firing, _Verdict] = {}
        self._passed: set[Firing] = set()

    def condemn(self, failed: PunctuationFailed) -> None:
        """Pass over that firing from now on, or raise, as the handler of its stage says."""
        at = f"punctuation at {failed.time_ms}"
        error = failed.error(at, failed.cause)
        handler = self._handlers[failed.stage]
        if handler is OnError.FAIL:
            raise error from failed.cause
        buried = handler is OnError.DEAD_LETTER
        headers = _headers(failed, self._task_id) if buried else None
        self._condemned[failed.firing] = _Verdict(failed.time_ms, headers)
        done = f"goes to {self._topic}" if buried else "is passed over"
        _log.error("task %s: %s %s", self._task_id, error, done, exc_info=failed.cause)

    def run(self, firing: Firing, fire: Fire, time_ms: int, tally: Tally) -> bool:
        """Call the function, unless this firing is condemned; PunctuationFailed if it fails."""
        if self._pass_over(firing, tally):
            return False
        try:
            fire(time_ms)
        except HeldFailed:
            raise
        except NodeFailed as failed:
            raise PunctuationFailed(firing, time_ms, failed) from failed.cause
        return True

    def cut(self, tp: TopicPartition, offsets: Sequence[int], take: int) -> int | None:
        """How many of the first `take` there are up to the one after which a firing is left out."""
        if not self._condemned:
            return None
        places = {f.after[1] for f in self._condemned if f.after is not None and f.after[0] == tp}
        found = sorted(bisect_left(offsets, at) for at in places)
        return next((i + 1 for i in found if i < take and offsets[i] in places), None)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """What was passed over is so for good; the inputs are committed up to these offsets."""
        gone = self._passed | {
            firing
            for firing in self._condemned
            if firing.after is not None and firing.after[1] < offsets.get(firing.after[0], 0)
        }
        for firing in gone:
            self._condemned.pop(firing, None)
        self._passed.clear()

    def went_back(self) -> None:
        """Nothing since the last commit happened."""
        self._passed.clear()

    def _pass_over(self, firing: Firing, tally: Tally) -> bool:
        """Whether this firing is condemned; its dead letter goes into the open transaction."""
        verdict = self._condemned.get(firing)
        if verdict is None or firing in self._passed:
            return False
        self._passed.add(firing)
        tally.count_dropped(_REASON)
        tally.request_commit()
        if verdict.headers is not None:
            try:
                # Kafka's client takes 0 for "now".
                at = [max(verdict.time_ms, 1)]
                self._outbox.send(Records(self._topic, [None], [None], at, None, [verdict.headers]))
            except (RecordFailed, TopicMissing) as error:
                raise type(error)(
                    f"dead letter of a punctuation of node {firing.node}: {error}"
                ) from error
        return True


def _headers(failed: PunctuationFailed, task_id: TaskId) -> tuple[Header, ...]:
    by_clock = failed.firing.after is None
    return error_headers(
        failed.cause,
        {
            "punctuation": "wall_clock_time" if by_clock else "stream_time",
            "node": failed.firing.node,
            "time": str(failed.time_ms),
            "task": str(task_id),
        },
    )
