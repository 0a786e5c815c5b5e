"""`statestore topology describe|tasks|check`: a pipeline, looked at without running it."""

from typing import Any

import click
import msgspec

from statestore.assembly import check_run, load_pipeline
from statestore.assembly.surroundings import checked_cluster
from statestore.commands.arguments import (
    RunArguments,
    deployment_options,
    parse_run,
    run_options,
)
from statestore.commands.printing import print_rows
from statestore.model import TaskId
from statestore.operations.run import Checked


@click.group()
def topology() -> None:
    """Look at a pipeline's topology."""


@topology.command("describe")
@click.argument("pipeline")
def describe_command(pipeline: str) -> None:
    """Sub-topologies, nodes, stores and topics of PIPELINE (module:function)."""
    click.echo(load_pipeline(pipeline).describe())


@topology.command("tasks")
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per stream task.")
def tasks_command(*, as_json: bool, **flags: Any) -> None:
    """The stream tasks of a pipeline, with their input topics, on the broker as it is."""
    found = _tasks(parse_run(flags))
    print_rows(
        ({"stream_task": str(task), "topics": topics} for task, topics in found), as_json=as_json
    )


@topology.command("check")
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def check_command(*, as_json: bool, **flags: Any) -> None:
    """Whether the pipeline would start now: its topics, its brokers, the state there is.

    Everything a start refuses is refused here, with the same exit code; nothing is written. What
    the start would do before its first record is printed.
    """
    arguments = parse_run(flags)
    found = check_run(load_pipeline(arguments.pipeline), arguments.settings())
    click.echo(msgspec.json.encode(found._asdict()).decode() if as_json else _told(found))


def _told(found: Checked) -> str:
    report = found.relocation
    moves = [*report.begun, *report.plan.moves]
    return "\n".join(
        [
            f"{found.application_id} can start: {found.stream_tasks} stream tasks",
            f"topics to create: {', '.join(found.creates) or 'none'}",
            f"stores to move: {', '.join(f'{m.store} {m.source} > {m.target}' for m in moves)}"
            if moves
            else "stores to move: none",
        ]
    )


def _tasks(arguments: RunArguments) -> list[tuple[TaskId, list[str]]]:
    settings = arguments.settings()
    topology = load_pipeline(arguments.pipeline)
    cluster = checked_cluster(settings)
    try:
        read, _ = topology.topics()
        counts = topology.partition_counts(cluster.partitions(sorted(read)))
    finally:
        cluster.close()
    return [
        (task, [t.full(settings.application_id) for t in part.source_topics])
        for part in topology.sub_topologies
        for task in topology.tasks(counts)[part.ordinal]
    ]
