"""`statestore reset`: begins an application again, as the reset tool of Kafka Streams does."""

import sys
from typing import Any

import click
import msgspec

from statestore.commands.arguments import broker_option, parse_state, state_options
from statestore.errors import Misuse
from statestore.model.modes import parse_time, to_ms
from statestore.operations.reset import ResetReport, ResetTo, reset
from statestore.runtime import Runtime


@click.command("reset")
@click.option("--to-earliest", is_flag=True, help="Begin at the start of the inputs; the default.")
@click.option("--to-latest", is_flag=True, help="Begin at the end of the inputs.")
@click.option("--to-time", metavar="TIME", help="Begin at the first records of TIME or later.")
@click.option("--shift-by", type=int, metavar="N", help="Begin N records after the committed ones.")
@click.option("--dry-run", is_flag=True, help="Show what would be done and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
@state_options
@broker_option
def reset_command(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    shift_by: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Begin a stopped application again: move its input offsets, remove its state.

    The changelogs and repartition topics of the application are deleted, and so are its stores.
    Inputs, outputs, audits and exports stay. A reset that died is finished when it is repeated, and
    the application refuses to start until then.
    """
    time_ms = None if to_time is None else to_ms(parse_time(to_time))
    to = ResetTo(earliest=to_earliest, latest=to_latest, time_ms=time_ms, shift=shift_by).check()
    with Runtime(parse_state(flags)) as runtime:
        report = reset(runtime, to, dry_run=True)
        if not dry_run:
            if not yes:
                _confirm(report)
            report = reset(runtime, to)
    click.echo(msgspec.json.encode(report) if as_json else _text(report))


def _confirm(report: ResetReport) -> None:
    if not sys.stdin.isatty():
        raise Misuse("a reset removes state: pass --yes where nobody can be asked, or --dry-run")
    click.echo(_text(report), err=True)
    click.confirm(f"Reset {report.application_id}?", abort=True, err=True)


def _text(report: ResetReport) -> str:
    did = "done" if report.applied else "would do"
    offsets = [
        f"{did}: {at.topic}-{at.partition} begins at {at.after} "
        f"(was {'not committed' if at.before is None else at.before})"
        for at in report.offsets
    ]
    return "\n".join(
        [
            *offsets,
            f"{did}: delete topics {', '.join(report.topics) or 'none'}",
            f"{did}: remove the state of stream tasks {', '.join(report.stream_tasks) or 'none'}",
        ]
    )
