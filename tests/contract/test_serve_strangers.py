"""What clients of `statestore serve` do who are no friends of it, or who leave."""

import shutil
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from statestore.runtime import Runtime
from statestore.serving import http
from statestore.serving.access import ServeLimits
from tests.builders import DEADLINE_S, eventually
from tests.contract.task_rig import TaskRig
from tests.contract.test_serve_http import TOKEN, filled, pipeline
from tests.serving_rig import LONG_LEASE, serving


@pytest.fixture
def rig(tmp_path: Path) -> TaskRig:
    return TaskRig(pipeline(), tmp_path, settings=LONG_LEASE)


def test_a_client_that_leaves_in_mid_body_is_nobodys_failure(
    rig: TaskRig, caplog: pytest.LogCaptureFixture
) -> None:
    filled(rig)
    rig.end()
    with serving(rig.runtime) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port), DEADLINE_S) as leaving:
            leaving.sendall(
                b"POST /v1/stores/counts/get-many HTTP/1.1\r\nHost: x\r\n"
                b'Content-Length: 99\r\n\r\n{"keys"'
            )
        counted = (
            'statestore_serve_requests_total{route="/v1/stores/{store}/get-many",status="400"}'
        )
        eventually(lambda: counted in server.client.get("/metrics").text, "it is counted")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_many_large_bodies_at_once_are_told_to_come_again(
    rig: TaskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(rig)
    rig.end()
    monkeypatch.setattr(http, "_BODIES_MAX", 2 << 20)
    large, many = 7 << 17, b"POST /v1/stores/counts/get-many HTTP/1.1\r\nHost: x\r\n"
    # Else a busy machine gives the first bodies up before the last ones are there.
    patient = ServeLimits(request_timeout_s=10 * DEADLINE_S)
    with serving(rig.runtime, limits=patient) as server, ExitStack() as opened:
        eventually(lambda: server.client.get("/ready").is_success, "ready")
        address = httpx.URL(server.url)

        def begin_another() -> None:
            slow = opened.enter_context(
                socket.create_connection((address.host, address.port), DEADLINE_S)
            )
            with suppress(OSError):  # One for which there is no room is refused.
                slow.sendall(many + b"Content-Length: 999999\r\n\r\n" + b" " * large)

        begin_another()
        body = b" " * large + b'{"keys": ["k1"]}'

        def is_refused() -> bool:
            # The last question may have taken the room of the one before.
            begin_another()
            refused = server.client.post("/v1/stores/counts/get-many", content=body)
            return refused.status_code == 503

        eventually(is_refused, "the others have come in")
        small = server.client.post("/v1/stores/counts/get-many", json={"keys": ["k1"]})
        assert small.json()["rows"] == [{"key": "k1", "value": 3}]
    with serving(rig.runtime, limits=patient) as server:
        eventually(lambda: server.client.get("/ready").is_success, "ready")
        for _ in range(3):
            answer = server.client.post("/v1/stores/counts/get-many", content=body)
            assert answer.status_code == 200


def test_who_asks_whether_it_is_ready_is_told_no_paths_and_the_log_tells_a_failure_once(
    rig: TaskRig, caplog: pytest.LogCaptureFixture
) -> None:
    filled(rig)
    rig.end()
    shutil.rmtree(rig.folder / "snapshots", ignore_errors=True)
    (rig.folder / "snapshots").touch()  # so that no copy can be made
    environment = Runtime(rig.known(), brokers=rig.broker.clients)  # Its time goes on.
    with serving(environment, tokens=(TOKEN,)) as server:
        problems: set[str] = set()  # Each attempt names a folder of its own.

        def is_told() -> bool:
            problems.update(
                task["problem"]
                for task in server.client.get("/v1/tasks").json()["tasks"]
                if task["problem"] is not None
            )
            return len(problems) > 2

        eventually(is_told, "it is tried again and again")
        assert all(str(rig.folder) in problem for problem in problems)
        told = httpx.get(f"{server.url}/ready", timeout=DEADLINE_S)
        assert told.status_code == 503
        assert str(rig.folder) not in told.text
    assert len([one for one in caplog.records if "no copy yet" in one.getMessage()]) == 1
