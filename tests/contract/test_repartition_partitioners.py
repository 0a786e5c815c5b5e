"""A change of the partition count where a partitioner of the pipeline's own places the rows."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.operations.repartition.partition_plan import Inputs
from tests.contract.test_repartition_steps import World
from tests.relocation_rig import in_memory_folder

Chooses = Callable[[str, Any, Any, int], int | None]


def by_letter(_topic: str, key: str, _value: object, partitions: int) -> int | None:
    """By the first letter of a key, but that of those of `g` is left to the hash."""
    return None if key[0] == "g" else ord(key[0]) % partitions


def placed(chooses: Chooses, **more: Any) -> ss.Topology:
    """Stores of several kinds below a repartition with a partitioner."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.stream("in").group_by_key().count("before")
    apart = b.stream("in").repartition("placed", partitioner=chooses, **more)
    by_key = apart.group_by_key()
    by_key.count("counts")
    hops = by_key.windowed_by(ss.HoppingWindows(200, 100, grace=10**6)).count("hops")
    hops.suppress(ss.Suppressed.until_time_limit(10**9), name="held")
    apart.to_table(ss.Materialized("past", history_retention=10**9), name="past")
    return b.build()


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory_folder() as found:
        yield found


def test_rows_go_where_the_partitioner_puts_their_keys(folder: Path) -> None:
    world = World(folder, placed(by_letter)).send(100)
    world.run()
    report = world.change(5)
    assert {s.store: s.placed_by for s in report.plan.stores} == {
        "before": "murmur2",
        "counts": "own",
        "hops": "own",
        "held-store": "own",
        "past": "own",
    }
    world.send(100).run()
    assert world.rows() == world.rows("before") == world.sent
    world.change(3, Inputs.RECREATE)
    world.send(100).run()
    assert world.rows() == world.rows("before") == world.sent
    assert world.rows("past").keys() == world.sent.keys()


def test_one_partition_grows_to_seven(folder: Path) -> None:
    world = World(folder, placed(by_letter), partitions=1).send(100)
    world.run()
    world.change(7, partitioner="murmur2")
    world.send(100).run()
    assert world.rows() == world.rows("before") == world.sent


turn = count()
REFUSED: dict[str, tuple[Chooses, str]] = {
    "value": (lambda _t, _k, value, n: value % n, "nobody knows the value|looks at the value"),
    "value, quietly": (
        lambda _t, _k, value, n: quietly(value) % n,
        "nobody knows the value|looks at the value",
    ),
    "turns": (lambda _t, _k, _v, n: next(turn) % n, "for the same key|in partition"),
}


def quietly(value: Any) -> int:
    """A user's function that goes on without what it does not get."""
    try:
        return int(value)
    except Exception:  # noqa: BLE001  # it is what careless functions do
        return 0


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_partitioner_that_needs_more_than_the_key_is_refused_by_name(
    folder: Path, case: str, partitions: int
) -> None:
    chooses, says = REFUSED[case]
    world = World(folder, placed(chooses), partitions=partitions).send(60)
    world.run()
    before = world.all()
    with pytest.raises(Misuse, match=says) as refused:
        world.change(3, partitioner="murmur2")
    assert "app-placed-repartition" in str(refused.value)
    assert "start under another application id" in str(refused.value)
    assert world.all() == before


def test_rows_that_contradict_the_partitioner_are_refused(folder: Path) -> None:
    """Rows were written with another one, which a new version of the pipeline has not any more."""
    world = World(folder, placed(by_letter)).send(60)
    world.run()
    world.pipeline = placed(lambda _t, key, _v, n: (ord(key[0]) + 1) % n)
    before = world.all()
    with pytest.raises(Misuse, match="where the partitioner of topic app-placed-repartition puts"):
        world.change(3)
    assert world.all() == before


def test_keys_of_another_serde_than_the_partitioner_takes_are_refused(folder: Path) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    apart = b.stream("in").repartition("placed", partitioner=by_letter)
    apart.group_by_key().count(ss.Materialized("counts", key_serde=serdes.JSON))
    world = World(folder, b.build()).send(60)
    world.run()
    with pytest.raises(Misuse, match="store counts has keys of serde"):
        world.change(3)
