"""Where a stream task's inputs go on: at the group's offsets, never past input that is gone.

The broker drops a group's offsets with their topic, and when none was committed for a week
(offsets.retention.minutes). What the stores say they have processed tells such an input from a new
one.
"""

from collections.abc import Iterable

from statestore.errors import RecordFailed
from statestore.model import TopicPartition
from statestore.ports import Cluster
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.tasks.commit import CommitStamp
from statestore.tasks.plan import TaskPlan


def committed_inputs(
    plan: TaskPlan, cluster: Cluster, stores: Iterable[object]
) -> tuple[dict[TopicPartition, int], CommitStamp]:
    """The next offset of each input, and the stamp of the last commit.

    `stores`: those whose positions the group's offsets cannot be behind. RecordFailed: an input was
    truncated, made anew or forgotten.
    """
    committed = cluster.group_offsets(plan.inputs)
    fresh = [tp for tp in plan.inputs if tp not in committed]
    ends = plan.ends or {}
    # Past its planned end: an earlier one was asked for, or the log is shorter than it was.
    beyond = [tp for tp, at in committed.items() if at.offset > ends.get(tp, at.offset)]
    bounds = cluster.bounds(fresh + beyond) if fresh or beyond else {}
    for tp in beyond:
        if committed[tp].offset > bounds[tp].end:
            raise RecordFailed(
                f"input {tp} ends at offset {bounds[tp].end}, the last commit ended at "
                f"{committed[tp].offset}: the topic was truncated or made anew, so input is lost: "
                "reset the group's offsets to go on without it"
            )
    known = {
        tp: last
        for store in stores
        if isinstance(store, TransactionalKeyValueStore)
        for tp, last in store.position().as_dict().items()
    }
    for tp in fresh:
        if tp in known:
            raise RecordFailed(
                f"the group has no offset of input {tp}, but task {plan.task_id} has processed it "
                f"up to {known[tp]}: the topic was made anew, or the offset expired on the broker "
                f"(offsets.retention.minutes): set the group's offset, to {known[tp] + 1} to go "
                "on, or to the topic's start to process it from there"
            )
    offsets = {
        tp: committed[tp].offset if tp in committed else bounds[tp].start for tp in plan.inputs
    }
    return offsets, CommitStamp.latest(committed)
