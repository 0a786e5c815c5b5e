"""A store whose values change twice under runs that die; refused, rehearsed on a clone."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import statestore as ss
from statestore.cli import cli
from statestore.faults import CrashPoint
from statestore.operations.audits.audit import require_pass
from statestore.operations.audits.perform import audit
from statestore.runtime import Runtime
from statestore.settings import Settings
from tests.kafka import migration_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import START_MS, App, assert_refused

pytestmark = pytest.mark.kafka
POINTS = (
    CrashPoint.COMMIT_RECORDS_SENT,
    CrashPoint.COMMIT_LOG_DONE,
    CrashPoint.COMMIT_STORE_WRITTEN,
)


@pytest.fixture
def app(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv(PREFIX_VARIABLE, app.name)
    return app


def of(version: str) -> str:
    return f"tests.kafka.migration_pipelines:{version}"


def key_of(number: int) -> str:
    """The key of a number; the first twenty have all keys there are."""
    return f"k{number % 20}"


def send(app: App, numbers: Sequence[int]) -> None:
    app.produce_raw(
        [(key_of(n), json.dumps({"number": n}).encode(), START_MS + n) for n in numbers]
    )


def expected(numbers: Sequence[int]) -> dict[str, str]:
    """Sums of all numbers, and how many there were of each key after the first migration."""
    found = {}
    for first in range(20):
        mine = [number for number in numbers if key_of(number) == key_of(first)]
        found[key_of(first)] = f"{sum(mine)} {len(mine) - 1}"
    return found


def rows(app: App, application: str | None = None) -> dict[str, str]:
    """What the newest pipeline reads."""
    topology = migration_pipelines.v3()
    name = application or app.name
    with (
        ss.open_snapshot(app.state_dir, name, "sums", topology=topology) as sums,
        sums.all() as all_,
    ):
        return {key: value.text for key, value in all_}


def test_values_change_twice_under_runs_that_are_killed_and_no_number_counts_twice(
    app: App,
) -> None:
    app.drained(pipeline=of("v1"))
    with app.unchanged():
        says = ("store sums", "'count' of the value is required", "migrate=ss.Migration")
        ended = app.run(pipeline=of("v2_without_migration"))
        assert_refused(ended, 3, "TopologyMismatch", *says)
        checked = app.checked(pipeline=of("v2_without_migration"))
        assert (checked.code, checked.message) == (ended.code, ended.message)
        (told,) = app.checked(pipeline=of("v2")).summary["relocation"]["serdes"]
        assert told.startswith("store sums: migration 1 to JSON(SumAndCount) begins")
    sent = 20
    for version in ("v2", "v3"):
        for point in POINTS:
            # Each time only some keys, so that rows of all generations lie side by side.
            send(app, range(sent, sent + 3))
            sent += 3
            assert app.run(pipeline=of(version), crash_at=point).code == -9
        app.drained(pipeline=of(version))
    assert rows(app) == expected(range(sent))
    with Runtime(Settings.of(app.run_settings())) as runtime:
        assert require_pass(audit(runtime)).failures == []
    older = app.run("--dry-run", command="migrate", pipeline=of("v3")).summary["migrated"]
    assert 0 < sum(one["rows"] for one in older) < 20
    for point in POINTS:
        assert app.run(command="migrate", pipeline=of("v3"), crash_at=point).code == -9
    migrated = app.run(command="migrate", pipeline=of("v3"))
    assert (migrated.code, migrated.summary["applied"]) == (0, True), migrated.err
    (left,) = {
        one["rows"]
        for one in app.run("--dry-run", command="migrate", pipeline=of("v3")).summary["migrated"]
    }
    assert (left, rows(app)) == (0, expected(range(sent)))
    with Runtime(Settings.of(app.run_settings())) as runtime:
        assert require_pass(audit(runtime)).failures == []
    ended = app.run(pipeline=of("v2"))
    assert_refused(ended, 3, "TopologyMismatch", "names 1 of them", "bring back all migrations")


def test_rows_that_expire_are_written_anew_by_commands_that_are_killed(app: App) -> None:
    app.drained(pipeline=of("recent_v1"))
    send(app, [*range(20)])
    app.drained(pipeline=of("recent_v1"))
    for point in POINTS:
        ended = app.run(command="migrate", pipeline=of("recent_v2"), crash_at=point)
        assert ended.code == -9, ended.err
    migrated = app.run(command="migrate", pipeline=of("recent_v2"))
    assert migrated.code == 0, migrated.err
    with Runtime(Settings.of(app.run_settings())) as runtime:
        assert require_pass(audit(runtime)).failures == []
    last_ms = START_MS + 10 + migration_pipelines.HOUR_MS
    app.produce_raw([(key_of(n), b'{"number": 1}', last_ms) for n in range(3)])
    app.drained(pipeline=of("recent_v2_alone"))
    topology = migration_pipelines.recent_v2_alone()
    with (
        ss.open_snapshot(app.state_dir, app.name, "recent", topology=topology) as recent,
        recent.all() as all_,
    ):
        found = {key: value.sum for key, value in all_}
    # The partitions of other keys may not know the time yet.
    assert {key_of(n): found[key_of(n)] for n in range(11, 20)} == {
        key_of(n): n for n in range(11, 20)
    }
    assert {found[key_of(n)] for n in range(3)} == {1}


def past(app: App, version: str) -> list[tuple[str, int, int, int, int | None]]:
    """All versions that a pipeline reads: key, sum, count, and both times."""
    topology = getattr(migration_pipelines, version)()
    found = []
    with ss.open_snapshot(app.state_dir, app.name, "past", topology=topology) as kept:
        for key in map(key_of, range(20)):
            with kept.history(key) as versions:
                found += [
                    (key, one.value.sum, one.value.count, one.timestamp_ms, one.valid_to_ms)
                    for one in versions
                ]
    return found


def shown_as_of(app: App, time_ms: int, version: str) -> str:
    """What the command shows of one key."""
    where = f"--application-id={app.name}", f"--state-dir={app.state_dir}"
    asked = ["stores", "get", "past", key_of(7), f"--as-of={time_ms}", f"--pipeline={of(version)}"]
    shown = CliRunner().invoke(cli, [*asked, *where])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def test_versions_are_written_anew_by_commands_that_are_killed(app: App) -> None:
    send(app, [*range(20, 70)])
    app.drained(pipeline=of("past_v1"))
    send(app, [*range(70, 80), *range(5)])  # The last ones are late.
    app.drained(pipeline=of("past_v2"))
    before = past(app, "past_v2")
    assert {(number, count) for _, number, count, _, _ in before} == {
        *((number, 0) for number in range(5, 70)),
        *((number, 1) for number in [*range(70, 80), *range(5)]),
    }
    answer = shown_as_of(app, START_MS + 30, "past_v2")
    assert '"sum":27' in answer
    for point in POINTS:
        ended = app.run(command="migrate", pipeline=of("past_v2"), crash_at=point)
        assert ended.code == -9, ended.err
        assert past(app, "past_v2") == before
    migrated = app.run(command="migrate", pipeline=of("past_v2"))
    assert migrated.code == 0, migrated.err
    with Runtime(Settings.of(app.run_settings())) as runtime:
        assert require_pass(audit(runtime)).failures == []
    app.drained(pipeline=of("past_v2_alone"))
    assert past(app, "past_v2_alone") == before
    assert shown_as_of(app, START_MS + 30, "past_v2_alone") == answer
    for folder in (app.state_dir / app.name).glob("0_*"):
        shutil.rmtree(folder)
    app.drained(pipeline=of("past_v2_alone"))
    assert past(app, "past_v2_alone") == before


def test_a_migration_is_rehearsed_on_a_clone(app: App, tmp_path: Path) -> None:
    app.drained(pipeline=of("v1"))
    target = f"--target={tmp_path / 'exports'}"
    made = app.run(target, "--for-clone", command=("exports", "create"), pipeline=of("v1"))
    assert made.code == 0, made.err
    trial = f"{app.name}-trial"
    cloned = app.run(target, "--as", trial, command=("exports", "restore"), pipeline=of("v1"))
    assert cloned.code == 0, cloned.err
    of_clone = f"--application-id={trial}"
    refused = app.run(of_clone, pipeline=of("v2_without_migration"))
    assert_refused(refused, 3, "TopologyMismatch", "'count' of the value is required")
    app.drained(of_clone, pipeline=of("v3"))
    assert rows(app, trial) == expected(range(20))
    app.drained(pipeline=of("v1"))
    dropped = app.run(target, trial, command=("exports", "drop-clone"), pipeline=of("v1"))
    assert dropped.code == 0, dropped.err
