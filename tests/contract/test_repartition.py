"""Another number of partitions for an application that has a store of every kind.

What it has and does afterwards is compared with an application that had that number from the
beginning. Both are brought to one stream time before the count changes, as old partitions meet in
new ones, where the latest time counts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.kafka.partitioner import murmur2_partition
from statestore.layout.audits import AuditVerdict
from statestore.model.ids import TopicPartition
from statestore.operations.audits.perform import audit
from statestore.operations.exports.create import create_export
from statestore.operations.repartition.apply import repartition
from statestore.operations.repartition.partition_plan import Inputs, RepartitionReport
from statestore.operations.repartition.planner import PartitionsAsked
from statestore.ports import TopicSpec
from tests.contract.test_all_stores_beside import (
    ENDS,
    KEYS,
    OWN,
    Keep,
    Remind,
    World,
    aggregates,
    rows_of,
)
from tests.relocation_rig import in_memory_folder

pytestmark = pytest.mark.timeout(900)

TICKS = [f"tick{n}" for n in range(40)]
"""Keys of which each partition has some, whether there are 3, 4 or 6."""


def pipeline() -> ss.Topology:
    """Every operator with a store, over keys of which each partition has some."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    left, right = b.stream("in"), b.stream("right")
    left.process(Keep, *OWN, name="keep")
    left.process(Remind, ENDS, name="remind").to("out")
    aggregates(left, right)

    def pair(one: Any, other: Any) -> Any:
        return [one, other]

    memory = ss.Materialized(
        ss.in_memory_key_value_store("in-memory", key_serde=serdes.STRING, value_serde=serdes.INT64)
    )
    left.group_by_key().count(memory)
    left.outer_join(right, pair, ss.JoinWindows(10, grace=10), name="near").to("out")
    rows, others = left.to_table("rows", name="rows"), right.to_table("others", name="others")
    rows.outer_join(others, pair, "met").to_stream().to("out")
    foreign = rows.join(
        others, pair, "foreign", foreign_key=lambda v: TICKS[v % len(TICKS)], name="by-value"
    )
    foreign.to_stream().to("out")
    grouped = rows.group_by(lambda _key, v: (TICKS[v % len(TICKS)], v), name="groups-by")
    grouped.aggregate(int, lambda _k, v, old: old + v, lambda _k, v, old: old - v, "groups")
    past = right.to_table(ss.Materialized("past", history_retention=200), name="past")
    left.left_join(past, pair, grace=15, name="waiting").to("out")
    return b.build()


@dataclass
class Divided(World):
    """The same application with some partitions of both inputs."""

    partitions: int = 4

    def __post_init__(self) -> None:
        inputs = [TopicSpec(name, self.partitions, {}) for name in ("in", "right", "new")]
        outputs = [TopicSpec(name, 2, {}) for name in ("out", "final")]
        self.broker.cluster("app").create([*inputs, *outputs])

    def produce(self, topic: str, key: str, n: int, time_ms: int) -> None:
        place = murmur2_partition(key.encode(), self.partitions)
        record = ss.Record(key.encode(), json.dumps(n).encode(), time_ms)
        self.broker.produce(TopicPartition(topic, place), record)

    def phase(self, count: int) -> None:
        """Records as `send` has them, then one of one time for each tick; all are processed."""
        for n in range(self.sent, self.sent + count):
            self.produce("right" if n % 3 == 0 else "in", KEYS[n * n % 5], n, 1000 + 7 * n)
        self.run(pipeline())
        self.sent += count
        for n, key in enumerate(TICKS):
            for topic in ("in", "right"):
                self.produce(topic, key, self.sent + n, 1000 + 7 * self.sent)
        self.run(pipeline())

    def rows(self, application_id: str = "app") -> dict[str, list[Any]]:
        """Read an export: live, each store of a task costs a snapshot of all of them."""
        with self.runtime(application_id) as runtime:
            create_export(runtime)
        stores = [name for name, spec in pipeline().stores.items() if spec.persistent]
        return {store: rows_of({**self.exported(), "store": store}) for store in stores}

    def exported(self) -> dict[str, str]:
        """The options that show the latest export."""
        return {
            "state_dir": str(self.state_dir),
            "application_id": "app",
            "export": "latest",
            "target": str(self.root / "exports"),
        }

    def change(
        self, partitions: int, inputs: Inputs, *, dry_run: bool = False
    ) -> RepartitionReport:
        with self.runtime() as runtime:
            asked = PartitionsAsked(partitions, inputs)
            report = repartition(runtime, pipeline(), asked, dry_run=dry_run)
        if not dry_run:
            self.partitions = partitions
        return report


def by_key(world: Divided) -> dict[str, list[Any]]:
    """The rows that users see, without their partitions.

    Rows that have expired go little by little, and an operator's own rows have numbers.
    """
    bound = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=1000 + 7 * world.sent - 150)
    found: dict[str, list[Any]] = {}
    for store, rows in world.rows().items():
        kept = [row[1:] for row in rows]
        if store in {"visits", "panes", "times", "past"}:
            kept = [row for row in kept if row[2] is None or row[2] > bound]
        if store.startswith(("near-", "waiting-", "held-")):
            continue
        found[store] = sorted(kept, key=repr)
    return found


def waiting(world: Divided) -> dict[str, int]:
    """How many rows of operators' own wait, by store, in the export that `by_key` took."""
    stores = ("waiting-buffer", "held-store", "near-shared-join-store")
    named = world.exported()
    return {
        store: sum(row[1][:1] in b"w\x00\x01" for row in rows_of({**named, "store": store}))
        for store in stores
    }


def said(world: World) -> list[Any]:
    """All that came out, whatever the partition."""
    made = [*world.broker.records("out"), *world.broker.records("final")]
    return sorted((r.topic, r.key or b"", r.value or b"", r.timestamp_ms) for r in made)


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory_folder() as found:
        yield found


@pytest.mark.thorough
def test_what_changed_its_partitions_is_as_if_it_had_been_made_with_the_last_count(
    folder: Path,
) -> None:
    counts = [4, 6, 3]
    worlds = [Divided(folder / "a", partitions=counts[0])]
    worlds.append(Divided(folder / "b", partitions=counts[-1]))
    for one in worlds:
        one.phase(60)
    for before, after in pairwise(counts):
        worlds[0].change(after, Inputs.GROW if after > before else Inputs.RECREATE)
        for one in worlds:
            one.phase(60)
    world, other = worlds
    assert by_key(world) == by_key(other)
    assert waiting(world) == waiting(other)
    assert said(world) == said(other)
    with world.runtime() as runtime:
        record = audit(runtime)
    assert record.verdict is AuditVerdict.RIGHT
    assert all(store.equal for store in record.stores)
