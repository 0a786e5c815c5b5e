"""A run put together: settings in; the driver's side, and the worker's side of it, out."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from statestore.assembly.opening import format_of, is_empty, open_built_in, options_hook
from statestore.assembly.surroundings import SystemClock, layout_of
from statestore.engines.rocks_files import link_store
from statestore.errors import Action, Misuse, StateStoreError
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.clients import Trouble, consumer, producer
from statestore.kafka.outbox import PlainOutbox, TransactionalOutbox
from statestore.kafka.source import KafkaSource
from statestore.kafka.topics import Admin, KafkaCluster
from statestore.model.modes import Span, Time, span_ms, to_ms
from statestore.operations.clones.record import as_deployed
from statestore.operations.run import (
    Checked,
    PlannedTask,
    Run,
    RunRequest,
    RunSummary,
    check_shared,
)
from statestore.ports import Clock
from statestore.settings import Settings
from statestore.stores.built_in import BuiltIn
from statestore.stores.specs import BuiltInSpec
from statestore.tasks.budget import MemoryLimits, MemoryShare
from statestore.tasks.commit import CommitStamp
from statestore.tasks.lifecycle import StreamTask
from statestore.tasks.plan import TaskEdges, TaskPlan, TaskReport, transactional_ids
from statestore.tasks.progress import ProgressFile
from statestore.tasks.slot import Served, Tell, serve
from statestore.topology.graph import Topology

LATEST: Literal["latest"] = "latest"
_log = logging.getLogger("statestore")


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
    with start_run(topology, known, run_request(until=until, run_for=run_for)) as started:
        return serve_here(started, known, stop or threading.Event())


def run_request(
    *,
    until: Literal["latest"] | Time = LATEST,
    run_for: Span | None = None,
    accept_new_topology: bool = False,
    accept_empty_changelog: bool = False,
    accept_forgotten_offsets: bool = False,
    accept_new_serdes: bool = False,
) -> RunRequest:
    """The request of a run from public types."""
    if until != LATEST and run_for is not None:
        raise Misuse("until and run_for exclude each other: a continuous run has no planned end")
    if run_for is not None and span_ms(run_for) <= 0:
        raise Misuse(f"a run for {span_ms(run_for)} ms does nothing: want a span above 0")
    if not isinstance(until, str) and to_ms(until) < 0:
        raise Misuse(f"until {until}: no record is of before 1970: want a later time, or latest")
    return RunRequest(
        until_ms=None if isinstance(until, str) else to_ms(until),
        run_for_ms=None if run_for is None else span_ms(run_for),
        accept_new_topology=accept_new_topology,
        accept_empty_changelog=accept_empty_changelog,
        accept_forgotten_offsets=accept_forgotten_offsets,
        accept_new_serdes=accept_new_serdes,
    )


@contextmanager
def start_run(topology: Topology, settings: Settings, request: RunRequest) -> Iterator[Run]:
    """The driver's side of a run: inside it holds the application lock."""
    with _prepared(topology, settings, request) as prepared, prepared as started:
        yield started


def check_run(topology: Topology, settings: Settings, request: RunRequest) -> Checked:
    """What the next start would do first; raises all that it would refuse, writes nothing."""
    with _prepared(topology, settings, request) as prepared:
        return prepared.check()


@contextmanager
def _prepared(topology: Topology, settings: Settings, request: RunRequest) -> Iterator[Run]:
    settings.require("application.id", "bootstrap.servers", "state.dir")
    topology, settings = as_deployed(topology, settings, layout_of(settings))
    _check_client_settings(settings)
    options_hook(settings, "")
    admin = Admin(settings)
    with closing(KafkaCluster(settings, admin)) as cluster:
        yield Run(
            topology,
            settings,
            layout_of(settings),
            cluster,
            SystemClock(),
            request,
            is_empty=is_empty,
            format_of=format_of,
            changelog=KafkaChangelog(settings, admin),
        )


def serve_here(
    started: Run, settings: Settings, stop: threading.Event, tell: Tell | None = None
) -> RunSummary:
    """Both sides of a run in this process: its waves, one after the other.

    `tell` hears of a continuous one about once a second.
    """
    summary = RunSummary(settings.application_id)
    for wave in started.waves():
        if stop.is_set():
            summary.caught_up = False
            break
        reports = serve_planned(
            started.topology, settings, wave, started.request, slots=1, stop=stop, tell=tell
        )
        summary.add(reports)
        _log.info("%d stream tasks done, %d records so far", len(reports), summary.records_in)
    return summary


def serve_planned(
    topology: Topology,
    settings: Settings,
    planned: Sequence[PlannedTask],
    request: RunRequest,
    *,
    slots: int,
    stop: threading.Event,
    tell: Tell | None = None,
) -> list[TaskReport]:
    """The worker's side: run these stream tasks here.

    `slots`: how many slots share this host's memory.
    """
    clock, layout = SystemClock(), layout_of(settings)
    topology, settings = as_deployed(topology, settings, layout)
    for task in planned:
        check_shared(layout, task)
    slot = MemoryShare(MemoryLimits.of(settings, slots))
    tasks = [
        Served(
            StreamTask(
                _task_plan(topology, task, request, slots),
                _edges(settings, task, clock, slots),
                settings,
                layout,
                slot,
            ),
            ProgressFile(layout.task_dir(task.task_id), clock, slots=slots),
        )
        for task in planned
    ]
    return serve(tasks, run_for_ms=request.run_for_ms, stop=stop, clock=clock, tell=tell)


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
    return {name: value for name, value in asdict(summary).items() if not name.startswith("_")}


def _check_client_settings(settings: Settings) -> None:
    """What the clients would refuse later, in a worker, is refused before anything starts."""
    consumer(settings, settings.application_id, Trouble()).close()
    producer(settings, {}, Trouble())


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
        serving=planned.serving,
    )


def _edges(settings: Settings, planned: PlannedTask, clock: Clock, slots: int) -> TaskEdges:
    group_id, admin = settings.application_id, Admin(settings)
    outbox = (
        TransactionalOutbox(
            settings,
            transactional_ids=transactional_ids(group_id, planned.task_id),
            group_id=group_id,
            batch_bytes=planned.batch_bytes,
            inputs=list(planned.ends()),
            number_of=CommitStamp.number_in,
        )
        if settings.exactly_once
        else PlainOutbox(settings, group_id=group_id, batch_bytes=planned.batch_bytes)
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
        KafkaChangelog(settings, admin),
        KafkaCluster(settings, admin),
        clock,
        open_task_store,
        link_store,
    )
