"""The plan of a relocation is a function of topology and disk: moves, conflicts, what stays."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import Misuse, TopologyMismatch
from statestore.model.ids import TaskId
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import Deployed, DeployedPart, describe_deployment
from statestore.operations.relocation.relocation_plan import (
    Choices,
    Copy,
    Disk,
    Placement,
    RelocationPlan,
    placement,
    plan_relocation,
)
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.graph import Topology
from statestore.topology.windows.hopping import HoppingWindows, TimeWindows, TumblingWindows
from tests.builders import table_rows
from tests.relocation_rig import places_of, topology_of


def own_changelog(store: str) -> str:
    return f"shop-{store}-changelog"


def one_changelog(_store: str) -> str:
    return "source-topic"


def on_disk(text: str) -> Disk:
    """`A@0_0 B@1_0(empty)`."""
    copies = []
    for word in text.split():
        name, _, place = word.partition("@")
        copies.append(Copy(name, TaskId.parse(place.split("(")[0]), empty="(empty)" in word))
    return Disk(copies, frozenset(copy.task for copy in copies))


def planned(wanted: str, disk: str, *, keep: str = "", **renames: str) -> RelocationPlan:
    choices = Choices(frozenset(map(TaskId.parse, keep.split())), renames)
    found = placement(topology_of(wanted))
    return plan_relocation(found, on_disk(disk), Deployed(), own_changelog, choices)


def moves(made: RelocationPlan) -> str:
    return " ".join(f"{m.store}:{m.source}>{m.target}" for m in made.moves)


CASES = """
|case           |topology|on disk                  |moves                        |aside, stays |
|nothing there  |A B     |                         |                             |             |
|all in place   |A/B     |A@0_0 A@0_1 B@1_0        |                             |             |
|reordered      |B/A     |A@0_0 A@0_1 B@1_0        |A:0_0>1_0 A:0_1>1_1 B:1_0>0_0|             |
|cycle of three |C/A/B   |A@0_0 B@1_0 C@2_0        |A:0_0>1_0 B:1_0>2_0 C:2_0>0_0|             |
|one before     |N/A     |A@0_0 A@0_1              |A:0_0>1_0 A:0_1>1_1          |             |
|one gone       |B       |A@0_0 B@1_0              |B:1_0>0_0                    |, A@0_0      |
|split          |A/B     |A@0_0 B@0_0              |B:0_0>1_0                    |             |
|merged         |A B     |A@0_0 B@1_0              |B:1_0>0_0                    |             |
|partitions     |B/A     |A@0_0                    |A:0_0>1_0                    |             |
|in memory now  |a       |a@0_0                    |                             |, a@0_0      |
|empty target   |B/A     |A@0_0 A@1_0(empty)       |A:0_0>1_0                    |A@1_0,       |
|empty leftover |B/A     |A@1_0 A@0_0(empty)       |                             |A@0_0,       |
|all empty      |B/A     |A@0_0(empty) A@1_0(empty)|                             |A@0_0,       |
|only one, empty|B/A     |A@0_0(empty)             |A:0_0>1_0                    |             |
|two of one gone|B       |A@0_0 A@1_0 B@0_0        |                             |, A@0_0 A@1_0|
"""


@pytest.mark.parametrize("row", table_rows(CASES), ids=lambda row: row[0])
def test_every_store_goes_where_the_topology_looks_for_it(row: list[str]) -> None:
    _, wanted, disk, moved, left = row
    aside, _, stays = (text.strip() for text in left.partition(","))
    made = planned(wanted.replace("/", "|"), disk)
    assert moves(made) == moved
    assert " ".join(f"{gone.store}@{gone.task}" for gone in made.set_aside) == aside
    assert " ".join(f"{stay.store}@{stay.task}" for stay in made.stays) == stays


def test_the_order_in_which_the_disk_is_read_does_not_matter() -> None:
    words = "A@0_0 B@1_0 C@2_0 A@0_1 B@1_1 C@2_1 A@1_1(empty)"
    other = " ".join(reversed(words.split()))
    assert planned("C|A|B", words) == planned("C|A|B", other)


def test_a_plan_says_why_and_what_stays() -> None:
    made = planned("B|A", "A@0_0 gone@0_0")
    assert [move.why for move in made.moves] == ["sub-topology 1 has it now"]
    assert [stay.why for stay in made.stays] == ["not in the topology"]
    assert [stay.why for stay in planned("a", "a@0_0").stays] == ["in memory now"]
    assert made.misplaced() == "A: in 0_0, should be in 1_0"


# Two copies (R3).


def test_one_store_in_two_places_is_refused_with_the_way_out() -> None:
    with pytest.raises(TopologyMismatch) as refused:
        planned("B|A", "A@0_14 A@2_14 A@1_3 A@0_3")
    said = str(refused.value)
    assert "store A, partition 14 lies in 2 places, 0_14/rocksdb/A, 2_14/rocksdb/A" in said
    assert "`statestore relocate --keep 0_14 or --keep 2_14`; the others go to quarantine" in said
    assert "--keep 0_3 or --keep 1_3" in said, "all conflicts are listed at once"


@pytest.mark.parametrize(
    ("keep", "moved", "aside"),
    [("0_0", "A:0_0>1_0", "1_0 2_0"), ("1_0", "", "0_0 2_0"), ("2_0", "A:2_0>1_0", "0_0 1_0")],
)
def test_the_copy_to_keep_is_moved_and_the_others_go_aside(
    keep: str, moved: str, aside: str
) -> None:
    made = planned("B|A", "A@0_0 A@1_0 A@2_0", keep=keep)
    assert moves(made) == moved
    assert " ".join(gone.task for gone in made.set_aside) == aside
    assert {gone.reason for gone in made.set_aside} == {"other-copy"}


def test_two_copies_to_keep_are_still_two() -> None:
    with pytest.raises(TopologyMismatch, match="lies in 2 places"):
        planned("B|A", "A@0_0 A@1_0", keep="0_0 1_0")


def test_a_copy_to_keep_that_was_kept_before_is_no_error() -> None:
    assert planned("B|A", "A@1_0", keep="0_0") == planned("B|A", "A@1_0")


# Renamed stores.


def test_a_renamed_store_is_moved_if_its_changelog_keeps_its_name() -> None:
    choices = Choices(renames={"A": "Z"})
    made = plan_relocation(
        placement(topology_of("B|Z")), on_disk("A@0_0 B@0_0"), Deployed(), one_changelog, choices
    )
    assert moves(made) == "Z:0_0>1_0"
    assert made.moves[0].was == made.moves[0].old_name == "A"
    assert made.moves[0].why == "A is now called Z"


def test_a_renamed_store_in_its_old_task_is_moved_too() -> None:
    choices = Choices(renames={"A": "Z"})
    made = plan_relocation(
        placement(topology_of("Z")), on_disk("A@0_0"), Deployed(), one_changelog, choices
    )
    assert moves(made) == "Z:0_0>0_0"


def test_a_renamed_store_whose_changelog_changes_is_refused_with_the_reason() -> None:
    says = r"log would change from shop-A-changelog to shop-Z-changelog.*keep the name A"
    with pytest.raises(TopologyMismatch, match=says):
        planned("Z", "A@0_0", A="Z")


def test_a_new_name_that_holds_rows_of_its_own_is_refused() -> None:
    choices = Choices(renames={"A": "Z"})
    with pytest.raises(TopologyMismatch, match="store Z, partition 0 lies in 2 places"):
        plan_relocation(
            placement(topology_of("Z")), on_disk("A@0_0 Z@0_0"), Deployed(), one_changelog, choices
        )


@pytest.mark.parametrize(
    ("wanted", "disk", "renames", "says"),
    [
        ("Z", "B@0_0", {"A": "Z"}, "no store A on disk; there are: B"),
        ("A|Z", "A@0_0", {"A": "Z"}, "still has a store A"),
        ("B", "A@0_0", {"A": "Z"}, "no persistent store Z; it has: B"),
        ("z", "A@0_0", {"A": "z"}, "no persistent store z"),
        ("Z", "A@0_0 B@0_0", {"A": "Z", "B": "Z"}, "cannot both become Z"),
    ],
)
def test_a_rename_that_makes_no_sense_is_refused(
    wanted: str, disk: str, renames: dict[str, str], says: str
) -> None:
    found = placement(topology_of(wanted))
    with pytest.raises(Misuse, match=says):
        plan_relocation(found, on_disk(disk), Deployed(), one_changelog, Choices(renames=renames))


def test_a_rename_done_before_is_no_error() -> None:
    choices = Choices(renames={"A": "Z"})
    made = plan_relocation(
        placement(topology_of("Z")), on_disk("Z@0_0"), Deployed(), one_changelog, choices
    )
    assert not made.touches_disk


# Volumes.


def test_task_folders_on_different_volumes_are_refused() -> None:
    copy = Copy("A", TaskId(0, 0), volume=1, parent_volume=1)
    wanted = placement(topology_of("B|A"))
    there = Disk([copy], frozenset({TaskId(0, 0)}), {TaskId(0, 0): 1, TaskId(1, 0): 2}, volume=1)
    with pytest.raises(TopologyMismatch, match=r"store A: 0_0/rocksdb/A and .* task 1_0 .*volumes"):
        plan_relocation(wanted, there, Deployed(), own_changelog)
    new = Disk([copy], frozenset({TaskId(0, 0)}), {TaskId(0, 0): 1}, volume=1)
    assert moves(plan_relocation(wanted, new, Deployed(), own_changelog)) == "A:0_0>1_0"


def test_a_store_that_is_a_volume_of_its_own_is_refused() -> None:
    copy = Copy("A", TaskId(0, 0), volume=7, parent_volume=1)
    disk = Disk([copy], frozenset({TaskId(0, 0)}), {TaskId(0, 0): 1}, volume=1)
    with pytest.raises(TopologyMismatch, match="different volumes"):
        plan_relocation(placement(topology_of("B|A")), disk, Deployed(), own_changelog)


# What is to be settled (R4).


def previous(
    fingerprint: str, *tasks: int | None, guarantee: str | None = "exactly_once"
) -> Deployed:
    return Deployed(
        fingerprint=fingerprint,
        processing_guarantee=None if guarantee is None else ProcessingGuarantee(guarantee),
        sub_topologies=[DeployedPart(i, [], count) for i, count in enumerate(tasks)],
    )


@pytest.mark.parametrize(
    ("before", "disk", "settled"),
    [
        (previous("old", 2, 1), "A@0_0", "0_0 0_1 1_0"),
        (previous("new", 2, 1), "A@0_0", ""),
        (previous("new", 2, 1), "A@1_0", "0_0 0_1 1_0"),
        (previous("old", 2, None), "A@0_0 A@0_1", "0_0 0_1"),
        (Deployed(), "A@0_0 A@0_1", "0_0 0_1"),
        (Deployed(), "", ""),
        (previous("old", 2, guarantee=None), "A@0_0", "0_0 0_1"),
        (previous("old", 2, guarantee="at_least_once"), "A@0_0", ""),
    ],
)
def test_the_tasks_of_the_last_deployment_are_settled_when_another_follows(
    before: Deployed, disk: str, settled: str
) -> None:
    made = plan_relocation(Placement("new", {"A": 0}), on_disk(disk), before, own_changelog)
    assert " ".join(made.settle) == settled


@pytest.mark.parametrize(
    ("before", "settled"), [("exactly_once", "0_0 0_1"), ("at_least_once", ""), (None, "0_0 0_1")]
)
def test_the_tasks_of_a_run_with_transactions_are_settled_before_one_without(
    before: str | None, settled: str
) -> None:
    made = plan_relocation(
        Placement("new", {"A": 0}),
        on_disk("A@0_0"),
        previous("new", 2, guarantee=before),
        own_changelog,
        guarantee=ProcessingGuarantee.AT_LEAST_ONCE,
    )
    assert " ".join(made.settle) == settled


def test_windows_of_another_size_are_refused_and_other_terms_are_not() -> None:
    def windows(size: int, **told: int) -> Topology:
        return counted(TumblingWindows(size, **told))

    before = describe_deployment(windows(10), ProcessingGuarantee.EXACTLY_ONCE)
    with pytest.raises(TopologyMismatch, match=r"windows of 10 ms, .* 20 ms: .* another name"):
        plan_relocation(placement(windows(20)), on_disk("n@0_0"), before, own_changelog)
    longer = placement(windows(10, grace=5, retention=90))
    assert longer.fingerprint != before.fingerprint
    assert not plan_relocation(longer, on_disk("n@0_0"), before, own_changelog).touches_disk


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (TumblingWindows(10), HoppingWindows(10, 5), "of 10 ms, .* 10 ms every 5 ms: .* name"),
        (HoppingWindows(10, 5), TumblingWindows(10), "of 10 ms every 5 ms, .* 10 ms: .* name"),
        (HoppingWindows(10, 5), HoppingWindows(10, 2), "every 5 ms, .* 10 ms every 2 ms: .* name"),
    ],
    ids=["overlapping now", "side by side now", "closer together"],
)
def test_windows_that_start_elsewhere_are_refused(
    before: TimeWindows, after: TimeWindows, message: str
) -> None:
    deployed = describe_deployment(counted(before), ProcessingGuarantee.EXACTLY_ONCE)
    with pytest.raises(TopologyMismatch, match=message):
        plan_relocation(placement(counted(after)), on_disk("n@0_0"), deployed, own_changelog)
    plan_relocation(placement(counted(before)), on_disk("n@0_0"), deployed, own_changelog)


def test_hopping_windows_as_far_apart_as_they_are_long_are_tumbling_ones() -> None:
    same = counted(HoppingWindows(10, 10, grace=1)), counted(TumblingWindows(10, grace=1))
    assert same[0].fingerprint() == same[1].fingerprint()


def placed_by(partitioner: Callable[[str, Any, Any, int], int] | None, store: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in").repartition("r", partitioner=partitioner).group_by_key().count(store)
    return builder.build()


def test_a_partitioner_that_comes_or_goes_is_refused_and_another_one_is_not() -> None:
    ways = (None, lambda _t, _k, _v, _n: 0)
    for before, after, way_out in ((*ways, "out"), (*ways[::-1], "back")):
        deployed = describe_deployment(placed_by(before, "n"), ProcessingGuarantee.EXACTLY_ONCE)
        with pytest.raises(TopologyMismatch, match=f"store n: .* take the partitioner {way_out}"):
            plan_relocation(
                placement(placed_by(after, "n")), on_disk("n@1_0"), deployed, own_changelog
            )
        plan_relocation(placement(placed_by(before, "n")), Disk(), deployed, own_changelog)
        plan_relocation(placement(placed_by(after, "m")), Disk(), deployed, own_changelog)
        # A version that did not record it deployed the store.
        known = msgspec.structs.replace(deployed.stores["n"], placed_apart=None)
        unsaid = msgspec.structs.replace(deployed, stores={"n": known})
        plan_relocation(placement(placed_by(after, "n")), Disk(), unsaid, own_changelog)


def counted(windows: TimeWindows) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().windowed_by(windows).count("n")
    return builder.build()


# In general.

STORES = "ABCDE"


@st.composite
def topologies(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(STORES), min_size=1, unique=True))
    cuts = draw(st.sets(st.integers(1, max(1, len(names) - 1))))
    return "".join(("|" if i in cuts and i else " ") + name for i, name in enumerate(names)).strip()


@given(topologies(), topologies(), st.integers(1, 3))
def test_a_plan_brings_every_store_from_where_it_is_to_where_it_is_wanted(
    before: str, after: str, partitions: int
) -> None:
    there = {(name, p): o for name, o in places_of(before).items() for p in range(partitions)}
    disk = " ".join(f"{name}@{o}_{p}" for (name, p), o in there.items())
    made = planned(after, disk)
    sources = [(move.source, move.store) for move in made.moves]
    targets = [(move.target, move.store) for move in made.moves]
    assert len(set(targets)) == len(targets) == len(set(sources))
    assert not set(sources) & set(targets)
    for move in made.moves:
        place = TaskId.parse(move.source)
        assert there.pop((move.store, place.partition)) == place.sub_topology
        assert TaskId.parse(move.target) == TaskId(places_of(after)[move.store], place.partition)
    left = {name: o for (name, _), o in there.items()}
    assert all(places_of(after).get(name, o) == o for name, o in left.items())
