"""`statestore ui`: the page of applications in a browser on this machine."""

import ipaddress
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import click
import uvicorn

from statestore.commands.arguments import (
    DEFAULT_CONFIG,
    broker_option,
    parse_state_arguments,
    state_options,
    target_option,
)
from statestore.errors import HostFailure, Misuse
from statestore.operations.pipelines import load_pipeline
from statestore.runtime import Runtime, SystemClock
from statestore.ui.looks import Lookout, Open, PipelineOf, applications_of, pipelines_of
from statestore.ui.site import application

_OWN_NAMES: Final = ["127.0.0.1", "localhost", "[::1]"]


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
    if not _is_loopback(host) and not unprotected:
        raise Misuse(
            f"--host {host}: everybody who reaches it could read all state, as the page has no "
            "login: use 127.0.0.1, or put a proxy with a login in front and pass --unprotected"
        )
    hosts = ["*"] if unprotected else _OWN_NAMES
    applications, pipelines = _applications(flags), _pipelines(flags, pipeline)
    with closing(Lookout(applications, SystemClock(), pipelines)) as lookout:
        lookout.names()
        config = uvicorn.Config(
            application(lookout, hosts),
            host=host,
            port=port,
            log_config=None,  # That of the command line holds.
            log_level="warning",
            access_log=False,
            lifespan="off",
        )
        server = _Server(config)
        try:
            with suppress(KeyboardInterrupt):
                server.run()
        except SystemExit as error:
            raise HostFailure(
                f"cannot listen at {host}:{port}: another program may have the port; pass --port"
            ) from error


class _Server(uvicorn.Server):
    """Says where it listens, as the port may be any."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in getattr(self, "servers", ()):
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                name = f"[{host}]" if ":" in host else host
                click.echo(f"http://{name}:{port}/  (Ctrl-C ends it)", err=True)


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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
