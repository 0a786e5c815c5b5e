"""Stores looked at from outside: snapshots of the live ones, and files at rest."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from statestore.assembly.opening import open_files, read_offsets
from statestore.assembly.surroundings import SystemClock, exports_of, layout_of
from statestore.engines.rocks_files import link_store
from statestore.model.records import Serde
from statestore.operations.at_rest import StoresAtRest, spec_of
from statestore.operations.exports.catalog import FetchedStore, find
from statestore.operations.snapshot_store import HeldFiles, SnapshotKeyValueStore
from statestore.operations.snapshot_versions import SnapshotVersionedStore
from statestore.operations.snapshot_windows import SnapshotWindowStore
from statestore.operations.snapshots import Snapshots
from statestore.settings import Settings
from statestore.stores.specs import KeyValueSpec, VersionedSpec, WindowSpec


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
) -> (
    SnapshotKeyValueStore[Any, Any]
    | SnapshotVersionedStore[Any, Any]
    | SnapshotWindowStore[Any, Any]
):
    """A store of an application as it was committed last, read-only, whether or not a run is on.

    What it gives is a ReadOnlyKeyValueStore, a ReadOnlyVersionedKeyValueStore or a WindowStore, by
    what the deployed topology says of the store.
    `partition`: None is all of them. `export`: the id of an export at `statestore.export.target`,
    or "latest", in place of the live store; `state_dir` is not looked into then. Serdes not given
    are those of the deployed topology.
    Unavailable if the owner of a task takes no snapshot in time, UnknownStore names what there is.
    """
    known = dataclasses.replace(
        Settings.of(settings), state_dir=str(state_dir), application_id=application_id
    )
    files: Iterator[HeldFiles]
    if export is None:
        with closing(stores_at_rest(known)) as looked:
            spec = spec_of(looked.deployed, store, key_serde, value_serde)
            tasks = looked.find(store, partition, kind=spec.kind)
        snapshots = snapshots_of(known)
        files = (snapshots.take(task) for task in tasks)
    else:
        exports = exports_of(known)
        manifest = exports.read(export)
        spec = spec_of(manifest.deployed, store, key_serde, value_serde)
        found = find(manifest, store, partition, kind=spec.kind)
        files = (FetchedStore(exports, at) for at in found)
    with ExitStack() as taken:
        opened = []
        for one in files:
            taken.callback(one.release)
            opened.append(one)
        taken.pop_all()
    match spec:
        case KeyValueSpec():
            return SnapshotKeyValueStore(spec, opened, open_files)
        case VersionedSpec():
            return SnapshotVersionedStore(spec, opened, open_files)
        case WindowSpec():
            return SnapshotWindowStore(spec, opened, open_files)


def stores_at_rest(settings: Settings) -> StoresAtRest:
    """The stores of an application, to look at from outside."""
    return StoresAtRest(snapshots_of(settings), open_files)


def snapshots_of(settings: Settings) -> Snapshots:
    """Takes snapshots of its stream tasks."""
    return Snapshots(layout_of(settings), settings, SystemClock(), link_store, read_offsets)
