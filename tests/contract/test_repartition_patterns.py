"""A change of the partition count of inputs that a pattern finds: all that match are changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.errors import Misuse
from statestore.faults import CrashPoint
from statestore.model.ids import TopicPartition
from statestore.operations.repartition.partition_plan import Inputs
from statestore.operations.start.matching import with_matches
from statestore.ports import TopicSpec
from tests.contract.test_repartition_steps import World, died, finding
from tests.relocation_rig import in_memory_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory_folder() as found:
        yield found


def test_inputs_that_are_found_by_patterns_are_changed_with_all_that_they_match(
    folder: Path,
) -> None:
    world = World(folder, finding(), partitions=4)
    cluster = world.broker.cluster("app")
    cluster.create([TopicSpec("more", 4, {})])
    world.send(100).send(60, topic="more").run()
    world.change(6)
    assert cluster.partitions(["in", "more"]) == {"in": 6, "more": 6}
    # A topic that appears meanwhile is read from its start, as by any run.
    cluster.create([TopicSpec("new", 6, {})])
    world.send(40, topic="new").send(40).run()
    assert world.rows() == world.sent
    world.change(3, Inputs.RECREATE)
    assert {n for name, n in world.topics().items() if name != "dead"} == {3}
    world.send(50).send(50, topic="more").run()
    assert world.rows() == world.sent
    assert sum(world.rows("letters").values()) == sum(world.sent.values())


def test_a_topic_that_appears_before_a_change_begins_as_at_any_start(folder: Path) -> None:
    world = World(folder, finding(), partitions=4)
    world.send(100).run()
    cluster = world.broker.cluster("app")
    cluster.create([TopicSpec("new", 6, {})])
    world.partitions = 6
    world.send(40, topic="new")
    world.change(6)
    new = [TopicPartition("new", p) for p in range(6)]
    assert not cluster.group_offsets(new)
    world.run()
    assert world.rows() == world.sent


def test_no_pattern_matches_the_copies_of_a_change_that_died(folder: Path) -> None:
    world = World(folder, finding(), partitions=4)
    world.send(100).run()
    died(world, CrashPoint.REPARTITION_COPIED, 6)
    assert "app-counts-changelog-repartitioning" in world.topics()
    with world.runtime() as runtime:
        read, _ = with_matches(runtime, world.pipeline).topics()
    assert read == {"in"}
    world.change(6)
    world.partitions = 6
    world.send(30).run()
    assert world.rows() == world.sent


def test_a_pattern_that_matches_nothing_and_inputs_of_several_counts_are_refused(
    folder: Path,
) -> None:
    world = World(folder, finding(), partitions=4)
    world.send(100).run()
    cluster = world.broker.cluster("app")
    cluster.create([TopicSpec("narrow", 2, {})])
    before = world.all()
    with pytest.raises(Misuse, match="narrow has 2 partitions"):
        world.change(6)
    assert world.all() == before
    cluster.remove(["narrow", "in"], None)
    with pytest.raises(Misuse, match="no topic matches"):
        world.change(6)
