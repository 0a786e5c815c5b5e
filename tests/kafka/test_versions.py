"""Versioned stores on a real broker: kills, its cleaner, restores from scratch, the upgrade."""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore.errors import Locked
from statestore.faults import VARIABLE, CrashPoint
from statestore.layout import owners
from statestore.operations.looking.at_rest import StoresAtRest
from statestore.operations.pipelines import load_pipeline
from statestore.reading.views import StoreView
from statestore.runtime import Runtime, SystemClock
from statestore.settings import Settings
from statestore.stores.versioned.store import VersionedReader
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, eventually
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import START_MS, STATESTORE, App, name_of
from tests.kafka.version_pipelines import GRACE_MS

pytestmark = pytest.mark.kafka

Rows = list[tuple[str, str, int]]
KEYS = ["EUR", "USD", "JPY", "GBP"]
PIPELINES = "tests.kafka.version_pipelines"
FAR_MS = START_MS + 10**7


@pytest.fixture
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[App]:
    made = App(kafka, name_of(request.node.name), tmp_path / "state", f"{PIPELINES}:priced")
    made.create_topics(partitions=2, rates=2)
    monkeypatch.setenv(PREFIX_VARIABLE, made.name)
    yield made
    made.end_children()


def random_rows(seed: int, count: int, step_ms: int) -> Rows:
    """Rows whose times rise, shuffled by less than the grace."""
    chance = random.Random(seed)
    # No value that is joined has 8 bytes: the rig would take it for a number.
    rows = [(chance.choice(KEYS), f"row-{i:04}", START_MS + i * step_ms) for i in range(count)]
    return sorted(rows, key=lambda row: row[2] + chance.randrange(GRACE_MS // 2))


def produce(app: App, topic: str, rows: Rows) -> None:
    app.produce_raw(
        [(key, value.encode(), time) for key, value, time in rows],
        topic=topic,
        partitioner="murmur2_random",
    )


def end_of_orders(app: App) -> None:
    """Time passes in each partition, so that nothing waits any more."""
    for partition in range(2):
        app.produce_raw([("~", b"end", FAR_MS)], partition=partition)


def joined(rates: Rows, orders: Rows) -> list[str]:
    """By looking at every rate for every order."""
    made = []
    for key, order, time in orders:
        before = [(at, rate) for k, rate, at in rates if k == key and at <= time]
        if before:
            made.append(f"{key}:{order}*{max(before)[1]}@{time}")
    return sorted(made)


def found(app: App) -> list[str]:
    rows = app.read()
    return sorted(f"{r.key}:{r.value}@{r.timestamp_ms}" for r in rows)


def histories(app: App) -> dict[str, list[tuple[bytes, int, int | None]]]:
    """Every version of every key, as it lies on disk."""
    settings = Settings.from_mapping(app.run_settings())
    found: dict[str, list[tuple[bytes, int, int | None]]] = {key: [] for key in KEYS}
    with Runtime(settings) as runtime, closing(StoresAtRest(runtime)) as at_rest:
        spec = StoreView.of(at_rest.deployed, settings.application_id, "rates").in_bytes
        for task in at_rest.find("rates", kind=spec.kind):
            with at_rest.reader(task, spec) as reader:
                assert isinstance(reader, VersionedReader)
                for key in KEYS:
                    found[key] += reader.history(key.encode())
    return found


def expected_history(rates: Rows, key: str) -> list[tuple[bytes, int, int | None]]:
    ordered = sorted((time, value) for k, value, time in rates if k == key)
    ends = [time for time, _ in ordered[1:]] + [None]
    return [(value.encode(), time, end) for (time, value), end in zip(ordered, ends, strict=True)][
        ::-1
    ]


def run_here(app: App, pipeline: str = "priced", **settings: object) -> ss.RunSummary:
    return ss.run(load_pipeline(f"{PIPELINES}:{pipeline}"), app.run_settings(**settings))


def test_a_temporal_join_killed_again_and_again_gives_each_row_once_and_exact_history(
    app: App,
) -> None:
    rates, orders = random_rows(1, 300, 10), random_rows(2, 400, 7)
    kills = [CrashPoint.COMMIT_RECORDS_SENT, CrashPoint.COMMIT_LOG_DONE, CrashPoint.COMMIT_DONE]
    for third, point in enumerate(kills):
        produce(app, "rates", rates[100 * third : 100 * (third + 1)])
        produce(app, "in", orders[130 * third : 130 * (third + 1)])
        assert app.run(crash_at=point).code == -9
    produce(app, "in", orders[390:])
    end_of_orders(app)
    assert app.drained()["caught_up"] is True
    assert found(app) == joined(rates, orders)
    kept = histories(app)
    assert kept == {key: expected_history(rates, key) for key in KEYS}
    shutil.rmtree(app.state_dir)
    assert run_here(app).restored_records > 300
    assert histories(app) == kept
    assert found(app) == joined(rates, orders)


def test_the_brokers_cleaner_on_old_event_times_spares_what_a_restore_from_scratch_needs(
    app: App,
) -> None:
    rates = random_rows(3, 200, 10)
    orders: Rows = [(KEYS[i % 4], f"o{i}", START_MS + 10 * i) for i in range(200)]
    for start in range(0, 200, 40):
        produce(app, "rates", rates[start : start + 40])
        produce(app, "in", orders[start : start + 40])
        run_here(app)
    kept = histories(app)
    assert kept == {key: expected_history(rates, key) for key in KEYS}
    # The counts beside it, cleaned by the same broker, have one record a key left, or nearly so.
    eventually(
        lambda: sum(1 for _ in app.read("counts-changelog")) < 15,
        "the cleaner has been at the counts' changelog",
        deadline_s=3 * DEADLINE_S,
    )
    shutil.rmtree(app.state_dir)
    run_here(app)
    assert histories(app) == kept


def upgrade(app: App, *more: str, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        str(STATESTORE),
        "upgrade-to-versioned",
        "rates",
        "--history-retention=10d",
        f"--application-id={app.name}",
        f"--state-dir={app.state_dir}",
        f"--bootstrap-servers={app.kafka.bootstrap_servers}",
        "--json",
        *more,
    ]
    return processes.run(command, env=os.environ | {VARIABLE: crash_at}, timeout=3 * DEADLINE_S)


def test_a_plain_store_is_upgraded_with_a_dry_run_a_refusal_and_a_kill_on_the_way(app: App) -> None:
    rates: Rows = [("EUR", "1", START_MS), ("EUR", "2", START_MS + 10), ("USD", "3", START_MS)]
    # Every partition has seen a later time than these when they are logged.
    rates += [(f"later{i}", "-", START_MS + 60_000) for i in range(50)]
    produce(app, "rates", rates)
    run_here(app, "plain")
    dry: dict[str, Any] = json.loads(upgrade(app, "--dry-run").stdout)
    assert (dry["set_aside"], dry["applied"]) == (["0_0", "0_1"], False)
    assert dry["compaction_lag_ms"] == 11 * 86_400_000
    folder = app.state_dir / app.name
    claim = owners.claim(folder, what="a run", wait_ms=0, clock=SystemClock())
    for how in ((), ("--set=statestore.volume.locks=false",)):
        refused = upgrade(app, *how)
        assert (refused.returncode, refused.stdout) == (Locked.exit_code, "")
    assert claim.still_ours()
    claim.release()
    assert (folder / "0_0" / "rocksdb" / "rates").is_dir()
    with pytest.raises(ss.errors.Misuse, match="upgrade-to-versioned"):
        run_here(app, "late_spared")
    assert upgrade(app, crash_at=CrashPoint.UPGRADE_LAG_RAISED).returncode == -9
    done = json.loads(upgrade(app).stdout)
    assert (done["set_aside"], done["applied"]) == (["0_0", "0_1"], True)
    assert done["compaction_lag_before_ms"] == dry["compaction_lag_ms"]
    # What came before the upgrade keeps its own time, not that of the commit which logged it.
    produce(app, "rates", [("EUR", "4", START_MS + 1_000)])
    assert run_here(app, "late_spared").restored_records == 52
    kept = {key: [value for value, _, _ in rows] for key, rows in histories(app).items()}
    assert kept == {"EUR": [b"4", b"2"], "USD": [b"3"], "JPY": [], "GBP": []}
    assert len(list((folder / "quarantine").iterdir())) == 2
