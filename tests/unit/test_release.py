"""A release: the same bytes at every build, and nothing in it that is not tracked."""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.release import build, built_twice, licences, output, run
from statestore import __version__
from statestore.errors import HostFailure
from tests.builders import ROOT

EPOCH = 1_700_000_000
EXTENSIONS = {
    f"statestore/{name}.abi3.so"
    for name in (
        "kafka/wire/_records",
        "model/_record",
        "tasks/_arenas",
        "topology/aggregates/_ranks",
    )
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The source distribution and the wheel, as of one moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
        yield built_twice(tmp_path_factory.mktemp("release"))


@pytest.mark.thorough
def test_another_umask_changes_no_byte(files: tuple[Path, Path], tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        again = build(tmp_path / "again")
    finally:
        os.umask(before)
    assert [it.read_bytes() for it in again] == [it.read_bytes() for it in files]


def test_the_source_distribution_has_the_tracked_files_and_one_time(
    files: tuple[Path, Path],
) -> None:
    with tarfile.open(files[0]) as archive:
        members = archive.getmembers()
    assert {(it.mtime, it.uid, it.uname, it.mode) for it in members} == {(EPOCH, 0, "", 0o644)}
    names = {it.name.removeprefix(f"statestore-{__version__}/") for it in members}
    assert set(output("git", "ls-files", "statestore").splitlines()) - names == set()


def test_the_wheel_has_what_its_source_has(files: tuple[Path, Path]) -> None:
    with ZipFile(files[1]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = set(output("git", "ls-files", "statestore").splitlines())
    assert names == {name for name in sources if not name.endswith((".c", ".h"))} | EXTENSIONS
    assert files[1].name.startswith(f"statestore-{__version__}-cp311-abi3-")


def test_metadata_and_long_description_are_in_order(files: tuple[Path, Path]) -> None:
    run("twine", "check", "--strict", *files)


def test_a_package_without_a_licence_is_named() -> None:
    known = {"name": "a", "version": "1", "licenses": [{"license": {"id": "MIT"}}]}
    assert licences({"components": [known]}) == {"MIT": {"a 1"}}
    with pytest.raises(HostFailure, match=r"no licence is known of b 2$"):
        licences({"components": [known, {"name": "b", "version": "2"}]})


@pytest.mark.slow
def test_make_release_check_leaves_a_release_whose_sums_are_right() -> None:
    subprocess.run(["make", "release-check"], cwd=ROOT, check=True)
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=ROOT / "dist", check=True)
    assert len(list((ROOT / "dist").iterdir())) == 4
