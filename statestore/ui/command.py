"""`statestore ui`: the page of applications in a browser on this machine."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from statestore.commands.arguments import (
    DEFAULT_CONFIG,
    broker_option,
    parse_state_arguments,
    state_options,
    target_option,
)
from statestore.errors import Misuse
from statestore.operations.pipelines import load_pipeline
from statestore.runtime import Runtime, SystemClock
from statestore.serving.access import Listening, Tokens
from statestore.serving.connections import bound_to, run_server
from statestore.ui.polling import Open, PipelineOf, Poller, applications_of, pipelines_of
from statestore.ui.site import application


@click.command("ui")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8090, show_default=True, help="0: any."
)
@click.option(
    "--unprotected",
    is_flag=True,
    help="Show the page to other machines without a login, as behind a proxy that asks for one.",
)
@click.option(
    "--pipeline",
    help="module:function, whose serdes decode rows: it is imported. Needs --application-id.",
)
@state_options
@broker_option
@target_option
def ui_command(
    *, host: str, port: int, unprotected: bool, pipeline: str | None, **flags: Any
) -> None:
    """Show applications in a browser: the answers, tasks, stores, audits and exports; read-only.

    They are those of statestore.toml, or the one that --application-id names. Ctrl-C ends it.
    """
    listening = Listening(host=host, port=port, allow_unauthenticated=unprotected)
    if not listening.is_local() and not unprotected:
        raise Misuse(
            f"--host {host}: everybody who reaches it could read all state, as the page has no "
            "login: use 127.0.0.1, or put a proxy with a login in front and pass --unprotected"
        )
    hosts = None if unprotected else listening.hosts(Tokens(()))
    applications, pipelines = _applications(flags), _pipelines(flags, pipeline)
    with (
        closing(Poller(applications, SystemClock(), pipelines)) as lookout,
        bound_to(listening) as bound,
    ):
        lookout.names()
        run_server(
            application(lookout, hosts),
            bound,
            listening,
            lambda address: click.echo(f"{address}/  (Ctrl-C ends it)", err=True),
        )


def _applications(flags: dict[str, Any]) -> Callable[[], Mapping[str, Open]]:
    """What to show: asked for every page, so that a change of the file shows."""
    if flags["application_id"]:
        arguments = parse_state_arguments(flags)
        return lambda: {arguments.application_id: lambda: Runtime(arguments.settings())}
    config = flags["config"] or DEFAULT_CONFIG
    if not Path(config).is_file():
        raise Misuse(f"there is no {config}: pass --config, or --application-id and --state-dir")
    if flags["state_dir"] or flags["bootstrap_servers"] or flags["target"] or flags["pairs"]:
        raise Misuse("these flags are for one application: pass --application-id as well")
    return applications_of(Path(config), Path())


def _pipelines(flags: dict[str, Any], pipeline: str | None) -> PipelineOf:
    """Names the pipelines that may be imported: the one named here, or those of the file."""
    if pipeline is not None:
        if not flags["application_id"]:
            raise Misuse(
                "--pipeline is for one application: pass --application-id as well, or write "
                "import_pipelines = true under [page] of the applications file"
            )
        load_pipeline(pipeline)  # A mistake shows at once.
        return lambda _name: pipeline
    config = Path(flags["config"] or DEFAULT_CONFIG)
    if flags["application_id"] and not config.is_file():
        return lambda _name: None
    return pipelines_of(config, Path())
