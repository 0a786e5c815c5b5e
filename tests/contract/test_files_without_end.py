"""FIFOs, devices and files without end in a state dir or a target: nobody waits for them.

Each file of a state dir and of a target is replaced in turn, and whoever reads it is asked.
"""

import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.errors import HostFailure, StateStoreError
from statestore.layout import documents, files
from statestore.layout.commit_feeds import FeedReader, FeedWriter
from statestore.layout.owners import Owner
from statestore.tasks.history import NAME, WorkHistory
from statestore.tasks.plan import Standing, TaskReport
from statestore.ui.polling import details_of, look_at
from tests.builders import DEADLINE_S, ManualClock
from tests.contract.export_rig import ExportRig
from tests.contract.task_rig import APPLICATION
from tests.relocation_rig import in_memory_folder
from tests.tiers import first_of

ENDLESS = 1 << 42


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    path.touch()
    os.truncate(path, ENDLESS)


def in_time(action: Callable[[], object]) -> None:
    """Do it in a thread that may be left behind; an error that is none of ours fails the test."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except StateStoreError:
            pass
        except BaseException as error:  # noqa: BLE001  # the test raises it
            raised.append(error)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Who copies such a file must not fill the memory of this machine.
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, limits[1]))
    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not thread.is_alive(), "it waits for a file without end"
    if raised:
        raise raised[0]


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def exported() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder)
        rig.send(*((f"k{number}", "1") for number in range(50)))
        rig.drain()
        rig.export()
        rig.drain()  # What an owner leaves behind is there as well.
        yield rig


def asking(rig: ExportRig) -> list[Callable[[], object]]:
    """All that reads a state dir or a target, as a user calls it."""
    environment = {
        "STATESTORE_APPLICATION_ID": APPLICATION,
        "STATESTORE_STATE_DIR": str(rig.tasks.layout.state_dir),
        "STATESTORE_EXPORT_TARGET": str(rig.target),
    }

    def call(*arguments: str) -> Callable[[], object]:
        def invoke() -> None:
            done = CliRunner().invoke(cli, arguments, env=environment)
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception

        return invoke

    def open_and_close() -> None:
        rig.tasks.start()
        rig.tasks.end()

    return [
        call("status"),
        call("exports", "ls"),
        call("exports", "verify", "--open"),
        call("export"),
        lambda: look_at(rig.runtime),
        lambda: details_of(rig.runtime),
        rig.restore,
        open_and_close,
    ]


@pytest.mark.parametrize("put", first_of([fifo, device, endless]))
def test_nobody_waits_for_a_file_of_a_state_dir_or_a_target(
    exported: ExportRig, put: Callable[[Path], None]
) -> None:
    kept, root = exported.root / "kept", exported.root
    for part in ("lives", "exports"):
        shutil.copytree(root / part, kept / part, symlinks=True)
    seen = set()
    for path in [*files_in(root / "lives"), *files_in(root / "exports")]:
        if path.name == ".lock":
            continue
        seen.add(path.name)
        for ask in asking(exported):
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path)
            in_time(ask)
            for part in ("lives", "exports"):
                shutil.rmtree(root / part)
                shutil.copytree(kept / part, root / part, symlinks=True)
    shutil.rmtree(kept)
    assert {"owner.json", "topology.json", "CURRENT", ".checkpoint"} <= seen


@pytest.mark.parametrize("put", [fifo, device, endless])
def test_the_error_says_what_lies_there(tmp_path: Path, put: Callable[[Path], None]) -> None:
    path = tmp_path / "owner.json"
    put(path)
    said = "FIFO or a device" if put is not endless else f"has {ENDLESS} bytes"
    with pytest.raises(HostFailure, match=said):
        documents.read(path, Owner, way_out="remove it")
    assert documents.read_lines(path, Owner, most_bytes=1000) == []


def test_who_writes_waits_for_no_fifo_either(tmp_path: Path) -> None:
    fifo(tmp_path / f".a.json.{os.getpid()}.tmp")
    with pytest.raises(HostFailure, match=r"cannot write .*a\.json"):
        files.publish(tmp_path / "a.json", b"{}")
    fifo(tmp_path / NAME)
    history = WorkHistory(tmp_path, ManualClock())
    history.write(TaskReport("0_0"), Standing("0_0"))
    history.write(TaskReport("0_0", records_in=1), Standing("0_0", lag_records=1))
    feed: Any = FeedWriter(tmp_path)
    feed.begin()
    fifo(tmp_path / ".commits" / ".next")
    assert not feed.append(b"data")
    fifo(tmp_path / ".commits" / "1")
    with pytest.raises(HostFailure, match="cannot read"):
        FeedReader(tmp_path).next()
