"""Where a stream task's inputs go on: at the group's offsets, never past input that is gone.

The broker drops a group's offsets with their topic, and when none was committed for a week
(offsets.retention.minutes). The task's mark, and what the stores say they have processed, tell such
an input from a new one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from statestore.errors import RecordFailed
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.ports import Cluster
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.windows import TransactionalWindowStore
from statestore.tasks.commit import CommitStamp
from statestore.tasks.plan import TaskPlan


class CommittedInputs(NamedTuple):
    """The NEXT offset of each input, the last commit's stamp, and what the group itself has."""

    offsets: dict[TopicPartition, int]
    stamp: CommitStamp
    group: dict[TopicPartition, int]


def committed_inputs(
    plan: TaskPlan,
    cluster: Cluster,
    stores: Iterable[object],
    marked: Mapping[TopicPartition, int],
) -> CommittedInputs:
    """Where the inputs go on.

    `stores`: those whose positions the group's offsets cannot be behind. `marked`: the task's
    mark. RecordFailed: an input was truncated, made anew or forgotten.
    """
    committed = cluster.group_offsets(plan.inputs)
    fresh = [tp for tp in plan.inputs if tp not in committed]
    ends = plan.ends or {}
    # Past its planned end: an earlier one was asked for, or the log is shorter than it was.
    beyond = [tp for tp, at in committed.items() if at.offset > ends.get(tp, at.offset)]
    bounds = cluster.bounds(fresh + beyond) if fresh or beyond else {}
    for tp in beyond:
        if committed[tp].offset > bounds[tp].end:
            raise truncated(tp, end=bounds[tp].end, committed=committed[tp].offset)
    done = Position.of({tp: offset - 1 for tp, offset in marked.items()})
    for store in stores:
        if isinstance(store, TransactionalKeyValueStore | TransactionalWindowStore):
            done = done.merge(store.position())
    known = done.as_dict()
    for tp in fresh:
        if tp in known:
            raise forgotten(tp, plan.task_id, known[tp])
    offsets = {
        tp: committed[tp].offset if tp in committed else bounds[tp].start for tp in plan.inputs
    }
    group = {tp: at.offset for tp, at in committed.items()}
    return CommittedInputs(offsets, CommitStamp.latest(committed), group)


def truncated(tp: TopicPartition, *, end: int, committed: int) -> RecordFailed:
    """The refusal of an input whose log ends before the group's offset."""
    return RecordFailed(
        f"input {tp} ends at offset {end}, the last commit ended at {committed}: the topic was "
        "truncated or made anew, so input is lost: reset the group's offsets to go on without it"
    )


def forgotten(tp: TopicPartition, task: TaskId, last: int) -> RecordFailed:
    """The refusal of an input that was processed up to `last`, of which the group has no offset."""
    return RecordFailed(
        f"the group has no offset of input {tp}, but task {task} has processed it up to {last}: "
        "the topic was made anew, or the offset expired on the broker "
        f"(offsets.retention.minutes): set the group's offset, to {last + 1} to go on (further if "
        "the last run was killed), or to the topic's start to process it from there"
    )
