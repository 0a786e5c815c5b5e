"""How far an application is behind, and what its next start replays, according to its brokers.

What they do not say is None, never a guess and never 0: an open transaction hides the newest
record, a topic may be missing, an answer may come too late. A sum is None as well if a part of it
is not known.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from statestore.errors import HostFailure, InvalidSetting, StateStoreError
from statestore.layout import files
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import Deployed
from statestore.operations.start.matching import OwnTopics, matched_now
from statestore.ports import Bounds, InputFacts, MonitoringClient
from statestore.tasks.commit import CommitStamp
from statestore.tasks.plan import Tally

_INTERNAL = "-repartition"


class InputLag(NamedTuple):
    """Records and seconds of event time between the last processed record and the newest one."""

    records: int | None = None
    seconds: float | None = None


class Facts(NamedTuple):
    """What the brokers said; `problem`: why they did not, and then all else is empty.

    `is_refusal`: the settings are at fault, so that asking again would not help.
    `tasks`: the inputs of each stream task; None if a topic that it reads is missing.
    """

    problem: str | None = None
    inputs: Mapping[TopicPartition, InputFacts] = {}
    logs: Mapping[TopicPartition, Bounds] = {}
    tasks: Mapping[TaskId, Sequence[TopicPartition] | None] = {}
    is_refusal: bool = False

    @classmethod
    def none(cls, why: StateStoreError) -> "Facts":
        """Nothing was said, because of this error."""
        return cls(str(why), is_refusal=isinstance(why, InvalidSetting))

    def lag(self, task: TaskId) -> InputLag:
        """The lag of one stream task."""
        tps = self.tasks.get(task)
        if tps is None:
            return InputLag()
        return _lag([self.inputs.get(tp) for tp in tps])

    def tally(self, task: TaskId) -> Tally | None:
        """What the last commit of one stream task says of its serving; None: nothing is known."""
        found = {tp: self.inputs.get(tp) for tp in self.tasks.get(task) or ()}
        committed = {tp: one.committed for tp, one in found.items() if one and one.committed}
        return CommitStamp.latest(committed).tally


def ask(monitoring: MonitoringClient, deployed: Deployed, own: OwnTopics) -> Facts:
    """Ask for everything at once; an error becomes the problem."""
    try:
        return _asked(monitoring, matched_now(deployed, monitoring, own), own.application_id)
    except StateStoreError as error:
        return Facts.none(error)


def _asked(monitoring: MonitoringClient, shape: Deployed, application_id: str) -> Facts:
    sources = {topic for part in shape.sub_topologies for topic in part.source_topics}
    # An older version deployed a repartition topic without the application's id before its name.
    internal = {
        topic: f"{application_id}-{topic}" for topic in sources if topic.endswith(_INTERNAL)
    }
    logs = [shape.log_of(application_id, name) for name in sorted(shape.stores)]
    logs += sorted({it.topic for it in shape.global_stores.values() if it.topic} - {*logs})
    counts = monitoring.partitions([*sorted(sources), *internal.values(), *logs])
    full = {topic: name for topic, name in internal.items() if name in counts}
    tasks = _inputs_of_tasks(shape, counts, full)
    inputs = monitoring.inputs([tp for tps in tasks.values() if tps for tp in tps])
    there = [TopicPartition(name, p) for name in logs for p in range(counts.get(name, 0))]
    return Facts(None, inputs, monitoring.bounds(there), tasks)


def to_restore(
    layout: StateLayout, task: TaskId, shape: Deployed, facts: Facts, flush_lag_max_records: int
) -> int | None:
    """How many records the next start of a stream task replays, at most.

    After a clean end the files say where the stores stand. After a crash the stores lack at most
    what was not flushed, which is bounded. A store without a folder starts at the beginning of its
    log.
    """
    there = set(layout.stores(task))
    try:
        checkpoint = files.read_checkpoint(layout.task_dir(task))
    except HostFailure:
        checkpoint = {}  # It says nothing, as at a start.
    total = 0
    for name, store in shape.stores.items():
        if store.sub_topology != task.sub_topology:
            continue
        tp = TopicPartition(shape.log_of(layout.application_id, name), task.partition)
        if tp not in facts.logs:
            return None
        start, end = facts.logs[tp]
        if name in there and store.persistent:
            behind = max(0, end - max(start, checkpoint.get(tp, start)))
            total += behind if flush_lag_max_records < 0 else min(behind, flush_lag_max_records)
        else:
            total += end - start
    return total


def changed_counts(facts: Facts, shape: Deployed) -> list[str]:
    """Tell of sub-topologies with state whose inputs have other partitions than were deployed."""
    found = []
    for part in shape.sub_topologies:
        now = {
            tp.topic: tp.partition + 1
            for task, tps in facts.tasks.items()
            if task.sub_topology == part.ordinal
            for tp in tps or ()
        }
        widest = max(now.values(), default=0)
        has_state = any(store.sub_topology == part.ordinal for store in shape.stores.values())
        if has_state and part.tasks and widest > part.tasks and not part.patterns:
            found.append(
                f"an input of sub-topology {part.ordinal} has {widest} partitions, and it was "
                f"deployed with {part.tasks}: a start is refused until `statestore repartition "
                f"--partitions {widest}` has divided its state"
            )
    return found


def total_of(numbers: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is not known, or if there is none."""
    total = None
    for number in numbers:
        if number is None:
            return None
        total = number + (total or 0)
    return total


def totals_of(parts: Iterable[Mapping[str, int] | None]) -> dict[str, int] | None:
    """The sum under each name; None if one of the parts is not known, or if there is none."""
    total = None
    for part in parts:
        if part is None:
            return None
        total = (total or Counter[str]()) + Counter(part)
    return None if total is None else dict(total)


def worst_of(numbers: Iterable[float | None]) -> float | None:
    """The largest; None if one of them is not known, or if there is none."""
    worst = None
    for number in numbers:
        if number is None:
            return None
        worst = number if worst is None else max(worst, number)
    return worst


def _inputs_of_tasks(
    shape: Deployed, counts: Mapping[str, int], full: Mapping[str, str]
) -> dict[TaskId, list[TopicPartition] | None]:
    """The inputs by stream task: as many tasks as there are partitions, or as were deployed."""
    found: dict[TaskId, list[TopicPartition] | None] = {}
    for part in shape.sub_topologies:
        topics = [full.get(topic, topic) for topic in part.source_topics]
        widths = [counts.get(topic, 0) for topic in topics]
        for p in range(max([part.tasks or 0, *widths])):
            read = [TopicPartition(topic, p) for topic in topics if p < counts.get(topic, 0)]
            # Without any, its topic was created again with fewer partitions since it was deployed,
            # or was one of those that a pattern matched.
            known = (read or part.patterns) and all(widths)
            found[TaskId(part.ordinal, p)] = read if known else None
    return found


def _lag(inputs: Sequence[InputFacts | None]) -> InputLag:
    known = [one for one in inputs if one is not None]
    if len(known) < len(inputs):
        return InputLag()
    behind = [one for one in known if one.next_ms is not None]
    records = sum(
        max(
            0,
            one.bounds.end - max(one.bounds.start, one.committed.offset if one.committed else 0),
        )
        for one in behind
    )
    if not behind:
        return InputLag(0, 0.0)
    newest = [one.newest_ms for one in behind if one.newest_ms is not None]
    if len(newest) < len(behind):
        return InputLag(records)
    stamp = CommitStamp.latest(
        {TopicPartition("", i): one.committed for i, one in enumerate(known) if one.committed}
    )
    since = [one.next_ms for one in behind if one.next_ms is not None]
    if stamp.stream_time_ms is not None:
        since.append(stamp.stream_time_ms)
    return InputLag(records, max(0, max(newest) - min(since)) / 1000)
