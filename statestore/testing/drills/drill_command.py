"""`statestore drill`: kill runs on purpose, and show that nothing is lost or doubled."""

import dataclasses
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from rich.console import Console

from statestore.commands.arguments import deployment_options, parse_deployment
from statestore.errors import HostFailure, Misuse, failure_fields
from statestore.settings import Settings, expand
from statestore.testing.drills.cluster import RUN, CloneFrom, drill
from statestore.testing.drills.drill_plan import PREFIX, DrillReport
from statestore.testing.drills.report import html_of, table_of
from statestore.testing.local_kafka import LocalKafka


def drill_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a drill, here and in statestore.spark.drill."""
    for option in reversed(
        [
            deployment_options,
            click.option(
                "--points",
                default="all",
                show_default=True,
                help="Crash points, separated by commas; all, or none.",
            ),
            click.option(
                "--random",
                "moments",
                default=5,
                show_default=True,
                help="How many runs to kill at random moments.",
            ),
            click.option(
                "--special",
                "specials",
                default="all",
                show_default=True,
                help="zombie, broker-restart, disk-full, …; all, or none.",
            ),
            click.option("--seed", type=int, help="Repeats the random choices of another drill."),
            click.option(
                "--brokers",
                type=click.Choice(["own", "application"]),
                default="own",
                show_default=True,
                help="Start a broker for the drill, or use the application's brokers.",
            ),
            click.option(
                "--workload",
                type=click.Choice(["generated", "clone"]),
                default="generated",
                show_default=True,
                help="clone: the application's own pipeline, with a clone for each drill.",
            ),
            click.option(
                "--export", help="What to clone: an export made with --for-clone; else a new one."
            ),
            click.option(
                "--confirm",
                is_flag=True,
                help="Yes, make and delete drill-… topics on the application's brokers.",
            ),
            click.option("--report", help="Folder for report.json, report.html and evidence."),
            click.option(
                "--keep", is_flag=True, help="Leave topics and folders of green drills, too."
            ),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON line."),
        ]
    ):
        command = option(command)
    return command


@click.command("drill")
@drill_options
def drill_command(**flags: Any) -> None:
    """Kill runs of a scratch application again and again, and audit what they leave.

    The command touches only its own topics, groups and folders, whose names begin with drill-. A
    drill that could not be done is reported as not drilled, which is not a pass.
    """
    run_drill(flags, RUN)


def run_drill(flags: dict[str, Any], launch: Sequence[str]) -> None:
    """Drill, write the report, and fail unless it is a pass; `launch` starts a run."""
    as_json = flags["as_json"]
    # If the drill is stopped, nothing that it started may outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        asked = _asked(flags)
        with _brokers(asked) as (settings, broker):
            report = drill(
                settings,
                folder=asked.folder,
                points=flags["points"],
                moments=flags["moments"],
                specials=flags["specials"],
                seed=asked.seed,
                broker=broker,
                launch=launch,
                keep=flags["keep"],
                clone=asked.clone,
            )
        _write(report, asked.folder)
    except Exception as error:
        if as_json:
            _echo({"application_id": flags["application_id"] or "", "error": failure_fields(error)})
        raise
    wrong = report.failure()
    if as_json:
        error_fields = None if wrong is None else failure_fields(wrong)
        said = msgspec.to_builtins(report)
        _echo({**said, "report": str(asked.folder / "report.html"), "error": error_fields})
    else:
        Console(file=sys.stdout).print(table_of(report))
        click.echo(f"report: {asked.folder / 'report.html'}")
    if wrong is not None:
        raise wrong


class _Asked(NamedTuple):
    settings: Settings
    own_broker: bool
    folder: Path
    seed: int
    clone: CloneFrom | None


class _OwnBroker:
    """`OwnBroker` for a LocalKafka."""

    def __init__(self, kafka: LocalKafka) -> None:
        self._kafka = kafka

    def restart(self) -> None:
        self._kafka.stop_broker(0)
        self._kafka.start_broker(0)


def _asked(flags: Mapping[str, Any]) -> _Asked:
    own_broker = flags["brokers"] == "own"
    settings, pipeline = Settings(), None
    if flags["application_id"]:
        settings, pipeline = parse_deployment(flags)
    elif not own_broker:
        raise Misuse("on which brokers? pass --application-id, or leave out --brokers application")
    if not own_broker:
        settings.require("bootstrap.servers")
        if not flags["confirm"]:
            raise Misuse(
                f"drilling on {settings.bootstrap_servers} makes topics {PREFIX}…, loads the "
                "brokers and deletes those topics again: pass --confirm if that may be, or leave "
                "out --brokers application"
            )
    clone = None
    if flags["workload"] == "clone":
        if own_broker or pipeline is None:
            raise Misuse(
                "a clone is of an application and on its brokers: pass --application-id, "
                "--brokers application, and --pipeline if statestore.toml names none"
            )
        settings.require("state.dir", "statestore.export.target")
        clone = CloneFrom(pipeline, flags["export"])
    folder = Path(flags["report"] or _home(settings)).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostFailure(
            f"cannot make {folder}: {error.strerror}; pass another --report"
        ) from error
    seed = secrets.randbelow(2**31) if flags["seed"] is None else flags["seed"]
    return _Asked(settings, own_broker, folder, seed, clone)


def _home(settings: Settings) -> Path:
    """A folder beside those of applications, and never in one of them."""
    name = f"{PREFIX}reports"
    if settings.state_dir:
        return Path(expand(settings.state_dir, "state.dir")) / name / secrets.token_hex(4)
    return Path(tempfile.gettempdir()) / name / secrets.token_hex(4)


@contextmanager
def _brokers(asked: _Asked) -> Iterator[tuple[Settings, _OwnBroker | None]]:
    if not asked.own_broker:
        yield asked.settings, None
        return
    # By default a broker looks every 10 s for transactions that dead processes left open.
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}
    with LocalKafka(config=often) as kafka:
        reached = dataclasses.replace(
            asked.settings, bootstrap_servers=kafka.bootstrap_servers, clients={}
        )
        yield reached, _OwnBroker(kafka)


def _write(report: DrillReport, folder: Path) -> None:
    try:
        (folder / "report.json").write_bytes(msgspec.json.encode(report))
        (folder / "report.html").write_text(html_of(report), encoding="utf-8")
    except OSError as error:
        raise HostFailure(f"cannot write the report into {folder}: {error.strerror}") from error


def _echo(fields: dict[str, Any]) -> None:
    click.echo(msgspec.json.encode(fields))
