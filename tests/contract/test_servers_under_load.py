"""Attacks that took the servers down, as they were met: many bytes, many connections, few files."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attack_rig import COMMANDS, Attacked, attacked, sent_until_cut_off
from tests.builders import eventually

pytestmark = pytest.mark.slow

MIB = 1 << 20
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(params=COMMANDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attacked]:
    # As a shell gives, of which the server can have no more.
    with attacked(request.param, tmp_path, files=1024) as found:
        assert found.answers()
        yield found


@pytest.mark.parametrize(
    ("begin", "more"),
    [(HALF, b"x-header: " + b"x" * 65_000 + b"\r\n"), (b"GET /", b"x" * 65_536)],
    ids=["headers", "url"],
)
def test_300_mib_over_each_of_many_connections_fill_no_memory(
    server: Attacked, begin: bytes, more: bytes
) -> None:
    before = server.rss()

    def attack(_number: int) -> int:
        with server.connect() as connection:
            return sent_until_cut_off(connection, begin, more, 300 * MIB)

    with ThreadPoolExecutor(8) as attackers:
        sent = attackers.map(attack, range(64))
        eventually(server.answers, "an honest client is answered meanwhile")
        assert max(sent) < 64 * MIB
    assert server.rss() - before < 64 * MIB
    assert server.told() == []


def test_1200_half_requests_block_nobody_and_fill_no_log(server: Attacked) -> None:
    with ExitStack() as opened:
        for _ in range(3):
            for _ in range(400):
                opened.enter_context(server.connect()).sendall(HALF)
            eventually(server.answers, "an honest client is answered")
        for _ in range(20):
            eventually(server.answers, "an honest client is answered")
    eventually(server.answers, "an honest client is answered afterwards")
    assert 1 <= len(server.told()) < 10
    assert "Traceback" not in server.log.read_text()


def test_connections_that_come_and_go_without_end_block_nobody(server: Attacked) -> None:
    def attack(_number: int) -> None:
        for _ in range(500):
            with server.connect() as connection:
                connection.sendall(HALF)

    with ThreadPoolExecutor(8) as attackers:
        attacks = attackers.map(attack, range(8))
        for _ in range(20):
            eventually(server.answers, "an honest client is answered")
        assert list(attacks) == [None] * 8
    assert len(server.told()) < 10
