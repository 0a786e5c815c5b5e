"""`statestore repartition`: changes how many partitions an application has, and keeps its state."""

import sys
from typing import Any

import click
import msgspec

from statestore.commands.arguments import deployment_options, parse_run
from statestore.commands.progress import shown_progress
from statestore.errors import Misuse, failure_fields
from statestore.layout.activity_files import Unit
from statestore.operations.pipelines import load_pipeline
from statestore.operations.repartition.apply import repartition
from statestore.operations.repartition.partition_plan import Inputs, RepartitionReport
from statestore.operations.repartition.planner import PartitionsAsked
from statestore.runtime import Runtime


@click.command("repartition")
@deployment_options
@click.option(
    "--partitions", type=int, required=True, metavar="N", help="How many each input is to have."
)
@click.option("--grow-inputs", is_flag=True, help="Add partitions to inputs that have fewer.")
@click.option(
    "--recreate-inputs",
    is_flag=True,
    help="Delete inputs that have more, with all their records, and create them again.",
)
@click.option(
    "--partitioner",
    type=click.Choice(["murmur2", "crc32"]),
    help="Which hash of the key chose the partitions of the inputs, where that does not show.",
)
@click.option(
    "--accept-removed-records",
    is_flag=True,
    help="Go by changelogs from which records were removed, as a restore of lost stores would.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before inputs are deleted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line, on failure too.")
def repartition_command(
    *,
    partitions: int,
    grow_inputs: bool,
    recreate_inputs: bool,
    partitioner: str | None,
    accept_removed_records: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Divide the state of a stopped application among another number of partitions.

    The rows of every store go where their keys lie from now on. Changelogs and repartition topics
    are created again, the group's offsets go on, and the next start restores all stores. A change
    that died is finished when it is repeated, and the application refuses to start until then.
    """
    try:
        if grow_inputs and recreate_inputs:
            raise Misuse("--grow-inputs and --recreate-inputs exclude each other: N is one number")
        inputs = Inputs.GROW if grow_inputs else Inputs.KEEP
        if recreate_inputs:
            inputs = Inputs.RECREATE
            if not dry_run and not yes:
                _confirm()
        arguments = parse_run(flags)
        topology = load_pipeline(arguments.pipeline)
        asked = PartitionsAsked(partitions, inputs, partitioner, accept_removed_records)
        with (
            Runtime(arguments.settings()) as runtime,
            shown_progress("repartition", Unit.RECORDS) as progress,
        ):
            report = repartition(runtime, topology, asked, dry_run=dry_run, progress=progress)
    except Exception as error:
        if as_json:
            fields = {"application_id": flags["application_id"] or ""}
            click.echo(msgspec.json.encode({**fields, "error": failure_fields(error)}))
        raise
    click.echo(msgspec.json.encode(_fields(report)) if as_json else _text(report))


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise Misuse(
            "--recreate-inputs deletes the inputs' records: pass --yes where nobody can be asked, "
            "or --dry-run"
        )
    click.confirm("Delete the inputs with all their records?", abort=True, err=True)


def _fields(report: RepartitionReport) -> dict[str, Any]:
    plan = report.plan
    return {
        "application_id": plan.application_id,
        "applied": report.applied,
        "anything": plan.anything,
        "begun": report.begun,
        "partitions": plan.input_partitions,
        "sub_topologies": plan.parts,
        "stores": [
            {
                "store": one.store,
                "kind": one.kind,
                "records": one.records,
                "placed_by": one.placed_by,
            }
            for one in plan.stores
        ],
        "topics": [
            {
                "topic": one.topic,
                "role": one.role,
                "before": one.before,
                "after": one.after,
                "begins_anew": one.begins_anew,
            }
            for one in plan.topics
        ],
        "offsets": [
            {"topic": at.topic, "partition": at.partition, "offset": at.offset}
            for at in plan.offsets
        ],
        "seconds": report.seconds,
        "error": None,
    }


def _text(report: RepartitionReport) -> str:
    did, plan = "done" if report.applied else "would do", report.plan
    if not plan.anything:
        return f"the application has {plan.input_partitions} partitions already: nothing to do"
    lines = ["a change that was begun before"] if report.begun else []
    lines += [
        f"{did}: sub-topology {one.sub_topology} has {one.after} stream tasks, not {one.before}"
        for one in plan.parts
    ]
    lines += [
        f"{did}: store {one.store} ({one.kind}): {one.records} records, by {one.placed_by}"
        for one in plan.stores
    ]
    for one in plan.topics:
        how = "deleted and created again" if one.begins_anew else "grows"
        lines.append(
            f"{did}: {one.role} {one.topic} {how}, {one.after} partitions, not {one.before}"
        )
    lines += [f"{did}: {at.topic}-{at.partition} goes on at {at.offset}" for at in plan.offsets]
    records = sum(one.records for one in plan.stores)
    verb = "divided anew" if report.applied else "to divide"
    return "\n".join([*lines, f"{records} records {verb} in {report.seconds:g} s"])
