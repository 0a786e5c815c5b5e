"""Runs that export by themselves: how often, what of, and what is left to replay.

Shows I18.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

import statestore as ss
from statestore.faults import CrashPoint
from statestore.layout.activity_files import NoProgress
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.create import create_export
from statestore.operations.status.status import StatusReader
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.kafka import run_pipelines as pipelines
from tests.kafka.run_rig import (
    DEADLINE_S,
    App,
    counted,
    end_of,
    name_of,
    running,
    updates_in_order,
)

pytestmark = pytest.mark.kafka
OFTEN = "--set=statestore.export.interval.ms=50"
HOURLY = {"statestore.export.interval.ms": 3_600_000}
METRICS_AT = re.compile(r"metrics at (http://\S+/metrics)")
STEPS = [
    point
    for point in CrashPoint
    if point.startswith("export.") and "prune" not in point and "removed" not in point
]


@pytest.fixture
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[App]:
    settings = {
        "statestore.export.target": str(tmp_path / "exports"),
        "statestore.lock.wait.ms": 20_000,
        "commit.interval.ms": 50,
    }
    made = App(kafka, name_of(request.node.name), tmp_path / "state", settings=settings)
    made.create_topics().produce(range(20))
    monkeypatch.setenv(pipelines.PREFIX_VARIABLE, made.name)
    yield made
    made.end_children()


def runtime(app: App, **more: object) -> Runtime:
    return Runtime(ss.Settings.from_mapping(app.run_settings(**more)))


def ids(app: App) -> list[str]:
    return Exports.of(runtime(app)).ids()


def ran(app: App, **settings: object) -> ss.RunSummary:
    return ss.run(pipelines.counts(), app.run_settings(**settings))


def exported(app: App) -> int:
    """How much of the changelog the newest export has."""
    found = ids(app)
    if not found:
        return 0
    stores = Exports.of(runtime(app)).read(found[-1]).stores()
    return sum(offset for at in stores for offset in at.store.offsets.offsets().values())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_continuous_run_exports_what_it_commits_and_a_lost_volume_costs_the_rest(
    app: App, workers: int
) -> None:
    process = app.start("--run-for=forever", OFTEN, f"--workers={workers}")
    running(app, process, lambda: exported(app) > 0)
    first = exported(app)
    app.produce(range(20, 40))
    running(app, process, lambda: exported(app) > first and len(app.read()) == 40)
    processes = [psutil.Process(process.pid)]
    processes += processes[0].children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(processes, DEADLINE_S)
    assert alive == []
    with runtime(app) as world:
        exports = Exports.of(world)
        exports.verify(exports.read(), NoProgress())
    shutil.rmtree(app.state_dir)
    app.produce(range(40, 60))
    logged = len(app.read("counts-changelog"))
    assert ran(app).restored_records < logged, "what came after the last export, if anything"
    assert updates_in_order(app.read()) == counted(range(60)) == app.stored()


@pytest.mark.parametrize("point", STEPS)
def test_a_run_killed_while_it_exports_goes_on_and_so_do_its_exports(app: App, point: str) -> None:
    process = app.start("--run-for=forever", OFTEN, crash_at=f"{point}:2")
    assert end_of(process, 0).code == -9
    app.produce(range(20, 40))
    before = len(ids(app))
    process = app.start("--run-for=forever", OFTEN)
    running(app, process, lambda: len(ids(app)) > before + 1 and len(app.read()) == 40)
    process.terminate()
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err
    assert updates_in_order(app.read()) == counted(range(40)) == app.stored()
    with runtime(app) as world:
        exports = Exports.of(world)
        exports.verify(exports.read(), NoProgress())


def test_a_bounded_run_exports_at_its_end_if_the_newest_export_is_old_enough(app: App) -> None:
    ran(app)
    assert ids(app) == []
    ran(app, **HOURLY)
    assert len(ids(app)) == 1
    app.produce(range(20, 40))
    ran(app, **HOURLY)
    assert len(ids(app)) == 1
    ran(app, **{"statestore.export.interval.ms": 1})
    assert len(ids(app)) == 2
    shutil.rmtree(app.state_dir)
    assert ran(app).restored_records == 0


def test_exports_beyond_the_retention_are_removed_but_for_the_newest_ones(app: App) -> None:
    ran(app)
    for _ in range(4):
        create_export(runtime(app))
    often = {"statestore.export.interval.ms": 1}
    ran(app, **often, **{"statestore.export.retention.ms": 3_600_000})
    assert len(ids(app)) == 5
    ran(app, **often, **{"statestore.export.retention.ms": 0})
    assert len(ids(app)) == 3


def test_a_target_that_cannot_be_written_does_not_end_a_run(app: App) -> None:
    (app.state_dir.parent / "exports").write_bytes(b"a file")
    process = app.start("--run-for=forever", OFTEN)
    running(app, process, lambda: len(app.read()) == 20)
    process.terminate()
    ended = end_of(process, 0)
    assert (ended.code, app.stored()) == (0, counted(range(20)))
    ended = app.run(OFTEN)
    assert ended.code == 0, ended.err
    assert "not exported; tried again after the interval" in ended.err


def test_the_interval_and_the_age_of_the_last_export_are_shown(app: App) -> None:
    def shown(**settings: object) -> Any:
        with runtime(app, **settings) as world:
            return StatusReader(world).now().export

    assert (shown().export_id, shown().interval_seconds) == (None, None)
    process = app.start("--run-for=forever", OFTEN, "--metrics-port=0")
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    (url,) = next(found for line in lines if (found := METRICS_AT.findall(line)))

    def told() -> bool:
        text = httpx.get(url, timeout=DEADLINE_S).text
        found = {one.name: one for one in text_string_to_metric_families(text)}
        names = ("duration_seconds", "uploaded_bytes", "timestamp_seconds", "failures")
        families = [found.get(f"statestore_export_{name}") for name in names]
        sums = [sum(one.value for one in it.samples) for it in families if it is not None]
        return len(sums) == len(names) and all(sums[:3]) and not sums[3]

    running(app, process, told)
    assert len(ids(app)) > 0
    found = shown(**HOURLY)
    assert (found.export_id in ids(app), found.interval_seconds) == (True, 3600.0)
    assert found.age_seconds >= 0
    ended = app.run(command="status")
    assert ended.summary["export"]["age_seconds"] >= 0
    process.terminate()
    assert end_of(process, 0).code == 0
