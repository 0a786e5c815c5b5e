"""`statestore run`, and what a Spark job shares with it: the summary, its file, SIGTERM."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from statestore.commands.arguments import RunArguments, parse_run, run_options
from statestore.commands.printing import held_text
from statestore.commands.progress import shown_run
from statestore.errors import HostFailure, failure_fields
from statestore.operations.pipelines import load_pipeline
from statestore.operations.run import Run, RunSummary
from statestore.operations.serving import run_request, serve_here, start_run
from statestore.runtime import Runtime


@click.command("run")
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line, on failure too.")
def run_command(as_json: bool, **flags: Any) -> None:
    """Process what the input topics hold in this process: the code of one Spark slot."""
    stop = stop_on_sigterm()

    def work(arguments: RunArguments, started: Run) -> RunSummary:
        if arguments.run_for_ms is None:
            return serve_here(started, stop)
        with shown_run(started.environment.clock) as tell:
            return serve_here(started, stop, tell)

    summary = report_run(flags, work, click.echo if as_json else lambda _line: None)
    if as_json:
        click.echo(summary_line(summary))
    else:
        _print_table("run", list(summary.fields().items()))
        if summary.held_records:
            click.echo(held_text(summary.held_records))


def report_run(
    flags: dict[str, Any],
    work: Callable[[RunArguments, Run], RunSummary],
    tell: Callable[[str], object] = click.echo,
) -> RunSummary:
    """Call `work` between lock and release; write the summary file, after a failure too.

    `tell` is called with the JSON line of a run that failed.
    """
    summary_file = flags["summary_file"]
    try:
        check_summary_file(summary_file)
        arguments = parse_run(flags)
        request = run_request(
            until=arguments.until_time(),  # type: ignore[arg-type]  # "latest" or a time
            run_for=arguments.run_for_ms,
            accept_new_topology=arguments.accept_new_topology,
            accept_empty_changelog=arguments.accept_empty_changelog,
            accept_forgotten_offsets=arguments.accept_forgotten_offsets,
            accept_new_serdes=arguments.accept_new_serdes,
        )
        topology = load_pipeline(arguments.pipeline)
        with (
            Runtime(arguments.settings()) as runtime,
            start_run(runtime, topology, request) as started,
        ):
            summary = work(arguments, started)
        write_line(summary_file, summary_line(summary))
    except Exception as error:
        application_id = flags["application_id"] or ""
        failed = RunSummary(application_id, caught_up=False, error=failure_fields(error))
        tell(summary_line(failed))
        with suppress(HostFailure):  # The first error is the one to report.
            write_line(summary_file, summary_line(failed))
        raise
    return summary


def summary_line(summary: RunSummary) -> str:
    """The one JSON line."""
    return msgspec.json.encode(summary.fields()).decode()


def write_line(path: str | None, line: str) -> None:
    """Write the JSON line into the summary file `path`, if one was asked for."""
    if path is None:
        return
    try:
        Path(path).write_text(line + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error.strerror) from error


def check_summary_file(path: str | None) -> None:
    """HostFailure, before a run and not after it, if the summary could not be written."""
    if path is None:
        return
    file = Path(path)
    try:
        file.exists()
    except (OSError, ValueError) as error:
        raise _unwritable(path[:80], str(error)) from error
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise _unwritable(path, "its folder is not there or not writable")


def stop_on_sigterm() -> threading.Event:
    """Make an event that SIGTERM sets: finish the commit, release, exit with 0."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def _unwritable(path: str, reason: str | None) -> HostFailure:
    return HostFailure(
        f"cannot write the summary file {path}: {reason}; make it writable or pass another "
        "--summary-file"
    )


def _print_table(title: str, rows: list[tuple[str, object]]) -> None:
    table = Table(title=title, show_header=False)
    for name, value in rows:
        table.add_row(name, "" if value is None else str(value))
    Console().print(table)
