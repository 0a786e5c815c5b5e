"""The public functions that take settings: run a topology, open a store, open a snapshot.

Each makes a `Runtime` of its own. The names are those of `import statestore as ss`.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from statestore.errors import Misuse
from statestore.extras import offered
from statestore.model.modes import IsolationLevel, Span, Time
from statestore.model.records import Serde
from statestore.operations.exports.catalog import Exports, FetchedStore, find_exported
from statestore.operations.looking.at_rest import HeldFiles, StoresAtRest, open_reader
from statestore.operations.looking.task_snapshots import Snapshots
from statestore.operations.pipelines import serdes_of
from statestore.operations.running.continuous import serve_run
from statestore.operations.running.run import Run, RunSummary
from statestore.operations.running.runner import LATEST, run_request, serve_here
from statestore.operations.shipping import packed
from statestore.reading.views import StoreView
from statestore.runtime import Runtime, SystemClock
from statestore.runtime.databases import open_built_in
from statestore.runtime.workers import check_workers, serve_by_workers
from statestore.settings import Settings
from statestore.stores import durability
from statestore.stores.contracts import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedKeyValueStore,
    ReadOnlyWindowStore,
)
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.kinds.opening import within
from statestore.stores.kinds.registry import expires, kind_of
from statestore.stores.sessions import TransactionalSessionStore
from statestore.stores.specs import (
    KeyValueSpec,
    SessionSpec,
    StoreSpec,
    VersionedSpec,
    WindowSpec,
)
from statestore.stores.versioned.store import TransactionalVersionedStore
from statestore.stores.windows import TransactionalWindowStore
from statestore.tasks.slot import Ending
from statestore.topology.graph import Topology, require_topology

K = TypeVar("K")
V = TypeVar("V")


def run(
    topology: Topology,
    settings: Settings | Mapping[str, object],
    *,
    until: Literal["latest"] | Time = LATEST,
    run_for: Literal["forever"] | Span | None = None,
    stop: threading.Event | None = None,
    workers: int = 1,
    spark: Any = None,
) -> RunSummary:
    """Process what the input topics hold: in this process, in others, or in Spark's.

    `until`: stop at the end that each log has when its wave starts, or at the first record of that
    time or later. `run_for`: continue for that span instead, or "forever". `stop`: an event that
    ends the run after a commit. `workers`: over how many processes of this machine to spread the
    stream tasks; 1 stands for this process. `spark`: a session, also one of Spark Connect.
    Functions of a notebook or a script travel to workers of either kind. Raises the errors of
    errors.py, Misuse for arguments that exclude each other; an error leaves nothing half done.
    """
    require_topology("run", topology)
    check_workers(workers)
    if spark is not None:
        if stop is not None:
            raise Misuse("stop= does not reach Spark's workers: leave it out, or pass run_for=")
        if workers > 1:
            raise Misuse("workers= and spark= exclude each other: Spark has workers of its own")
        over_spark: Callable[..., RunSummary] = offered("spark=")
        return over_spark(topology, Settings.of(settings), spark, until=until, run_for=run_for)
    request = run_request(until=until, run_for=run_for)
    pipeline = packed(topology) if workers > 1 else b""

    def serve(started: Run, ending: Ending) -> RunSummary:
        if pipeline:
            return serve_by_workers(started, pipeline, workers, ending)
        return serve_here(started, ending)

    with Runtime(settings) as runtime:
        return serve_run(runtime, topology, request, stop or threading.Event(), serve)


@overload
def open_store(
    spec: KeyValueSpec[K, V],
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> TransactionalKeyValueStore[K, V]: ...
@overload
def open_store(
    spec: VersionedSpec[K, V],
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> TransactionalVersionedStore[K, V]: ...
@overload
def open_store(
    spec: WindowSpec[K, V],
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> TransactionalWindowStore[K, V]: ...
@overload
def open_store(
    spec: SessionSpec[K, V],
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> TransactionalSessionStore[K, V]: ...
def open_store(
    spec: StoreSpec,
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> BuiltIn:
    """Open a store on its own, in `<directory>/<name>`.

    The store has no changelog, so RocksDB's write-ahead log is on. Raises Locked while another
    process has the store open, TaskCorrupted if its files are not a whole store, Misuse if a
    persistent store is given no directory or a store is to expire its rows.
    """
    known = Settings.of(settings)
    level = known.effective_isolation_level if isolation_level is None else isolation_level
    if spec.persistent and directory is None:
        raise Misuse(f"store {spec.name!r} is persistent: pass the directory it lives in")
    if expires(spec):
        raise Misuse(
            f"store {spec.name!r}: ttl goes by the stream time of a task, which a store on its "
            "own does not have: leave it out, or give the store to process()"
        )
    path = None if directory is None else Path(directory) / spec.name
    wal = known.write_ahead_log is not False
    store = open_built_in(spec, path, known, SystemClock(), wal=wal, level=IsolationLevel(level))
    if spec.persistent and not wal:
        durability.watch(store.staged)
    return store


@overload
def open_snapshot(
    state_dir: str | Path,
    application_id: str,
    store: KeyValueSpec[K, V],
    *,
    partition: int | None = None,
    export: str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> ReadOnlyKeyValueStore[K, V]: ...
@overload
def open_snapshot(
    state_dir: str | Path,
    application_id: str,
    store: VersionedSpec[K, V],
    *,
    partition: int | None = None,
    export: str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> ReadOnlyVersionedKeyValueStore[K, V]: ...
@overload
def open_snapshot(
    state_dir: str | Path,
    application_id: str,
    store: WindowSpec[K, V],
    *,
    partition: int | None = None,
    export: str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> ReadOnlyWindowStore[K, V]: ...
@overload
def open_snapshot(
    state_dir: str | Path,
    application_id: str,
    store: SessionSpec[K, V],
    *,
    partition: int | None = None,
    export: str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> ReadOnlySessionStore[K, V]: ...
@overload
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
    topology: Topology | None = None,
) -> Any: ...
def open_snapshot(
    state_dir: str | Path,
    application_id: str,
    store: str | StoreSpec,
    *,
    partition: int | None = None,
    export: str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
    key_serde: Serde[Any] | None = None,
    value_serde: Serde[Any] | None = None,
    topology: Topology | None = None,
) -> Any:
    """Open a store of an application as it was last committed, read-only, beside a run or not.

    The result is a ReadOnlyKeyValueStore, a ReadOnlyVersionedKeyValueStore, a ReadOnlyWindowStore
    or a ReadOnlySessionStore. `store` is the spec with which the pipeline makes it, which says its
    type and its serdes, or its name: then the deployed topology says which of them it is.
    `partition`: None stands for all of them. `export`: the id of an export at
    `statestore.export.target`, or "latest", to read instead of the live store; `state_dir` is then
    not used. Serdes that are not given are those of `topology`, or without it those that the
    deployed topology names.
    Unavailable if the owner of a task takes no snapshot in time; UnknownStore names the stores that
    exist; Misuse if a spec is of another kind than the store.
    """
    given = None if isinstance(store, str) else store
    name = store if isinstance(store, str) else store.name
    known = dataclasses.replace(
        Settings.of(settings), state_dir=str(state_dir), application_id=application_id
    )
    if given is not None:
        key_serde = key_serde or kind_of(given).keys(given)
        value_serde = value_serde or given.value_serde
    elif topology is not None:
        found = serdes_of(require_topology("open_snapshot", topology), name, application_id)
        key_serde, value_serde = key_serde or found.key, value_serde or found.value
    # It opens neither a broker nor a file that has to be closed.
    runtime = Runtime(known)
    files: Iterator[HeldFiles]
    if export is None:
        with closing(StoresAtRest(runtime)) as looked:
            view = StoreView.of(looked.deployed, application_id, name)
            spec = _as_deployed(given, view, view.spec_with(key_serde, value_serde))
            tasks = looked.find(name, partition, kind=spec.kind)
        snapshots = Snapshots(runtime)
        files = (snapshots.take(task) for task in tasks)
    else:
        exports = Exports.of(runtime)
        manifest = exports.read(export)
        view = StoreView.of(manifest.deployed, application_id, name)
        spec = _as_deployed(given, view, view.spec_with(key_serde, value_serde))
        exported = find_exported(manifest, name, partition, kind=spec.kind)
        files = (FetchedStore(exports, at) for at in exported)
    spec = within(spec, application_id)
    with ExitStack() as taken:
        opened = []
        for one in files:
            taken.callback(one.release)
            opened.append(one)
        taken.pop_all()
    return open_reader(spec, opened, runtime.databases.read)


def _as_deployed(given: StoreSpec | None, view: StoreView, deployed: StoreSpec) -> StoreSpec:
    """Return the deployed spec, or the given one if nothing was deployed; Misuse if they differ."""
    if given is None:
        return deployed
    if view.known is None:
        return given
    if given.kind != deployed.kind:
        raise Misuse(
            f"store {view.name!r} is a {view.kind.name} store, and the spec is one of a "
            f"{kind_of(given).name} store: pass the spec with which the pipeline makes it"
        )
    return deployed
