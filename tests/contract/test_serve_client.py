"""The clients of a server of state, over real connections; both are asked the same."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

import statestore as ss
from statestore.client import AsyncStateClient, StateClient
from statestore.errors import Misuse, NotAuthorized, NotUpToBound, Unavailable, UnknownStore
from statestore.model.ids import TopicPartition
from tests.builders import eventually
from tests.contract.task_rig import TaskRig
from tests.contract.test_serve_http import ODD_KEYS, TOKEN, filled, pipeline
from tests.serving_rig import LONG_LEASE, Server, serving

Ask = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    rig = TaskRig(pipeline(), tmp_path_factory.mktemp("state"), settings=LONG_LEASE)
    filled(rig)
    rig.end()
    with serving(rig.runtime, tokens=(TOKEN,)) as made:
        eventually(lambda: made.client.get("/ready").status_code == 200, "ready")
        yield made


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, server: Server) -> Ask:
    """Asks one of the clients; what the other one returns as an awaitable is awaited."""
    if request.param == "sync":

        def plainly(question: Callable[[Any], Any]) -> Any:
            with StateClient(server.url, token=TOKEN) as client:
                found = question(client)
                return list(found) if isinstance(found, Iterator) else found

        return plainly

    async def awaiting(question: Callable[[Any], Any]) -> Any:
        async with AsyncStateClient(server.url, token=TOKEN) as client:
            found = question(client)
            if isinstance(found, AsyncIterator):
                return [row async for row in found]
            return await found

    return lambda question: asyncio.run(awaiting(question))


def test_values_come_back_as_the_serdes_have_them(ask: Ask) -> None:
    assert ask(lambda state: state.get("counts", "k1")) == 3
    assert ask(lambda state: state.get("counts", "nobody")) is None
    assert ask(lambda state: state.get("numbers", 7)) == 1.5
    assert ask(lambda state: state.get("ids", uuid.UUID(int=7))) == 1.5
    (row,) = ask(lambda state: state.get_rows("ids", [uuid.UUID(int=7)])).rows
    assert row.key == uuid.UUID(int=7)
    assert ask(lambda state: state.get("prices", "k3")) == {"is": "23"}
    assert ask(lambda state: state.get_many("counts", [*ODD_KEYS, "no"])) == [*[1] * 10, None]
    assert ask(lambda state: state.get("counts", b"k1", raw=True)) == (3).to_bytes(8, "big")
    (row,) = ask(lambda state: state.get_rows("prices", ["k1"], as_of=12)).rows
    assert (row.value, row.timestamp_ms, row.valid_to_ms) == ({"is": "11"}, 11, 21)


def test_ranges_are_read_page_by_page(ask: Ask) -> None:
    every = [f"k{n}" for n in range(10)]
    asked = ask(lambda state: state.range("counts", "k0", "k9", page_rows=3))
    assert [row.key for row in asked] == every
    backwards = ask(lambda state: state.range("counts", prefix="k", reverse=True, page_rows=4))
    assert [row.key for row in backwards if row.key != "k\x00"] == every[::-1]
    blobs = ask(lambda state: state.range("blobs", b"k1", b"k2"))
    assert [(row.key, row.value) for row in blobs] == [(b"k1", b"\xff21"), (b"k2", b"\xff22")]


def test_history_windows_and_sessions_have_their_times(ask: Ask) -> None:
    versions = ask(lambda state: state.history("prices", "k1", from_time=12))
    assert [row.timestamp_ms for row in versions] == [21, 11]
    at = datetime.fromtimestamp(0.012, UTC)
    assert [r.timestamp_ms for r in ask(lambda s: s.history("prices", "k1", to_time=at))] == [11, 1]
    found = ask(
        lambda s: s.range_history("prices", "k1", "k2", from_time=12, to_time=at, page_rows=1)
    )
    assert [(row.key, row.timestamp_ms) for row in found] == [("k1", 11), ("k2", 12)]
    back = ask(lambda s: s.range_history("prices", prefix="k", ascending=True, reverse=True))
    assert [row.timestamp_ms for row in back][:3] == [9, 19, 29]
    windows = ask(lambda state: state.windows("by-window", "k1", to_time=15))
    assert [(row.start_ms, row.end_ms, row.value) for row in windows] == [(0, 10, 1), (10, 20, 1)]
    assert len(ask(lambda state: state.windows("visits", "k1"))) == 3


def test_a_position_is_waited_for(ask: Ask) -> None:
    ask(lambda state: state.wait_for("counts", {"in": {0: 39}}))
    position = ss.Position.of({TopicPartition("in", 0): 10_000})
    with pytest.raises(NotUpToBound, match="within 30 ms"):
        ask(lambda state: state.wait_for("counts", position, wait_ms=30))
    (task,) = ask(lambda state: state.tasks())
    assert task.position == {"in": {0: 39}}
    assert task.owner == "stopped"


def test_errors_are_those_of_the_library(ask: Ask) -> None:
    with pytest.raises(UnknownStore, match="no store 'nowhere'"):
        ask(lambda state: state.get("nowhere", "a"))
    with pytest.raises(Misuse, match="is not a valid STRING"):
        ask(lambda state: state.get("counts", 7))
    with pytest.raises(Misuse, match="cannot be JSON"):
        ask(lambda state: state.get("counts", object()))
    with pytest.raises(Misuse, match="keeps no versions"):
        ask(lambda state: state.history("counts", "a"))


def test_a_wrong_token_is_told_once_and_never_shown(server: Server) -> None:
    client = StateClient(server.url, token=f"{TOKEN}-not", retry_s=0)
    assert TOKEN not in repr(client)
    with client, pytest.raises(NotAuthorized) as refused:
        client.get("counts", "k1")
    assert TOKEN not in str(refused.value)


def test_a_token_in_the_environment_is_taken(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATESTORE_SERVE_TOKEN", TOKEN)
    with StateClient(server.url) as client:
        assert client.get("counts", "k1") == 3


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            StateClient(url, retry_s=0.1) as client,
            pytest.raises(Unavailable, match="is `statestore serve` running"),
        ):
            client.get("counts", "k1")


def test_a_server_that_is_busy_is_asked_again(server: Server) -> None:
    answers = iter([503, 503, 200])

    def answer(request: httpx.Request) -> httpx.Response:
        body = {"rows": [{"key": "a", "value": 1}], "freshness": []}
        return httpx.Response(next(answers), json=body)

    with StateClient(server.url, token=TOKEN) as client:
        client._http = httpx.Client(base_url=server.url, transport=httpx.MockTransport(answer))
        assert client.get("counts", "a") == 1
