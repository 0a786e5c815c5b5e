"""Inputs of one task in a continuous run: whose records are waited for (SEMANTICS T2, KIP-695)."""

from pathlib import Path

import pytest

import statestore as ss
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from tests.contract.task_rig import TaskRig


def merged() -> ss.Topology:
    b = ss.StreamsBuilder()
    b.stream("left").merge(b.stream("right")).to("out")
    return b.build()


@pytest.mark.parametrize(
    ("idle_ms", "in_order"), [(0, True), (-1, False)], ids=["known ones", "nobody's"]
)
def test_records_on_the_broker_come_in_order_of_time_however_few_a_poll_brings(
    tmp_path: Path, idle_ms: int, *, in_order: bool
) -> None:
    settings = {"max.task.idle.ms": idle_ms, "statestore.batch.max.records": 1}
    rig = TaskRig(merged(), tmp_path, settings=settings)
    for time_ms in range(20):
        topic = "left" if time_ms < 10 else "right"
        rig.broker.produce(TopicPartition(topic, 0), Record(None, b"%d" % time_ms, time_ms))
    task = rig.start()
    for _ in range(50):
        task.step(0)
    rig.end()
    seen = [int(record.value or b"") for record in rig.broker.records("out")]
    assert sorted(seen) == list(range(20))
    assert (seen == sorted(seen)) is in_order
