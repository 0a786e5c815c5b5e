"""`statestore relocate`, `upgrade-to-versioned` and `migrate`: change where and how state lies."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statestore.commands.arguments import (
    broker_option,
    deployment_options,
    parse_run,
    parse_span,
    parse_state,
    relocate_options,
    state_options,
)
from statestore.commands.printing import cell_text
from statestore.commands.progress import shown_progress
from statestore.errors import Misuse, failure_fields
from statestore.layout.activity_files import Unit
from statestore.model.ids import TaskId
from statestore.operations.pipelines import load_pipeline
from statestore.operations.relocation.apply import RelocationReport, relocate
from statestore.operations.relocation.relocation_plan import Choices, Move
from statestore.operations.rewriting.migrate import MigrationReport, migrate
from statestore.operations.rewriting.upgrade import UpgradeReport, upgrade_to_versioned
from statestore.runtime import Runtime

_COLUMNS = ("store", "partition", "from", "to", "bytes", "why")


@click.command("relocate")
@relocate_options
@click.option("--dry-run", is_flag=True, help="Show what would be done; ask no broker.")
@click.option(
    "--keep", multiple=True, metavar="TASK", help="Keep this task's copy of stores in two places."
)
@click.option(
    "--rename", multiple=True, metavar="OLD=NEW", help="A store's new name in the pipeline."
)
@click.option("--offline", is_flag=True, help="Ask no broker: all tasks were closed cleanly.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line, on failure too.")
def relocate_command(
    *,
    dry_run: bool,
    keep: Sequence[str],
    rename: Sequence[str],
    offline: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Move stores to where the pipeline looks for them, after its topology changed.

    The application must be stopped. Its next start does the same by itself, unless
    `automatic.state.relocation` is false.
    """
    try:
        choices = Choices(frozenset(map(TaskId.parse, keep)), _renames(rename))
        arguments = parse_run(flags)
        topology = load_pipeline(arguments.pipeline)
        with (
            Runtime(arguments.settings()) as runtime,
            shown_progress("relocation", Unit.STORES) as progress,
        ):
            report = relocate(
                runtime,
                topology,
                choices,
                dry_run=dry_run,
                offline=offline,
                accept_new_serdes=arguments.accept_new_serdes,
                progress=progress,
            )
    except Exception as error:
        if as_json:
            _echo({"application_id": flags["application_id"] or "", "error": failure_fields(error)})
        raise
    if as_json:
        _echo({**_fields(report), "error": None})
    else:
        _print(report)


@click.command("upgrade-to-versioned")
@click.argument("store")
@click.option(
    "--history-retention",
    required=True,
    metavar="SPAN",
    help="How long it keeps history, such as 30d.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; ask no broker.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@state_options
@broker_option
def upgrade_command(
    *,
    store: str,
    history_retention: str,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Set STORE aside and have its changelog keep versions for SPAN.

    The application must be stopped. Then deploy a pipeline that gives the store a history of SPAN:
    its next start restores the store from the changelog.
    """
    settings, retention_ms = parse_state(flags), parse_span(history_retention)
    with Runtime(settings) as runtime, shown_progress("upgrade", Unit.STORES) as progress:
        report = upgrade_to_versioned(
            runtime, store, retention_ms, dry_run=dry_run, progress=progress
        )
    click.echo(msgspec.json.encode(report) if as_json else _upgrade_text(report))


@click.command("migrate")
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@deployment_options
@click.option("--dry-run", is_flag=True, help="Count the rows; ask no broker.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line, on failure too.")
def migrate_command(*, stores: Sequence[str], dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Write the rows of STOREs anew that older serdes wrote; of all stores with migrations if none.

    The application must be stopped. Nobody has to do this: rows are converted when they are read.
    Afterwards the pipeline may have `ss.Migration.gone()` in place of its migrations.
    """
    try:
        arguments = parse_run(flags)
        topology = load_pipeline(arguments.pipeline)
        with (
            Runtime(arguments.settings()) as runtime,
            shown_progress("migration", Unit.STORES) as progress,
        ):
            report = migrate(runtime, topology, stores, dry_run=dry_run, progress=progress)
    except Exception as error:
        if as_json:
            _echo({"application_id": flags["application_id"] or "", "error": failure_fields(error)})
        raise
    if as_json:
        _echo({**msgspec.structs.asdict(report), "error": None})
    else:
        click.echo(_migration_text(report))


def _migration_text(report: MigrationReport) -> str:
    did = "rows written anew" if report.applied else "rows to write anew"
    lines = [f"{one.store} {one.stream_task}: {one.rows} {did}" for one in report.migrated]
    lines += [f"{store}: not counted: {why}" for store, why in report.not_counted.items()]
    return "\n".join(lines) or "no store has migrations"


def _fields(report: RelocationReport) -> dict[str, Any]:
    plan = report.plan
    return {
        "application_id": report.application_id,
        "applied": report.applied,
        "anything": bool(report.begun) or plan.touches_disk,
        "begun": report.begun,
        "moves": plan.moves,
        "set_aside": plan.set_aside,
        "stays": plan.stays,
        "settle": plan.settle,
    }


def _rows(report: RelocationReport) -> Iterable[Sequence[object]]:
    for move in report.begun:
        yield *_move(move)[:-1], "begun before, not finished"
    for move in report.plan.moves:
        yield _move(move)
    for gone in report.plan.set_aside:
        partition = TaskId.parse(gone.task).partition
        yield gone.store, partition, gone.task, "quarantine", gone.size_bytes, gone.reason
    for stay in report.plan.stays:
        partition = TaskId.parse(stay.task).partition
        yield stay.store, partition, stay.task, stay.task, stay.size_bytes, f"stays: {stay.why}"


def _move(move: Move) -> tuple[object, ...]:
    return move.store, move.partition, move.source, move.target, move.size_bytes, move.why


def _print(report: RelocationReport) -> None:
    """Print a table on a terminal, columns separated by tabs elsewhere, and then a summary."""
    console = Console(file=sys.stdout)
    rows = [["" if cell is None else str(cell) for cell in row] for row in _rows(report)]
    if console.is_terminal and rows:
        table = Table(*_COLUMNS)
        for row in _rows(report):
            table.add_row(*(Text(cell_text(*each)) for each in zip(_COLUMNS, row, strict=True)))
        console.print(table)
    else:
        for row in rows:
            click.echo("\t".join(row))
    click.echo(_summary(report))


def _summary(report: RelocationReport) -> str:
    plan = report.plan
    if not report.begun and not plan.touches_disk:
        return "every store is where the topology looks for it"
    count = len(report.begun) + len(plan.moves)
    verb = "moved" if report.applied else "to move"
    aside = f", {len(plan.set_aside)} set aside" if plan.set_aside else ""
    return f"{count} stores {verb}{aside}, {len(plan.stays)} stay"


def _renames(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        old, separator, new = pair.partition("=")
        if not (old and separator and new):
            raise Misuse(f"--rename {pair!r}: pass old=new")
        found[old] = new
    return found


def _echo(fields: dict[str, Any]) -> None:
    click.echo(msgspec.json.encode(fields))


def _upgrade_text(report: UpgradeReport) -> str:
    did = "done" if report.applied else "would do"
    aside = ", ".join(report.set_aside) or "none"
    lines = [
        f"{did}: {report.changelog} keeps records for {report.compaction_lag_ms} ms at least",
        f"{did}: store {report.store!r} of stream tasks {aside} goes to quarantine",
    ]
    if report.versioned:
        lines.append(f"versioned already: stream tasks {', '.join(report.versioned)}")
    if report.applied:
        lines.append("next: deploy the pipeline that gives it a history, and start")
    return "\n".join(lines)
