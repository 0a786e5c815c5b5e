"""Settings in, ready things out: stores, stream tasks, runs.

The only module that names concrete edges.

`open_store` and `run` are public. A Spark job uses `start_run` in the driver and `serve_planned` in
its workers; `run` does both in this process: same lock, same guarantees.
"""

import dataclasses
import importlib
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from statestore.engines.rocks_files import link_store
from statestore.errors import Action, Misuse, PipelineNotFound, StateStoreError
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.clients import Trouble, consumer, producer
from statestore.kafka.outbox import PlainOutbox, TransactionalOutbox
from statestore.kafka.source import KafkaSource
from statestore.kafka.topics import KafkaCluster
from statestore.layout.folders import StateLayout
from statestore.model import IsolationLevel, Serde, Span, Time, span_ms, to_ms
from statestore.opening import (
    is_empty,
    open_built_in,
    open_files,
    options_hook,
    read_offsets,
)
from statestore.operations.at_rest import StoresAtRest, existing_application
from statestore.operations.relocate import Choices
from statestore.operations.relocate_apply import Relocation, RelocationReport
from statestore.operations.run import PlannedTask, Run, RunRequest, RunSummary, check_shared
from statestore.operations.snapshot_store import SnapshotKeyValueStore
from statestore.operations.snapshots import Snapshots
from statestore.ports import Clock
from statestore.settings import Settings, expand
from statestore.stores import idle
from statestore.stores.built_in import BuiltIn
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import BuiltInSpec, KeyValueSpec, VersionedSpec
from statestore.stores.versioned import TransactionalVersionedStore
from statestore.tasks.budget import Share, Slot
from statestore.tasks.lifecycle import StreamTask
from statestore.tasks.plan import TaskEdges, TaskPlan, TaskReport, transactional_id
from statestore.tasks.slot import serve
from statestore.topology.graph import TopicName, Topology

K = TypeVar("K")
V = TypeVar("V")
LATEST: Literal["latest"] = "latest"


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


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
def open_store(
    spec: BuiltInSpec,
    directory: str | Path | None = None,
    *,
    isolation_level: IsolationLevel | str | None = None,
    settings: Settings | Mapping[str, object] | None = None,
) -> BuiltIn:
    """Open a store on its own, in `<directory>/<name>`.

    It has no changelog, so RocksDB's log is on.

    Raises Locked while another process has it open, TaskCorrupted if its files are not a whole
    store.
    """
    known = Settings.of(settings)
    level = known.effective_isolation_level if isolation_level is None else isolation_level
    if spec.persistent and directory is None:
        raise Misuse(f"store {spec.name!r} is persistent: pass the directory it lives in")
    path = None if directory is None else Path(directory) / spec.name
    wal = known.write_ahead_log is not False
    store = open_built_in(spec, path, known, SystemClock(), wal=wal, level=IsolationLevel(level))
    if spec.persistent and not wal:
        idle.watch(store.staged)
    return store


def run(
    topology: Topology,
    settings: Settings | Mapping[str, object],
    *,
    until: Literal["latest"] | Time = LATEST,
    run_for: Span | None = None,
    stop: threading.Event | None = None,
) -> RunSummary:
    """Process what the input topics hold, in this process, exactly as a Spark run would.

    `until`: up to the log's end at the start of each wave, or the first record at or after that
    time; `run_for`: go on for that span instead. Raises what errors.py lists; nothing is half done.
    """
    known = Settings.of(settings)
    summary = RunSummary(known.application_id)
    stop = stop or threading.Event()
    request = run_request(until=until, run_for=run_for)
    with start_run(topology, known, request) as started:
        for wave in started.waves():
            if stop.is_set():
                summary.caught_up = False
                break
            summary.add(serve_planned(topology, known, wave, request, slots=1, stop=stop))
    return summary


def run_request(
    *,
    until: Literal["latest"] | Time = LATEST,
    run_for: Span | None = None,
    accept_new_topology: bool = False,
    accept_empty_changelog: bool = False,
) -> RunRequest:
    """The request of a run from public types."""
    if until != LATEST and run_for is not None:
        raise Misuse("until and run_for exclude each other: a continuous run has no planned end")
    return RunRequest(
        until_ms=None if isinstance(until, str) else to_ms(until),
        run_for_ms=None if run_for is None else span_ms(run_for),
        accept_new_topology=accept_new_topology,
        accept_empty_changelog=accept_empty_changelog,
    )


def start_run(topology: Topology, settings: Settings, request: RunRequest) -> Run:
    """The driver's side of a run: enter it, and it holds the application lock."""
    settings.require("application.id", "bootstrap.servers", "state.dir")
    _check_client_settings(settings)
    options_hook(settings, "")
    return Run(
        topology,
        settings,
        _layout(settings),
        KafkaCluster(settings),
        SystemClock(),
        request,
        is_empty=is_empty,
    )


def serve_planned(
    topology: Topology,
    settings: Settings,
    planned: Sequence[PlannedTask],
    request: RunRequest,
    *,
    slots: int,
    stop: threading.Event,
) -> list[TaskReport]:
    """The worker's side: run these stream tasks here.

    `slots`: how many slots share this host's memory.
    """
    clock, layout = SystemClock(), _layout(settings)
    for task in planned:
        check_shared(layout, task)
    slot = Slot(Share.of(settings, slots))
    tasks = [
        StreamTask(
            _task_plan(topology, task, request, slots),
            _edges(settings, task, clock, slots),
            settings,
            layout,
            slot,
        )
        for task in planned
    ]
    return serve(tasks, run_for_ms=request.run_for_ms, stop=stop, clock=clock)


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
    return Snapshots(_layout(settings), settings, SystemClock(), link_store, read_offsets)


def relocate(
    topology: Topology, settings: Settings, choices: Choices, *, dry_run: bool, offline: bool
) -> RelocationReport:
    """Move the state of a stopped application to where `topology` looks for it (SEMANTICS R1-R5).

    `dry_run`: nothing is touched, and no broker asked. `offline`: no broker is asked, so every
    stream task must have been closed cleanly.
    """
    settings.require("application.id", "state.dir")
    layout = existing_application(_layout(settings))
    cluster = None if dry_run or offline else _checked_cluster(settings)
    try:
        relocation = Relocation(
            topology,
            layout,
            SystemClock(),
            settings.processing_guarantee,
            None if cluster is None else cluster.settle,
            lock_wait_ms=settings.lock_wait_ms,
            locks=settings.volume_locks,
            counts=None if cluster is None else _partition_counts(topology, cluster),
            choices=choices,
            is_empty=is_empty,
        )
        return relocation.report() if dry_run else relocation.apply_locked()
    finally:
        if cluster is not None:
            cluster.close()


def load_pipeline(path: str) -> Topology:
    """The topology of `module:function`; PipelineNotFound says what could not be found."""
    module_name, _, function_name = path.partition(":")
    if not module_name or not function_name:
        raise PipelineNotFound(
            f"pipeline {path!r}: want module:function, such as shop.orders:topology"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PipelineNotFound(
            f"pipeline {path!r}: cannot import {module_name!r} ({error}): "
            "is it on PYTHONPATH of driver and workers?"
        ) from error
    except StateStoreError:
        raise
    except Exception as error:
        raise _broken_pipeline(path, f"importing {module_name!r}", error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise PipelineNotFound(
            f"pipeline {path!r}: {module_name} has no function {function_name!r}"
        )
    try:
        topology = function()
    except StateStoreError:
        raise
    except Exception as error:
        raise _broken_pipeline(path, f"calling {function_name!r}", error) from error
    if not isinstance(topology, Topology):
        raise PipelineNotFound(
            f"pipeline {path!r} returned {type(topology).__name__}, not a Topology: "
            "return b.build()"
        )
    return topology


def failure(error: BaseException) -> dict[str, object]:
    """An error as the JSON line and the summary file carry it."""
    known = isinstance(error, StateStoreError)
    return {
        "class": type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code if isinstance(error, StateStoreError) else 1,
        "action": str(error.action if isinstance(error, StateStoreError) else Action.RETRY),
        "foreseen": known,
    }


def summary_fields(summary: RunSummary) -> dict[str, Any]:
    """The summary as JSON-ready fields."""
    return asdict(summary)


def _check_client_settings(settings: Settings) -> None:
    """What the clients would refuse later, in a worker, is refused before anything starts."""
    consumer(settings, settings.application_id, Trouble()).close()
    producer(settings, {}, Trouble())


def _checked_cluster(settings: Settings) -> KafkaCluster:
    settings.require("bootstrap.servers")
    cluster = KafkaCluster(settings)
    cluster.check()
    return cluster


def _partition_counts(topology: Topology, cluster: KafkaCluster) -> Mapping[TopicName, int]:
    read, _ = topology.topics()
    return topology.partition_counts(cluster.partitions(sorted(read)))


def _broken_pipeline(path: str, doing: str, error: Exception) -> PipelineNotFound:
    *_, last = traceback.extract_tb(error.__traceback__)
    return PipelineNotFound(
        f"pipeline {path!r}: {doing} raised {type(error).__name__}: {error} "
        f"({last.filename}, line {last.lineno}): correct the pipeline"
    )


def _task_plan(
    topology: Topology, planned: PlannedTask, request: RunRequest, slots: int
) -> TaskPlan:
    ends = planned.ends()
    return TaskPlan(
        planned.task_id,
        topology.sub_topologies[planned.task_id.sub_topology],
        topology.stores,
        tuple(ends),
        ends if planned.bounded else None,
        slots,
        accept_empty_changelog=request.accept_empty_changelog,
    )


def _edges(settings: Settings, planned: PlannedTask, clock: Clock, slots: int) -> TaskEdges:
    group_id = settings.application_id
    outbox = (
        TransactionalOutbox(
            settings,
            transactional_id=transactional_id(group_id, planned.task_id),
            group_id=group_id,
        )
        if settings.exactly_once
        else PlainOutbox(settings, group_id=group_id)
    )

    def open_task_store(spec: BuiltInSpec, path: Path) -> BuiltIn:
        level = settings.effective_isolation_level
        wal = settings.write_ahead_log is True
        return open_built_in(
            spec, path, settings, clock, slots=slots, wal=wal, level=level, task=planned.task
        )

    return TaskEdges(
        KafkaSource(settings, group_id=group_id),
        outbox,
        KafkaChangelog(settings),
        KafkaCluster(settings),
        clock,
        open_task_store,
        link_store,
    )


def _layout(settings: Settings) -> StateLayout:
    return StateLayout(Path(expand(settings.state_dir, "state.dir")), settings.application_id)
