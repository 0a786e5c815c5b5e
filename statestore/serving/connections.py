"""Lets connections into a server within limits: `statestore serve` and `statestore ui` stand here.

A client may send anything, slowly, or nothing, over as many connections as it likes, before anybody
asks who it is. One parser, h11, bounds the head of a request. A connection whose client is awaited
for too long is closed: for a head, for the rest of a body after the answer, for a reader that does
not read. No client has all connections. While there is no room, those that wait for their client
make some, and new ones wait in the kernel's queue.
"""

import asyncio
import ipaddress
import logging
import resource
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from statestore.errors import HostFailure, Misuse, Sparing
from statestore.serving.access import Listening

_log = logging.getLogger(__name__)
_GRACE_S: Final = 5
_KEEP_ALIVE_S: Final = 15
_HEAD_MAX: Final = 64 << 10
"""How many bytes the first line and the headers of a request may have."""
_FILES_MAX: Final = 65_536
_CONNECTIONS_MAX: Final = 4096
_ACCEPTED_AT_ONCE: Final = 64
_YOUNG_S: Final = 1.0
"""So long a new connection may wait for its client although there is no room."""
_REST_S: Final = 1.0
_TELL_AGAIN_S: Final = 60.0
_TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """How many connections a server has, of one client and in all, and how long it waits."""

    connections_max: int
    client_max: int
    wait_s: float = _KEEP_ALIVE_S

    @classmethod
    def of_this_process(cls) -> "ConnectionLimits":
        """Take half of the files that it may open, and half of these for one client.

        The process may open as many as its hard limit lets it, as stores need files as well.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        connections = min(_CONNECTIONS_MAX, max(16, soft // 2))
        return cls(connections_max=connections, client_max=connections // 2)


def run_server(
    app: Any,
    bound: socket.socket,
    listening: Listening,
    begun: Callable[[str], object],
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; `begun` gets the address.

    Misuse if the files of TLS cannot be used. Requests that are being answered at the end have a
    few seconds.
    """
    # What clients send is no event of ours: one of them could fill the log.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    config = server_config(
        app,
        ssl_certfile=listening.tls_certificate,
        ssl_keyfile=listening.tls_key,
        ssl_ca_certs=listening.tls_client_ca,
        ssl_cert_reqs=ssl.CERT_REQUIRED if listening.tls_client_ca else ssl.CERT_NONE,
    )
    _load(config, listening)
    server = LimitedServer(config, bound, ConnectionLimits.of_this_process())
    asyncio.run(_run(server, lambda: begun(_address(listening, bound))))


def server_config(app: Any, **more: Any) -> uvicorn.Config:
    """Return how requests are parsed and answered."""
    given: dict[str, Any] = {
        "http": "h11",
        "loop": "asyncio",
        "ws": "none",
        "h11_max_incomplete_event_size": _HEAD_MAX,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": _GRACE_S + 2,
    }
    return uvicorn.Config(app, **(given | more))


class LimitedServer(uvicorn.Server):
    """A server of one socket. Signals are for its caller, and it ends with exit code 0."""

    def __init__(
        self, config: uvicorn.Config, bound: socket.socket, limits: ConnectionLimits
    ) -> None:
        super().__init__(config)
        self._bound = bound
        self._limits = limits
        self._door: _Door | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets or [])
        if not self.should_exit:
            self._door = _Door(self, self._bound, self._limits)
            self._door.open()

    async def on_tick(self, counter: int) -> bool:
        if self._door is not None:
            self._door.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._door is None:
            await super().shutdown(sockets=sockets)
            return
        self._door.shut()
        # Whose connection is gone ends by itself; what is cancelled logs a traceback.
        late = asyncio.get_running_loop().call_later(_GRACE_S, self._door.end_all)
        await super().shutdown(sockets=sockets)
        late.cancel()
        self._door.end_all()


class _Protocol(H11Protocol):
    """Tells when its connection is over."""

    def __init__(self, server: uvicorn.Server, over: Callable[[], object]) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._over = over

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._over()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; if it is a body, nobody answers its request any more."""
        cycle: Any = self.cycle  # None until the first request.
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.close()


class _Connection:
    """A connection that was let in, and since when its client is awaited."""

    def __init__(self, client: str, since_s: float) -> None:
        self.client = client
        self.since_s = since_s
        self.protocol: _Protocol | None = None
        self.entering: asyncio.Task[None] | None = None
        self._seen: object = ()

    def owes(self, now_s: float) -> bool:
        """Return whether the client is awaited, and notice since when."""
        owed = self._owed()
        if owed != self._seen:
            self._seen, self.since_s = owed, now_s
        return owed is not None

    def _owed(self) -> object:
        """Return what the client owes; it is another object once it got further."""
        protocol = self.protocol
        if protocol is None or protocol.transport is None:
            return ()  # the handshake of TLS
        unread = protocol.transport.get_write_buffer_size()
        theirs, ours = protocol.conn.their_state, protocol.conn.our_state
        if unread or theirs in {h11.IDLE, h11.SEND_BODY}:
            return theirs, ours, protocol.cycle, unread
        return None

    @property
    def is_idle(self) -> bool:
        """Whether it had its answer and asks nothing: its client expects that it may be closed."""
        protocol = self.protocol
        answered: Any = None if protocol is None else protocol.cycle  # None until the first one.
        return protocol is not None and bool(answered) and protocol.conn.their_state is h11.IDLE

    @property
    def is_sending_body(self) -> bool:
        """Whether somebody reads its request, who knows how long to wait for it."""
        protocol = self.protocol
        return (
            protocol is not None
            and protocol.conn.their_state is h11.SEND_BODY
            and protocol.conn.our_state is not h11.DONE
        )

    def end(self) -> None:
        """Close it at once."""
        if self.entering is not None and not self.entering.done():
            self.entering.cancel()
        elif self.protocol is not None and self.protocol.transport is not None:
            self.protocol.transport.abort()


class _Door:
    """Accepts the connections of one socket, and ends those whose clients are awaited too long."""

    def __init__(
        self, server: uvicorn.Server, bound: socket.socket, limits: ConnectionLimits
    ) -> None:
        self._server = server
        self._bound = bound
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._inside: set[_Connection] = set()
        self._of_client: Counter[str] = Counter()
        self._is_open = False
        self._rests_until_s = self._looked_s = float("-inf")
        self._sparing = Sparing(_TELL_AGAIN_S)

    def open(self) -> None:
        """Accept connections from now on."""
        self._bound.setblocking(False)
        self._is_open = True
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def shut(self) -> None:
        """Accept none."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._bound.fileno())

    def end_all(self) -> None:
        """Close all connections at once."""
        for one in list(self._inside):
            one.end()

    def look(self) -> None:
        """End what waits too long, and accept again if there is room; call it often."""
        now_s, limits = self._loop.time(), self._limits
        is_short = not self._is_open
        crowds = {who for who, count in self._of_client.items() if count >= limits.client_max}
        if is_short or crowds or now_s >= self._looked_s + _REST_S:
            self._looked_s = now_s
            for one in list(self._inside):
                if not one.owes(now_s):
                    continue
                waited_s = now_s - one.since_s
                makes_room = is_short or one.client in crowds
                if (makes_room and (one.is_idle or waited_s >= _YOUNG_S)) or (
                    waited_s >= limits.wait_s and not one.is_sending_body
                ):
                    one.end()
        has_room = len(self._inside) < limits.connections_max
        if is_short and has_room and now_s >= self._rests_until_s:
            self.open()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if len(self._inside) >= self._limits.connections_max:
                self._tell(f"{len(self._inside)} connections are open: new ones wait")
                self.shut()
                return
            try:
                made, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._tell(f"no connection can be accepted: {error.strerror}: see `ulimit -n`")
                self._rests_until_s = self._loop.time() + _REST_S
                self.shut()
                return
            made.setblocking(False)
            self._let_in(made, _client_of(address[0]))

    def _let_in(self, made: socket.socket, client: str) -> None:
        if self._of_client[client] >= self._limits.client_max:
            self._tell(f"client {client} has {self._limits.client_max} connections: no more")
            with made:
                if self._server.config.ssl is None:
                    made.send(_TOO_MANY)  # A new socket has room for it.
            return
        one = _Connection(client, self._loop.time())
        self._inside.add(one)
        self._of_client[client] += 1
        one.protocol = _Protocol(self._server, lambda: self._out(one))
        one.entering = self._loop.create_task(self._enter(made, one))

    async def _enter(self, made: socket.socket, one: _Connection) -> None:
        protocol, tls = one.protocol, self._server.config.ssl
        assert protocol is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                made,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._limits.wait_s,
            )
        except (OSError, asyncio.CancelledError):
            made.close()  # A client that does not get through TLS; nobody is told of it.
            self._out(one)

    def _out(self, one: _Connection) -> None:
        if one in self._inside:
            self._inside.remove(one)
            self._of_client[one.client] -= 1
            if not self._of_client[one.client]:
                del self._of_client[one.client]

    def _tell(self, text: str) -> None:
        if self._sparing.is_new(text, self._loop.time()):
            _log.warning("%s", text)


def _client_of(host: str) -> str:
    """Return whose connection it is: one machine may have all addresses of an IPv6 network."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


async def _run(server: LimitedServer, begun: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()

    def end() -> None:
        # The second signal does not wait for requests that are being answered.
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    begun()
    await server.serve()


@contextmanager
def bound_to(listening: Listening) -> Iterator[socket.socket]:
    """Yield a socket that listens; HostFailure if the port is taken."""
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
