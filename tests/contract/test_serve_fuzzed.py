"""Requests to `statestore serve` that nobody means: an answer, a refusal, and never a failure.

Paths and parameters are those of the server's own OpenAPI document, with values that are right or
that nobody means; bodies and whole requests are mangled.
"""

import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from statestore.serving.access import ServeLimits
from tests.builders import DEADLINE_S, eventually
from tests.contract.task_rig import TaskRig
from tests.contract.test_commands_fuzzed import NASTY
from tests.contract.test_serve_http import filled, pipeline
from tests.mangling import OTHERS, TEXTS, mangled
from tests.relocation_rig import in_memory_folder
from tests.serving_rig import LONG_LEASE, Server, serving

STORES = ("counts", "prices", "blobs", "numbers", "ids", "recent", "by-window", "visits", "no-one")
RIGHT = ("k1", "a", "0", "1", "10", "true", "false", "in", "0_0", '{"in": {"0": 5}}', "aw==")
METHODS = ("GET", "GET", "GET", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST")
BODY = json.dumps({"keys": ["k1", "k2", "nobody"]}).encode()
MANY = b"POST /v1/stores/counts/get-many HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
# The server's own: it is busy, or what was asked for did not come in time.
OF_ITS_OWN = {503, 504}
REQUESTS = 300


class Fuzzed:
    """A server that has something in every kind of store, and what it answers."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._paths = server.client.get("/openapi.json").json()["paths"]

    def ask(self, chance: random.Random) -> None:
        """Send one request; AssertionError if the answer is none that a client can use."""
        if chance.random() < 0.2:
            self._send_raw(chance)
            return
        method, url, body = self._drawn(chance)
        answer = self.server.client.request(method, url, content=body)
        told = f"{method} {url[:300]} {body[:300]!r}: {answer.status_code} {answer.text[:300]}"
        assert answer.status_code < 500 or answer.status_code in OF_ITS_OWN, told
        assert "Traceback" not in answer.text, told
        if answer.status_code >= 400 and method != "HEAD":
            assert answer.headers["content-type"] == "application/problem+json", told
            problem = answer.json()
            assert problem["status"] == answer.status_code, told
            assert problem["detail"], told

    def still_answers(self) -> None:
        """What is right is answered as before."""
        assert self.server.get("counts/get", key="k1")["row"] == {"key": "k1", "value": 3}
        answer = self.server.client.post("/v1/stores/counts/get-many", content=BODY)
        assert [row and row["value"] for row in answer.json()["rows"]] == [3, 3, None]

    def _drawn(self, chance: random.Random) -> tuple[str, str, bytes]:
        path = chance.choice(list(self._paths))
        ((usual, said),) = self._paths[path].items()
        method = usual.upper() if chance.random() < 0.9 else chance.choice(METHODS)
        store = chance.choice(STORES if chance.random() < 0.9 else NASTY)
        url = path.replace("{store}", _quoted(store))
        query = [
            f"{one['name']}={_quoted(_value(chance))}"
            for one in said.get("parameters", [])
            if one["in"] == "query" and (one["required"] or chance.random() < 0.4)
        ]
        chance.shuffle(query)
        body = mangled(chance, BODY) if method in {"POST", "PUT"} else b""
        if body and chance.random() < 0.3:
            body = json.dumps({"keys": _any(chance)}).encode()
        return method, f"{url}?{'&'.join(query)}" if query else url, body

    def _send_raw(self, chance: random.Random) -> None:
        """Send bytes that are nearly a request; the server answers, or hangs up."""
        head = b"%sContent-Length: %d\r\n\r\n%s" % (MANY, len(BODY), BODY)
        sent = mangled(chance, head)
        address = httpx.URL(self.server.url)
        with socket.create_connection((address.host, address.port), DEADLINE_S) as raw:
            answer = b""
            try:
                raw.sendall(sent)
                raw.shutdown(socket.SHUT_WR)
                while part := raw.recv(1 << 16):
                    answer += part
            except TimeoutError:
                raise AssertionError(f"{sent[:300]!r}: neither answer nor end") from None
            except OSError:  # it hung up
                return
        told = f"{sent[:300]!r}: {answer[:300]!r}"
        assert not answer or answer.startswith(b"HTTP/1.1 "), told
        assert not answer.startswith(b"HTTP/1.1 500"), told


@contextmanager
def fuzzed_in(folder: Path) -> Iterator[Fuzzed]:
    """A server on stores that lie there."""
    rig = TaskRig(pipeline(), folder, settings=LONG_LEASE)
    filled(rig)
    rig.end()
    # Who waits for a position that never comes is told so.
    with serving(rig.runtime, limits=ServeLimits(request_timeout_s=DEADLINE_S / 4)) as server:
        eventually(lambda: server.client.get("/ready").is_success, "ready")
        yield Fuzzed(server)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    with in_memory_folder() as folder, fuzzed_in(folder) as found:
        yield found


def test_a_server_answers_whatever_it_is_sent(
    fuzzed: Fuzzed, caplog: pytest.LogCaptureFixture
) -> None:
    seed = random.randrange(1 << 32)
    for number in range(REQUESTS):
        try:
            fuzzed.ask(random.Random(f"{seed} {number}"))
        except AssertionError as error:
            error.add_note(f"seed {seed}, number {number}")
            raise
    fuzzed.still_answers()
    assert not [record for record in caplog.records if record.levelname == "ERROR"], seed


def _value(chance: random.Random) -> str:
    return str(chance.choice(chance.choice((RIGHT, RIGHT, NASTY, TEXTS))))[:5000]


def _any(chance: random.Random) -> Any:
    return [chance.choice(OTHERS) for _ in range(chance.randrange(4))]


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")
