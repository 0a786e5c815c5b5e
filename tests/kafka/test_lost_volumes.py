"""A start whose volume was lost restores its stores from an export by itself, or says why not.

Shows I18 and I44.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

import statestore as ss
from statestore.errors import Misuse, Unavailable
from statestore.layout.activity_files import NoProgress
from statestore.layout.audits import AuditVerdict
from statestore.operations.audits.perform import audit
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.create import create_export
from statestore.operations.exports.restore_export import Choice, restore_export
from statestore.operations.reset import ResetTo, reset
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.builders import eventually
from tests.kafka import run_pipelines as pipelines
from tests.kafka.run_rig import (
    DEADLINE_S,
    USERS,
    App,
    counted,
    end_of,
    name_of,
    updates_in_order,
)

pytestmark = pytest.mark.kafka
PARTITIONS = 2
RESTORED = f"restored {PARTITIONS} lost stores"
TAIL, ALL = USERS, 2 * USERS
"""How many records the changelog has since the export, and in all: one for each commit and user."""


@pytest.fixture
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[App]:
    """An application that was exported after 20 records and has had 20 more since."""
    caplog.set_level(logging.INFO, "statestore")
    settings = {
        "statestore.export.target": str(tmp_path / "exports"),
        "statestore.lock.wait.ms": 20_000,
        "commit.interval.ms": 30_000,
    }
    made = App(kafka, name_of(request.node.name), tmp_path / "state", settings=settings)
    made.create_topics(partitions=PARTITIONS).produce(range(20))
    monkeypatch.setenv(pipelines.PREFIX_VARIABLE, made.name)
    ran(made)
    create_export(runtime(made))
    made.produce(range(20, 40))
    ran(made)
    yield made
    made.end_children()


def runtime(app: App, **more: object) -> Runtime:
    return Runtime(ss.Settings.from_mapping(app.run_settings(**more)))


def ran(app: App, pipeline: Any = pipelines.counts, **settings: object) -> ss.RunSummary:
    return ss.run(pipeline(), app.run_settings(**settings))


def lose_volume(app: App) -> None:
    shutil.rmtree(app.state_dir)


def assert_exact(app: App, end: int) -> None:
    assert updates_in_order(app.read()) == counted(range(end)) == app.stored()


def warning_of(caplog: pytest.LogCaptureFixture) -> str:
    """The one line of the last start that says why a changelog was taken."""
    told = [r.getMessage() for r in caplog.records if "lost stores are restored" in r.getMessage()]
    assert len(told) == 1, told
    return told[0]


def links(app: App) -> list[Path]:
    return [path for path in app.state_dir.rglob("*.sst") if path.is_symlink()]


@pytest.mark.parametrize("how", ["mounted", "copied"])
def test_a_start_that_finds_no_store_restores_it_from_the_export_and_replays_the_rest(
    app: App, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    lose_volume(app)
    app.produce(range(40, 60))
    summary = ran(app, **{"statestore.export.restore": how})
    assert summary.restored_records == TAIL, "what came after the export"
    assert RESTORED in caplog.text
    assert_exact(app, 60)
    ran(app)
    assert caplog.text.count(RESTORED) == 1
    assert_exact(app, 60)


@pytest.mark.parametrize(
    "more", [(), ("--run-for=forever", "--workers=2", "--set=commit.interval.ms=50")]
)
def test_the_command_restores_with_workers_too(app: App, more: tuple[str, ...]) -> None:
    lose_volume(app)
    app.produce(range(40, 60))
    process = app.start(*more)
    if more:
        eventually(lambda: len(app.read()) == 60, "it has counted everything", DEADLINE_S)
        process.terminate()
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err
    assert RESTORED in ended.err
    assert ended.summary["restored_records"] == TAIL
    assert_exact(app, 60)


def test_only_the_stream_tasks_whose_stores_are_lost_are_restored(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    (lost, kept) = sorted((app.state_dir / app.name).glob("1_*"))
    shutil.rmtree(lost)
    before = {path: path.stat().st_ino for path in kept.rglob("*.sst")}
    assert before
    summary = ran(app)
    assert "restored 1 lost stores" in caplog.text
    assert summary.restored_records < TAIL
    assert before.items() <= {path: path.stat().st_ino for path in kept.rglob("*.sst")}.items()
    assert_exact(app, 40)


@pytest.mark.parametrize("how", ["off", "no target"])
def test_without_an_export_or_the_wish_for_it_the_changelogs_restore_without_a_word(
    app: App, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    lose_volume(app)
    settings: Mapping[str, object] = {
        "off": {"statestore.export.restore": "off"},
        "no target": {"statestore.export.target": ""},
    }[how]
    assert ran(app, **settings).restored_records == ALL
    assert "lost stores" not in caplog.text
    assert_exact(app, 40)


def test_stores_that_were_set_aside_for_the_changelogs_are_restored_from_them(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    restore_export(runtime(app), choice=Choice(full=True, replace=True))
    assert ran(app).restored_records == ALL
    assert "lost stores" not in caplog.text
    assert_exact(app, 40)
    lose_volume(app)
    assert ran(app).restored_records == TAIL


def test_a_store_that_a_start_made_and_never_wrote_to_is_lost_as_well(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    lose_volume(app)
    died = app.run("--set=statestore.export.restore=off", crash_at="start.stores-open:3")
    assert died.code == -9, died.err
    assert list(app.state_dir.rglob("CURRENT"))
    assert ran(app).restored_records == TAIL
    assert_exact(app, 40)


def test_an_export_of_another_history_is_left_alone(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    reset(runtime(app), ResetTo())
    ran(app)
    assert "lost stores" not in caplog.text, "there is nothing to restore"
    lose_volume(app)
    assert ran(app).restored_records == TAIL, "one commit has them all"
    assert "another history: the changelog of store 'counts' was created" in warning_of(caplog)
    assert app.stored() == counted(range(40))


def test_an_export_of_another_history_is_not_restored_by_hand_once_the_changelog_is_long_enough(
    app: App,
) -> None:
    reset(runtime(app), ResetTo())
    for end in range(50, 100, 10):
        app.produce(range(end - 10, end))
        ran(app)
    lose_volume(app)
    for how in (Choice(), Choice(mounted=True)):
        with pytest.raises(Misuse, match=r"another history: the changelog .* was created again"):
            restore_export(runtime(app), choice=how)
    assert not app.state_dir.exists()
    restore_export(runtime(app), choice=Choice(full=True))
    ran(app)
    assert app.stored() == counted(range(90))


def test_an_export_that_lacks_deletes_is_left_alone(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    forget_deletes(app)
    lose_volume(app)
    assert ran(app).restored_records == ALL
    assert "keys deleted since could come back" in warning_of(caplog)
    assert_exact(app, 40)


def test_an_export_of_stores_with_other_serdes_is_left_alone(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    ran(app, pipelines.latest, **{"application.id": f"{app.name}-rows"})
    other = {"application.id": f"{app.name}-rows"}
    create_export(runtime(app, **other))
    lose_volume(app)
    assert ran(app, pipelines.latest_as_text, **other).restored_records == 40
    assert "values were written as JSON" in warning_of(caplog)


@pytest.mark.parametrize("what", ["manifest", "missing", "other bytes", "unreadable target"])
def test_a_damaged_export_costs_a_replay_at_most(
    app: App, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    target = app.state_dir.parent / "exports"
    exports = Exports.of(runtime(app))
    manifest = target / app.name / "exports" / f"{exports.ids()[-1]}.json"
    contents = [path for path in (target / app.name / "files").rglob("*") if path.is_file()]
    match what:
        case "manifest":
            manifest.write_bytes(manifest.read_bytes()[:-9])
        case "missing":
            for path in contents:
                path.unlink()
        case "other bytes":
            for path in contents:
                path.write_bytes(b"x" * path.stat().st_size)
        case _:
            shutil.rmtree(target)
            target.write_bytes(b"a file")
    lose_volume(app)
    assert ran(app).restored_records == ALL
    says = {
        "manifest": "is not readable",
        "missing": "is missing, or not",
        "other bytes": "is missing, or not",
        "unreadable target": "it has no exports: is it mounted?",
    }[what]
    assert says in warning_of(caplog)
    assert_exact(app, 40)
    app.produce(range(40, 50))
    ran(app)
    assert_exact(app, 50)


def test_an_older_export_stands_in_for_one_that_is_damaged(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    create_export(runtime(app))
    newest = Exports.of(runtime(app)).ids()[-1]
    folder = app.state_dir.parent / "exports" / app.name / "exports"
    (folder / f"{newest}.json").write_bytes(b"{}")
    lose_volume(app)
    assert ran(app).restored_records == TAIL
    assert RESTORED in caplog.text
    assert "older exports or their changelogs" in warning_of(caplog)
    assert_exact(app, 40)


def test_two_starts_at_once_share_the_restored_stores(app: App) -> None:
    lose_volume(app)
    app.produce(range(40, 60))
    ends = [end_of(process, 0) for process in (app.start(), app.start())]
    assert [ended.code for ended in ends] == [0, 0], ends
    assert sum(RESTORED in ended.err for ended in ends) == 1
    assert_exact(app, 60)


def test_two_starts_on_volumes_of_their_own_share_one_mounted_export(app: App) -> None:
    lose_volume(app)
    app.produce(range(40, 60))
    other = app.state_dir.with_name("other")
    ends = [end_of(process, 0) for process in (app.start(), app.start(f"--state-dir={other}"))]
    # No lock keeps them apart, and each may take a stream task from the other until both give up.
    for ended in ends:
        assert ended.code in {0, Unavailable.exit_code}, ended.err
        assert ended.code == 0 or "any other run of this application" in ended.err, ended
        assert "Traceback" not in ended.err
    assert ran(app).caught_up
    assert_exact(app, 60)
    with runtime(app) as world:
        exports = Exports.of(world)
        exports.verify(exports.read(), NoProgress())


def test_a_half_copied_store_is_moved_audited_exported_and_cloned_like_any_other(app: App) -> None:
    for name in ("other", "other-out"):
        app.kafka.create_topic(f"{app.name}-{name}", PARTITIONS, {"retention.ms": -1})
    lose_volume(app)
    assert app.run(crash_at="links.copied").code == -9
    assert app.run(command="relocate", pipeline="counts_reordered").code == 0
    assert links(app)
    record = audit(runtime(app))
    assert (record.verdict, record.failures) == (AuditVerdict.RIGHT, [])
    create_export(runtime(app))
    app.produce(range(40, 60))
    app.drained(pipeline="counts_reordered")
    assert updates_in_order(app.read()) == counted(range(60)) == app.stored(ordinal=2)
    ended = app.run("--for-clone", command="export", pipeline="counts_reordered")
    assert ended.code == 0, ended.err


def forget_deletes(app: App) -> None:
    """From now on the changelog keeps a delete for a millisecond."""
    admin = AdminClient({"bootstrap.servers": app.kafka.bootstrap_servers})
    entry = ConfigEntry("delete.retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    topic = f"{app.name}-counts-changelog"
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (done,) = admin.incremental_alter_configs([wanted]).values()
    done.result()
