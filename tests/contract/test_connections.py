"""Clients that send too much, too slowly, nothing, or to another name; over real connections."""

import logging
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from statestore.serving.connections import ConnectionLimits
from tests.attack_rig import COMMANDS, Attacked, attacked, sent_until_cut_off, status_of
from tests.builders import DEADLINE_S, eventually
from tests.certificates import Authority
from tests.serving_rig import listening

MIB = 1 << 20
# More than the kernel keeps for a server that has closed its end (tcp_wmem: 4 MiB by default).
MUCH = 64 * MIB
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = HALF + b"\r\n"
SOON = ConnectionLimits(connections_max=1000, client_max=1000, wait_s=0.2)
FEW = ConnectionLimits(connections_max=8, client_max=8)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with MUCH bytes to /much, else with little, and read no body."""
    if scope["type"] == "lifespan":
        return
    body = b"x" * (MUCH if scope["path"] == "/much" else 2)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module", params=COMMANDS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Attacked]:
    with attacked(request.param, tmp_path_factory.mktemp("attacked")) as found:
        yield found


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (HALF, b"x-header: " + b"x" * 4096 + b"\r\n"),
        (HALF + b"x-header: ", b"x" * 4096),
        pytest.param(b"GET /", b"x" * 4096, marks=pytest.mark.thorough),
        pytest.param(b"POST /", b"\n" * 4096, marks=pytest.mark.thorough),
    ],
    ids=["headers", "header", "url", "lines"],
)
def test_a_head_without_end_is_cut_off(server: Attacked, begin: bytes, more: bytes) -> None:
    with server.connect() as connection:
        assert sent_until_cut_off(connection, begin, more, 128 * MIB) < 64 * MIB
    assert server.answers()


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["rebound.example"],
        ["localhost:80@evil.example"],
        ["evil.example@localhost"],
        ["localhost:80:80"],
        ["localhost:"],
        ["localhost/"],
        ["[::1"],
        ["localhost", "localhost"],
        ["localhost", "evil.example"],
        ["evil.example", "localhost"],
    ],
    ids=str,
)
def test_only_one_local_name_is_answered(server: Attacked, hosts: list[str]) -> None:
    for path in ("/", "/health", "/v1/stores"):
        lines = [f"GET {path} HTTP/1.1", *(f"Host: {host}" for host in hosts)]
        assert server.asked(*lines) in {400, 421}
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "[::1]", "[::1]:8090"):
        assert server.asked("GET /health HTTP/1.1", f"Host: {host}") in {200, 404}


def test_nothing_that_clients_send_is_logged(server: Attacked) -> None:
    for lines in (
        ["nonsense"],
        ["GET / HTTP/1.1", "Host: localhost", "Connection: upgrade", "Upgrade: websocket"],
        ["POST / HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "", "zz"],
        ["POST / HTTP/1.1", "Host: localhost", "Content-Length: 5", "Content-Length: 6"],
    ):
        assert server.asked(*lines) in {200, 400, 404, 405}
    for end in ("zz", "1"):
        with server.connect() as connection:
            chunked = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(chunked)
            assert status_of(connection) in {404, 405}
            connection.sendall(f"{end}\r\n".encode())
    assert server.answers()
    assert server.told() == []


def test_a_client_that_sends_half_a_head_is_let_go() -> None:
    with listening(app, SOON) as port:
        for begin in (b"", b"GET", HALF, WHOLE + HALF):
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
                connection.sendall(begin)
                while connection.recv(4096):
                    pass  # The answer to what was whole; then it is closed.


def test_a_client_that_ends_neither_its_body_nor_its_reading_is_let_go() -> None:
    with listening(app, SOON) as port:
        address = "127.0.0.1", port
        with socket.create_connection(address, DEADLINE_S) as sends:
            sends.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n\r\nbegun")
            assert status_of(sends) == 200
            assert sent_until_cut_off(sends, b"", b"x", 1 << 62) < 1 << 62
        with socket.socket() as reads:
            # Else a kernel may take all of it for a client that reads nothing (tcp_rmem).
            reads.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            reads.settimeout(DEADLINE_S)
            reads.connect(address)
            reads.sendall(b"GET /much HTTP/1.1\r\nHost: a\r\n\r\n")
            assert reads.recv(1), "the server has its end"
            eventually(lambda: not _is_kept(port, reads), "the server gave up")
            assert 0 < len(b"".join(iter(lambda: reads.recv(MIB), b""))) < MUCH


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The loggers that warned, or worse."""
    return [record.name for record in caplog.records if record.levelno >= logging.WARNING]


def _is_kept(port: int, connection: socket.socket) -> bool:
    """Whether the server, which is in this process, has its end of a connection."""
    ends = psutil.Process().net_connections("tcp")
    return (port, connection.getsockname()) in [(one.laddr.port, one.raddr) for one in ends]


def test_a_client_that_does_not_shake_hands_is_let_go(tmp_path: Path) -> None:
    issued = Authority(tmp_path, "ours").issue("server")
    files = {"ssl_certfile": str(issued.certificate), "ssl_keyfile": str(issued.key)}
    with listening(app, SOON, **files) as port:
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
            assert connection.recv(1) == b""
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ours.pem"))
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection,
            trusting.wrap_socket(connection) as secured,
        ):
            secured.sendall(WHOLE)
            assert status_of(secured) == 200


@pytest.mark.parametrize("client_max", [4, 8], ids=["of one client", "in all"])
def test_who_waits_for_its_client_makes_room(
    client_max: int, caplog: pytest.LogCaptureFixture
) -> None:
    limits = ConnectionLimits(connections_max=8, client_max=client_max)
    with listening(app, limits) as port, ExitStack() as opened:
        for _ in range(40):
            half = opened.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S))
            half.sendall(HALF)

        def is_answered() -> bool:
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as honest:
                honest.sendall(WHOLE)
                return status_of(honest) == 200

        eventually(is_answered, "an honest client is answered")
    assert 1 <= len(warned(caplog)) <= 2
    assert set(warned(caplog)) == {"statestore.serving.connections"}


def test_without_files_it_accepts_later_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listening(app, SOON) as port, ExitStack() as opened:
        clients = [opened.enter_context(socket.socket()) for _ in range(50)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (clients[-1].fileno() + 5, hard))
        try:
            for client in clients:
                client.settimeout(DEADLINE_S)
                client.connect(("127.0.0.1", port))
            for client in clients:  # Those in front make room for those behind.
                client.sendall(WHOLE)
                assert status_of(client) == 200
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert warned(caplog) == ["statestore.serving.connections"]
    assert "no connection can be accepted: Too many open files" in caplog.text
