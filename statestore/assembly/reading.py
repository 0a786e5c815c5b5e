"""Stores looked at from outside: snapshots of the live ones, and files at rest."""

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from statestore.assembly.opening import open_files, read_offsets
from statestore.assembly.surroundings import SystemClock, layout_of
from statestore.engines.rocks_files import link_store
from statestore.errors import Misuse
from statestore.model import Serde
from statestore.operations.at_rest import StoresAtRest
from statestore.operations.snapshot_store import SnapshotKeyValueStore
from statestore.operations.snapshots import Snapshots
from statestore.settings import Settings


def open_snapshot(
    state_dir: str | Path,
    application_id: str,
    store: str,
    *,
    partition: int | None = None,
    export: str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
    key_serde: Serde[Any] | None = None,
    value_serde: Serde[Any] | None = None,
) -> SnapshotKeyValueStore[Any, Any]:
    """A store of an application as it was committed last, read-only, whether or not a run is on.

    `partition`: None is all of them. Serdes not given are those of the deployed topology.
    Unavailable if the owner of a task takes no snapshot in time, UnknownStore names what there is.
    """
    if export is not None:
        raise Misuse("export=… is not there yet: leave it out to read the live store")
    known = dataclasses.replace(
        Settings.of(settings), state_dir=str(state_dir), application_id=application_id
    )
    with closing(stores_at_rest(known)) as looked:
        tasks = looked.find(store, partition)
        spec = looked.spec(store, key_serde, value_serde)
    snapshots = _snapshots(known)
    with ExitStack() as taken:
        found = [taken.enter_context(snapshots.take(task)) for task in tasks]
        opened = SnapshotKeyValueStore(spec, found, open_files)
        taken.pop_all()
    return opened


def stores_at_rest(settings: Settings) -> StoresAtRest:
    """The stores of an application, to look at from outside."""
    return StoresAtRest(_snapshots(settings), open_files)


def _snapshots(settings: Settings) -> Snapshots:
    return Snapshots(layout_of(settings), settings, SystemClock(), link_store, read_offsets)
