"""An application with files as runs, audits and drills leave them, for the page to show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import statestore as ss
from statestore import serdes
from statestore.layout.audits import AuditedStore, AuditFailure, AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.runtime import SystemClock
from statestore.tasks.history import WorkHistory, WorkSample
from statestore.tasks.plan import Standing, TaskReport
from statestore.topology.graph import Topology
from tests.builders import ManualClock

HOSTILE = '<img src=x onerror="alert(1)">'
NAMES = ss.persistent_key_value_store("names", key_serde=serdes.STRING, value_serde=serdes.JSON)
RATES = ss.persistent_versioned_key_value_store(
    "rates", 10_000, 100, key_serde=serdes.STRING, value_serde=serdes.FLOAT64
)


class Passing:
    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        pass


def filled(state_dir: Path, name: str) -> StateLayout:
    """An application with two stream tasks, both stopped."""
    layout = StateLayout(state_dir, name)
    for partition in range(2):
        folder = layout.task_dir(TaskId(0, partition))
        with ss.open_store(NAMES, folder / "rocksdb") as names:
            names.put_all([(f"n{partition}-{i:03}", {"is": i}) for i in range(130)])
            names.put(HOSTILE, {"says": HOSTILE})
            names.commit({TopicPartition(f"{name}-names-changelog", partition): 7})
        with ss.open_store(RATES, folder / "rocksdb") as rates:
            rates.put_all([("EUR", 1.5, 100), ("EUR", 2.5, 300)] if partition else [])
            rates.commit({TopicPartition(f"{name}-rates-changelog", partition): 2})
        clock = ManualClock(SystemClock().now_ms() - 5000)
        history = WorkHistory(folder, clock)
        history.write(TaskReport(f"0_{partition}"), Standing(f"0_{partition}"))
        clock.advance(1000)
        done = TaskReport(f"0_{partition}", records_in=500, commits=2, process_seconds=0.5)
        history.write(done, Standing(f"0_{partition}", lag_records=3))
    builder = ss.StreamsBuilder()
    builder.stream("orders").process(lambda _: Passing(), NAMES, RATES, name="all").to("totals")
    layout.topology_file.write_text(json.dumps(builder.build().deployed()))
    return layout


def misplaced(state_dir: Path, name: str) -> StateLayout:
    """An application whose stores lie elsewhere than its topology looks for them."""
    layout = filled(state_dir, name)
    for partition in range(2):
        layout.task_dir(TaskId(0, partition)).rename(layout.task_dir(TaskId(1, partition)))
    return layout


def told_of(state_dir: Path, name: str) -> None:
    """A filled application, with an audit that found a hostile key, and reports of drills."""
    layout = filled(state_dir, name)
    wrong = AuditFailure("values", "names", "0_1", 3, [HOSTILE], f"differs: {HOSTILE}")
    equal = AuditedStore("names", "keyvalue", 262, 262, 259, 0)
    Audits(layout).keep(
        AuditRecord(
            application_id=name,
            time_ms=1_700_000_000_000,
            verdict=AuditVerdict.WRONG,
            stores=[equal],
            failures=[wrong],
        )
    )
    report = {"workload": "counting", "seed": 42, "started_ms": 1, "seconds": 9.5}
    drill = {"kind": "crash point", "name": "commit.begin", "seed": 1, "outcome": "green"}
    (state_dir / "drill-reports" / "a").mkdir(parents=True)
    (state_dir / "drill-reports" / "a" / "report.json").write_text(
        json.dumps(report | {"drills": [drill | {"recovery_seconds": 2.5}]})
    )
    (state_dir / "drill-reports" / "b").mkdir()
    (state_dir / "drill-reports" / "b" / "report.json").write_text("[")


def branching() -> Topology:
    """Seven sub-topologies, of which one reads two topics and three write two."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)

    def by(field: str) -> Callable[[str, Any], str]:
        return lambda _key, value: str(value[field])

    orders, customers = b.stream("orders"), b.table("customers", materialized="customers")
    joined = (
        orders.select_key(by("customer"))
        .repartition("by-customer")
        .join(customers, lambda order, customer: {**order, **customer})
    )
    joined.to("orders-with-customers")
    regions = joined.select_key(by("region")).repartition("by-region").group_by_key()
    regions.count(materialized="orders-by-region").to_stream().to("orders-by-region")
    products = orders.select_key(by("product")).repartition("by-product").group_by_key()
    sold = products.count(materialized="sold-by-product").to_stream()
    sold.to("sold-by-product")
    counts = sold.select_key(lambda _key, value: str(value)).repartition("by-count").group_by_key()
    counts.count(materialized="products-by-count").to_stream().to("products-by-count")
    clicks = b.stream("clicks").select_key(by("page")).repartition("by-page-and-campaign")
    pages = clicks.group_by_key().count(materialized="clicks-by-page").to_stream()
    pages.to("clicks-by-page")
    return b.build()


def branched(state_dir: Path, name: str, tasks: int = 3) -> StateLayout:
    """That application, as it worked for the last two hours, with many stream tasks."""
    layout, topology = StateLayout(state_dir, name), branching()
    now_ms = SystemClock().now_ms()
    causes = {"dropped/late/window": 27, "dropped/deserialization/orders": 4}
    sums = {"records_in": 72_000, "left_out": causes | {"dead_letter/deserialization/orders": 4}}
    said = topology.deployed()
    for part in said["sub_topologies"]:
        part["tasks"] = tasks
        for partition in range(tasks):
            folder = layout.task_dir(TaskId(part["ordinal"], partition))
            folder.mkdir(parents=True)
            samples = [
                WorkSample(
                    *(now_ms - ago * 60_000, now_ms - (ago - 1) * 60_000),
                    records_in=600 + 10 * (ago % 12),
                    commits=60,
                    poll_seconds=20,
                    process_seconds=15 + ago % 5,
                    commit_seconds=4,
                    lag_records=10 * ago,
                )
                for ago in range(120, 0, -1)
            ]
            lines = b"\n".join(map(msgspec.json.encode, samples))
            (folder / "history.jsonl").write_bytes(lines)
            counted = {"serving": f"run-1-{part['ordinal']}_{partition}", "since_ms": now_ms}
            note = {"sums": {**counted, "in_run": sums, "in_all": sums}}
            (folder / "progress.json").write_text(json.dumps(note))
    layout.topology_file.write_text(json.dumps(said))
    layout.nonce_file.write_text("run")
    return layout
