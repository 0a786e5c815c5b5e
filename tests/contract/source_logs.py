"""A table whose log is the topic it is made of, and how a test works with it."""

import statestore as ss
from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.operations.running.run import Run, RunRequest
from tests.contract.task_rig import APPLICATION, TaskRig, release

REUSE = {"topology.optimization": "reuse.ktable.source.topics"}
IN = TopicPartition("in", 0)


def topology(*, persistent: bool = True, store: str = "table") -> ss.Topology:
    make = ss.persistent_key_value_store if persistent else ss.in_memory_key_value_store
    spec = make(store, key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder.table("in", materialized=ss.Materialized(spec)).to_stream(name="s").to("out")
    return builder.build()


def commit(rig: TaskRig, *rows: tuple[str, str | None]) -> None:
    rig.send("in", rows)
    rig.running[0].step(0)
    rig.running[0].step_commit()


def begun(rig: TaskRig, *rows: tuple[str, str | None]) -> None:
    """Processed, not committed."""
    rig.send("in", rows)
    rig.running[0].step(0)


def lose_disk(rig: TaskRig) -> None:
    """The next life begins without any file."""
    for task in rig.running:
        task.abandon()
        release(task)
    rig.running.clear()
    rig.lives += 1


def entered(rig: TaskRig, **settings: str) -> None:
    """A run begins and ends."""
    rig.settings = {**rig.settings, **settings}
    with Run(rig.runtime, rig.topology, RunRequest()):
        pass


def finish(rig: TaskRig) -> None:
    """Process and commit all there is."""
    (task,) = rig.running
    while task.step(0) or _behind(rig):
        task.step_commit()


def _behind(rig: TaskRig) -> bool:
    end = rig.broker.cluster(APPLICATION).bounds([IN])[IN].end
    return rig.running[0]._committer.offsets[IN] < end
