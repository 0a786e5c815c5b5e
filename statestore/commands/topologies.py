"""`statestore topology describe|tasks|check`: looks at a pipeline without running it."""

from typing import Any

import click
import msgspec

from statestore.commands.arguments import (
    RunArguments,
    check_options,
    parse_run,
    run_options,
)
from statestore.commands.help import CommandGroup
from statestore.commands.printing import print_rows
from statestore.model.ids import TaskId
from statestore.operations.pipelines import load_pipeline
from statestore.operations.running.run import StartPreview
from statestore.operations.running.runner import check_run
from statestore.operations.start.matching import with_matches
from statestore.runtime import Runtime


@click.group("topology", cls=CommandGroup)
def topology_group() -> None:
    """Look at a pipeline's topology."""


@topology_group.command("describe")
@click.argument("pipeline")
def describe_command(pipeline: str) -> None:
    """Print sub-topologies, nodes, stores and topics of PIPELINE (module:function)."""
    click.echo(load_pipeline(pipeline).describe())


@topology_group.command("tasks")
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per stream task.")
def tasks_command(*, as_json: bool, **flags: Any) -> None:
    """List the stream tasks of a pipeline with their input topics, as the brokers are now."""
    found = _tasks(parse_run(flags))
    print_rows(
        ({"stream_task": str(task), "topics": topics} for task, topics in found), as_json=as_json
    )


@topology_group.command("check")
@check_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def check_command(*, as_json: bool, **flags: Any) -> None:
    """Check whether the pipeline would start now: its topics, its brokers and its state.

    Everything that a start refuses is refused here with the same exit code, and nothing is written.
    The command prints what a start would do before its first record.
    """
    arguments = parse_run(flags)
    request = arguments.request()
    pipeline = load_pipeline(arguments.pipeline)
    with Runtime(arguments.settings()) as runtime:
        found = check_run(runtime, pipeline, request)
    click.echo(msgspec.json.encode(found._asdict()).decode() if as_json else _told(found))


def _told(found: StartPreview) -> str:
    report = found.relocation
    moves = [*report.begun, *report.plan.moves]
    stays = [f"{stay.store} in {stay.task} ({stay.why})" for stay in report.plan.stays]
    return "\n".join(
        [
            f"{found.application_id} can start: {found.stream_tasks} stream tasks",
            *(
                f"topics that match {pattern}: {', '.join(topics) or 'none'}"
                for pattern, topics in found.patterns.items()
            ),
            f"topics to create: {', '.join(found.creates) or 'none'}",
            f"stores to move: {', '.join(f'{m.store} {m.source} > {m.target}' for m in moves)}"
            if moves
            else "stores to move: none",
            f"stores left behind: {', '.join(stays) or 'none'}",
            *report.serdes,
            *(
                f"global table {store}: {records} records to read"
                for store, records in found.global_tables.items()
            ),
            *(f"lookup {store}: {rows} rows" for store, rows in found.lookups.items()),
        ]
    )


def _tasks(arguments: RunArguments) -> list[tuple[TaskId, list[str]]]:
    settings = arguments.settings()
    topology = load_pipeline(arguments.pipeline)
    with Runtime(settings) as runtime:
        topology = with_matches(runtime, topology)
        read, _ = topology.topics()
        counts = topology.partition_counts(runtime.cluster.partitions(sorted(read)))
    return [
        (task, [t.full(settings.application_id) for t in part.source_topics])
        for part in topology.sub_topologies
        for task in topology.tasks(counts)[part.ordinal]
    ]
