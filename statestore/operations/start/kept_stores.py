"""Checks that deployed stores can continue under their names in another topology (T1a).

`topology.json` says what each store was; its files say so more reliably, if there are any. The
check is made before anything moves, and whenever the topology is about to be written (I9, I15,
I28).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from statestore.errors import StateStoreError, TopologyMismatch
from statestore.layout import owners
from statestore.model.ids import TaskId
from statestore.operations.deployed import (
    DeployedStore,
    DeployedWriter,
    read_deployed,
    writers_in,
)
from statestore.operations.environment import Environment
from statestore.operations.start import kept_serdes
from statestore.stores import keyvalue, offsets
from statestore.stores.kinds.registry import kind_of
from statestore.stores.offsets import Format
from statestore.stores.specs import StoreSpec
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

    def check(self) -> "Kept":
        """Misuse or TopologyMismatch names a store that cannot continue, and the way out."""
        old_names = {new: old for old, new in self._renames.items()}
        on_disk: dict[str, list[TaskId]] = defaultdict(list)
        for task in self._layout.tasks():
            for found in self._layout.stores(task):
                on_disk[self._renames.get(found, found)].append(task)
        kept = Kept({}, [])
        for name, spec in self._topology.stores.items():
            old_name = old_names.get(name, name)
            known = self._previous.stores.get(old_name) or self._previous.stores.get(name)
            self._check_kind(name, spec, known, list(self._folders(name, old_name, on_disk[name])))
            if known is not None and known.kind == spec.kind:
                self._check_serdes(name, spec, known, kept)
        return kept

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
        kind, is_same = kind_of(spec), known is not None and known.kind == spec.kind
        if not kind.is_readable:
            return  # Only its class knows what it can read.
        if is_same and not kind.asks_files(spec):
            return
        formats = [(path, found) for task, path in folders if (found := self._looked(task, path))]
        for path, found in formats:
            if found.kind != spec.kind:
                raise offsets.other_kind(path, found.kind, spec.kind)
            kind.check_files(spec, found)
        if known is None or formats or is_same:
            return
        if (known.kind, spec.kind) != _UPGRADE:
            raise TopologyMismatch(
                f"store {name}: it and its changelog were deployed as {known.kind} ones, the "
                f"pipeline makes it a {spec.kind} one: give it another name to start empty"
            )

    def _looked(self, task: TaskId, path: Path) -> Format | None:
        """What the folder holds; None if it is not a store of ours or cannot be looked into now.

        Its task judges it then.
        """
        folder = self._layout.task_dir(task)
        with (
            suppress(StateStoreError),
            owners.at_rest(folder, what=f"task {task}", wait_ms=0, locks=self._locks),
        ):
            return self._databases.format_of(path)
        return None

    def _check_serdes(self, name: str, spec: StoreSpec, known: DeployedStore, kept: "Kept") -> None:
        """Add to `kept` what wrote the store's values, and what changed without harm."""
        keys, values = kept_serdes.keys_unlike(known, spec), kept_serdes.values_unread(known, spec)
        was, now = known.writers(), writers_in(spec)
        if (keys or values or any(one not in now for one in was)) and not self._has_records(name):
            kept.writers[name] = now  # Nothing is there that anybody wrote.
            return
        if keys or values:
            if not self._accept_new_serdes or (values is not None and values.certain):
                told = " and ".join(one.what for one in (keys, values) if one is not None)
                way_out = (values or keys or kept_serdes.NO_REASON).way_out
                raise TopologyMismatch(f"store {name}: {told}: {way_out}")
            kept.told.append(f"store {name}: its serdes changed, which was accepted")
        else:
            now = was + [one for one in now if one not in was]
            kept.told.extend(f"store {name}: {what}" for what in kept_serdes.harmless(known, spec))
        kept.writers[name] = now


class Kept(NamedTuple):
    """What the stores of a topology are like that it takes over.

    `writers`: by store, what may have written values that are there. `told`: changes of serdes that
    do no harm, as text.
    """

    writers: dict[str, list[DeployedWriter]]
    told: list[str]
