"""Versions of years ago, and the broker's cleaner: the changelog keeps what the store keeps."""

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import statestore as ss
from statestore.faults import CrashPoint
from statestore.layout.audits import AuditedStore, AuditVerdict
from statestore.operations.audits.perform import audit
from statestore.operations.clones.clone import clone_export
from statestore.operations.exports.create import create_export_for_clones
from statestore.operations.looking.at_rest import StoresAtRest
from statestore.operations.pipelines import load_pipeline
from statestore.reading.views import StoreView
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.stores.versioned.store import VersionedReader
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.kafka.aged_pipelines import DAY_MS, RETENTION_MS
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App, name_of
from tests.shared_kafka import CONFIG

pytestmark = pytest.mark.kafka

PIPELINES = "tests.kafka.aged_pipelines"
KEYS = ("EUR", "USD", "JPY")
FROM_MS = 1_357_000_000_000
"""A day of 2013."""
STEP_MS = DAY_MS // 4
Version = tuple[str, int, int | None]


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    """A broker of this process, whose files show how far its cleaner is."""
    with LocalKafka(config=CONFIG) as broker:
        yield broker


@pytest.fixture(params=[pytest.param("at_least_once", marks=pytest.mark.thorough), "exactly_once"])
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[App]:
    settings = {"processing.guarantee": request.param}
    name = name_of(request.node.name)
    made = App(kafka, name, tmp_path / "state", f"{PIPELINES}:aged", settings)
    made.create_topics(partitions=1, rates=1)
    monkeypatch.setenv(PREFIX_VARIABLE, made.name)
    yield made
    made.end_children()


def rates(days: range) -> list[tuple[str, str | None, int]]:
    """Four versions a day of each key; every tenth deletes it."""
    times = range(FROM_MS + days.start * DAY_MS, FROM_MS + days.stop * DAY_MS, STEP_MS)
    return [
        (key, None if (time // STEP_MS + i) % 10 == 0 else f"{key}-{time}", time)
        for time in times
        for i, key in enumerate(KEYS)
    ]


def feed(app: App, days: range) -> None:
    """All of it in one partition."""
    app.produce_raw(
        [
            (key, None if value is None else value.encode(), time)
            for key, value, time in rates(days)
        ],
        topic="rates",
        partition=0,
    )


def kept(days: int) -> dict[str, list[Version]]:
    """What a store with so many days has not forgotten, by looking at every rate."""
    rows = rates(range(days))
    bound = rows[-1][2] - RETENTION_MS
    found: dict[str, list[Version]] = {}
    for key in KEYS:
        own = [(value, time) for k, value, time in rows if k == key]
        ends = [time for _, time in own[1:]] + [None]
        found[key] = [
            (value, time, end)
            for (value, time), end in zip(own, ends, strict=True)
            if value is not None and (end is None or end > bound)
        ][::-1]
    return found


def histories(app: App) -> dict[str, list[Version]]:
    """Every version of every key, as it lies on disk."""
    settings = Settings.from_mapping(app.run_settings())
    with Runtime(settings) as runtime, closing(StoresAtRest(runtime)) as at_rest:
        spec = StoreView.of(at_rest.deployed, settings.application_id, "rates").in_bytes
        (task,) = at_rest.find("rates", kind=spec.kind)
        with at_rest.reader(task, spec) as reader:
            assert isinstance(reader, VersionedReader)
            return {
                key: [(row.value.decode(), row[1], row[2]) for row in reader.history(key.encode())]
                for key in KEYS
            }


def as_of(time: int) -> str | None:
    """The rate of USD at a time."""
    (found,) = [
        value for value, at, end in kept(60)["USD"] if at <= time and (end is None or time < end)
    ]
    return found


def audited(app: App) -> AuditedStore:
    """What an audit, which must pass, tells of the table."""
    with Runtime(Settings.from_mapping(app.run_settings())) as runtime:
        record = audit(runtime)
    assert (record.verdict, record.failures) == (AuditVerdict.RIGHT, [])
    (store,) = record.stores
    return store


def run_here(app: App, pipeline: str = "aged", **settings: object) -> ss.RunSummary:
    return ss.run(load_pipeline(f"{PIPELINES}:{pipeline}"), app.run_settings(**settings))


def cleaned(app: App, up_to: int) -> None:
    """Wait until the cleaner has been at the changelog up to this offset."""
    file = app.kafka._node(0).data / "cleaner-offset-checkpoint"

    def at() -> int:
        lines = file.read_text().splitlines() if file.is_file() else []
        found = [
            line.split()[2] for line in lines if line.startswith(f"{app.name}-rates-changelog ")
        ]
        return int(found[0]) if found else 0

    eventually(lambda: at() >= up_to, "the cleaner has been there", deadline_s=6 * DEADLINE_S)


def fed_and_killed(app: App, pipeline: str | None = None) -> None:
    """60 days of 2013 are committed, by processes that die, and the log is cleaned.

    What comes last is in the segment that is being written, which the cleaner leaves alone.
    """
    end = 0
    for days in (range(20), range(20, 40), range(40, 59), range(59, 60)):
        feed(app, days)
        ended = app.run(
            crash_at=CrashPoint.COMMIT_DONE, pipeline=pipeline and f"{PIPELINES}:{pipeline}"
        )
        assert ended.code == -9, ended.err[-4000:]
        if days.stop == 59:
            end = app.bounds(f"{app.name}-rates-changelog")[0][1]
    cleaned(app, end)


def test_a_backfill_of_2013_that_is_killed_keeps_every_version(app: App) -> None:
    fed_and_killed(app)
    asked = FROM_MS + 40 * DAY_MS + 1
    app.produce_raw([("USD", b"order", asked)], partition=0)
    run_here(app)
    assert histories(app) == kept(60)
    (row,) = app.read()
    assert row.value == f"order*{as_of(asked)}"
    assert audited(app).superseded == 0
    shutil.rmtree(app.state_dir)
    run_here(app)
    assert histories(app) == kept(60)


@pytest.mark.thorough
def test_a_store_moved_damaged_and_cloned_keeps_every_version(app: App) -> None:
    fed_and_killed(app)
    app.kafka.create_topic(f"{app.name}-other", 1, {"retention.ms": -1})
    run_here(app, "moved")
    assert histories(app) == kept(60)
    damaged = list((app.state_dir / app.name).glob("1_0/rocksdb/rates/*.sst"))
    assert damaged
    for path in damaged:
        path.write_bytes(b"\0" * path.stat().st_size)
    feed(app, range(60, 61))
    run_here(app, "moved")
    assert histories(app) == kept(61)
    assert audited(app).superseded == 0
    target = {"statestore.export.target": str(app.state_dir.parent / "exports")}
    runtime = Runtime(Settings.from_mapping(app.run_settings(**target)))
    topology = load_pipeline(f"{PIPELINES}:moved")
    create_export_for_clones(runtime, topology)
    clone_export(runtime, topology, f"{app.name}-clone")
    clone = dataclasses.replace(app, name=f"{app.name}-clone")
    assert histories(clone) == kept(61)
    shutil.rmtree(clone.state_dir / clone.name / "1_0")
    run_here(clone, "moved")
    assert histories(clone) == kept(61)
    assert audited(clone).superseded == 0


@pytest.mark.thorough
def test_a_table_in_memory_has_every_version_at_each_start(app: App) -> None:
    fed_and_killed(app, "in_memory")
    asked = FROM_MS + 31 * DAY_MS + 1
    app.produce_raw([("USD", b"order", asked)], partition=0)
    run_here(app, "in_memory")
    (row,) = app.read()
    assert row.value == f"order*{as_of(asked)}"
