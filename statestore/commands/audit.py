"""`statestore audit`: compares the stores with their changelogs, in this process.

statestore.spark.audit does the same on Spark, with a report. Both end alike: with a table or one
JSON line, and with the exit codes of AuditFailed and NotChecked unless the audit is passed.
"""

import sys
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from statestore.commands.arguments import (
    broker_option,
    parse_state,
    state_options,
    target_option,
)
from statestore.commands.progress import shown_progress
from statestore.errors import StateStoreError, failure_fields
from statestore.layout.activity_files import Unit
from statestore.layout.audits import AuditRecord
from statestore.model.texts import number_text
from statestore.operations.audits.audit import failure_line, require_pass
from statestore.operations.audits.perform import audit
from statestore.runtime import Runtime

store_option = click.option(
    "--store", "stores", multiple=True, metavar="STORE", help="Audit only this store; repeatable."
)

export_option = click.option(
    "--export",
    metavar="EXPORT",
    help="Audit an export (an id, or latest) instead of the live stores.",
)


@click.command("audit")
@state_options
@broker_option
@target_option
@store_option
@export_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line, on failure too.")
def audit_command(
    *, stores: tuple[str, ...], export: str | None, as_json: bool, **flags: Any
) -> None:
    """Compare the stores with their changelogs, whether or not a run is in progress.

    Exit code 12: they differ. Exit code 13: nothing, or not enough, could be compared, so the audit
    is not passed.
    """
    record: AuditRecord | None = None
    try:
        with (
            Runtime(parse_state(flags)) as runtime,
            shown_progress("audit", Unit.OFFSETS) as progress,
        ):
            record = audit(runtime, stores, export=export, progress=progress)
        require_pass(record)
    except StateStoreError as error:
        if as_json:
            click.echo(record_line(flags["application_id"], record, error))
        elif record is not None:
            print_record(record)
        raise
    if as_json:
        click.echo(record_line(record.application_id, record, None))
    else:
        print_record(record)


def record_line(
    application_id: str | None, record: AuditRecord | None, error: Exception | None
) -> str:
    """The one JSON line: the record, as far as there is one, and the error."""
    fields: dict[str, Any] = {"application_id": application_id or ""}
    if record is not None:
        fields |= msgspec.to_builtins(record)
    fields["error"] = None if error is None else failure_fields(error)
    return msgspec.json.encode(fields).decode()


def print_record(record: AuditRecord) -> None:
    """Print the record for a person."""
    unseen = any(store.unseen for store in record.stores)
    counts = ["rows", "rows of log", "equal", "superseded", *(["unseen"] if unseen else [])]
    table = Table("store", *counts, "placed by")
    for store in record.stores:
        columns = [store.rows, store.rows_of_log, store.equal, store.superseded]
        columns += [store.unseen] if unseen else []
        table.add_row(store.store, *map(number_text, columns), store.placement_text())
    Console(file=sys.stdout).print(table)
    verdict, *why = record_lines(record)
    for line in (*why, verdict):
        click.echo(line)


def record_lines(record: AuditRecord) -> list[str]:
    """The verdict and the reasons for it, one line each."""
    return [
        f"verdict: {record.verdict}",
        *(
            f"rows of {store.store}: {'; '.join(map(str, store.writers))}"
            for store in record.stores
            if any(one.generation for one in store.writers) or len(store.writers) > 1
        ),
        *(f"not checked: {name}: {why}" for name, why in record.not_checked.items()),
        *(
            f"placement not checked: {name}: a partitioner of its own places its rows"
            for name in record.placement_not_checked()
        ),
        *(f"failed: {failure_line(failed)}" for failed in record.failures),
    ]
