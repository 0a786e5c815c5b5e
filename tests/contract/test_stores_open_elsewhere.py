"""Stores of an application that another process has open by `open_store` stay where they are (R2).

`open_store` takes no lock of an owner, so only RocksDB's own lock tells of it. Whatever would move
or remove a store refuses before anything has changed, and the process closes its store in peace.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import statestore as ss
from statestore.errors import Locked
from statestore.layout.folders import StateLayout
from statestore.operations.clones.clone import clone_export, drop_clone
from statestore.operations.exports.create import create_export, create_export_for_clones
from statestore.operations.exports.restore_export import Choice, restore_export
from statestore.operations.relocation.apply import relocate
from statestore.operations.relocation.relocation_plan import Choices
from statestore.operations.reset import ResetTo, reset
from statestore.operations.rewriting.upgrade import upgrade_to_versioned
from statestore.runtime import Runtime
from tests.builders import DEADLINE_S
from tests.contract.test_all_stores_beside import World, begun, every_store
from tests.relocation_rig import in_memory_folder

pytestmark = pytest.mark.timeout(900)

_CHILD = """
import sys
import statestore as ss
from statestore import serdes
spec = ss.persistent_key_value_store(
    "mere", key_serde=serdes.STRING, value_serde=serdes.JSON
)
store = ss.open_store(spec, sys.argv[1])
store.put("theirs", 1)
print("open", flush=True)
sys.stdin.readline()
store.commit()
store.close()
"""


def held_open(layout: StateLayout) -> AbstractContextManager[None]:
    (folder,) = [layout.stores_dir(t) for t in layout.tasks() if "mere" in layout.stores(t)]
    return held_open_in(folder)


@contextmanager
def held_open_in(folder: Path) -> Iterator[None]:
    """Another process has the store `mere` open; it commits and closes it at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        try:
            yield
        finally:
            _, said = child.communicate("close\n", timeout=DEADLINE_S)
    assert (child.returncode, said) == (0, "")


@pytest.fixture
def world() -> Iterator[World]:
    with in_memory_folder() as folder:
        yield begun(folder)


def told(root: Path) -> dict[str, int]:
    """Every folder and what tells of an application, without locks and who had them."""
    return {
        str(path.relative_to(root)): path.stat().st_ino
        for path in root.rglob("*")
        if path.is_dir() or path.name in {"topology.json", "relocation.json", "reset.json"}
    }


def _restored(runtime: Runtime) -> None:
    restore_export(runtime, choice=Choice(replace=True))


OPERATIONS: dict[str, Callable[[Runtime], object]] = {
    "relocate": lambda r: relocate(
        r, every_store(moved=True), Choices(), dry_run=False, offline=False
    ),
    "relocate --offline": lambda r: relocate(
        r, every_store(moved=True), Choices(), dry_run=False, offline=True
    ),
    "restore": _restored,
    "upgrade-to-versioned": lambda r: upgrade_to_versioned(r, "mere", 1000, dry_run=False),
    "reset": lambda r: reset(r, ResetTo(earliest=True)),
}


def test_nothing_moves_while_another_process_has_a_store_open(world: World) -> None:
    logs = [f"app-{store}-changelog" for store in every_store().stores]
    with world.runtime() as runtime:
        create_export(runtime)
        with held_open(StateLayout(world.state_dir, "app")):
            before = told(world.state_dir), runtime.cluster.partitions(logs)
            for operation in OPERATIONS.values():
                with pytest.raises(Locked, match=r"mere is open in another process.*close it"):
                    operation(runtime)
                assert (told(world.state_dir), runtime.cluster.partitions(logs)) == before
        for operation in OPERATIONS.values():
            operation(runtime)


@pytest.mark.thorough
def test_a_store_open_in_this_process_stays_open_and_where_it_is(world: World) -> None:
    layout = StateLayout(world.state_dir, "app")
    (task,) = [task for task in layout.tasks() if "mere" in layout.stores(task)]
    spec = ss.persistent_key_value_store("mere")
    with (
        world.runtime() as runtime,
        ss.open_store(spec, layout.stores_dir(task)) as store,
    ):
        with pytest.raises(Locked, match=r"mere is open in this process"):
            OPERATIONS["relocate --offline"](runtime)
        store.put(b"mine", b"1")
        store.commit()
    with world.runtime() as runtime:
        OPERATIONS["relocate --offline"](runtime)


@pytest.mark.thorough
def test_a_clone_of_which_another_process_has_a_store_open_is_not_dropped(world: World) -> None:
    with world.runtime() as runtime:
        create_export_for_clones(runtime, every_store())
        clone_export(runtime, every_store(), "trial")
    with world.runtime("trial") as runtime:
        with (
            held_open(StateLayout(world.state_dir, "trial")),
            pytest.raises(Locked, match="another process"),
        ):
            drop_clone(runtime)
        assert drop_clone(runtime)


@pytest.mark.thorough
def test_a_quarantined_store_that_is_looked_at_is_not_swept(world: World) -> None:
    layout = StateLayout(world.state_dir, "app")
    with world.runtime() as runtime:
        upgrade_to_versioned(runtime, "mere", 1000, dry_run=False)
    ((folder, record),) = layout.quarantined()
    layout.mark_restored(folder, record, 0)
    aside = folder.with_name("mere")
    folder.rename(aside)  # `open_store` looks for the folder by the store's name.
    with held_open_in(aside.parent):
        assert layout.sweep_quarantine(0, 1) == []
    assert layout.sweep_quarantine(0, 1) == [aside]
