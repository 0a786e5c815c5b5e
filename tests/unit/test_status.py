"""What status says of folders and figures; on a real broker: tests/kafka/test_stores_command.py."""

import os
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from statestore.cli import cli
from statestore.commands.status import check_limits, rendered
from statestore.errors import AuditFailed, AuditTooOld, Behind, NotChecked, Unavailable
from statestore.layout import owners
from statestore.layout.audits import AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.layout.owners import Owner
from statestore.model.ids import TaskId
from statestore.operations.deployed import Deployed, DeployedStore
from statestore.operations.exports.manifest import ExportManifest, encode_manifest, new_export_id
from statestore.operations.status.status import State, Status, state_of
from statestore.tasks.plan import Standing, TaskReport
from statestore.tasks.progress_file import ProgressFile, TaskProgress, read_progress
from tests.builders import ManualClock
from tests.status_rig import reader_of

STANDING = Standing("0_0")

TASK = TaskId(0, 0)


def owner(**changes: object) -> Owner:
    """One of another host."""
    fields: dict[str, object] = {
        "epoch": 1,
        "host": "elsewhere",
        "boot_id": "b",
        "pid": 7,
        "since_ms": 1000,
        "started_ticks": 1,
    }
    return Owner(**{**fields, **changes})  # type: ignore[arg-type]  # as given


@pytest.mark.parametrize(
    ("last", "noted", "now_ms", "word"),
    [
        (None, TaskProgress(), 0, State.NEW),
        (owner(released=True), TaskProgress(), 0, State.STOPPED),
        (owner(), TaskProgress(), 2000, State.RESTORING),
        (owner(), TaskProgress(pid=7, written_ms=1500), 2000, State.RUNNING),
        (owner(), TaskProgress(pid=7, written_ms=500), 2000, State.RESTORING),
        (owner(), TaskProgress(pid=8, written_ms=1500), 2000, State.RESTORING),
        (owner(), TaskProgress(pid=7, written_ms=1500), 62_000, State.SILENT),
        (owner(), TaskProgress(), 62_000, State.SILENT),
    ],
)
def test_owner_and_note_give_one_word(
    last: Owner | None, noted: TaskProgress, now_ms: int, word: State
) -> None:
    assert state_of(last, noted, now_ms) is word


def test_an_owner_of_this_host_is_running_or_crashed_but_never_silent(tmp_path: Path) -> None:
    claim = owners.claim(tmp_path, what="", wait_ms=0, clock=ManualClock())
    noted = TaskProgress(pid=os.getpid(), written_ms=claim.owner.since_ms)
    assert state_of(claim.owner, noted, claim.owner.since_ms + 10**7) is State.RUNNING
    claim.abandon()
    assert state_of(owners.read_owner(tmp_path), noted, claim.owner.since_ms) is State.CRASHED


def test_a_run_with_little_to_do_keeps_the_rates_of_the_one_before(tmp_path: Path) -> None:
    clock = ManualClock()
    busy = TaskReport("0_0", records_in=5000, process_seconds=1.5, commit_seconds=1.0)
    busy.restored_records, busy.restore_seconds, busy.last_commit_ms = 4000, 2.0, 123
    ProgressFile(tmp_path, clock, slots=2).write(busy, STANDING)
    ProgressFile(tmp_path, clock, slots=2).write(TaskReport("0_0", records_in=3), STANDING)
    noted = read_progress(tmp_path)
    assert (noted.process_rate, noted.restore_rate, noted.last_commit_ms) == (2000, 2000, 123)


def test_the_first_commit_is_noted_at_once_as_whoever_replaces_the_process_counts_on_it(
    tmp_path: Path,
) -> None:
    file = ProgressFile(tmp_path, ManualClock(), slots=1)
    file.write(TaskReport("0_0"), STANDING)
    assert file.note(TaskReport("0_0", records_in=1), lambda: STANDING) is None
    assert file.note(TaskReport("0_0", last_commit_ms=1), lambda: STANDING) is STANDING
    assert read_progress(tmp_path).last_commit_ms == 1
    assert file.note(TaskReport("0_0", last_commit_ms=2), lambda: STANDING) is None


def test_a_note_is_written_once_a_second_and_a_folder_that_is_gone_is_no_error(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    file = ProgressFile(tmp_path, clock, slots=1)
    file.note(TaskReport("0_0", last_commit_ms=1), lambda: STANDING)
    file.note(TaskReport("0_0", last_commit_ms=2), lambda: STANDING)
    assert read_progress(tmp_path).last_commit_ms == 1
    clock.advance(1000)
    file.note(TaskReport("0_0", last_commit_ms=3), lambda: STANDING)
    assert read_progress(tmp_path).last_commit_ms == 3
    ProgressFile(tmp_path / "gone", clock, slots=1).write(TaskReport("0_0"), STANDING)


def test_a_note_of_a_task_at_rest_is_written_every_five_seconds(tmp_path: Path) -> None:
    clock = ManualClock()
    file = ProgressFile(tmp_path, clock, slots=1)
    written = []
    for _ in range(12):
        file.note(TaskReport("0_0", last_commit_ms=1), lambda: STANDING)
        written.append(read_progress(tmp_path).written_ms)
        clock.advance(1000)
    assert [written.count(at) for at in dict.fromkeys(written)] == [5, 5, 2]


def look(state_dir: Path) -> Status:
    return reader_of(StateLayout(state_dir, "app")).now()


def test_an_application_never_run_and_without_a_broker_has_a_status(tmp_path: Path) -> None:
    found = look(tmp_path / "nowhere")
    assert (found.state, found.stream_tasks, found.lag_records) == (State.NEW, [], None)
    assert "--bootstrap-servers" in str(found.broker)
    assert not (tmp_path / "nowhere").exists()


def test_looking_writes_nothing_and_needs_no_lock(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path, "app")
    layout.create(layout.task_dir(TASK))
    with_lock = owners.claim(layout.task_dir(TASK), what="", wait_ms=0, clock=ManualClock())
    before = sorted(tmp_path.rglob("*"))
    (task,) = look(tmp_path).stream_tasks
    assert (task.stream_task, task.state) == ("0_0", State.RESTORING)
    assert sorted(tmp_path.rglob("*")) == before
    with_lock.release()


def test_a_store_that_lies_elsewhere_is_to_be_moved(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path, "app")
    layout.create(layout.task_dir(TASK) / "rocksdb" / "counts")
    known = DeployedStore(1, "STRING", "INT64", persistent=True)
    wanted = Deployed(stores={"counts": known})
    found = reader_of(layout, wanted=wanted).now()
    assert found.relocation == "counts: in 0_0, should be in 1_0"
    here = msgspec.structs.replace(known, sub_topology=0)
    wanted = Deployed(stores={"counts": here})
    assert reader_of(layout, wanted=wanted).now().relocation is None


def test_limits_are_judged_by_what_is_known(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert check_limits(found, None, None) is None
    assert isinstance(check_limits(found, 5.0, None), Unavailable)
    assert rendered(found).renderables


def audited(state_dir: Path, verdict: AuditVerdict, age_ms: int) -> Status:
    layout, clock = StateLayout(state_dir, "app"), ManualClock()
    made_ms = clock.now_ms() - age_ms
    Audits(layout).keep(AuditRecord(application_id="app", time_ms=made_ms, verdict=verdict))
    return reader_of(layout, clock=clock).now()


@pytest.mark.parametrize(
    ("verdict", "age_ms", "error"),
    [
        (AuditVerdict.RIGHT, 50_000, None),
        (AuditVerdict.RIGHT, 70_000, AuditTooOld),
        (AuditVerdict.WRONG, 50_000, AuditFailed),
        (AuditVerdict.NOT_ENOUGH_CHECKED, 50_000, NotChecked),
        (AuditVerdict.NOTHING_CHECKED, 50_000, NotChecked),
    ],
)
def test_the_last_audit_counts_if_it_is_a_pass_and_not_too_old(
    tmp_path: Path, verdict: AuditVerdict, age_ms: int, error: type[Exception] | None
) -> None:
    found = audited(tmp_path, verdict, age_ms)
    assert found.audit is not None
    assert (found.audit.verdict, found.audit.age_seconds) == (verdict, age_ms / 1000)
    judged = check_limits(found, None, 60_000)
    assert type(judged) is (error or type(None))
    console = Console(width=200, file=StringIO())
    console.print(rendered(found))
    assert f"{verdict}, by the audit of" in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_application_never_audited_is_not_known_to_be_right(tmp_path: Path) -> None:
    assert isinstance(check_limits(look(tmp_path), None, 60_000), AuditTooOld)


def test_the_newest_export_is_told_or_why_it_is_not_known(tmp_path: Path) -> None:
    clock = ManualClock()
    target: dict[str, object] = {"statestore.export.target": str(tmp_path / "exports")}
    looking = reader_of(StateLayout(tmp_path, "app"), clock=clock, settings=target)
    none = looking.now().export
    assert none is not None
    assert (none.export_id, none.problem) == (None, None)
    export_id = new_export_id(clock.now_ms() - 5000, "0" * 8)
    made = tmp_path / "exports" / "app" / "exports"
    made.mkdir(parents=True)
    manifest = ExportManifest(1, export_id, "app", clock.now_ms() - 5000, Deployed(), [])
    (made / f"{export_id}.json").write_bytes(encode_manifest(manifest))
    there = looking.now().export
    assert there is not None
    assert (there.export_id, there.problem) == (export_id, None)
    assert there.age_seconds == pytest.approx(5, abs=0.01)


def test_the_command_ends_with_the_exit_code_of_the_limit(tmp_path: Path) -> None:
    command = ["status", "--application-id=app", f"--state-dir={tmp_path}", "--json"]
    assert CliRunner().invoke(cli, command).exit_code == 0
    failed = CliRunner().invoke(cli, [*command, "--max-lag-seconds=5"])
    assert isinstance(failed.exception, Unavailable)
    assert '"exit_code":7' in failed.stdout
    assert Behind.exit_code == 14
