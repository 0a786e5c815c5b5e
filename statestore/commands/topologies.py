"""`statestore topology describe|tasks`: a pipeline, looked at without running it."""

from typing import Any

import click

from statestore.assembly import load_pipeline
from statestore.assembly.surroundings import checked_cluster
from statestore.commands.arguments import RunArguments, parse_run, run_options
from statestore.model import TaskId


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
def tasks_command(**flags: Any) -> None:
    """The stream tasks of a pipeline, with their input topics, on the broker as it is."""
    for task, topics in _tasks(parse_run(flags)):
        click.echo(f"{task}\t{', '.join(topics)}")


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
