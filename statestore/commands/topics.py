"""`statestore topics`: what a pipeline needs on the brokers before its first start."""

from collections.abc import Iterable
from typing import Any

import click
import msgspec

from statestore.commands.arguments import check_options, parse_run
from statestore.commands.help import CommandGroup
from statestore.commands.printing import print_rows
from statestore.errors import Misuse
from statestore.model.texts import whole_number
from statestore.operations.pipelines import load_pipeline
from statestore.operations.running.create_topics import (
    NeededTopic,
    Partitions,
    check_topics,
    create_topics,
)
from statestore.runtime import Runtime


@click.group("topics", cls=CommandGroup)
def topics_group() -> None:
    """Create the topics of a pipeline, or check whether they are there."""


@topics_group.command("create")
@click.option(
    "--partitions",
    multiple=True,
    metavar="[TOPIC=]N",
    help="Partitions of the inputs and outputs that are missing, or of one of them.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    help="Replicas of each new topic. [default: replication.factor, else the brokers' default]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be created and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per topic.")
@check_options
def create_command(
    *,
    partitions: tuple[str, ...],
    replication_factor: int | None,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Create the inputs, outputs and internal topics of a pipeline that are missing.

    Existing topics are never altered. Inputs that are joined get equal partition counts, and an
    input that is only read as a table is compacted. The command refuses what a start would refuse,
    such as joined topics that differ, or a changelog that was lost. It can be repeated.
    """
    asked = _partitions(partitions)
    arguments = parse_run(flags)
    if replication_factor is not None:
        overrides = arguments.overrides | {"replication.factor": str(replication_factor)}
        arguments = msgspec.structs.replace(arguments, overrides=overrides)
    request = arguments.request()
    topology = load_pipeline(arguments.pipeline)
    with Runtime(arguments.settings()) as runtime:
        needed = create_topics(runtime, topology, asked, request, dry_run=dry_run)
    _print(needed, "was there", "would be created" if dry_run else "created", as_json=as_json)


@topics_group.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per topic.")
@check_options
def check_command(*, as_json: bool, **flags: Any) -> None:
    """List the topics of a pipeline, and refuse where a start would refuse.

    Nothing is created. A missing input or output ends the command with exit code 2. Internal topics
    may be missing before the first start, which creates them.
    """
    arguments = parse_run(flags)
    request = arguments.request()
    topology = load_pipeline(arguments.pipeline)
    with Runtime(arguments.settings()) as runtime:
        needed = check_topics(runtime, topology, request)
    _print(needed, "is there", "created by a start", as_json=as_json)


def _print(topics: Iterable[NeededTopic], existing: str, missing: str, *, as_json: bool) -> None:
    """Print a row for each topic, with what is said of those that exist and of those that miss."""
    rows = (
        {
            "topic": one.topic,
            "role": one.role,
            "partitions": one.partitions,
            "status": existing if one.exists else missing,
        }
        | ({"config": one.config} if as_json else {})
        for one in topics
    )
    print_rows(rows, as_json=as_json)


def _partitions(given: tuple[str, ...]) -> Partitions:
    every: int | None = None
    single: dict[str, int] = {}
    for text in given:
        topic, _, count = text.rpartition("=")
        number = whole_number(count)
        if number is None or not 0 < number < 1_000_000:
            raise Misuse(f"--partitions {text:.99}: pass a number above 0, or TOPIC=N")
        if topic:
            single[topic] = number
        elif every is not None and every != number:
            raise Misuse(f"--partitions {every} and {count} contradict each other: pass one")
        else:
            every = number
    return Partitions(every, single)
