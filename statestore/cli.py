"""The `statestore` command.

Exit codes are those of errors.py. Logs go to stderr, results to stdout; `--json` prints one JSON
line.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final, TextIO, cast

import click
from pythonjsonlogger.json import JsonFormatter

from statestore import __version__
from statestore.commands.help import CommandGroup
from statestore.errors import HostFailure, Misuse, StateStoreError, one_line
from statestore.extras import OFFERS, load_from, missing
from statestore.faults import arm_from_environment

_log = logging.getLogger("statestore")
_LOG_FORMAT = "STATESTORE_LOG_FORMAT"
_LOG_FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


_COMMANDS: Final = {
    "audit": "statestore.commands.audit:audit_command",
    "export": "statestore.commands.exports:export_command",
    "exports": "statestore.commands.exports:exports",
    "init": "statestore.commands.init:init_command",
    "migrate": "statestore.commands.state:migrate_command",
    "offsets": "statestore.commands.stores:offsets_command",
    "relocate": "statestore.commands.state:relocate_command",
    "repartition": "statestore.commands.repartition:repartition_command",
    "reset": "statestore.commands.reset:reset_command",
    "restore": "statestore.commands.exports:restore_short_command",
    "run": "statestore.commands.running:run_command",
    "settings": "statestore.commands.settings:settings_command",
    "spark-classes": "statestore.commands.spark_classes:spark_classes_command",
    "spark-job": "statestore.commands.spark_job:spark_job_command",
    "status": "statestore.commands.status:status_command",
    "stores": "statestore.commands.stores:stores",
    "topics": "statestore.commands.topics:topics_group",
    "topology": "statestore.commands.topologies:topology_group",
    "upgrade-to-versioned": "statestore.commands.state:upgrade_command",
}
"""The commands, and where each is: a call imports its own alone."""

_OF_EXTRAS: Final = {
    "drill": "Kill runs of a scratch application again and again, and audit what they leave.",
    "kafka": "Run one local Kafka broker, for development; needs Java 17 and, once, Maven.",
    "serve": "Answer questions about the stores of an application over HTTP, beside its runs.",
    "ui": "Show applications in a browser: the answers, tasks, stores, audits and exports; "
    "read-only.",
}
"""The first sentences of commands that extras offer, for which `statestore --help` loads none."""


class _Commands(CommandGroup):
    """The commands. One is imported when it is asked for, and to list those of no extra."""

    sections: ClassVar = {
        "Begin": ("init", "settings", "topology", "topics"),
        "Run": ("run", "spark-job", "spark-classes", "status", "ui"),
        "Look into state": ("stores", "offsets", "serve", "audit"),
        "Keep copies": ("export", "restore", "exports"),
        "Change or begin again": (
            "relocate",
            "repartition",
            "migrate",
            "upgrade-to-versioned",
            "reset",
        ),
        "Try": ("kafka", "drill"),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_COMMANDS, *_OF_EXTRAS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            return cast("click.Command", load_from(_COMMANDS[cmd_name]))
        if cmd_name not in _OF_EXTRAS:
            return super().get_command(ctx, cmd_name)
        try:
            return cast("click.Command", OFFERS[cmd_name].load())
        except ModuleNotFoundError as error:
            return _without_extra(cmd_name, OFFERS[cmd_name].extra, error)

    def first_sentence(self, ctx: click.Context, name: str) -> str | None:
        if name not in _OF_EXTRAS:
            return super().first_sentence(ctx, name)
        offer = OFFERS[name]
        return _OF_EXTRAS[name] if offer.is_installed else _not_available(offer.extra)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="statestore")
@click.option("-v", "--verbose", is_flag=True, help="More logs.")
@click.option(
    "--log-format",
    type=click.Choice(_LOG_FORMATS),
    envvar=_LOG_FORMAT,
    help="Log plain lines, which is the default, or a JSON object in each line.",
)
def cli(verbose: bool, log_format: str | None) -> None:
    """Exactly-once, stateful stream processing with Kafka, Spark and Airflow.

    Flags of an application may stand in statestore.toml, under [applications.<id>], or in variables
    such as STATESTORE_STATE_DIR. Exit codes tell what to do: 0 done, 2 correct the call, 6 to 8 try
    again. `python -m pydoc statestore.errors` lists them all.
    """
    set_up_logging(verbose=verbose, log_format=log_format)
    arm_from_environment()


def _not_available(extra: str) -> str:
    return f"Not available: install the extra `{extra}`."


def _without_extra(name: str, extra: str, error: ModuleNotFoundError) -> click.Command:
    """Make the command that stands in for one whose extra is not installed, and says so."""

    @click.command(
        name, help=_not_available(extra), context_settings={"ignore_unknown_options": True}
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def refuse(arguments: Any) -> None:  # noqa: ARG001  # all of them are accepted
        raise missing(extra, f"`statestore {name}`", error)

    return refuse


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to the current sys.stderr: above a line that is live on a terminal, not into it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _stream: TextIO) -> None:
        """Do nothing: the stream is always the current one."""


def set_up_logging(*, verbose: bool = False, log_format: str | None = None) -> None:
    """Log to stderr: plain lines, or an object of JSON in each.

    `log_format` is `text` or `json`, by default what the variable STATESTORE_LOG_FORMAT says.
    """
    handler, named = _StandardError(), log_format or os.environ.get(_LOG_FORMAT, "text")
    if named not in _LOG_FORMATS:
        raise Misuse(f"{_LOG_FORMAT}={named!r}: set it to {' or '.join(_LOG_FORMATS)}")
    handler.setFormatter(_json_lines() if named == "json" else _TextLines(_TEXT))
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(handlers=[handler], level=level)


class _TextLines(logging.Formatter):
    """Begins no line with what others wrote: a key of a user could look like a line of ours."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # as above
        return _indented(super().formatException(ei))


def _indented(text: str) -> str:
    return "\n  ".join(one_line(line) for line in text.split("\n"))


def _json_lines() -> logging.Formatter:
    fields = {"asctime": "time", "levelname": "level", "name": "logger", "process": "pid"}
    lines = JsonFormatter(" ".join(f"%({field})s" for field in [*fields, "message"]))
    lines.rename_fields = fields
    lines.converter = time.gmtime
    lines.default_time_format, lines.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    return lines


def main() -> None:
    """Run the command line: one clear line and the error's exit code instead of a traceback."""
    sys.exit(exit_code_of(cli))


def _check_texts() -> None:
    """Misuse if a flag or a variable of ours is not text: neither error nor JSON could show it."""
    named = {f"argument {i}": text for i, text in enumerate(sys.argv) if i}
    named |= {name: text for name, text in os.environ.items() if name.startswith("STATESTORE_")}
    for name, text in named.items():
        if not text.isprintable() and any("\ud800" <= char <= "\udfff" for char in text):
            shown = text.encode("utf-8", "backslashreplace").decode()
            raise Misuse(f"{name}, {shown!r}: its bytes are not UTF-8: write it in UTF-8")


def _tell(failure: str) -> None:
    """Write the one line of an error, as a log where logs are JSON."""
    if any(isinstance(one.formatter, JsonFormatter) for one in logging.getLogger().handlers):
        _log.error("%s", failure)
    else:
        click.echo(f"statestore: {_indented(failure)}", err=True)
    _log.debug("where it came from", exc_info=True)


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a command and return the exit code of errors.py; an error is one line on stderr."""
    try:
        _check_texts()
        command()
    except StateStoreError as error:
        _tell(f"{type(error).__name__}: {error}")
        return error.exit_code
    except OSError as error:
        # The machine refused something unforeseen: the line says what, the debug log where.
        _tell(f"HostFailure: {error}")
        return HostFailure.exit_code
    return 0
