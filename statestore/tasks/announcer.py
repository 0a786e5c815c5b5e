"""What a stream task tells those below its internal topics of how far it has come (SEMANTICS E4d).

A mark goes into every partition of such a topic, at the end of a transaction, so it cannot come
before a record that it is about. A record costs nothing more for it. With n upstream tasks and as
many partitions a round of marks is n times n records, and therefore a task sends at most
`_MARKS_PER_SECOND`: of 200 partitions it marks each once a second, of 20 each ten times
(docs/adr/0038). What is held back so goes out later, with or without records.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from statestore.model.time_marks import TimeMark, key_of
from statestore.ports import Outbox, Records
from statestore.tasks.time_plan import TimePlan
from statestore.tasks.watermarks import UNBOUNDED
from statestore.topology.nodes import Earliest, SinkNode, SourceNode
from statestore.topology.sub_topologies import SubTopology

_MARKS_PER_SECOND: Final = 200


class InputProgress(NamedTuple):
    """How far a task has come with some of its inputs: None, before the first record.

    `bound_ms`: how far the upstream tasks of these inputs have.
    """

    time_ms: int | None
    bound_ms: int


class _Written(NamedTuple):
    """The latest time of what a task wrote, and how far its input was ahead of that at most."""

    latest_ms: int
    behind_ms: int


class Working(Protocol):
    """The part of a task that knows how far it has come."""

    @property
    def had_input(self) -> bool:
        """Whether it has processed records in this attempt."""

    @property
    def retiming(self) -> Collection[str]:
        """The nodes that may give records other times."""

    def progress(self, topics: frozenset[str]) -> InputProgress:
        """Return how far it has come with the inputs of these topics."""

    @property
    def kept_back(self) -> Mapping[str, Earliest]:
        """By node that keeps results back, what is the earliest that may still come of it."""


class Announcer:
    """The marks of one stream task, from one attempt to the next.

    `sent`: by internal topic that it shares with others, the latest time written there that has not
    been told yet.
    """

    def __init__(self, plan: TimePlan, part: SubTopology, application_id: str) -> None:
        self._plan = plan
        self._told: dict[str, TimeMark] = {}
        self._told_s = float("-inf")
        self._every_s = sum(count for _, count in plan.channels.values()) / _MARKS_PER_SECOND
        self._ways = {
            topic: _Ways(part, topic, application_id, every_input=not plan.in_cycle)
            for topic in plan.channels
        }
        self.sent: dict[str, int] = {}
        self._written: dict[str, _Written] = {}

    def __bool__(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._plan.channels)

    def wrote(self, topic: str, times: Sequence[int], now_ms: int | None) -> None:
        """Note the times of records that were written into an internal topic.

        `now_ms`: how late it was by the task's input; None: not known.
        """
        if topic not in self._plan.channels:
            return
        latest_ms = max(times)
        self.sent[topic] = max(latest_ms, self.sent.get(topic, latest_ms))
        behind_ms = 0 if now_ms is None else max(now_ms - latest_ms, 0)
        before = self._written.get(topic, _Written(latest_ms, 0))
        self._written[topic] = _Written(
            max(latest_ms, before.latest_ms), max(behind_ms, before.behind_ms)
        )

    def went_back(self, untold: Mapping[str, int]) -> None:
        """Begin again at a commit that left these latest times untold."""
        self._told.clear()
        self._written.clear()
        self.sent = dict(untold)

    def news(
        self, working: Working, *, idle: bool, now_s: float, done: bool = False
    ) -> dict[str, TimeMark]:
        """Return the marks that are due, by topic.

        `idle`: the task waits for input. `done`: it has come to its planned end.
        """
        due = done or now_s - self._told_s >= self._every_s
        found = {}
        for topic, (channel, _) in self._plan.channels.items():
            ways, told = self._ways[topic], self._told.get(topic)
            at = working.progress(ways.inputs)
            rests = idle and at.bound_ms == UNBOUNDED
            time_ms = at.time_ms
            if time_ms is not None and ways.are_retimed(working):
                time_ms = self._retimed(topic, time_ms, working)
            if time_ms is not None:
                time_ms = ways.earliest_after(time_ms, working.kept_back)
            sent_ms = self.sent.get(topic)
            if told is None:
                is_new = rests or time_ms is not None or sent_ms is not None
            else:
                is_new = sent_ms is not None or (time_ms, rests) != (told.time_ms, told.idle)
            # Who was idle is waited for again before anything of it can come too late.
            if is_new and (due or rests or (told is not None and told.idle)):
                found[topic] = TimeMark(channel, time_ms, sent_ms, self._plan.run, rests)
        return found

    def _retimed(self, topic: str, time_ms: int, working: Working) -> int | None:
        """Return how far the task has come by the times that its functions set.

        If these are in order, it is the latest one. A task that writes little and sets none is as
        far as its input, less what was out of order there. None: it has yet to show what they are.
        """
        written = self._written.get(topic)
        if written is None:
            return time_ms if working.had_input else None
        return min(time_ms, max(written.latest_ms, time_ms - written.behind_ms))

    def send(self, marks: Mapping[str, TimeMark], outbox: Outbox, now_s: float) -> None:
        """Add marks to the open transaction."""
        for topic, mark in marks.items():
            key, time_ms = key_of(mark), max(mark.time_ms or 0, 0)
            for partition in range(self._plan.channels[topic][1]):
                outbox.send(Records(topic, [key], [None], [time_ms], partition))
            self._told[topic] = mark
            self.sent.pop(topic, None)
            self._told_s = now_s


class _Ways:
    """The ways from the sources of a sub-topology to the sinks of one internal topic.

    An operator that keeps results back sends them with times that the task has passed.
    """

    def __init__(
        self, part: SubTopology, topic: str, application_id: str, *, every_input: bool
    ) -> None:
        above: set[str] = set()
        for node in reversed(part.nodes):
            is_sink = isinstance(node, SinkNode) and node.topic.full(application_id) == topic
            if is_sink or node.name in above:
                above.update((node.name, *node.parents))
        # Parents come before their children.
        self._nodes = [node for node in part.nodes if node.name in above]
        read = part.nodes if every_input else self._nodes
        sources = [node for node in read if isinstance(node, SourceNode)]
        self.inputs = frozenset(
            topic.full(application_id) for source in sources for topic in source.topics
        )

    def are_retimed(self, working: Working) -> bool:
        """Return whether functions decide about the times of what is written."""
        names = {node.name for node in self._nodes}
        return not names.isdisjoint(working.retiming) and names.isdisjoint(working.kept_back)

    def earliest_after(self, now_ms: int, kept_back: Mapping[str, Earliest]) -> int:
        """Return the earliest time of a record that may still come, once stream time is `now_ms`.

        It is about inputs whose records are in order.
        """
        earliest: dict[str, int] = {}
        for node in self._nodes:
            at = min((earliest[parent] for parent in node.parents), default=now_ms)
            if node.name in kept_back:
                at = min(at, kept_back[node.name](at))
            earliest[node.name] = at
        return min(earliest[node.name] for node in self._nodes if isinstance(node, SinkNode))
