"""Writes rows anew that older serdes wrote, so that a pipeline can let go of a migration.

    check, lock    as every start; the stores are where the pipeline looks for them
    write          each stream task rewrites its rows, in transactions of its own
    publish        `topology.json` no longer names the older serdes

No input is processed. Rows say which serde wrote them, so nothing is done twice, and a call that
died is made again.
"""

from collections.abc import Collection, Sequence
from contextlib import closing

import msgspec

from statestore.errors import Misuse, UnknownStore
from statestore.layout.activity_files import Progress, Unit
from statestore.operations.activities import activities_in
from statestore.operations.audits.both_sides import facts_of, stored_rows
from statestore.operations.deployed import publish_deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import StoresAtRest, existing_application
from statestore.operations.running.run import PlannedTask, RunRequest
from statestore.operations.running.runner import global_stores_of, start_run, stream_tasks
from statestore.stores.kinds.registry import kind_named
from statestore.stores.migration import MigratingSerde
from statestore.topology.graph import Topology


class MigratedRows(msgspec.Struct, frozen=True):
    """How many rows of a store in one stream task were, or would be, written anew."""

    store: str
    stream_task: str
    rows: int


class MigrationReport(msgspec.Struct, frozen=True):
    """What a migration did (`applied`) or would do.

    `not_counted`: why the rows of other stores are known only when they are written.
    """

    application_id: str
    applied: bool
    migrated: list[MigratedRows]
    not_counted: dict[str, str] = {}


def migrate(
    environment: Environment,
    topology: Topology,
    stores: Collection[str] = (),
    *,
    dry_run: bool,
    progress: Progress | None = None,
) -> MigrationReport:
    """Write the rows of stores anew that older serdes wrote; all that have migrations if none.

    `dry_run`: nothing is touched and no broker is asked. Locked while the application runs;
    whatever refuses a start refuses this. `progress` counts the stores of each stream task.
    """
    environment.settings.require("application.id", "state.dir")
    existing_application(environment.layout)
    chosen = _chosen(topology, stores)
    if dry_run:
        return _counted(environment, topology, chosen)
    request = RunRequest()
    migrated: list[MigratedRows] = []
    with (
        start_run(environment, topology, request) as started,
        activities_in(environment).underway("migration", Unit.STORES, progress) as told,
    ):
        environment, topology = started.environment, started.topology
        seen: set[str] = set()
        for wave in started.waves():
            planned = [task for task in wave if task.task not in seen]
            seen |= {task.task for task in planned}
            migrated += _rewritten(environment, topology, planned, chosen, told)
        _publish(environment, chosen)
    return MigrationReport(environment.settings.application_id, True, migrated)


def _chosen(topology: Topology, stores: Collection[str]) -> list[str]:
    for name in stores:
        if name not in topology.stores:
            known = ", ".join(sorted(topology.stores)) or "none"
            raise UnknownStore(f"the pipeline has no store {name!r}; it has: {known}")
    migrating = [
        name
        for name, spec in topology.stores.items()
        if isinstance(spec.value_serde, MigratingSerde)
    ]
    for name in stores:
        if name not in migrating:
            known = ", ".join(sorted(migrating)) or "none"
            raise Misuse(
                f"store {name!r} has no migration in the pipeline; these stores have one: {known}"
            )
    return sorted(stores or migrating)


def _counted(
    environment: Environment, topology: Topology, stores: Sequence[str]
) -> MigrationReport:
    """Count the rows that older serdes wrote, in what was committed last."""
    found, not_counted = list[MigratedRows](), dict[str, str]()
    with closing(StoresAtRest(environment)) as looked:
        for name in stores:
            known = looked.deployed.stores.get(name)
            if known is None:
                continue  # It will be new, and empty.
            if not known.persistent:
                not_counted[name] = "it is in memory and has no files to read"
                continue
            serde = topology.stores[name].value_serde
            assert isinstance(serde, MigratingSerde)
            for task in looked.find(name, kind=known.kind):
                with looked.opened(task, name, kind=known.kind) as engine:
                    clock_row = kind_named(known.kind).clock_row
                    bound_ms = facts_of(engine, name).bound_ms
                    older = sum(
                        not serde.is_newest(value)
                        for rows in stored_rows(engine, known.kind, bound_ms)
                        for key, value in zip(rows.keys, rows.values, strict=True)
                        if key != clock_row
                    )
                found.append(MigratedRows(name, str(task), older))
    return MigrationReport(environment.settings.application_id, False, found, not_counted)


def _rewritten(
    environment: Environment,
    topology: Topology,
    planned: Sequence[PlannedTask],
    stores: Sequence[str],
    told: Progress,
) -> list[MigratedRows]:
    """Rewrite the rows of the stream tasks that have one of the stores."""
    parts = topology.sub_topologies
    concerned = {
        one.task: [it for it in parts[one.task_id.sub_topology].stores if it in stores]
        for one in planned
    }
    wanted, made = [one for one in planned if concerned[one.task]], list[MigratedRows]()
    told.expect(sum(map(len, concerned.values())))
    with closing(global_stores_of(environment, topology, wanted)) as shared:
        for plan, task in stream_tasks(
            environment, topology, wanted, RunRequest(), slots=1, global_stores=shared.stores
        ):
            with task:
                for name in concerned[plan.task]:
                    made.append(MigratedRows(name, plan.task, task.rewrite(name)))
                    told.done(1)
                task.finish()
    return made


def _publish(environment: Environment, stores: Collection[str]) -> None:
    """Forget the serdes of which no row is left."""
    said = read_deployed(environment.layout)
    known = dict(said.stores)
    for name in stores:
        writers = known[name].writers()
        newest = max(one.generation for one in writers)
        kept = [one for one in writers if one.generation == newest]
        known[name] = msgspec.structs.replace(known[name], value_writers=kept)
    publish_deployed(environment.layout, msgspec.structs.replace(said, stores=known))
