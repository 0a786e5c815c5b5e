"""Damage at an export target: seen, set aside, and repaired by the next export.

Shows I17.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from statestore import faults
from statestore.cli import cli
from statestore.errors import (
    Action,
    ExportDamaged,
    Locked,
    Misuse,
    StateStoreError,
    Unavailable,
)
from statestore.faults import VARIABLE, CrashPoint
from statestore.layout.activity_files import NoProgress
from statestore.operations.exports.catalog import Retention, sha256_of
from statestore.operations.exports.leases import LEASE_MS
from statestore.operations.exports.manifest import ExportManifest
from statestore.runtime.databases import RocksDatabases
from tests.builders import ROOT
from tests.contract.export_rig import ExportRig
from tests.contract.task_rig import APPLICATION
from tests.relocation_rig import Died, dying_at, in_memory_folder

VERIFY_POINTS = [point for point in CrashPoint if point.startswith("verify.")]


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder)
        rig.send(*((f"k{n}", "v" * 100) for n in range(100)))
        rig.drain()
        yield rig


def damage(rig: ExportRig) -> Path:
    """Change one byte of the newest export's largest file, and return where the file is."""
    files = rig.exports.read().files()
    path = rig.target / rig.exports.content(max(files, key=lambda sha256: files[sha256]))
    with path.open("r+b") as file:
        file.seek(20)
        (byte,) = file.read(1)
        file.seek(20)
        file.write(bytes([byte ^ 1]))
    return path


def verified(rig: ExportRig, export_id: str = "latest", *, opens: bool = False) -> ExportManifest:
    manifest = rig.exports.read(export_id)
    opened = RocksDatabases().offsets_of if opens else None
    rig.exports.verify(manifest, NoProgress(), opened)
    return manifest


def set_aside(rig: ExportRig) -> dict[str, bytes]:
    folder = rig.target / APPLICATION / "damaged"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}


# Damaged contents.


@pytest.mark.parametrize("opens", [False, True], ids=["read", "opened"])
def test_a_damaged_file_of_the_same_size_is_repaired_by_the_next_export(
    rig: ExportRig, opens: bool
) -> None:
    first = rig.export().export_id
    path = damage(rig)
    damaged = path.read_bytes()
    second = rig.export().export_id  # It has the damaged file, because the target has its name.
    with pytest.raises(ExportDamaged, match=r"next `statestore export` uploads again") as caught:
        verified(rig, opens=opens)
    assert "another export" not in str(caught.value), "others share the file"
    assert path.name in str(caught.value)
    aside = f"{path.name}.{sha256_of(damaged)[:16]}"
    kept = set_aside(rig)
    assert list(kept) == [aside, f"{aside}.json"]
    assert kept[aside] == damaged, "nothing is deleted"
    record = json.loads(kept[f"{aside}.json"])
    assert (record["export_id"], record["sha256"]) == (second, path.name)
    problems = [one.problem for one in rig.exports.listed()]
    assert problems == ["1 of its files is not at the target (1 set aside as damaged)"] * 2
    with pytest.raises(ExportDamaged, match="is missing"):
        verified(rig, first)
    assert rig.export().files_uploaded == 1
    for export_id in rig.exports.ids():
        verified(rig, export_id, opens=True)
    assert [one.problem for one in rig.exports.listed()] == [None] * 3
    assert rig.exports.prune(Retention(1)).removed == [first, second]
    assert set_aside(rig) == kept, "a prune leaves it"
    rig.lose_volume()
    rig.restore()


def test_all_damaged_files_of_an_export_are_set_aside_at_once(rig: ExportRig) -> None:
    rig.export()
    files = rig.exports.read().files()
    files.pop(sha256_of(b""), None)
    for sha256 in files:
        path = rig.target / rig.exports.content(sha256)
        path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(ExportDamaged, match=rf"and {len(files) - 3} more; damaged files are kept"):
        verified(rig)
    assert set(rig.exports.contents()) <= {sha256_of(b"")}
    assert len(set_aside(rig)) == 2 * len(files)
    rig.export()
    verified(rig, opens=True)


@pytest.mark.parametrize("opens", [False, True], ids=["read", "opened"])
def test_a_file_of_another_length_is_set_aside_too(rig: ExportRig, opens: bool) -> None:
    rig.export()
    path = damage(rig)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ExportDamaged, match="was set aside"):
        verified(rig, opens=opens)
    assert not path.exists()
    rig.export()
    verified(rig, opens=True)


def test_a_restore_from_a_damaged_export_names_the_verification_and_changes_nothing(
    rig: ExportRig,
) -> None:
    rig.export()
    path = damage(rig)
    rig.lose_volume()
    with pytest.raises(ExportDamaged, match="exports verify` of this export sets it aside"):
        rig.restore()
    assert path.exists()


def test_a_file_is_not_set_aside_while_an_export_may_rely_on_it(rig: ExportRig) -> None:
    export_id = rig.export().export_id
    path = damage(rig)
    manifest = rig.exports.read()
    uploading = pytest.raises(Locked, match="an export is being uploaded")
    with rig.exports.uploading(), uploading as caught:
        rig.exports.verify(manifest, NoProgress())
    assert f"run `statestore exports verify {export_id}` again" in str(caught.value)
    assert path.exists()
    assert set_aside(rig) == {}
    with pytest.raises(ExportDamaged, match="was set aside"):
        rig.exports.verify(manifest, NoProgress())


def test_who_may_not_write_to_the_target_still_learns_what_is_damaged(
    rig: ExportRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.export()
    path = damage(rig)
    exports = rig.exports

    def refuse(name: str, data: bytes) -> None:
        raise Misuse(f"could not write {name}, {len(data)} bytes: permission denied")

    monkeypatch.setattr(exports.target, "write", refuse)
    with pytest.raises(ExportDamaged, match=r"not set aside yet.*permission denied") as caught:
        exports.verify(exports.read(), NoProgress())
    assert "file " in str(caught.value)
    assert path.exists()


def test_what_was_repaired_meanwhile_is_no_damage(
    rig: ExportRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.export()
    path = damage(rig)
    damaged, exports = path.read_bytes(), rig.exports
    fetch, asked = exports.target.fetch, list[str]()

    def repaired_after(name: str, into: Path | None, *, bytes_max: int) -> str | None:
        found = fetch(name, into, bytes_max=bytes_max)
        if name.endswith(path.name) and not asked:
            asked.append(name)
            content = bytearray(damaged)
            content[20] ^= 1
            path.write_bytes(content)
        return found

    monkeypatch.setattr(exports.target, "fetch", repaired_after)
    assert exports.verify(exports.read(), NoProgress()).files > 0
    assert asked
    assert set_aside(rig) == {}


def test_an_export_pruned_while_it_is_verified_is_no_damage(rig: ExportRig) -> None:
    rig.export()
    manifest = rig.exports.read()
    rig.send(("a", "1"))
    rig.drain()
    rig.export()
    rig.exports.prune(Retention(1))
    with pytest.raises(Misuse, match="was pruned just now"):
        rig.exports.verify(manifest, NoProgress())


def test_verifications_exports_and_prunes_at_once_end_with_a_whole_export(rig: ExportRig) -> None:
    rig.export()
    unexpected: list[BaseException] = []

    def again_and_again(doing: Callable[[], Any]) -> None:
        for _ in range(15):
            with tolerating(unexpected):
                doing()

    works: list[Callable[[], Any]] = [
        lambda: verified(rig),
        lambda: verified(rig, opens=True),
        rig.export,
        lambda: rig.exports.prune(Retention(2)),
    ]
    threads = [threading.Thread(target=again_and_again, args=(one,)) for one in works]
    for thread in threads:
        thread.start()
    damages = 0
    while any(thread.is_alive() for thread in threads):
        with suppress(OSError, StateStoreError):  # It is set aside, or pruned.
            damage(rig)
            damages += 1
        threads[0].join(0.02)
    assert unexpected == []
    assert damages > 0
    rig.export()
    with suppress(ExportDamaged):
        verified(rig)
    rig.export()
    verified(rig, opens=True)
    rig.exports.prune(Retention(1))
    assert set(rig.exports.contents()) == set(rig.exports.read().files())


@contextmanager
def tolerating(unexpected: list[BaseException]) -> Iterator[None]:
    """Collect all errors but those that ask to call again, or say what is damaged."""
    try:
        yield
    except (ExportDamaged, Locked, Unavailable):
        pass
    except BaseException as error:  # noqa: BLE001 - the test shows them
        if "pruned just now" not in str(error):
            unexpected.append(error)


# Deaths.


@pytest.mark.parametrize("visit", [1, 2, 3, 4])
def test_a_verification_that_dies_anywhere_is_finished_by_the_next(
    rig: ExportRig, visit: int
) -> None:
    rig.export()
    sizes = {sha256: size for sha256, size in rig.exports.contents().items() if size}
    path = rig.target / rig.exports.content(min(sizes, key=lambda sha256: sizes[sha256]))
    path.write_bytes(bytes(len(path.read_bytes())))
    damage(rig)
    faults.on_reach(dying_at(visit))
    try:
        with pytest.raises(Died):
            verified(rig)
    finally:
        faults.on_reach(None)
    rig.tasks.clock.advance(LEASE_MS)
    with pytest.raises(ExportDamaged):
        verified(rig)
    assert len(set_aside(rig)) == 4, "two contents, with a record each"
    rig.export()
    verified(rig, opens=True)


@pytest.mark.parametrize("point", VERIFY_POINTS)
def test_a_verification_killed_leaves_what_the_next_one_sets_aside(
    rig: ExportRig, point: str
) -> None:
    rig.export()
    path = damage(rig)
    where = [f"--application-id={APPLICATION}", f"--target={rig.target}", "--json"]
    command = ["exports", "verify", *where]

    def process(crash_at: str = "") -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: crash_at}
        program = [sys.executable, "-m", "statestore"]
        return subprocess.run(
            [*program, *command], env=env, capture_output=True, text=True, timeout=100, check=False
        )

    def call() -> Result:
        return CliRunner().invoke(cli, command)

    assert process(point).returncode == -signal.SIGKILL
    assert path.exists() == (point == CrashPoint.VERIFY_RECORDED)
    (lease,) = (rig.target / APPLICATION / "prunings").iterdir()
    assert isinstance(call().exception, Locked)
    lease.unlink()  # It has run out.
    ended = process()
    assert ended.returncode == 2
    assert json.loads(ended.stdout)["error"]["class"] == "ExportDamaged"
    assert len(set_aside(rig)) == 2
    assert rig.export().files_uploaded == 1
    assert call().exit_code == 0


# Manifests.


def edited(rig: ExportRig, change: Callable[[dict[str, Any]], None]) -> str:
    """Change the newest manifest; return the export's id."""
    export_id = rig.exports.ids()[-1]
    path = rig.target / APPLICATION / "exports" / f"{export_id}.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(json.dumps(document).encode())
    return export_id


def files_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The files of one store, of which the first is not empty."""
    found: list[dict[str, Any]] = document["tasks"][0]["stores"]["latest"]["files"]
    found.sort(key=lambda file: -int(file["size_bytes"]))
    return found


YEAR_9999 = 253_402_300_799_999
LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "empty": (lambda m: files_of(m)[0].update(size_bytes=0), r"size_bytes of file \S+ .* is 0;"),
    "huge": (
        lambda m: files_of(m)[0].update(size_bytes=2**62),
        rf"size_bytes of file \S+ .* is {2**62};",
    ),
    "another export": (
        lambda m: m.update(export_id="20260101T000000000Z-0123abcd"),
        "it is the manifest of export 20260101T000000000Z-0123abcd of shop",
    ),
    "another application": (lambda m: m.update(application_id="other"), "of other;"),
    "made in 9999": (lambda m: m.update(made_ms=YEAR_9999), "made_ms says 9999-12-31"),
    "taken in 9999": (
        lambda m: m["tasks"][0].update(taken_ms=YEAR_9999),
        "taken_ms of task 0_0 says 9999-12-31",
    ),
    "file twice": (
        lambda m: files_of(m).append(dict(files_of(m)[0])),
        r"file \S+ of store 'latest' of task 0_0 is there twice",
    ),
    "task twice": (lambda m: m["tasks"].append(m["tasks"][0]), "task 0_0 is there twice"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_no_export_wrote_is_refused_by_name(rig: ExportRig, lie: str) -> None:
    rig.export()
    change, says = LIES[lie]
    edited(rig, change)
    contents = rig.exports.contents()
    rig.lose_volume()
    with pytest.raises(ExportDamaged, match=says):
        rig.restore()
    (listed,) = rig.exports.listed()
    assert re.search(says, str(listed.problem))
    where = [f"--application-id={APPLICATION}", f"--target={rig.target}"]
    done = CliRunner().invoke(cli, ["exports", "verify", *where])
    assert isinstance(done.exception, ExportDamaged)
    assert re.search(says, str(done.exception))
    assert done.exception.action is Action.FAIL, "trying again does not help"
    assert rig.exports.contents() == contents
    assert set_aside(rig) == {}


@pytest.mark.parametrize("opens", [False, True], ids=["read", "opened"])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_manifest_with_a_wrong_size_is_to_blame_and_not_the_file(
    rig: ExportRig, more: int, opens: bool
) -> None:
    rig.export()
    contents = rig.exports.contents()

    def change(document: dict[str, Any]) -> None:
        sha256 = files_of(document)[0]["sha256"]
        for store in document["tasks"][0]["stores"].values():
            for file in store["files"]:
                if file["sha256"] == sha256:
                    file["size_bytes"] += more

    edited(rig, change)
    with pytest.raises(ExportDamaged, match=r"is not what an export wrote: size_bytes of file"):
        verified(rig, opens=opens)
    assert rig.exports.contents() == contents
    assert set_aside(rig) == {}


def test_an_export_dated_far_ahead_is_refused_and_does_not_date_later_ones(rig: ExportRig) -> None:
    made = rig.export().export_id
    folder = rig.target / APPLICATION / "exports"
    ahead = "99991231T235959999Z-0123abcd"
    content = (folder / f"{made}.json").read_bytes().replace(made.encode(), ahead.encode())
    (folder / f"{ahead}.json").write_bytes(content)
    with pytest.raises(ExportDamaged, match="export_id says 9999-12-31 23:59 UTC"):
        rig.exports.read()
    later = rig.export().export_id
    assert made < later < ahead
    verified(rig, later)
    pruned = rig.exports.prune(Retention(1))
    assert (pruned.kept, pruned.removed, pruned.damaged) == ([later], [made], [ahead])
