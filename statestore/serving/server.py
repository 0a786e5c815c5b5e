"""Runs the HTTP face of a reading service until it is told to end."""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from statestore.errors import HostFailure, Misuse
from statestore.model.ids import TaskId
from statestore.operations.environment import Environment
from statestore.serving.access import Listening, ServeLimits, Tokens
from statestore.serving.http import make_app
from statestore.serving.lag_watch import LagWatch
from statestore.serving.service import StateService
from statestore.topology.graph import Topology

_GRACE_S = 5
_KEEP_ALIVE_S = 15
_LINE_MAX = 256 << 10


def serve_state(
    environment: Environment,
    listening: Listening,
    tokens: Tokens,
    limits: ServeLimits,
    tell: Callable[[str], object],
    topology: Topology | None = None,
) -> None:
    """Serve the state of an application until SIGTERM or Ctrl-C; `tell` gets the address.

    `topology`: of the pipeline, for serdes that are not the library's.

    Misuse if anybody could read it or there is no such application; HostFailure if the port is
    taken. Requests that are being answered at the end have a few seconds.
    """
    listening.check(tokens)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    watch: LagWatch | None = None

    def lag(task: TaskId) -> tuple[int | None, float | None]:
        return (None, None) if watch is None else watch.lag(task)

    service = StateService(environment, lags=lag, topology=topology)
    watch = LagWatch(environment, lambda: service.deployed)
    with _bound(listening) as socket_, service:
        watch.start()
        try:
            app = make_app(
                service,
                environment.settings.application_id,
                tokens=tokens,
                hosts=listening.hosts(tokens),
                limits=limits,
            )
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_GRACE_S,
                h11_max_incomplete_event_size=_LINE_MAX,
                ssl_certfile=listening.tls_certificate,
                ssl_keyfile=listening.tls_key,
                ssl_ca_certs=listening.tls_client_ca,
                ssl_cert_reqs=ssl.CERT_REQUIRED if listening.tls_client_ca else ssl.CERT_NONE,
            )
            _load(config, listening)
            asyncio.run(
                _serve(_Server(config), socket_, lambda: tell(_address(listening, socket_)))
            )
        finally:
            watch.close()


class _Server(uvicorn.Server):
    """A server whose signals are handled here: it ends with exit code 0, not by the signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(server: _Server, bound: socket.socket, begun: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()

    def end() -> None:
        # The second signal does not wait for requests that are being answered.
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    begun()
    await server.serve(sockets=[bound])


@contextmanager
def _bound(listening: Listening) -> Iterator[socket.socket]:
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(
            listening.host, listening.port, type=socket.SOCK_STREAM
        )
        # With its protocol, as asyncio otherwise leaves Nagle's algorithm on.
        made = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        raise _cannot_listen(listening, error) from error
    with made:
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(2048)
        except OSError as error:
            raise _cannot_listen(listening, error) from error
        yield made


def _cannot_listen(listening: Listening, error: OSError) -> HostFailure:
    return HostFailure(
        f"cannot listen on {listening.host}:{listening.port}: {error.strerror}: free the port, or "
        "pass another --host or --port"
    )


def _address(listening: Listening, bound: socket.socket) -> str:
    scheme = "https" if listening.tls_certificate else "http"
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _load(config: uvicorn.Config, listening: Listening) -> None:
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        flags = {
            "--tls-cert": listening.tls_certificate,
            "--tls-key": listening.tls_key,
            "--tls-client-ca": listening.tls_client_ca,
        }
        named = ", ".join(f"{flag} {path}" for flag, path in flags.items() if path is not None)
        raise Misuse(
            f"{named}: {error}: name certificates and the key of the first, in PEM format"
        ) from error
