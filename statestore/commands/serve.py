"""`statestore serve`: the state of an application over HTTP, read-only."""

from typing import Any

import click

from statestore.commands.arguments import broker_option, parse_state, state_options
from statestore.operations.pipelines import load_pipeline
from statestore.runtime import Runtime
from statestore.serving.access import TOKEN_VARIABLE, Listening, ServeLimits, Tokens


@click.command("serve")
@state_options
@broker_option
@click.option(
    "--pipeline",
    envvar="STATESTORE_PIPELINE",
    help="module:function, for stores with serdes that are not the library's.",
)
@click.option(
    "--host",
    envvar="STATESTORE_SERVE_HOST",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on.",
)
@click.option(
    "--port",
    envvar="STATESTORE_SERVE_PORT",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="The port; 0 takes a free one.",
)
@click.option(
    "--token-file",
    envvar="STATESTORE_SERVE_TOKEN_FILE",
    help=f"Bearer tokens, one a line; without it, the one in {TOKEN_VARIABLE}.",
)
@click.option("--tls-cert", envvar="STATESTORE_SERVE_TLS_CERT", help="A certificate, for HTTPS.")
@click.option("--tls-key", envvar="STATESTORE_SERVE_TLS_KEY", help="Its private key.")
@click.option(
    "--tls-client-ca",
    envvar="STATESTORE_SERVE_TLS_CLIENT_CA",
    help="Clients must have a certificate of this authority.",
)
@click.option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Listen on an address that others reach although anybody could read all state.",
)
@click.option(
    "--readers",
    type=click.IntRange(1, 256),
    default=ServeLimits.readers,
    show_default=True,
    help="How many requests read at once.",
)
@click.option(
    "--requests-max",
    type=click.IntRange(1, 100_000),
    default=ServeLimits.requests_max,
    show_default=True,
    help="How many requests may wait or be answered; more get 503.",
)
@click.option(
    "--request-timeout",
    type=click.FloatRange(0.1, 3600),
    default=ServeLimits.request_timeout_s,
    show_default=True,
    help="Seconds until a request that was not answered gets 503.",
)
def serve_command(
    *,
    pipeline: str | None,
    host: str,
    port: int,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    allow_unauthenticated: bool,
    readers: int,
    requests_max: int,
    request_timeout: float,
    **flags: Any,
) -> None:
    """Answer questions about the stores of an application over HTTP, beside its runs.

    The server keeps a copy of each stream task, which has each commit some milliseconds later. It
    answers while nothing runs, and while an owner restores or is down. SIGTERM and Ctrl-C end it.
    """
    settings = parse_state(flags)
    tokens = Tokens.read(token_file)
    listening = Listening(
        host=host,
        port=port,
        tls_certificate=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        allow_unauthenticated=allow_unauthenticated,
    )
    limits = ServeLimits(
        readers=readers, requests_max=requests_max, request_timeout_s=request_timeout
    )
    from statestore.serving.server import serve_state

    with Runtime(settings) as runtime:
        serve_state(
            runtime,
            listening,
            tokens,
            limits,
            lambda address: click.echo(f"serving {settings.application_id} at {address}"),
            None if pipeline is None else load_pipeline(pipeline),
        )
