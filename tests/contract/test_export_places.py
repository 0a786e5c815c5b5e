"""A target is one place for all that work on an export, and what is published is there."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.commands.arguments import (
    StateArguments,
    export_options,
    parse_exports,
    parse_state_arguments,
)
from statestore.errors import Misuse, StateStoreError, TargetNotShared
from statestore.layout.activity_files import NoProgress
from statestore.operations.exports import create
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.create import Export, Part
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.targets import FsspecTarget
from tests.contract.export_rig import ExportRig
from tests.contract.task_rig import APPLICATION, TASK
from tests.relocation_rig import in_memory_folder


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder)
        rig.send(("a", "1"), ("b", "2"))
        rig.drain()
        yield rig


def exporting_to(rig: ExportRig, target: Path, kind: type[FsspecTarget] = FsspecTarget) -> Export:
    settings = Settings.from_mapping(
        {
            "application.id": APPLICATION,
            "state.dir": str(rig.tasks.layout.state_dir),
            "statestore.export.target": str(target),
        }
    )
    return Export(Runtime(settings, open_target=kind))


def test_two_attempts_at_a_task_upload_under_names_of_their_own(
    rig: ExportRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark makes them: the second one uploads all while the first one is about to."""
    rig.set_clock()
    monkeypatch.setattr(create, "SMALL", 0)
    named: list[str] = []

    class Interrupted(FsspecTarget):
        def put(self, source: Path, *, temporary: str, name_of: Callable[[str], str]) -> str:
            named.append(temporary)
            if len(named) == 1:
                exporting_to(rig, rig.target, Interrupted).parts([TASK], begun.upload.folder)
            return super().put(source, temporary=temporary, name_of=name_of)

    export = exporting_to(rig, rig.target, Interrupted)
    with export.begin() as begun:
        export.publish(begun, export.parts([TASK], begun.upload.folder))
    assert len(named) > 2
    assert len(set(named)) == len(named)
    rig.exports.verify(rig.exports.read(), NoProgress())


def test_who_does_not_see_the_export_under_way_stores_nothing(rig: ExportRig) -> None:
    """As on a worker whose target is a folder of the same name, and of its own."""
    elsewhere = rig.root / "of-the-worker"
    with exporting_to(rig, rig.target).begin() as begun:
        with pytest.raises(TargetNotShared, match=r"of-the-worker.*same place") as caught:
            exporting_to(rig, elsewhere).parts([TASK], begun.upload.folder)
        assert socket.gethostname() in str(caught.value)
        assert not elsewhere.exists(), "an error before the first byte"
        (part,) = exporting_to(rig, rig.target).parts([TASK], begun.upload.folder)
        assert part.files_uploaded


def test_an_export_whose_files_are_not_seen_at_the_target_is_not_published(
    rig: ExportRig,
) -> None:
    export = exporting_to(rig, rig.target)
    with export.begin() as begun:
        parts = export.parts(begun.tasks, begun.upload.folder)
        contents = rig.exports.contents()
        lost = min(contents)
        rig.exports.target.remove([rig.exports.content(lost)])
        with pytest.raises(TargetNotShared, match=lost):
            export.publish(begun, parts)
    assert rig.exports.ids() == []


def test_an_export_of_which_a_file_is_shorter_than_it_was_read_is_not_published(
    rig: ExportRig,
) -> None:
    export = exporting_to(rig, rig.target)
    with export.begin() as begun:
        parts: list[Part] = export.parts(begun.tasks, begun.upload.folder)
        stored = (f for p in parts for s in p.task.stores.values() for f in s.files)
        cut = next(file for file in stored if file.size_bytes)
        rig.exports.target.write(rig.exports.content(cut.sha256), b"")
        with pytest.raises(TargetNotShared, match=cut.sha256):
            export.publish(begun, parts)
    assert rig.exports.ids() == []


@click.command()
@export_options
def asked(**flags: object) -> None:
    click.echo(msgspec.json.encode(parse_exports(flags).for_workers()))


@pytest.mark.parametrize("target", ["exports", "file://exports", "./x/../exports"])
def test_workers_get_an_absolute_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"application_id": "a", "state_dir": "s", "config": None, "pairs": ()}
    sent = parse_state_arguments({**flags, "target": target}).for_workers()
    line = CliRunner().invoke(asked, ["--application-id=a", f"--target={target}"]).output
    also = msgspec.json.decode(line, type=StateArguments)
    monkeypatch.chdir("/")
    for arguments in (sent, also):
        settings = arguments.settings()
        assert Path(FsspecTarget(settings.export_target).url).resolve() == tmp_path / "exports"


def test_a_target_far_away_reaches_workers_as_it_is_and_one_with_a_secret_as_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUCKET", "s3://bucket/a")
    monkeypatch.setenv("SECRET_TARGET", "ftp://user:hunter2@host/a")
    told = {"s3://bucket/a": "s3://bucket/a", "${BUCKET}": "s3://bucket/a"}
    told["${SECRET_TARGET}"] = "${SECRET_TARGET}"
    for target, sent in told.items():
        flags = {"application_id": "a", "state_dir": "s", "config": None, "pairs": ()}
        arguments = parse_state_arguments({**flags, "target": target}).for_workers()
        assert arguments.overrides["statestore.export.target"] == sent


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a", "s3://bucket/a"),
        ("s3://key:hunter2@bucket/a", "s3://***@bucket/a"),
        ("ftp://user:hunter2/@x@host/a", "ftp://***@host/a"),
        ("https://hunter2@host/a", "https://***@host/a"),
        ("abfs://container@account.dfs.core.windows.net/a",) * 2,
        ("https://host/a?sig=hunter2", "https://host/a?***"),
        ("nowhere://user:hunter2@x", "nowhere://***@x"),
        ("sftp://user:hunter2@127.0.0.1:1/x", "sftp://***@127.0.0.1:1/x"),
        ("ftp://user:hunter2@127.0.0.1:1/x", "ftp://***@127.0.0.1:1/x"),
    ],
)
def test_a_secret_in_a_target_is_shown_nowhere(rig: ExportRig, url: str, shown: str) -> None:
    given = [f"--application-id={APPLICATION}", f"--state-dir={rig.tasks.layout.state_dir}"]
    given += [f"--target={url}"]
    commands = [
        ["export", "--json"],
        ["exports", "ls"],
        ["status", "--json", *given[:2], f"--set=statestore.export.target={url}"],
    ]
    quick = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}
    for command in commands:
        where = [] if command[0] == "status" else given
        done = CliRunner().invoke(cli, [*command, *where], env={**os.environ, **quick})
        chain, texts = done.exception, [done.output]
        while chain is not None:
            texts.append(str(chain))
            chain = chain.__cause__
        assert isinstance(done.exception, StateStoreError | None), command
        assert "hunter2" not in "".join(texts), command
    assert "hunter2" not in repr(Settings(export_target=url))
    try:
        assert FsspecTarget(url).url == shown
    except StateStoreError as error:
        assert shown in str(error)  # noqa: PT017 - either will do


@pytest.mark.parametrize(
    "url",
    [
        *("zip://x", "hdfs://x/y", "dir://x", "reference://x", "generic://x", "cached://x", "a\0b"),
        *("data:,x", "http://127.0.0.1:1/x", "jupyter://x", "nowhere://x", "tar://x", "github://"),
    ],
)
def test_a_target_that_can_be_none_is_an_error_with_an_exit_code(rig: ExportRig, url: str) -> None:
    given = [f"--application-id={APPLICATION}", f"--state-dir={rig.tasks.layout.state_dir}"]
    done = CliRunner().invoke(cli, ["export", *given, f"--target={url}"])
    assert isinstance(done.exception, StateStoreError), done.exception


def test_memory_is_no_place_for_exports_that_a_command_makes(rig: ExportRig) -> None:
    given = [f"--application-id={APPLICATION}", f"--state-dir={rig.tasks.layout.state_dir}"]
    done = CliRunner().invoke(cli, ["export", *given, "--target=memory://x"])
    assert isinstance(done.exception, Misuse)
    assert "ends with this process" in str(done.exception)
    assert Exports(FsspecTarget("memory://x"), APPLICATION, rig.tasks.clock).ids() == []
