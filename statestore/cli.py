"""The `statestore` command.

Exit codes are those of errors.py. Logs go to stderr, results to stdout; `--json` prints one JSON
line.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from statestore.arguments import RunArguments, parse_run, run_options
from statestore.assembly import (
    failure,
    load_pipeline,
    run_request,
    serve_planned,
    start_run,
    summary_fields,
)
from statestore.errors import HostFailure, StateStoreError
from statestore.faults import arm_from_environment
from statestore.kafka.topics import KafkaCluster
from statestore.model import TaskId
from statestore.operations.run import Run, RunSummary
from statestore.relocate_command import relocate_command
from statestore.settings import Settings
from statestore.stores_command import offsets_command, stores
from statestore.testing.kafka_command import kafka
from statestore.upgrade_command import upgrade_command

_log = logging.getLogger("statestore")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="More logs.")
def cli(verbose: bool) -> None:
    """Exactly-once, stateful stream processing with Kafka, Spark and Airflow."""
    set_up_logging(verbose=verbose)


cli.add_command(kafka)
cli.add_command(stores)
cli.add_command(offsets_command)
cli.add_command(relocate_command)
cli.add_command(upgrade_command)


@cli.command("run")
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def run_command(as_json: bool, **flags: Any) -> None:
    """Process what the input topics hold in this process: the code of one Spark slot."""
    arm_from_environment()
    stop = stop_on_sigterm()
    summary = report_run(flags, lambda arguments, started: _serve_here(arguments, started, stop))
    if as_json:
        click.echo(summary_line(summary))
    else:
        _print_table("run", list(summary_fields(summary).items()))


@cli.group()
def topology() -> None:
    """Look at a pipeline's topology."""


@topology.command("describe")
@click.argument("pipeline")
def describe_command(pipeline: str) -> None:
    """Sub-topologies, nodes, stores and topics of PIPELINE (module:function)."""
    click.echo(load_pipeline(pipeline).describe())


@topology.command("tasks")
@run_options
def tasks_command(**flags: Any) -> None:
    """The stream tasks of a pipeline, with their input topics, on the broker as it is."""
    for task, topics in _tasks(parse_run(flags)):
        click.echo(f"{task}\t{', '.join(topics)}")


def report_run(
    flags: dict[str, Any], work: Callable[[RunArguments, Run], RunSummary]
) -> RunSummary:
    """Run `work` between lock and release; the summary file is written on failure too."""
    summary_file = flags["summary_file"]
    try:
        check_summary_file(summary_file)
        arguments = parse_run(flags)
        request = run_request(
            until=arguments.until_time(),  # type: ignore[arg-type]  # "latest" or a time
            run_for=arguments.run_for_ms,
            accept_new_topology=arguments.accept_new_topology,
            accept_empty_changelog=arguments.accept_empty_changelog,
        )
        topology = load_pipeline(arguments.pipeline)
        with start_run(topology, arguments.settings(), request) as started:
            summary = work(arguments, started)
        write_summary(summary_file, summary)
    except Exception as error:
        application_id = flags["application_id"] or ""
        failed = RunSummary(application_id, caught_up=False, error=failure(error))
        click.echo(summary_line(failed))
        with suppress(HostFailure):  # the first error is the one to tell
            write_summary(summary_file, failed)
        raise
    return summary


def summary_line(summary: RunSummary) -> str:
    """The one JSON line."""
    return msgspec.json.encode(summary_fields(summary)).decode()


def write_summary(path: str | None, summary: RunSummary) -> None:
    """The JSON line into `path`, if one was asked for."""
    if path is None:
        return
    try:
        Path(path).write_text(summary_line(summary) + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error.strerror) from error


def check_summary_file(path: str | None) -> None:
    """HostFailure if the summary could not be written: better before a run than after it."""
    if path is None:
        return
    file = Path(path)
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise _unwritable(path, "its folder is not there or not writable")


def stop_on_sigterm() -> threading.Event:
    """An event that SIGTERM sets: finish the commit, release, exit 0."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def set_up_logging(*, verbose: bool = False) -> None:
    """Plain lines on stderr."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def main() -> None:
    """The entry point: one clear line and the error's exit code instead of a traceback."""
    sys.exit(guarded(cli))


def guarded(command: Callable[[], object]) -> int:
    """Run a command; the exit code of errors.py, after one line on stderr."""
    try:
        command()
    except StateStoreError as error:
        click.echo(f"statestore: {type(error).__name__}: {error}", err=True)
        _log.debug("where it came from", exc_info=True)
        return error.exit_code
    return 0


def _unwritable(path: str, reason: str | None) -> HostFailure:
    return HostFailure(
        f"cannot write the summary file {path}: {reason}; make it writable or pass another "
        "--summary-file"
    )


def _serve_here(arguments: RunArguments, started: Run, stop: threading.Event) -> RunSummary:
    summary = RunSummary(arguments.application_id)
    settings = arguments.settings()
    for wave in started.waves():
        if stop.is_set():
            summary.caught_up = False
            break
        reports = serve_planned(
            started.topology, settings, wave, started.request, slots=1, stop=stop
        )
        summary.add(reports)
        _log.info("%d stream tasks done, %d records so far", len(reports), summary.records_in)
    return summary


def _tasks(arguments: RunArguments) -> list[tuple[TaskId, list[str]]]:
    settings: Settings = arguments.settings()
    settings.require("bootstrap.servers")
    topology = load_pipeline(arguments.pipeline)
    cluster = KafkaCluster(settings)
    try:
        cluster.check()
        read, _ = topology.topics()
        counts = topology.partition_counts(cluster.partitions(sorted(read)))
    finally:
        cluster.close()
    return [
        (task, [t.full(settings.application_id) for t in part.source_topics])
        for part in topology.sub_topologies
        for task in topology.tasks(counts)[part.ordinal]
    ]


def _print_table(title: str, rows: list[tuple[str, object]]) -> None:
    table = Table(title=title, show_header=False)
    for name, value in rows:
        table.add_row(name, "" if value is None else str(value))
    Console().print(table)
