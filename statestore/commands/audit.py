"""`statestore audit`: are the stores what their changelogs make of them? In this process.

statestore.spark.audit does the same on Spark, with a report. Both end alike: a table or one JSON
line, and the exit codes of AuditFailed and NotChecked where the verdict is no pass.
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
from statestore.errors import StateStoreError, failure_fields
from statestore.layout.audits import AuditRecord
from statestore.operations.audits.audit import failure_line, require_pass
from statestore.operations.audits.perform import audit
from statestore.runtime import Runtime

store_option = click.option(
    "--store", "stores", multiple=True, metavar="STORE", help="Only this; repeatable."
)

export_option = click.option(
    "--export", metavar="EXPORT", help="An export, or latest, in place of the live stores."
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
    """Compare the stores with their changelogs, whether or not a run is on.

    Exit code 12: they differ; 13: nothing, or not enough, could be compared, which is no pass.
    """
    record: AuditRecord | None = None
    try:
        with Runtime(parse_state(flags)) as runtime:
            record = audit(runtime, stores, export=export)
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
    """For a person."""
    table = Table("store", "rows", "rows of log", "equal", "superseded", "placed by")
    for store in record.stores:
        columns = (store.rows, store.rows_of_log, store.equal, store.superseded)
        table.add_row(store.store, *map(str, columns), store.placement or "")
    Console(file=sys.stdout).print(table)
    verdict, *why = record_lines(record)
    for line in (*why, verdict):
        click.echo(line)


def record_lines(record: AuditRecord) -> list[str]:
    """The verdict, and why, a line each."""
    return [
        f"verdict: {record.verdict}",
        *(f"not checked: {name}: {why}" for name, why in record.not_checked.items()),
        *(f"failed: {failure_line(failed)}" for failed in record.failures),
    ]
