"""An application with files as runs, audits and drills leave them, for the page to show."""

import json
from pathlib import Path

import statestore as ss
from statestore import serdes
from statestore.layout.audits import AuditedStore, AuditFailure, AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.runtime import SystemClock
from statestore.tasks.history import WorkHistory
from statestore.tasks.plan import Standing, TaskReport
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
