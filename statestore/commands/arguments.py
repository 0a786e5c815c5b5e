"""The arguments of commands: flags, variables and the applications file.

`statestore run` and statestore.spark.process share those of a run.

A flag takes precedence over `STATESTORE_<FLAG>`, which takes precedence over the applications file;
the default comes last (INTERFACE rule 9). A worker is told where to look (file, application id) and
what was overridden, never a secret.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from statestore.applications import ConfiguredApplication
from statestore.errors import Misuse, UnknownApplication
from statestore.model.modes import TIME_MAX_MS, Time, parse_time
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import FOREVER, run_request
from statestore.runtime import portable_target
from statestore.settings import Settings, expand, shows_secret
from statestore.tasks.slot import FOREVER_MS

F = TypeVar("F", bound=Callable[..., Any])
_SPAN_UNITS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DEFAULT_CONFIG = "statestore.toml"
PARTITION = click.IntRange(0, (1 << 31) - 1)


class RunArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was asked for; `settings()` and `pipeline` are the merged result."""

    application_id: str
    pipeline: str
    config: str | None = None
    overrides: dict[str, str] = {}
    until: str = "latest"
    run_for_ms: int | None = None
    accept_new_topology: bool = False
    accept_empty_changelog: bool = False
    accept_forgotten_offsets: bool = False
    accept_new_serdes: bool = False

    def settings(self) -> Settings:
        """The section of the applications file, with the overrides applied."""
        return Settings.from_mapping(_section(self.config, self.application_id) | self.overrides)

    def until_time(self) -> str | Time:
        """`latest`, or the time in ms or as an aware datetime."""
        return self.until if self.until == "latest" else parse_time(self.until)

    def request(self) -> RunRequest:
        """What is asked of the run; Misuse if arguments contradict each other."""
        return run_request(
            until=self.until_time(),  # type: ignore[arg-type]  # "latest" or a time
            run_for=self.run_for_ms,
            accept_new_topology=self.accept_new_topology,
            accept_empty_changelog=self.accept_empty_changelog,
            accept_forgotten_offsets=self.accept_forgotten_offsets,
            accept_new_serdes=self.accept_new_serdes,
        )

    def for_workers(self) -> "RunArguments":
        """The same with absolute paths and expanded addresses, as they mean the same anywhere."""
        config, fixed = _fixed(self.config, self.settings())
        return msgspec.structs.replace(self, config=config, overrides=self.overrides | fixed)


class StateArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What a command that looks at state was asked for; `settings()` is the merged result."""

    application_id: str
    config: str | None = None
    overrides: dict[str, str] = {}

    def settings(self) -> Settings:
        """The section of the applications file with the overrides; it has a state directory."""
        section = _section(self.config, self.application_id)
        settings = Settings.from_mapping(section | self.overrides)
        settings.require("state.dir")
        return settings

    def pipeline(self) -> str | None:
        """The pipeline that the environment or the applications file names; None: neither does."""
        named = os.environ.get("STATESTORE_PIPELINE")
        if named or self.config is None:
            return named or None
        return ConfiguredApplication.load(self.config, self.application_id).pipeline

    def for_workers(self) -> "StateArguments":
        """The same with absolute paths and expanded addresses, as they mean the same anywhere."""
        config, fixed = _fixed(self.config, self.settings())
        return msgspec.structs.replace(self, config=config, overrides=self.overrides | fixed)


def run_options(command: F) -> F:
    """Add the options of a run, each also STATESTORE_<FLAG>."""
    return _with_options(
        command,
        *_deployment_options(),
        _option(
            "--until", default="latest", show_default=True, help="Where to stop: latest, or a time."
        ),
        _option("--run-for", help="Run for this span instead: 300, 300s, 5m, forever."),
        _option("--summary-file", help="Also write the JSON line here, on failure too."),
        *_accept_options(),
    )


def deployment_options(command: F) -> F:
    """Add the options of a command that needs pipeline, state and brokers, but runs nothing."""
    return _with_options(command, *_deployment_options())


def state_options(command: F) -> F:
    """Add the options of a command that looks at state, each also STATESTORE_<FLAG>."""
    return _with_options(
        command,
        _option("--application-id", help="Names the folder in the state directory."),
        _option("--state-dir", help="The root of all state."),
        click.option("--set", "pairs", multiple=True, metavar="K=V", help="Set any setting."),
        _option("--config", help=f"Applications file; {DEFAULT_CONFIG} if there is one."),
    )


def broker_option(command: F) -> F:
    """Add the option of a command that looks at state and also asks brokers."""
    return _option("--bootstrap-servers", help="Kafka brokers, host:port,…")(command)


def parse_state(flags: Mapping[str, Any]) -> Settings:
    """Parse settings with an application id and a state directory; Misuse names what is missing."""
    return parse_state_arguments(flags).settings()


def parse_state_arguments(flags: Mapping[str, Any]) -> StateArguments:
    """Parse the flags of `state_options`, and of `broker_option` and `target_option` if present."""
    application_id, config = _application(flags)
    overrides = {
        flag.replace("_", "."): flags[flag]
        for flag in ("bootstrap_servers", "state_dir")
        if flags.get(flag)
    }
    if flags.get("target"):
        overrides["statestore.export.target"] = flags["target"]
    overrides |= _pairs(flags["pairs"]) | {"application.id": application_id}
    return StateArguments(application_id=application_id, config=config, overrides=overrides)


def check_options(command: F) -> F:
    """Add the options of a command that says whether a run would start."""
    return _with_options(command, *_deployment_options(), *_accept_options())


def relocate_options(command: F) -> F:
    """Add the options of a deployment, and the option to accept new serdes of its stores."""
    return _with_options(command, *_deployment_options(), _accept_new_serdes())


def parse_run(flags: Mapping[str, Any]) -> RunArguments:
    """Parse flags as click gives them, merged with the applications file.

    They are those of `run_options`, or of `deployment_options` alone. Misuse names what is missing.
    """
    application_id, config, overrides, pipeline = _deployment(flags)
    if not pipeline:
        raise Misuse(
            "which pipeline? pass --pipeline module:function, or name it in statestore.toml"
        )
    run_for = flags.get("run_for")
    return RunArguments(
        application_id=application_id,
        pipeline=pipeline,
        config=config,
        overrides=overrides,
        until=flags.get("until", "latest"),
        run_for_ms=_run_for_ms(run_for) if run_for else None,
        accept_new_topology=flags.get("accept_new_topology", False),
        accept_empty_changelog=flags.get("accept_empty_changelog", False),
        accept_forgotten_offsets=flags.get("accept_forgotten_offsets", False),
        accept_new_serdes=flags.get("accept_new_serdes", False),
    )


def parse_deployment(flags: Mapping[str, Any]) -> tuple[Settings, str | None]:
    """Parse settings and pipeline for a command that can do without the pipeline."""
    application_id, config, overrides, pipeline = _deployment(flags)
    settings = Settings.from_mapping(_section(config, application_id) | overrides)
    return settings, pipeline or None


def export_options(command: F) -> F:
    """Add the options of a command that looks at exports."""
    return _with_options(command, *_deployment_options(), target_option)


def target_option(command: F) -> F:
    """Add the option that says where exports lie."""
    option: Callable[[F], F] = click.option(
        "--target",
        envvar="STATESTORE_EXPORT_TARGET",
        help="Where exports lie: a folder or a URL, such as s3://bucket/a.",
    )
    return option(command)


def parse_exports(flags: Mapping[str, Any], *needs: str) -> RunArguments:
    """Parse the flags of `export_options`; the settings have all `needs`.

    The pipeline may be empty.
    """
    application_id, config, overrides, pipeline = _deployment(flags)
    if flags["target"]:
        overrides["statestore.export.target"] = flags["target"]
    arguments = RunArguments(
        application_id=application_id, pipeline=pipeline or "", config=config, overrides=overrides
    )
    arguments.settings().require("statestore.export.target", *needs)
    return arguments


def parse_span(text: str) -> int:
    """Parse milliseconds from `300` (seconds), `300s`, `5m`, `1500ms`."""
    match = re.fullmatch(r"([0-9]+)(ms|s|m|h|d|)", text.strip())
    if match is None:
        raise Misuse(
            f"span {text!r} is not understood: pass a number with ms, s, m, h or d, such as 5m"
        )
    # There are too many digits for int() to try, or for any clock.
    span_ms = int(match[1]) * _SPAN_UNITS[match[2]] if len(match[1]) < 20 else TIME_MAX_MS + 1
    if span_ms > TIME_MAX_MS:
        raise Misuse(
            f"span {text[:40]}: longer than any clock runs: pass a shorter one, such as 5m"
        )
    return span_ms


def _run_for_ms(text: str) -> int:
    return FOREVER_MS if text.strip().lower() == FOREVER else parse_span(text)


def _deployment_options() -> list[Callable[[F], F]]:
    return [
        _option("--pipeline", help="module:function that returns the topology."),
        _option("--application-id", help="Names state, topics, group and transactions."),
        _option("--bootstrap-servers", help="Kafka brokers, host:port,…"),
        _option("--state-dir", help="The root of all state, on a volume that every worker sees."),
        _option("--processing-guarantee", help="at_least_once or exactly_once."),
        click.option("--set", "pairs", multiple=True, metavar="K=V", help="Set any setting."),
        _option("--config", help=f"Applications file; {DEFAULT_CONFIG} if there is one."),
    ]


def _accept_options() -> list[Callable[[F], F]]:
    return [
        _option(
            "--accept-new-topology",
            is_flag=True,
            help="Accept a state directory with none of these stores.",
        ),
        _option(
            "--accept-empty-changelog", is_flag=True, help="Accept an empty changelog as lost."
        ),
        _option(
            "--accept-forgotten-offsets",
            is_flag=True,
            help="Read input from its start, on top of the existing state.",
        ),
        _accept_new_serdes(),
    ]


def _accept_new_serdes() -> Callable[[F], F]:
    about = "Accept changed serdes that read what the old ones wrote."
    return _option("--accept-new-serdes", is_flag=True, help=about)


def _fixed(config: str | None, settings: Settings) -> tuple[str | None, dict[str, str]]:
    """The applications file and the settings in a form that means the same anywhere."""
    fixed = {
        "bootstrap.servers": expand(settings.bootstrap_servers, "bootstrap.servers"),
        "state.dir": str(Path(expand(settings.state_dir, "state.dir")).resolve()),
    }
    if (target := portable_target(settings)) is not None:
        fixed["statestore.export.target"] = target
    return None if config is None else str(Path(config).resolve()), fixed


def _with_options(command: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def _option(flag: str, **details: Any) -> Callable[[F], F]:
    variable = "STATESTORE_" + flag.removeprefix("--").replace("-", "_").upper()
    return click.option(flag, envvar=variable, **details)


def _deployment(
    flags: Mapping[str, Any],
) -> tuple[str, str | None, dict[str, str], str | None]:
    """ConfiguredApplication id, applications file, overrides and pipeline."""
    application_id, config = _application(flags)
    overrides: dict[str, str] = {}
    for flag in ("bootstrap_servers", "state_dir", "processing_guarantee"):
        if flags[flag]:
            overrides[flag.replace("_", ".")] = flags[flag]
    # Last, as --set is a flag, and a flag takes precedence over the variable of another flag.
    overrides |= _pairs(flags["pairs"]) | {"application.id": application_id}
    pipeline = flags["pipeline"]
    if pipeline is None and config is not None:
        pipeline = ConfiguredApplication.load(config, application_id).pipeline
    return application_id, config, overrides, pipeline


def _application(flags: Mapping[str, Any]) -> tuple[str, str | None]:
    """The application id, and the applications file that names the application."""
    config = flags["config"] or (DEFAULT_CONFIG if Path(DEFAULT_CONFIG).is_file() else None)
    application_id = flags["application_id"]
    if not application_id:
        raise Misuse("which application? pass --application-id, or set STATESTORE_APPLICATION_ID")
    known = _known_in(config, application_id) if flags["config"] is None else True
    return application_id, config if known else None


def _section(config: str | None, application_id: str) -> dict[str, object]:
    return {} if config is None else ConfiguredApplication.load(config, application_id).mapping()


def _known_in(config: str | None, application_id: str) -> bool:
    """Whether a file found by default names this application; one named by a flag must do so."""
    if config is None:
        return False
    try:
        ConfiguredApplication.load(config, application_id)
    except UnknownApplication:
        return False
    return True


def _pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise Misuse(f"--set {pair!r}: pass key=value")
        if shows_secret(key, value):
            raise Misuse(
                f"--set {key}=…: a secret on the command line is seen by every process listing; "
                "put it in the applications file or pass --set 'key=${VARIABLE}'"
            )
        found[key] = value
    return found
