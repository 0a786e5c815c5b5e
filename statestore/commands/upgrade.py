"""`statestore upgrade-to-versioned`: makes way for a store with history where a plain one was."""

from typing import Any

import click
import msgspec

from statestore.commands.arguments import broker_option, parse_span, parse_state, state_options
from statestore.operations.upgrade import UpgradeReport, upgrade_to_versioned
from statestore.runtime import Runtime


@click.command("upgrade-to-versioned")
@click.argument("store")
@click.option("--history-retention", required=True, metavar="SPAN", help="Such as 30d.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; asks no broker.")
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
    with Runtime(settings) as runtime:
        report = upgrade_to_versioned(runtime, store, retention_ms, dry_run=dry_run)
    click.echo(msgspec.json.encode(report) if as_json else _text(report))


def _text(report: UpgradeReport) -> str:
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
