"""Every file of a state dir and of an export, mangled one at a time, under a run and a restore.

A run ends with an error of the library's own, or its stores are what their changelogs say. With
the right file in its place again the next run succeeds, so nothing was lost meanwhile. An export
is restored as it was, or is refused.
"""

import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

from statestore.errors import StateStoreError
from statestore.layout.activity_files import NoProgress
from statestore.operations.running.continuous import serve_run
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import serve_here
from statestore.runtime.databases import RocksDatabases
from tests.contract.export_rig import ExportRig, keeping
from tests.contract.task_rig import TASK
from tests.mangling import mangled
from tests.relocation_rig import in_memory_folder
from tests.tiers import chosen_of

SEED = int(os.environ.get("BAD_INPUT_SEED", "31"))
STORES = ("latest", "copies")
# What a run and an export leave, with numbers and checksums taken out.
KINDS = (
    ".checkpoint",
    "CURRENT",
    "IDENTITY",
    "MANIFEST-#",
    "OPTIONS-#",
    "#.log",
    "#.sst",
    "exported.json",
    "inputs.json",
    "nonce",
    "owner.json",
    "progress.json",
    "rocksdict-config.json",
    "history.jsonl",
    "topology.json",
    "export",
    "content",
)
UNREAD = {".lock", "LOCK", "LOG"}
"""Of the first two only the lock on them counts; the third is written for people alone."""


def kind_of(path: Path) -> str:
    """The name of a file without its numbers."""
    if path.parent.name == "exports":
        return "export"
    if re.fullmatch("[0-9a-f]{64}", path.name):
        return "content"
    return re.sub(r"LOG\.old\..*", "LOG", re.sub("[0-9]+", "#", path.name))


@dataclass
class Lived:
    """An application that ran and was exported, and a copy of all its files."""

    rig: ExportRig
    kept: Path
    sent: int = 0

    @property
    def root(self) -> Path:
        return self.rig.root

    def files(self) -> dict[str, list[Path]]:
        """The files by kind, below the root."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.kept.rglob("*")):
            if path.is_file() and kind_of(path) not in UNREAD:
                found.setdefault(kind_of(path), []).append(path.relative_to(self.kept))
        return found

    def again(self) -> None:
        """Put all files back as they were."""
        for part in ("lives", "exports"):
            shutil.rmtree(self.root / part, ignore_errors=True)
            shutil.copytree(self.kept / part, self.root / part, symlinks=True)

    def run(self) -> None:
        """One more record, and a run to the end."""
        self.sent += 1
        self.rig.send((f"more-{self.sent % 3}", str(self.sent)))
        with self.rig.runtime as runtime:
            serve_run(runtime, keeping(), RunRequest(), Event(), serve_here)

    def check(self, case: str) -> None:
        """The stores have what their changelogs have."""
        for store in STORES:
            engine = RocksDatabases().read(self.rig.tasks.layout.store_dir(TASK, store))
            rows = dict(engine.table("data").scan())
            engine.close()
            assert rows == self.rig.tasks.changelog(store), f"{case}: {store} differs"


@contextmanager
def lived_in() -> Iterator[Lived]:
    """An application that ran twice and was exported in between."""
    with in_memory_folder() as folder:
        rig = ExportRig(folder / "rig")
        world = Lived(rig, folder / "kept")
        rig.send(*((f"k{number}", str(number)) for number in range(200)))
        world.run()
        rig.export()
        rig.send(("k1", "again"), ("gone", "1"), ("gone", ""))
        world.run()
        for part in ("lives", "exports"):
            shutil.copytree(rig.root / part, world.kept / part, symlinks=True)
        yield world


@pytest.fixture(scope="module")
def lived() -> Iterator[Lived]:
    with lived_in() as world:
        yield world


def test_every_kind_of_file_that_a_run_and_an_export_leave_is_mangled_here(lived: Lived) -> None:
    assert set(lived.files()) == set(KINDS)


def changed(lived: Lived, kind: str, number: int, seed: int = SEED) -> tuple[Path, str]:
    """Mangle a file of that kind; which one it is, and what to say of it."""
    chance = random.Random(f"{seed} {kind} {number}")
    path = lived.root / chance.choice(lived.files()[kind])
    lived.again()
    data = path.read_bytes()
    path.unlink()
    data = mangled(chance, data)
    path.write_bytes(data)
    return path, f"seed {seed}, number {number}: {path.name}: {data[:200]!r}"


@pytest.mark.parametrize("count", [1, pytest.param(25, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "kind", chosen_of(kind for kind in KINDS if kind not in {"export", "content"})
)
def test_a_run_on_a_mangled_file_is_right_or_is_refused_and_loses_nothing(
    lived: Lived, kind: str, count: int
) -> None:
    for number in range(count):
        run_over(lived, *changed(lived, kind, number))


def run_over(lived: Lived, path: Path, case: str) -> None:
    """Run on a file that was changed; if that is refused, once more with the right one."""
    try:
        try:
            lived.run()
        except StateStoreError:
            shutil.copyfile(lived.kept / path.relative_to(lived.root), path)
            lived.run()
        lived.check(case)
    except BaseException as error:
        error.add_note(f"bad input: {case}")
        raise


def verified(rig: ExportRig) -> None:
    """Read all files of the export, and open its stores."""
    exports = rig.exports
    exports.verify(exports.read(), NoProgress())


@pytest.mark.parametrize("count", [2, pytest.param(50, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["export", "content"])
def test_a_mangled_export_is_restored_as_it_was_or_refused(
    lived: Lived, kind: str, count: int
) -> None:
    rig = lived.rig
    for number in range(count):
        _, case = changed(lived, kind, number)
        shutil.rmtree(rig.tasks.layout.application_dir)
        try:
            for ask in (rig.restore, lambda: verified(rig), lived.run):
                try:
                    ask()
                except StateStoreError:
                    continue
            if rig.tasks.layout.application_dir.is_dir():
                lived.run()
                lived.check(case)
        except BaseException as error:
            error.add_note(f"bad input: {case}")
            raise
