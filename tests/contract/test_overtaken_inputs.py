"""An owner whose inputs were purged since its last commit: by another owner, or by somebody else.

Two owners have state dirs of their own, so that no lock keeps them apart (I4, E5).
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InputLost
from statestore.model.ids import TopicPartition
from tests.contract.task_rig import APPLICATION, TaskRig

INPUT = TopicPartition("in", 0)


def counting() -> ss.Topology:
    builder = ss.StreamsBuilder()
    stream = builder.stream("in", key_serde=serdes.STRING, value_serde=serdes.STRING)
    counts = stream.group_by_key().count("counts")
    counts.to_stream().to("out", key_serde=serdes.STRING, value_serde=serdes.INT64)
    return builder.build()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[TaskRig]:
    made = TaskRig(counting(), tmp_path / "ours")
    yield made
    made.end()


@pytest.fixture
def theirs(ours: TaskRig, tmp_path: Path) -> Iterator[TaskRig]:
    made = TaskRig(counting(), tmp_path / "theirs", broker=ours.broker)
    yield made
    made.end()


def sent(rig: TaskRig, *keys: str) -> None:
    rig.send("in", [(key, "x") for key in keys])


def purged(rig: TaskRig, offset: int) -> None:
    rig.broker.cluster(APPLICATION).delete_before({INPUT: offset})


def counted(rig: TaskRig) -> list[int]:
    """The count that each commit wrote."""
    return [int.from_bytes(one.value or b"", "big") for one in rig.broker.records("out")]


def test_an_owner_that_was_overtaken_goes_back_to_the_commit_of_the_other(
    ours: TaskRig, theirs: TaskRig, caplog: pytest.LogCaptureFixture
) -> None:
    sent(ours, "a", "a")
    first = ours.start()
    first.step(0)
    first.step_commit()
    second = theirs.start()
    sent(ours, "a", "a", "a")
    second.step(0)
    second.step_commit()
    purged(ours, 5)
    with caplog.at_level(logging.WARNING):
        assert first.step(0) == 0
    assert "another owner has committed its inputs meanwhile" in caplog.text
    sent(ours, "a")
    assert first.step(0) == 1
    first.step_commit()
    assert counted(ours) == [2, 5, 6]


def test_an_input_that_somebody_else_purged_is_lost(ours: TaskRig) -> None:
    sent(ours, "a", "a")
    task = ours.start()
    task.step(0)
    task.step_commit()
    sent(ours, "a", "a", "a")
    purged(ours, 4)
    with pytest.raises(InputLost, match="in-0 holds no record at offset 2"):
        task.step(0)
    ours.crash()
    assert counted(ours) == [2]
