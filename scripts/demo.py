"""The sample application with one command: broker, sample data, Airflow, Spark, results.

    run     process what is new, show the results, stop what was started here
    up      leave the broker and Airflow running
    down    stop both

Each step calls a command; this program only decides their order. A broker that runs already is used
and not stopped, and so is the one that STATESTORE_BOOTSTRAP_SERVERS names.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from jobs.pipelines.flights import CARRIER_DAY, STATS_TOPIC
from scripts.flights_data import airlines
from statestore.cli import exit_code_of
from statestore.errors import HostFailure
from statestore.layout.folders import StateLayout
from statestore.runtime.public import open_store
from statestore.settings import Settings
from statestore.testing.kafka_command import DEFAULT_PORT
from statestore.testing.kafka_node import is_free

ROOT = Path(__file__).resolve().parents[1]
APPLICATION = "flights"
SERVERS_VARIABLE = "STATESTORE_BOOTSTRAP_SERVERS"
STATESTORE = str(Path(sys.executable).with_name("statestore"))
AIRFLOW = [sys.executable, str(ROOT / "scripts" / "airflow_local.py")]
LOG = ROOT / ".scratch" / "demo.log"
SUMMARY = ROOT / ".scratch" / "demo-summary.json"
PORTS = range(DEFAULT_PORT, DEFAULT_PORT + 100)
STOP_GRACE_S = 60
LOG_TAIL = 30
# These lines in the logs of Airflow and Spark say how far the work is.
MILESTONES = (
    (re.compile("Preparing Airflow's database"), "preparing Airflow's database, only this time"),
    (re.compile("Spark-Submit cmd"), "Airflow runs the task: spark-submit process.py"),
    (re.compile(r"SparkContext: Running Spark version (\S+)"), r"Spark \1 is starting"),
    (re.compile(r"(wave \d+): (\d+ stream tasks on \d+ slots)"), r"\1 of the topology: \2"),
)
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

began = time.monotonic()
console = Console(highlight=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Try statestore on real flights."""
    for ending in ENDINGS:
        signal.signal(ending, _interrupted)


@main.command()
def run() -> None:
    """Load the sample, process what is new through Airflow and Spark, show the results."""
    with ExitStack() as stack:
        servers = _broker(stack)
        _load(servers)
        _process(servers)
        show_results()
    step("Done")


@main.command()
def up() -> None:
    """Start Kafka and Airflow, load the sample, and leave them running."""
    with ExitStack() as stack:
        servers = _broker(stack)
        _load(servers)
        step("Starting Airflow, which takes up to a minute or two")
        _call([*AIRFLOW, "up"], _environment(servers))
        stack.pop_all()
    step(f"Kafka is at {servers}; trigger the DAG micro_batches, `make down` stops both")


@main.command()
def down() -> None:
    """Stop Airflow and the local broker; data and state stay."""
    codes = [_code(command) for command in ([*AIRFLOW, "down"], [STATESTORE, "kafka", "stop"])]
    sys.exit(max(codes))


def show_results() -> None:
    """Show a table by carrier from the store, where the data lies, and what to try next."""
    state_dir = ROOT / Settings.load(ROOT / "statestore.toml", APPLICATION).state_dir
    by_carrier, days = figures(StateLayout(state_dir, APPLICATION))
    names = airlines()
    table = Table(title=f"Flights from New York in 2013: {days} rows of the store, by carrier")
    table.add_column("Carrier", no_wrap=True)
    for heading in ("Flights", "Mean delay", "Delayed", "Cancelled"):
        table.add_column(heading, justify="right")
    for carrier, total in sorted(by_carrier.items(), key=lambda item: -item[1]["flights"]):
        left = total["flights"] - total["cancellations"]
        table.add_row(
            f"{carrier} {names.get(carrier, '')}",
            f"{total['flights']:,}",
            f"{total['delay_sum_min'] / left:.1f} min" if left else "",
            f"{total['delayed'] / left:.0%}" if left else "",
            f"{total['cancellations']:,}",
        )
    console.print(table)
    shown = os.path.relpath(state_dir / APPLICATION, ROOT)
    bin_dir = os.path.relpath(Path(STATESTORE).parent, ROOT)
    for line in (
        f"State     {shown}/<stream task>/rocksdb/{CARRIER_DAY.name}",
        f"Output    topic {STATS_TOPIC}: the last record of each carrier and day counts",
        "Try next  make run     again: it goes on from the committed offsets",
        "          make up      Airflow's page: trigger micro_batches with parameters",
        f"          {bin_dir}/statestore topology describe jobs.pipelines.flights:topology",
    ):
        console.print(line, soft_wrap=True, markup=False)


def figures(layout: StateLayout) -> tuple[dict[str, Counter[str]], int]:
    """The year's figures by carrier, summed over all stores, and the number of rows read."""
    by_carrier: dict[str, Counter[str]] = defaultdict(Counter)
    rows = 0
    for task in layout.tasks():
        if CARRIER_DAY.name not in layout.stores(task):
            continue
        with open_store(CARRIER_DAY, layout.store_dir(task, CARRIER_DAY.name).parent) as store:
            for key, day in store.all():
                by_carrier[key.partition("|")[0]].update(day)
                rows += 1
    if not rows:
        raise HostFailure(
            f"{layout.application_dir} holds no rows of {CARRIER_DAY.name}: did the DAG process "
            f"the sample? its log is {LOG}"
        )
    return by_carrier, rows


def step(text: str) -> None:
    """One line of progress, with the seconds since the start."""
    console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}", soft_wrap=True)


def _broker(stack: ExitStack) -> str:
    """The bootstrap servers; a broker that is started here is stopped when the stack unwinds."""
    given = os.environ.get(SERVERS_VARIABLE)
    if given:
        step(f"Using the broker of {SERVERS_VARIABLE}, {given}")
        return given
    running = _json_of([STATESTORE, "kafka", "status", "--json"])
    if running["running"]:
        step(f"Using the local broker at {running['bootstrap_servers']}, which runs already")
        return str(running["bootstrap_servers"])
    step("Starting a local Kafka broker")
    # This comes before the start: if this program is stopped meanwhile, so is the broker.
    stack.callback(_stop_broker)
    port = next((port for port in PORTS if is_free(port)), DEFAULT_PORT)
    started = _json_of([STATESTORE, "kafka", "start", "--port", str(port), "--json"])
    step(f"Kafka is ready at {started['bootstrap_servers']}")
    return str(started["bootstrap_servers"])


def _stop_broker() -> None:
    step("Stopping the local broker; its data stays")
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    _call([STATESTORE, "kafka", "stop"])


def _load(servers: str) -> None:
    step("Loading the sample: topics flights and weather")
    command = [sys.executable, "-m", "scripts.flights_data", "--bootstrap-servers", servers]
    _call(command)


def _process(servers: str) -> None:
    """Run the DAG; its log goes to a file, and the lines that tell its progress are shown here."""
    step(f"Running the DAG micro_batches (log: {LOG.relative_to(ROOT)})")
    SUMMARY.unlink(missing_ok=True)
    env = _environment(servers) | {"STATESTORE_SUMMARY_FILE": str(SUMMARY)}
    command = [*AIRFLOW, "run", "micro_batches"]
    with (
        LOG.open("w", encoding="utf-8") as log,
        console.status("Airflow and Spark are at work"),
        _child(command, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            for pattern, text in MILESTONES:
                if found := pattern.search(line):
                    step(f"  {found.expand(text)}")
        code = process.wait()
    if code:
        lines = LOG.read_text(encoding="utf-8").splitlines()
        console.print("\n".join(lines[-LOG_TAIL:]), markup=False)
        _fail(f"the DAG micro_batches failed; the whole log is {LOG}", code)
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    step(
        f"Processed {summary['records_in']:,} records by {summary['stream_tasks']} stream tasks, "
        f"{summary['commits']} commits, {summary['records_out']:,} records out"
    )


def _environment(servers: str) -> dict[str, str]:
    return dict(os.environ) | {SERVERS_VARIABLE: servers}


def _call(command: list[str], env: Mapping[str, str] | None = None) -> None:
    """Run a command with this program's output; if it fails, exit with its code."""
    code = _code(command, env)
    if code:
        _fail(f"{shlex.join(command)} failed", code)


def _code(command: list[str], env: Mapping[str, str] | None = None) -> int:
    with _child(command, env) as process:
        return process.wait()


def _json_of(command: list[str]) -> Any:
    with _child(command, stdout=subprocess.PIPE) as process:
        answer, _ = process.communicate()
    try:
        return json.loads(answer)
    except ValueError:
        _fail(f"{shlex.join(command)} failed", process.returncode or 1)


@contextmanager
def _child(
    command: list[str],
    env: Mapping[str, str] | None = None,
    *,
    stdout: int | None = None,
    stderr: int | None = None,
) -> "Iterator[subprocess.Popen[str]]":
    """A command in a session of its own: Ctrl-C reaches only this program, which ends it."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
        stdout=stdout,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _interrupted(number: int, _frame: object) -> None:
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    step("Interrupted: stopping what was started here")
    sys.exit(128 + number)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"demo: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
