"""Checks that deployed stores can continue under their names in another topology (T1a).

`topology.json` says what each store was; its files say so more reliably, if there are any. The
check is made before anything moves, and whenever the topology is about to be written (I9, I15,
I28).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from statestore.errors import StateStoreError, TopologyMismatch
from statestore.layout import owners
from statestore.model.ids import TaskId
from statestore.operations.deployed import DeployedStore, read_deployed
from statestore.operations.environment import Environment
from statestore.stores import keyvalue, offsets, serdes
from statestore.stores.offsets import Format
from statestore.stores.specs import StoreSpec, StoreSupplier, VersionedSpec
from statestore.stores.versioned import layout as versioned_layout
from statestore.topology.graph import Topology

_UPGRADE = (keyvalue.KIND, versioned_layout.KIND)
"""The only change of kind that is possible: `upgrade-to-versioned` sets the plain stores aside."""


class KeptStores:
    """The stores of a topology that were deployed before, or that lie on disk."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology,
        renames: Mapping[str, str],
        has_records: Callable[[str], bool],
        *,
        accept_new_serdes: bool = False,
    ) -> None:
        """`renames`: old names to new ones. `has_records`: whether a store's log may hold any."""
        self._topology = topology
        self._renames = renames
        self._has_records = has_records
        self._accept_new_serdes = accept_new_serdes
        self._layout = environment.layout
        self._locks = environment.settings.volume_locks
        self._databases = environment.databases
        self._previous = read_deployed(environment.layout)

    def check(self) -> None:
        """Misuse or TopologyMismatch names a store that cannot continue, and the way out."""
        old_names = {new: old for old, new in self._renames.items()}
        on_disk: dict[str, list[TaskId]] = defaultdict(list)
        for task in self._layout.tasks():
            for found in self._layout.stores(task):
                on_disk[self._renames.get(found, found)].append(task)
        for name, spec in self._topology.stores.items():
            old_name = old_names.get(name, name)
            known = self._previous.stores.get(old_name) or self._previous.stores.get(name)
            self._check_kind(name, spec, known, list(self._folders(name, old_name, on_disk[name])))
            if known is not None and known.kind == spec.kind and not self._accept_new_serdes:
                self._check_serdes(name, spec, known)

    def _folders(
        self, name: str, old_name: str, tasks: list[TaskId]
    ) -> Iterator[tuple[TaskId, Path]]:
        for task in tasks:
            for one in dict.fromkeys((name, old_name)):
                path = self._layout.store_dir(task, one)
                if path.is_dir():
                    yield task, path

    def _check_kind(
        self,
        name: str,
        spec: StoreSpec,
        known: DeployedStore | None,
        folders: list[tuple[TaskId, Path]],
    ) -> None:
        """Compare the kind with what lies on disk; if nothing does, with what was deployed."""
        if isinstance(spec, StoreSupplier):
            return  # Only its class knows what it can read.
        asked = isinstance(spec, VersionedSpec) and spec.segment_interval_ms is not None
        if known is not None and known.kind == spec.kind and not asked:
            return
        formats = [(path, found) for task, path in folders if (found := self._looked(task, path))]
        for path, found in formats:
            if found.kind != spec.kind:
                raise offsets.other_kind(path, found.kind, spec.kind)
            if isinstance(spec, VersionedSpec):
                spec.interval_ms(found.segment_interval_ms)
        if known is None or formats or known.kind == spec.kind:
            return
        if (known.kind, spec.kind) != _UPGRADE:
            raise TopologyMismatch(
                f"store {name}: it and its changelog were deployed as {known.kind} ones, the "
                f"pipeline makes it a {spec.kind} one: give it another name to start empty"
            )

    def _looked(self, task: TaskId, path: Path) -> Format | None:
        """What the folder holds; None if it is no store of ours or cannot be looked into now.

        Its task judges it then.
        """
        folder = self._layout.task_dir(task)
        with (
            suppress(StateStoreError),
            owners.at_rest(folder, what=f"task {task}", wait_ms=0, locks=self._locks),
        ):
            return self._databases.format_of(path)
        return None

    def _check_serdes(self, name: str, spec: StoreSpec, known: DeployedStore) -> None:
        sides = {
            "keys": (_plain(known.key_serde), _plain(spec.key_serde.name)),
            "values": (known.value_serde, spec.value_serde.name),
        }
        changed = [
            f"its {side} were written as {was} and would be read as {now}"
            for side, (was, now) in sides.items()
            if was != now
        ]
        if changed and self._has_records(name):
            raise TopologyMismatch(
                f"store {name}: {' and '.join(changed)}: keep the serde, or give the store another "
                "name, to start it empty; if the new serde reads what the old one wrote, pass "
                "--accept-new-serdes"
            )


def _plain(serde: str) -> str:
    """The serde of the keys inside windows; windows of another size are refused elsewhere."""
    of_windows = serdes.of_windowed(serde)
    return serde if of_windows is None else of_windows.inner
