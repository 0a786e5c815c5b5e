"""A clone of a real application: it goes on by itself and touches nothing of the original."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore.errors import Locked, Misuse, Unavailable
from statestore.faults import CrashPoint
from statestore.layout import owners
from statestore.operations.clones.clone import CloneReport, clone_export, drop_clone
from statestore.operations.exports.create import create_export_for_clones
from statestore.operations.pipelines import load_pipeline
from statestore.runtime import Runtime, SystemClock
from statestore.testing.local_kafka import LocalKafka
from tests.kafka import run_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App, counted, name_of, updates_in_order

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> App:
    name = name_of(request.node.name)
    monkeypatch.setenv(PREFIX_VARIABLE, name)
    return App(kafka, name, tmp_path / "state").create_topics()


def settings_of(app: App, **more: object) -> ss.Settings:
    target = str(app.state_dir.parent / "exports")
    return ss.Settings.from_mapping(
        app.run_settings(**{"statestore.export.target": target, **more})
    )


def cloned(app: App, pipeline: str = "counts", **more: object) -> tuple[App, CloneReport]:
    """The application under another id, of an export made now."""
    topology = load_pipeline(f"tests.kafka.run_pipelines:{pipeline}")
    settings = settings_of(app, **more)
    create_export_for_clones(Runtime(settings), topology)
    report = clone_export(Runtime(settings), topology, f"{app.name}-clone")
    return dataclasses.replace(app, name=f"{app.name}-clone"), report


def run(app: App, **more: object) -> Any:
    return ss.run(run_pipelines.counts(), app.run_settings(**more))


def test_a_clone_goes_on_from_where_the_original_was_and_writes_topics_of_its_own(app: App) -> None:
    app.produce(range(40))
    run(app)
    before, offsets = app.world().topics, app.committed()
    clone, report = cloned(app)
    assert app.committed() == offsets
    own = frozenset(report.topics.values())
    assert app.topics() == before | own
    assert all(topic.startswith(f"{clone.name}-") for topic in own)
    app.produce(range(40, 70))
    ended = {name: app.bounds(f"{app.name}-{name}") for name in ("out", "counts-changelog")}
    done = run(clone)
    # Its records are read from the start of the original's input on, so far as they are new.
    assert (done.restored_records, done.records_in, done.caught_up) == (0, 2 * 30, True)
    assert {name: app.bounds(f"{app.name}-{name}") for name in ended} == ended
    assert app.committed() == offsets
    assert clone.stored() == counted(range(70))
    assert app.stored() == counted(range(40))
    last = {row.key: row.value for row in clone.read(f"{app.name}-out")}
    assert {user: counted(range(70))[user] for user in last} == last
    run(app)
    assert updates_in_order(app.read()) == counted(range(70))
    # Its changelog is whole: without its files it is restored to the same.
    for folder in clone.state_dir.joinpath(clone.name).glob("1_*"):
        folder.rename(clone.state_dir / f"gone-{folder.name}")
    assert run(clone).restored_records > 0
    assert clone.stored() == counted(range(70))
    drop_clone(Runtime(settings_of(clone)))
    assert app.topics() == before
    assert not (clone.state_dir / clone.name).exists()
    with pytest.raises(Misuse, match="is not a clone"):
        drop_clone(Runtime(settings_of(app)))


def test_a_store_in_memory_is_cloned_by_its_changelog(app: App) -> None:
    app.produce(range(40))
    ss.run(run_pipelines.counts_in_memory(), app.run_settings())
    clone, _ = cloned(app, "counts_in_memory")
    app.produce(range(40, 50))
    ss.run(run_pipelines.counts_in_memory(), clone.run_settings())
    last = {row.key: row.value for row in clone.read(f"{app.name}-out")}
    assert {user: counted(range(50))[user] for user in last} == last
    folder = clone.state_dir / clone.name
    for locks in (True, False):
        settings = dataclasses.replace(settings_of(clone), volume_locks=locks)
        running = owners.claim(folder, what="a run", wait_ms=0, clock=SystemClock())
        with pytest.raises(Locked, match="application"):
            drop_clone(Runtime(settings))
        assert running.still_ours()
        running.release()
    drop_clone(Runtime(settings_of(clone)))
    assert not folder.exists()


def test_a_clone_of_a_run_that_stopped_between_two_waves_has_what_was_not_read_yet(
    app: App,
) -> None:
    app.produce(range(20))
    run(app)
    app.produce(range(20, 40))
    # Dies before the second sub-topology has read any of it.
    app.run(crash_at=f"{CrashPoint.CLOSE_RELEASED}:2")
    clone, report = cloned(app)
    assert report.records_copied == 20
    run(clone)
    assert clone.stored() == counted(range(40))
    assert app.stored() == counted(range(20))
    drop_clone(Runtime(settings_of(clone)))


def test_what_cannot_be_cloned_is_refused_and_nothing_is_made(app: App) -> None:
    topology = run_pipelines.counts()
    app.produce(range(10))
    run(app)
    settings = settings_of(app)
    ss_report = create_export_for_clones(Runtime(settings), topology)
    with app.unchanged():
        with pytest.raises(Misuse, match="another id than the original"):
            clone_export(Runtime(settings), topology, app.name)
        with pytest.raises(Misuse, match="name the one that was deployed then"):
            clone_export(Runtime(settings), run_pipelines.latest(), f"{app.name}-x")
    clone_export(Runtime(settings), topology, f"{app.name}-c", export=ss_report.export_id)
    with app.unchanged(), pytest.raises(Misuse, match="drop-clone"):
        clone_export(Runtime(settings), topology, f"{app.name}-c")
    drop_clone(Runtime(dataclasses.replace(settings, application_id=f"{app.name}-c")))


def test_a_run_that_was_killed_is_not_exported_for_a_clone_before_one_ends(app: App) -> None:
    app.produce(range(20))
    run(app)
    app.produce(range(20, 40))
    died = app.run(crash_at=f"{CrashPoint.COMMIT_LOG_DONE}:3")
    assert died.code < 0
    with pytest.raises(Unavailable, match=r"run it once to its end|left by a crash"):
        create_export_for_clones(Runtime(settings_of(app)), run_pipelines.counts())
    run(app)
    clone, _ = cloned(app)
    run(clone)
    assert clone.stored() == counted(range(40))
    drop_clone(Runtime(settings_of(clone)))
