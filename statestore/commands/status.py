"""`statestore status`: am I behind, is my data right, how long until I am back?"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from statestore.commands.arguments import deployment_options, parse_deployment, parse_span
from statestore.commands.interrupts import plain_interrupts
from statestore.errors import (
    AuditFailed,
    AuditTooOld,
    Behind,
    InvalidSetting,
    NotChecked,
    StateStoreError,
    Unavailable,
    failure_fields,
)
from statestore.layout.activity_files import ActivityState
from statestore.layout.audits import AuditVerdict
from statestore.model.texts import held_text, size_text, span_text, time_text
from statestore.operations.status.lags import totals_of
from statestore.operations.status.left_out_sums import left_out_rows
from statestore.operations.status.status import State, Status, StatusReader, TaskStatus
from statestore.runtime import Runtime

EVERY_S = 2.0
_LATE_EXPORTS, _LATE_EXPORT_S = 2, 60
"""So many intervals and seconds old is an export too late to be only slow."""
_OWNED = frozenset({State.RUNNING, State.RESTORING, State.SILENT})
_COLOURS = {
    State.RUNNING: "green",
    State.RESTORING: "yellow",
    State.CRASHED: "red",
    State.SILENT: "red",
    State.UNKNOWN: "red",
}


@click.command("status")
@deployment_options
@click.option("--watch", is_flag=True, help="Look again every two seconds, until Ctrl-C.")
@click.option(
    "--max-lag-seconds", type=float, help="Fail (exit code 14) if it is further behind than this."
)
@click.option(
    "--max-audit-age",
    help="Fail (15) if the last audit is older: 24h, 7d; and (12, 13) if it is not passed.",
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
    """Show how an application is, whether or not a run is in progress; nothing is locked.

    A lag is at most what is shown. Times left go by the rates of the last run.
    """
    settings, pipeline = parse_deployment(flags)
    age_ms = None if max_audit_age is None else parse_span(max_audit_age)
    with Runtime(settings) as runtime:
        reader = StatusReader(runtime, pipeline=pipeline)
        found = _watch(reader.now, as_json=as_json) if watch else reader.now()
    wrong = check_limits(found, max_lag_seconds, age_ms)
    if not watch:
        if as_json:
            _echo(found, wrong)
        else:
            Console(file=sys.stdout).print(rendered(found))
    if wrong is not None:
        raise wrong


def check_limits(
    found: Status, max_lag_seconds: float | None, max_audit_age_ms: int | None
) -> StateStoreError | None:
    """What exceeds the limits given; the lag comes first."""
    name = found.application_id
    if max_lag_seconds is not None:
        if found.broker is not None:
            kind = InvalidSetting if found.broker_refuses else Unavailable
            return kind(f"{name}: its lag is not known: {found.broker}")
        if found.lag_seconds is None and not found.stream_tasks:
            return Behind(f"{name}: its lag is not known: it never ran, and no pipeline is at hand")
        if found.lag_seconds is None:
            return Unavailable(
                f"{name}: its lag is not known: the brokers did not tell of stream tasks "
                f"{', '.join(t.stream_task for t in found.stream_tasks if t.lag_seconds is None)}: "
                "look whether their topics are there, and again"
            )
        if found.lag_seconds > max_lag_seconds:
            return Behind(
                f"{name}: {found.lag_seconds:g} s and {found.lag_records} records behind, "
                f"{max_lag_seconds:g} s are allowed: {_way_out(found)}"
            )
    return None if max_audit_age_ms is None else _doubt(found, max_audit_age_ms)


def _doubt(found: Status, max_age_ms: int) -> StateStoreError | None:
    """Why the state is not known to be right; None if it is."""
    audit, name = found.audit, found.application_id
    if audit is None:
        return AuditTooOld(f"{name}: it was never audited: run `statestore audit`")
    where = f"; report: {audit.link}" if audit.link else ""
    if audit.verdict is AuditVerdict.WRONG:
        return AuditFailed(
            f"{name}: the audit of {span_text(audit.age_seconds)} ago found stores that are not "
            f"what their changelogs say{where}; run `statestore audit` to see which"
        )
    if audit.verdict is not AuditVerdict.RIGHT:
        return NotChecked(
            f"{name}: the audit of {span_text(audit.age_seconds)} ago is no pass: "
            f"{audit.verdict}{where}; audit again"
        )
    if audit.age_seconds * 1000 > max_age_ms:
        return AuditTooOld(
            f"{name}: the last audit is {span_text(audit.age_seconds)} old, "
            f"{span_text(max_age_ms / 1000)} are allowed: run `statestore audit`"
        )
    return None


def rendered(found: Status) -> Group:
    """For a terminal of 80 columns: the answers, a line per stream task, and the owners."""
    head = Table.grid(padding=(0, 2))
    head.add_column(no_wrap=True)
    head.add_column(overflow="fold")
    for name, text in _answers(found):
        head.add_row(Text(name, "bold"), text)
    if not found.stream_tasks:
        return Group(head)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in ("task", "state", "behind", "event time", "committed", "catch-up", "restore"):
        left = column in {"task", "state"}
        table.add_column(column, no_wrap=True, justify="left" if left else "right")
    for task in found.stream_tasks:
        table.add_row(*_row(task))
    return Group(head, table, *_held(found), *_owners(found))


def _held(found: Status) -> list[Text]:
    """The stream tasks in which records wait, in a line of its own, because 80 columns are full."""
    tasks = [task for task in found.stream_tasks if task.held_records]
    each = ", ".join(f"{_count(task.held_records)} in {task.stream_task}" for task in tasks)
    return [Text(f"held back: {each}")] if tasks else []


def _owners(found: Status) -> list[Text]:
    """A line for each process that owns stream tasks now."""
    tasks_of: dict[str, list[str]] = {}
    for task in found.stream_tasks:
        if task.owner is not None and task.state in _OWNED:
            who = task.owner.rpartition(", epoch ")[0]
            tasks_of.setdefault(who, []).append(task.stream_task)
    if len(tasks_of) == 1:
        return [Text(f"{who} has all that are owned") for who in tasks_of]
    return [Text(f"{who} has {' '.join(tasks)}") for who, tasks in tasks_of.items()]


def _answers(found: Status) -> list[tuple[str, Text]]:
    state = Text(f"{found.application_id}: {found.state}", _COLOURS.get(found.state, ""))
    if found.owner and found.state in _OWNED:
        state.append(f" ({found.owner})", "")
    lag = f"{_count(found.lag_records)} records, {span_text(found.lag_seconds)} of event time"
    if found.broker is not None:
        lag = f"not known: {found.broker}"
    rows = [
        ("state", state),
        ("behind", Text(lag, "red" if found.broker else "")),
        ("last commit", Text(_committed(found))),
        ("back in", Text(_way_back(found))),
    ]
    rows += [("under way", Text(f"{name}: {text}", style)) for name, text, style in _works(found)]
    held = sum(task.held_records or 0 for task in found.stream_tasks)
    if held:
        at_least = "at least " if found.held_records is None else ""
        known = totals_of(task.held for task in found.stream_tasks if task.held is not None)
        rows.append(("waiting", Text(at_least + held_text(held, known))))
    for name, text in left_out_rows(found.last_run, found.all_runs):
        rows.append((name, Text(text, "" if name == "unmatched" else "yellow")))
    for table in found.global_tables:
        age = "not read yet"
        if table.refreshed_age_seconds is not None:
            age = f"complete {span_text(table.refreshed_age_seconds)} ago"
        behind = f"{_count(table.lag_records)} records behind {table.topic}"
        told = behind if table.file is None else f"file {table.file}"
        rows.append((f"global {table.store}", Text(f"{age}, {told}")))
    rows += [("data", _audited(found)), ("last export", _exported(found))]
    if found.relocation:
        rows.append(("relocation", Text(found.relocation, "yellow")))
    if found.free_bytes is not None:
        rows.append(("volume", Text(f"{size_text(found.free_bytes)} free")))
    rows += [("not known", Text(problem, "red")) for problem in found.problems]
    rows.append(("looked at", Text(time_text(found.at_ms))))
    return rows


def _works(found: Status) -> Iterator[tuple[str, str, str]]:
    """The name of each work, how far it is, and its style."""
    for work in found.works:
        of = f" of {work.stream_task}" if work.stream_task else ""
        match work.state:
            case ActivityState.WORKING:
                yield f"{work.kind}{of}", work.text(), ""
            case ActivityState.SILENT:
                ago = span_text(work.age_seconds)
                yield f"{work.kind}{of}", f"{work.process} has told nothing for {ago}", "yellow"
            case ActivityState.DIED:
                ago = span_text(work.age_seconds)
                yield f"{work.kind}{of}", f"{work.process} died {ago} ago at the latest", "red"


def _committed(found: Status) -> str:
    """The last commit of the stream task that has waited longest, and which task that is."""
    times = {t.stream_task: t.last_commit_ms for t in found.stream_tasks if t.last_commit_ms}
    if not times or found.last_commit_age_seconds is None:
        return "none known"
    oldest = min(times, key=times.__getitem__)
    ago = _ago(found.at_ms, times[oldest])
    newest = max(times.values())
    if newest == times[oldest]:
        return ago
    return f"{ago} in stream task {oldest}, the oldest; the newest {_age(found.at_ms, newest)} ago"


def _age(now_ms: int, time_ms: int) -> str:
    return span_text(max(0, now_ms - time_ms) / 1000)


def _ago(now_ms: int, time_ms: int) -> str:
    """A time and its age."""
    return f"{time_text(time_ms)}, {_age(now_ms, time_ms)} ago"


def _way_back(found: Status) -> str:
    if found.restore_seconds is None and found.catch_up_seconds is None:
        return "not known"
    restore, catch_up = span_text(found.restore_seconds), span_text(found.catch_up_seconds)
    return f"restore {restore}, then catch up in {catch_up}"


def _audited(found: Status) -> Text:
    audit = found.audit
    if audit is None:
        return Text("never audited", "yellow")
    colour = {AuditVerdict.RIGHT: "green", AuditVerdict.WRONG: "red"}.get(audit.verdict, "yellow")
    return Text(f"{audit.verdict}, by the audit of {_ago(found.at_ms, audit.time_ms)}", colour)


def _exported(found: Status) -> Text:
    export = found.export
    if export is None:
        return Text("no statestore.export.target is set")
    if export.problem:
        what = "not known" if export.export_id is None else f"{export.export_id} is no good"
        return Text(f"{what}: {export.problem}", "red")
    every = export.interval_seconds
    rhythm = "" if every is None else f"; runs make one every {span_text(every)}"
    if export.age_seconds is None:
        return Text(f"none{rhythm}")
    made = _ago(found.at_ms, found.at_ms - round(export.age_seconds * 1000))
    late = every is not None and export.age_seconds > _LATE_EXPORTS * every + _LATE_EXPORT_S
    return Text(f"{made}{rhythm}", "yellow" if late else "")


def _row(task: TaskStatus) -> list[Text]:
    ages = (task.lag_seconds, task.last_commit_age_seconds)
    left = (task.catch_up_seconds, task.restore_seconds)
    return [
        Text(task.stream_task),
        Text(task.state, _COLOURS.get(task.state, "")),
        Text(_count(task.lag_records)),
        *(Text(span_text(seconds).replace(" ", "")) for seconds in (*ages, *left)),
    ]


@contextmanager
def _shown(found: Status, console: Console, *, as_json: bool) -> Iterator[Callable[[Status], None]]:
    """Show what was found, and yield what shows the next: in its place on a terminal."""
    if not as_json and console.is_terminal:
        with Live(rendered(found), console=console, auto_refresh=False) as live:
            yield lambda status: live.update(rendered(status), refresh=True)
        return

    def show(status: Status) -> None:
        if as_json:
            _echo(status, None)
        else:
            console.print(rendered(status))

    show(found)
    yield show


def _watch(look: Any, *, as_json: bool) -> Status:
    """Look again until Ctrl-C; unless on a terminal, write one line or table after another."""
    console, pause = Console(file=sys.stdout), threading.Event()
    found: Status = look()
    try:
        with plain_interrupts(), _shown(found, console, as_json=as_json) as show:
            while True:
                pause.wait(EVERY_S)
                found = look()
                show(found)
    except KeyboardInterrupt:
        return found


def _way_out(found: Status) -> str:
    match found.state:
        case State.RUNNING | State.RESTORING:
            return f"a run is on, {span_text(found.catch_up_seconds)} to go at its last rate"
        case State.SILENT:
            return f"its owner says nothing any more: {found.owner}"
        case _:
            return f"no run is on ({found.state}): start one"


def _echo(found: Status, wrong: StateStoreError | None) -> None:
    fields = msgspec.to_builtins(found)
    error = None if wrong is None else failure_fields(wrong)
    click.echo(msgspec.json.encode({**fields, "error": error}))


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"
