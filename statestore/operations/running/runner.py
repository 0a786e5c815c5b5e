"""Runs an application: the driver's side, which plans, and the worker's side, which processes.

A Spark job uses `start_run` in the driver and `serve_planned` in its workers. `serve_here` does
both in one process, with the same lock and the same guarantees.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Literal

from statestore.errors import Misuse
from statestore.model.modes import Span, Time, span_ms, to_ms
from statestore.operations.clone_record import as_deployed
from statestore.operations.environment import Environment
from statestore.operations.exports.continuous_exports import ContinuousExports
from statestore.operations.running.run import (
    PlannedTask,
    Run,
    RunRequest,
    RunSummary,
    StartPreview,
    check_shared,
)
from statestore.operations.start.global_stores import GlobalStores
from statestore.operations.start.matching import with_matches
from statestore.operations.unfinished import require_whole
from statestore.tasks.history import WorkHistory
from statestore.tasks.memory_share import MemoryLimits, MemoryShare
from statestore.tasks.origins import Origins
from statestore.tasks.plan import GlobalStoresByName, Standing, TaskPlan, TaskReport
from statestore.tasks.progress_file import ProgressFile
from statestore.tasks.slot import FOREVER_MS, Ending, Served, Tell, serve
from statestore.tasks.task import StreamTask
from statestore.topology.graph import Topology

LATEST: Literal["latest"] = "latest"
FOREVER: Literal["forever"] = "forever"
_log = logging.getLogger("statestore")


def untold(_standing: Standing) -> None:
    """Tell nobody."""


def run_request(
    *,
    until: Literal["latest"] | Time = LATEST,
    run_for: Literal["forever"] | Span | None = None,
    accept_new_topology: bool = False,
    accept_empty_changelog: bool = False,
    accept_forgotten_offsets: bool = False,
    accept_new_serdes: bool = False,
) -> RunRequest:
    """Make the request of a run from public types."""
    if until != LATEST and run_for is not None:
        raise Misuse("until and run_for exclude each other: a continuous run has no planned end")
    if isinstance(run_for, str) and run_for != FOREVER:
        raise Misuse(f"run_for {run_for!r}: pass a span, or {FOREVER!r}")
    run_for_ms = None
    if run_for is not None:
        run_for_ms = FOREVER_MS if isinstance(run_for, str) else span_ms(run_for)
    if run_for_ms is not None and run_for_ms <= 0:
        raise Misuse(f"a run for {run_for_ms} ms does nothing: pass a span above 0")
    if not isinstance(until, str) and to_ms(until) < 0:
        raise Misuse(f"until {until}: no record is older than 1970: pass a later time, or latest")
    return RunRequest(
        until_ms=None if isinstance(until, str) else to_ms(until),
        run_for_ms=run_for_ms,
        accept_new_topology=accept_new_topology,
        accept_empty_changelog=accept_empty_changelog,
        accept_forgotten_offsets=accept_forgotten_offsets,
        accept_new_serdes=accept_new_serdes,
    )


@contextmanager
def start_run(environment: Environment, topology: Topology, request: RunRequest) -> Iterator[Run]:
    """Hold the application lock and plan the waves: the driver's side of a run."""
    with _prepared(environment, topology, request) as started:
        continuous = request.run_for_ms is not None
        with ContinuousExports(started.environment, continuous=continuous) as exports:
            yield started
        if started.summary.caught_up:
            exports.at_end()


def check_run(environment: Environment, topology: Topology, request: RunRequest) -> StartPreview:
    """Tell what the next start would do first; raise whatever it would refuse; write nothing."""
    return _prepared(environment, topology, request).check()


def serve_here(started: Run, stop: Ending, tell: Tell = untold) -> RunSummary:
    """Run both sides in this process: the waves of a run, one after the other."""

    def serve_wave(wave: Sequence[PlannedTask], reports: list[TaskReport]) -> None:
        serve_planned(
            started.environment,
            started.topology,
            wave,
            started.request,
            slots=1,
            stop=stop,
            tell=tell,
            reports=reports,
        )

    return serve_waves(started, stop, serve_wave)


def serve_waves(
    started: Run,
    stop: Ending,
    serve_wave: Callable[[Sequence[PlannedTask], list[TaskReport]], None],
) -> RunSummary:
    """Have the waves of a run served, one after the other, and sum up the reports.

    `serve_wave` adds to the list that it is given, before it fails as well.
    """
    summary = started.summary
    for wave in started.waves():
        if stop.is_set():
            summary.caught_up = False
            break
        reports: list[TaskReport] = []
        try:
            serve_wave(wave, reports)
        finally:
            summary.add(reports)
        _log.info("%d stream tasks done, %d records so far", len(reports), summary.records_in)
    summary.lookups = started.lookups()
    return summary


def shares_of(planned: Sequence[PlannedTask], workers: int) -> list[Sequence[PlannedTask]]:
    """Divide the stream tasks of a wave among so many workers.

    In a bounded run each task is a share, and a worker that is done takes the next one. In a
    continuous run each worker has one share for good, and the tasks of each sub-topology are spread
    over all of them.
    """
    if all(task.bounded for task in planned):
        return [[task] for task in planned]
    width = min(len(planned), workers)
    return [planned[i::width] for i in range(width)]


def serve_planned(
    environment: Environment,
    topology: Topology,
    planned: Sequence[PlannedTask],
    request: RunRequest,
    *,
    slots: int,
    stop: Ending,
    tell: Tell = untold,
    reports: list[TaskReport] | None = None,
) -> list[TaskReport]:
    """Run these stream tasks in this process: the worker's side of a run.

    `slots`: how many slots share the memory of this host. `reports`: where the reports go, which
    tell after a failure, too, what was committed.
    """
    require_whole(environment.layout)
    environment, topology = as_deployed(environment, topology)
    topology = as_planned(topology, planned)
    clock, layout = environment.clock, environment.layout
    tasks = []
    with closing(global_stores_of(environment, topology, planned)) as shared:
        for task, made in stream_tasks(
            environment, topology, planned, request, slots=slots, global_stores=shared.stores
        ):
            folder = layout.task_dir(task.task_id)
            progress = ProgressFile(folder, clock, slots=slots, serving=task.serving)
            tasks.append(Served(made, progress, WorkHistory(folder, clock)))
        if reports is not None:
            reports += [served.task.report for served in tasks]
        return serve(
            tasks,
            run_for_ms=request.run_for_ms,
            stop=stop,
            clock=clock,
            tell=tell,
            between=shared.look,
        )


def as_planned(topology: Topology, planned: Sequence[PlannedTask]) -> Topology:
    """The topology with the topics that patterns matched when these stream tasks were planned."""
    return topology.matching({name: it for one in planned for name, it in one.matches.items()})


def stream_tasks(
    environment: Environment,
    topology: Topology,
    planned: Sequence[PlannedTask],
    request: RunRequest,
    *,
    slots: int,
    global_stores: GlobalStoresByName,
) -> list[tuple[PlannedTask, StreamTask]]:
    """Make the planned stream tasks; none is started. StateDirNotShared if this is another one."""
    layout, settings = environment.layout, environment.settings
    for task in planned:
        check_shared(layout, task)
    memory = MemoryShare(MemoryLimits.of(settings, slots))
    made = []
    for task in planned:
        plan = _task_plan(topology, task, request, slots, settings.application_id)
        edges = environment.task_edges(plan, task.batch_bytes)
        edges = replace(edges, global_stores=global_stores)
        made.append((task, StreamTask(plan, edges, settings, layout, memory)))
    return made


def global_stores_of(
    environment: Environment, topology: Topology, planned: Sequence[PlannedTask]
) -> GlobalStores:
    """Open what these stream tasks read of global tables, in the version planned for them.

    A continuous run goes on from the version of now.
    """
    for task in planned:
        check_shared(environment.layout, task)
    parts = (topology.sub_topologies[task.task_id.sub_topology] for task in planned)
    names = {store for part in parts for store in part.global_stores}
    number = planned[0].global_version if planned else None
    bounded = all(task.bounded for task in planned)
    return GlobalStores(environment, topology, names, number, bounded=bounded)


def _prepared(environment: Environment, topology: Topology, request: RunRequest) -> Run:
    environment.settings.require("application.id", "bootstrap.servers", "state.dir")
    require_whole(environment.layout)
    environment, topology = as_deployed(environment, topology)
    # What a worker would refuse later is refused before anything starts.
    environment.check_settings()
    return Run(environment, with_matches(environment, topology), request)


def _task_plan(
    topology: Topology,
    planned: PlannedTask,
    request: RunRequest,
    slots: int,
    application_id: str,
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
        times=planned.times,
        origins=Origins(topology.sub_topologies, application_id),
    )
