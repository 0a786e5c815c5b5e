"""`statestore status`: am I behind, is my data right, how long until I am back?"""

import math
import sys
import threading
from typing import Any

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from statestore.assembly import failure, onlooking
from statestore.commands.arguments import deployment_options, parse_deployment, parse_span
from statestore.errors import (
    AuditFailed,
    AuditTooOld,
    Behind,
    NotChecked,
    StateStoreError,
    Unavailable,
)
from statestore.layout.audits import Verdict
from statestore.operations.status import State, Status, TaskStatus

EVERY_S = 2.0
_COLOURS = {
    State.RUNNING: "green",
    State.RESTORING: "yellow",
    State.CRASHED: "red",
    State.SILENT: "red",
}


@click.command("status")
@deployment_options
@click.option("--watch", is_flag=True, help="Look again every two seconds, until Ctrl-C.")
@click.option(
    "--max-lag-seconds", type=float, help="Fail (exit code 14) if it is further behind than this."
)
@click.option(
    "--max-audit-age",
    help="Fail (15) if the last audit is older: 24h, 7d; and (12, 13) if it is no pass.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def status_command(
    *,
    watch: bool,
    max_lag_seconds: float | None,
    max_audit_age: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """How an application is, whether or not a run is on: it takes no lock and disturbs nobody.

    Lags are at most what is told; times left go by the rates of the last run.
    """
    settings, pipeline = parse_deployment(flags)
    age_ms = None if max_audit_age is None else parse_span(max_audit_age)
    with onlooking(settings, pipeline=pipeline) as look:
        found = _watch(look.now, as_json=as_json) if watch else look.now()
    wrong = judge(found, max_lag_seconds, age_ms)
    if not watch:
        if as_json:
            _echo(found, wrong)
        else:
            Console(file=sys.stdout).print(shown(found))
    if wrong is not None:
        raise wrong


def judge(
    found: Status, max_lag_seconds: float | None, max_audit_age_ms: int | None
) -> StateStoreError | None:
    """What is wrong by the limits given; the lag comes first."""
    name = found.application_id
    if max_lag_seconds is not None:
        if found.broker is not None:
            return Unavailable(f"{name}: its lag is not known: {found.broker}")
        if found.lag_seconds is None:
            return Behind(f"{name}: its lag is not known: it never ran, and no pipeline is at hand")
        if found.lag_seconds > max_lag_seconds:
            return Behind(
                f"{name}: {found.lag_seconds:g} s and {found.lag_records} records behind, "
                f"{max_lag_seconds:g} s are allowed: {_way_out(found)}"
            )
    return None if max_audit_age_ms is None else _doubt(found, max_audit_age_ms)


def _doubt(found: Status, max_age_ms: int) -> StateStoreError | None:
    """Why the state is not known to be right."""
    audit, name = found.audit, found.application_id
    if audit is None:
        return AuditTooOld(f"{name}: it was never audited: run `statestore audit`")
    where = f"; report: {audit.link}" if audit.link else ""
    if audit.verdict is Verdict.WRONG:
        return AuditFailed(
            f"{name}: the audit of {_span(audit.age_seconds)} ago found stores that are not what "
            f"their changelogs say{where}; run `statestore audit` to see which"
        )
    if audit.verdict is not Verdict.RIGHT:
        return NotChecked(
            f"{name}: the audit of {_span(audit.age_seconds)} ago is no pass: "
            f"{audit.verdict}{where}; audit again"
        )
    if audit.age_seconds * 1000 > max_age_ms:
        return AuditTooOld(
            f"{name}: the last audit is {_span(audit.age_seconds)} old, "
            f"{_span(max_age_ms / 1000)} are allowed: run `statestore audit`"
        )
    return None


def shown(found: Status) -> Group:
    """For a terminal: the answers, then a row per stream task."""
    head = Table.grid(padding=(0, 2))
    for name, text in _answers(found):
        head.add_row(Text(name, "bold"), text)
    columns = ("stream task", "state", "lag", "event time", "last commit", "catch-up", "restore")
    table = Table(*columns, "owner")
    for task in found.stream_tasks:
        table.add_row(*_row(task))
    return Group(head, table) if found.stream_tasks else Group(head)


def _answers(found: Status) -> list[tuple[str, Text]]:
    state = Text(f"{found.application_id}: {found.state}", _COLOURS.get(found.state, ""))
    if found.owner and found.state in {State.RUNNING, State.RESTORING, State.SILENT}:
        state.append(f" ({found.owner})", "")
    lag = f"{_count(found.lag_records)} records, {_span(found.lag_seconds)} of event time"
    if found.broker is not None:
        lag = f"not known: {found.broker}"
    rows = [
        ("state", state),
        ("behind", Text(lag, "red" if found.broker else "")),
        ("last commit", Text(_ago(found.last_commit_age_seconds, "none known"))),
        ("back in", Text(_way_back(found))),
    ]
    rows += [("data", _audited(found)), ("last export", _exported(found))]
    if found.relocation:
        rows.append(("relocation", Text(found.relocation, "yellow")))
    if found.free_bytes is not None:
        rows.append(("volume", Text(f"{found.free_bytes / 2**30:.1f} GiB free")))
    return rows


def _way_back(found: Status) -> str:
    if found.restore_seconds is None and found.catch_up_seconds is None:
        return "not known"
    restore, catch_up = _span(found.restore_seconds), _span(found.catch_up_seconds)
    return f"restore {restore}, then catch up in {catch_up}"


def _ago(seconds: float | None, otherwise: str) -> str:
    return otherwise if seconds is None else f"{_span(seconds)} ago"


def _audited(found: Status) -> Text:
    audit = found.audit
    if audit is None:
        return Text("never audited", "yellow")
    colour = {Verdict.RIGHT: "green", Verdict.WRONG: "red"}.get(audit.verdict, "yellow")
    return Text(f"{audit.verdict}, by the audit of {_span(audit.age_seconds)} ago", colour)


def _exported(found: Status) -> Text:
    export = found.export
    if export is None:
        return Text("no statestore.export.target is set")
    if export.problem:
        return Text(f"not known: {export.problem}", "red")
    return Text(_ago(export.age_seconds, "none"))


def _row(task: TaskStatus) -> list[Text]:
    return [
        Text(task.stream_task),
        Text(task.state, _COLOURS.get(task.state, "")),
        Text(_count(task.lag_records)),
        Text(_span(task.lag_seconds)),
        Text(_span(task.last_commit_age_seconds)),
        Text(_span(task.catch_up_seconds)),
        Text(_span(task.restore_seconds)),
        Text(task.owner or ""),
    ]


def _watch(look: Any, *, as_json: bool) -> Status:
    """Until Ctrl-C; on anything but a terminal one line, or table, after another."""
    console, pause = Console(file=sys.stdout), threading.Event()
    found: Status = look()
    try:
        if as_json or not console.is_terminal:
            while True:
                if as_json:
                    _echo(found, None)
                else:
                    console.print(shown(found))
                pause.wait(EVERY_S)
                found = look()
        with Live(shown(found), console=console, auto_refresh=False) as live:
            while True:
                pause.wait(EVERY_S)
                found = look()
                live.update(shown(found), refresh=True)
    except KeyboardInterrupt:
        return found


def _way_out(found: Status) -> str:
    match found.state:
        case State.RUNNING | State.RESTORING:
            return f"a run is on, {_span(found.catch_up_seconds)} to go at its last rate"
        case State.SILENT:
            return f"its owner says nothing any more: {found.owner}"
        case _:
            return f"no run is on ({found.state}): start one"


def _echo(found: Status, wrong: StateStoreError | None) -> None:
    fields = msgspec.to_builtins(found)
    click.echo(msgspec.json.encode({**fields, "error": None if wrong is None else failure(wrong)}))


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _span(seconds: float | None) -> str:
    """In the largest two units."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = math.ceil(seconds), []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])
