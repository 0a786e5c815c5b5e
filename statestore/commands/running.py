"""`statestore run`, and what a Spark job shares with it: the summary and its file."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import reduce
from pathlib import Path
from typing import Any, Self

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statestore.commands.arguments import RunArguments, parse_run, run_options
from statestore.commands.interrupts import plain_interrupts
from statestore.commands.printing import cell_text
from statestore.commands.progress import shown_run
from statestore.errors import HostFailure, failure_fields
from statestore.extras import needed
from statestore.metrics import GatheredFigures
from statestore.model.left_out import left_out_lines
from statestore.model.texts import held_text
from statestore.operations.activities import activities_in
from statestore.operations.pipelines import load_pipeline
from statestore.operations.running.continuous import serve_run
from statestore.operations.running.run import Run, RunSummary
from statestore.operations.running.runner import serve_here
from statestore.runtime import Runtime
from statestore.runtime.workers import serve_by_workers
from statestore.settings import expand
from statestore.tasks.slot import Ending

# A handler of signals may not wait for a lock, so these go past sys.stderr.
_AFTER_COMMIT = b"\nstatestore: it ends after the next commit; Ctrl-C again ends it at once\n"
_AT_ONCE = b"\nstatestore: ended at once; the next run goes on from the last commit\n"
_SHOW_CURSOR = b"\x1b[?25h"


@click.command("run")
@run_options
@click.option(
    "--workers",
    envvar="STATESTORE_WORKERS",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="How many processes to spread the stream tasks over.",
)
@click.option(
    "--metrics-port",
    envvar="STATESTORE_METRICS_PORT",
    type=click.IntRange(0, 65535),
    help="Serve metrics for Prometheus at this port while it runs; 0 takes a free one.",
)
@click.option(
    "--metrics-host",
    envvar="STATESTORE_METRICS_HOST",
    default="127.0.0.1",
    show_default=True,
    help="The address on which to do so.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line, on failure too.")
def run_command(
    *,
    workers: int,
    metrics_port: int | None,
    metrics_host: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Process what the input topics hold, without Spark, in one process or several.

    Ctrl-C and SIGTERM end a run after its next commit; a second Ctrl-C ends it at once.
    """
    application_id = flags["application_id"] or ""
    gathered = GatheredFigures() if workers > 1 and metrics_port is not None else None
    with _Signals() as stop, _metrics(application_id, metrics_host, metrics_port, gathered):
        summary = _run(workers, stop, flags, gathered, as_json=as_json)
    if as_json:
        click.echo(summary_line(summary))
    else:
        left_out = {"lineage", "held", "dropped", "dead_letters", "unmatched"}
        left_out |= {"lookups"} if not summary.lookups else set()
        fields = summary.fields()
        if summary.held_records:
            fields["caught_up"] = f"{summary.caught_up}, {summary.held_records:,} records held back"
        _print_table("run", [(name, it) for name, it in fields.items() if name not in left_out])
        if summary.held_records:
            click.echo(held_text(summary.held_records, summary.held))
        for line in left_out_lines(summary.dropped, summary.dead_letters, summary.unmatched):
            click.echo(line)


def _metrics(
    application_id: str, host: str, port: int | None, gathered: GatheredFigures | None
) -> AbstractContextManager[int | None]:
    """Serve the metrics of the run, if that was asked for: of its workers, or of this process."""
    if port is None:
        return nullcontext()
    with needed("serve", "--metrics-port"):
        from statestore.serving.prometheus import metrics_port
    return metrics_port(application_id, host, port, gathered)


def _run(
    workers: int,
    stop: "_Signals",
    flags: dict[str, Any],
    gathered: GatheredFigures | None,
    *,
    as_json: bool,
) -> RunSummary:
    def work(arguments: RunArguments, started: Run, ending: Ending) -> RunSummary:
        stop.gently()
        bounded = arguments.run_for_ms is None
        environment = started.environment
        with shown_run(environment.clock, activities_in(environment), bounded=bounded) as tell:
            if workers > 1:
                return serve_by_workers(
                    started, arguments.pipeline, workers, ending, tell, gathered
                )
            return serve_here(started, ending, tell)

    try:
        tell = click.echo if as_json else lambda _line: None
        with plain_interrupts():
            return report_run(flags, work, tell, ending=stop.asked)
    except KeyboardInterrupt:
        os.write(2, _AT_ONCE)
        sys.exit(128 + stop.number)


def report_run(
    flags: dict[str, Any],
    work: Callable[[RunArguments, Run, Ending], RunSummary],
    tell: Callable[[str], object] = click.echo,
    prepare: Callable[[], object] = lambda: None,
    ending: Ending | None = None,
) -> RunSummary:
    """Call `work` between lock and release; write the summary file, after a failure too.

    `tell` is called with the JSON line of a run that failed. `prepare` is called first; the summary
    tells of its failure too. `ending`: what ends the run after a commit, if anything does.
    """
    summary_file, runs = flags["summary_file"], list[RunSummary]()
    try:
        prepare()
        check_summary_file(summary_file)
        arguments = parse_run(flags)
        request = arguments.request()
        topology = load_pipeline(arguments.pipeline)

        def serve(started: Run, ending: Ending) -> RunSummary:
            runs.append(started.summary)
            summary = work(arguments, started, ending)
            summary.lineage = lineage_of(started)
            return summary

        with Runtime(arguments.settings()) as runtime:
            summary = serve_run(runtime, topology, request, ending or threading.Event(), serve)
        write_line(summary_file, summary_line(summary))
    except Exception as error:
        failed = RunSummary(flags["application_id"] or "")
        if runs:  # More than one, if patterns matched other topics meanwhile.
            failed = reduce(lambda before, now: now.after(before), runs)
        failed.caught_up, failed.error = False, failure_fields(error)
        tell(summary_line(failed))
        with suppress(HostFailure):  # The first error is the one to report.
            write_line(summary_file, summary_line(failed))
        raise
    return summary


def lineage_of(started: Run) -> dict[str, object]:
    """Say where the data of a run comes from and goes to, for catalogues of data."""
    inputs, outputs = started.topology.topics()
    brokers = expand(started.environment.settings.bootstrap_servers, "bootstrap.servers")
    return {
        "brokers": brokers,
        "inputs": sorted(inputs),
        "outputs": sorted(outputs),
        "stores": sorted(started.topology.stores),
    }


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


class _Signals:
    """What Ctrl-C and SIGTERM mean to a run.

    Before it serves its first stream task, as while it waits for the lock, they interrupt it. Later
    they ask it to commit, release, sum up and exit with 0, and another Ctrl-C ends the process at
    once, as a kill does: nothing is committed, and the workers of the run end with it. After the
    `with` block they mean what they meant before it.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.number = 0
        self._gently = self._is_heard = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            # A shell starts what runs in its background with Ctrl-C ignored.
            if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def gently(self) -> None:
        """From now on there is something to commit."""
        self._gently = True

    def _heard(self, number: int, _frame: object) -> None:
        self.number = number
        if not self._gently:
            raise KeyboardInterrupt
        if self._is_heard or self.asked.is_set():
            if number != signal.SIGINT:
                return
            if sys.stderr.isatty():
                os.write(2, _SHOW_CURSOR)
            os.write(2, _AT_ONCE)
            os._exit(128 + number)
        # Before anybody reads the line: the next signal may come while this one is handled.
        self._is_heard = True
        os.write(2, _AFTER_COMMIT)
        self.asked.set()


def _unwritable(path: str, reason: str | None) -> HostFailure:
    return HostFailure(
        f"cannot write the summary file {path}: {reason}; make it writable or pass another "
        "--summary-file"
    )


def _print_table(title: str, rows: list[tuple[str, object]]) -> None:
    table = Table(title=title, show_header=False)
    for name, value in rows:
        shown = str(value) if isinstance(value, bool) else cell_text(name, value)
        table.add_row(name.replace("_seconds", "_time"), Text(shown))
    Console().print(table)
