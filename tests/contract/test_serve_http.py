"""The HTTP face of serving, asked over real connections beside a stream task at work."""

import asyncio
import base64
import json
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import describe_deployment, publish_deployed
from statestore.serving import paging
from statestore.serving.access import Listening, ServeLimits, Tokens
from statestore.serving.documents import ARROW
from statestore.tasks.task import StreamTask
from statestore.topology.nodes import TopicName
from tests.builders import DEADLINE_S, eventually
from tests.contract.task_rig import TASK, TaskRig
from tests.contract.test_serving_copies import commit, send
from tests.serving_rig import LONG_LEASE, Server, caught_up, copied, serving

TOKEN = "a-token-that-is-long-enough"
ODD_KEYS = ["", "a/b", "%41", "a b", "ü", "?key=x&y", "\U0001f600", "..", "k\x00", "+"]
PRICES = ss.persistent_versioned_key_value_store(
    "prices", history_retention=10_000, key_serde=serdes.STRING, value_serde=serdes.JSON
)
BLOBS = ss.persistent_key_value_store("blobs")
NUMBERS = ss.persistent_key_value_store(
    "numbers", key_serde=serdes.INT64, value_serde=serdes.FLOAT64
)
IDS = ss.persistent_key_value_store("ids", key_serde=serdes.UUID, value_serde=serdes.FLOAT32)
RECENT = ss.in_memory_key_value_store("recent")


class Keep:
    """Puts each record into stores of several kinds."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._prices, self._blobs = context.store("prices"), context.store("blobs")
        self._numbers, self._ids = context.store("numbers"), context.store("ids")

    def process(self, record: "ss.Record[str, str]") -> None:
        self._prices.put(record.key, {"is": record.value}, timestamp=record.timestamp_ms)
        self._blobs.put(record.key.encode(), b"\xff" + record.value.encode())
        numbers = {"nan": float("nan"), "more": float("inf")}
        number = numbers.get(record.value, 1.5)
        self._numbers.put(record.timestamp_ms, number)
        self._ids.put(uuid.UUID(int=record.timestamp_ms), number)


def pipeline() -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    stream = builder.stream("in")
    stream.process(Keep, PRICES, BLOBS, NUMBERS, IDS, RECENT, name="keep")
    grouped = stream.group_by_key()
    grouped.count("counts")
    windows = ss.TumblingWindows(10, grace=1000, retention=5000)
    grouped.windowed_by(windows).count("by-window")
    grouped.windowed_by(ss.SessionWindows(5, grace=1000, retention=5000)).count("visits")
    return builder.build()


class Shop(NamedTuple):
    """A task with some commits, and the server beside it."""

    rig: TaskRig
    task: StreamTask
    server: Server


def deployed(rig: TaskRig) -> None:
    said = describe_deployment(rig.topology, ProcessingGuarantee.EXACTLY_ONCE, {TopicName("in"): 1})
    publish_deployed(rig.layout, said)


def filled(rig: TaskRig) -> StreamTask:
    task = rig.start()
    deployed(rig)
    for number in range(30):
        send(rig, f"k{number % 10}", str(number), number)
    for number, key in enumerate(ODD_KEYS):
        send(rig, key, "odd", 100 + number)
    commit(task, rig)
    return task


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    rig = TaskRig(pipeline(), tmp_path_factory.mktemp("state"), settings=LONG_LEASE)
    task = filled(rig)
    # A thousand requests at once take long on a busy machine.
    limits = ServeLimits(request_timeout_s=10 * DEADLINE_S)
    with serving(rig.runtime, limits=limits) as server:
        copied(server.service, task, rig)
        caught_up(server.service, task)
        yield Shop(rig, task, server)
        rig.end()


def test_get_says_the_value_and_where_it_stands(shop: Shop) -> None:
    answer = shop.server.get("counts/get", key="k1")
    assert answer["row"] == {"key": "k1", "value": 3}
    (fresh,) = answer["freshness"]
    assert fresh["stream_task"] == "0_0"
    assert fresh["owner"] == "running"
    assert not fresh["stale"]
    assert fresh["commit_number"] == shop.task._committer.stamp.number
    assert fresh["position"] == {"in": {"0": 39}}
    assert fresh["changelog"]["shop-counts-changelog"]["0"] > 0
    assert fresh["age_ms"] >= 0
    assert shop.server.get("counts/get", key="nobody")["row"] is None


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_are_found_by_get_and_get_many(shop: Shop, key: str) -> None:
    assert shop.server.get("counts/get", key=key)["row"] == {"key": key, "value": 1}
    raw = base64.b64encode(key.encode()).decode()
    assert shop.server.get("counts/get", key=raw, raw=True)["row"]["key"] == raw
    response = shop.server.client.post("/v1/stores/counts/get-many", json={"keys": [key, "none"]})
    assert response.json()["rows"] == [{"key": key, "value": 1}, None]


def test_values_are_typed_and_bytes_are_base64(shop: Shop) -> None:
    get = shop.server.get
    assert get("numbers/get", key="7")["row"] == {"key": 7, "value": 1.5}
    key = base64.urlsafe_b64encode(b"k3").decode()
    seven = str(uuid.UUID(int=7))
    assert get("ids/get", key=seven)["row"] == {"key": seven, "value": 1.5}
    found = get("blobs/get", key=key)["row"]
    assert base64.b64decode(found["value"]) == b"\xff23"
    assert get("prices/get", key="k3")["row"]["value"] == {"is": "23"}
    send(shop.rig, "nan", "nan", 500)
    send(shop.rig, "more", "more", 501)
    commit(shop.task, shop.rig)
    caught_up(shop.server.service, shop.task)
    assert get("numbers/get", key="500")["row"]["value"] == "NaN"
    assert get("numbers/get", key="501")["row"]["value"] == "Infinity"
    assert get("ids/get", key=str(uuid.UUID(int=501)))["row"]["value"] == "Infinity"


def test_history_and_as_of_have_the_times_of_versions(shop: Shop) -> None:
    get = shop.server.get
    rows = get("prices/history", key="k1")["rows"]
    assert [(row["value"]["is"], row["timestamp_ms"], row.get("valid_to_ms")) for row in rows] == [
        ("21", 21, None),
        ("11", 11, 21),
        ("1", 1, 11),
    ]
    assert get("prices/history", key="k1", ascending=True)["rows"] == rows[::-1]
    assert get("prices/history", key="k1", **{"from": 12, "to": 20})["rows"] == rows[1:2]
    several = get("prices/range-history", from_key="k1", to_key="k1")["rows"]
    assert several == rows
    assert (
        get("prices/range-history", from_key="k1", to_key="k1", ascending=True)["rows"]
        == (rows[::-1])
    )
    assert get("prices/get", key="k1", as_of=12)["row"] == rows[1]
    assert get("prices/get", key="k1", as_of="1970-01-01T00:00:00.012Z")["row"] == rows[1]
    then = get("prices/range", **{"from": "k0", "to": "k9", "as_of": 5})["rows"]
    assert [row["key"] for row in then] == [f"k{n}" for n in range(6)]


def test_windows_and_sessions_of_a_key(shop: Shop) -> None:
    get = shop.server.get
    windows = get("by-window/windows", key="k1")["rows"]
    assert [(row["start_ms"], row["end_ms"], row["value"]) for row in windows] == [
        (0, 10, 1),
        (10, 20, 1),
        (20, 30, 1),
    ]
    assert get("by-window/windows", key="k1", **{"from": 5, "to": 10})["rows"] == windows[1:2]
    assert get("by-window/get", key="k1", as_of=12)["row"] == windows[1]
    sessions = get("visits/windows", key="k1")["rows"]
    assert [(row["start_ms"], row["end_ms"]) for row in sessions] == [(1, 1), (11, 11), (21, 21)]
    many = get("by-window/range", limit=10_000)["rows"]
    assert [row["start_ms"] for row in many] == sorted(row["start_ms"] for row in many)


def test_pages_are_of_one_moment_while_commits_go_on_and_a_page_can_be_asked_for_again(
    shop: Shop,
) -> None:
    get = shop.server.get
    asked = {"prefix": "k", "limit": 3}
    whole = get("counts/range", prefix="k")["rows"]
    page = get("counts/range", **asked)
    rows, pages = list(page["rows"]), 1
    while token := page["next_page_token"]:
        for number in range(10):
            send(shop.rig, f"k{number}", "later", 600 + pages)
        commit(shop.task, shop.rig)
        caught_up(shop.server.service, shop.task)
        page = get("counts/range", **asked, page_token=token)
        assert get("counts/range", **asked, page_token=token) == page
        rows += page["rows"]
        pages += 1
    assert rows == whole
    assert pages > 2
    assert get("counts/range", prefix="k")["rows"] != whole
    backwards = get("counts/range", prefix="k", reverse=True)["rows"]
    assert [row["key"] for row in backwards] == [row["key"] for row in whole][::-1]


def test_a_page_token_of_another_request_or_of_none_is_refused(shop: Shop) -> None:
    token = shop.server.get("counts/range", limit=1)["next_page_token"]
    assert (
        "not of this request"
        in shop.server.get("counts/range", prefix="k", page_token=token)["detail"]
    )
    name, _, _ = token.partition(".")
    for odd in ("x", f"{name}.", f"{name}.-1"):
        assert "not of this request" in shop.server.get("counts/range", page_token=odd)["detail"]
    for odd in ("gone.2", f"{name}.7", f"{name}.{'9' * 5000}"):
        gone = shop.server.client.get("/v1/stores/counts/range", params={"page_token": odd})
        assert gone.status_code == 410
        assert gone.json()["error"] == "PageExpired"
        assert "leave page_token out" in gone.json()["detail"]


def test_a_range_as_arrow_has_the_rows_and_their_freshness(shop: Shop) -> None:
    get = shop.server.client.get

    def table(path: str, **parameters: Any) -> pa.Table:
        response = get(f"/v1/stores/{path}", params=parameters, headers={"accept": ARROW})
        assert response.headers["content-type"] == ARROW
        return pa.ipc.open_stream(response.content).read_all()

    counts = table("counts/range")
    rows = shop.server.get("counts/range")["rows"]
    assert counts.to_pylist() == rows
    assert counts.schema.types == [pa.string(), pa.int64()]
    (fresh,) = json.loads(counts.schema.metadata[b"statestore.freshness"])
    assert fresh["stream_task"] == "0_0"
    assert table("blobs/range").schema.types == [pa.binary(), pa.binary()]
    prices = table("prices/range", prefix="k1")
    assert prices.schema.names == ["key", "value", "timestamp_ms", "valid_to_ms"]
    assert json.loads(prices.to_pylist()[0]["value"])["is"]
    assert table("numbers/range").schema.types == [pa.int64(), pa.float64()]
    ids = table("ids/range")
    assert ids.schema.types == [pa.string(), pa.float32()]
    assert ids.to_pylist()[7]["key"] == str(uuid.UUID(int=7))
    assert table("counts/range", prefix="nobody").num_rows == 0


def test_min_position_waits_for_ones_own_write_or_says_how_far_it_is(shop: Shop) -> None:
    end = len(shop.rig.broker.records("in"))
    late = shop.server.client.get(
        "/v1/stores/counts/get",
        params={"key": "mine", "min_position": f"in:0:{end}", "wait_ms": 20},
    )
    assert late.status_code == 504
    assert late.json()["error"] == "NotUpToBound"
    assert late.json()["retry"]
    assert "did not get there within 20 ms" in late.json()["detail"]
    send(shop.rig, "mine", "x", 700)
    commit(shop.task, shop.rig)
    found = shop.server.get("counts/get", key="mine", min_position=f"in:0:{end}")
    assert found["row"]["value"] == 1
    for bound, said in (
        ("elsewhere:0:1", "is not made of topic 'elsewhere': wait for in"),
        ("in:7:1", "no partition 7"),
        ("in:0", "pass topic:partition:offset"),
    ):
        assert said in shop.server.get("counts/get", key="a", min_position=bound)["detail"]


@pytest.mark.parametrize(
    ("path", "parameters", "status", "said"),
    [
        ("nowhere/get", {"key": "a"}, 404, "no store 'nowhere'"),
        ("recent/get", {"key": "a"}, 400, "it is in memory"),
        ("counts/get", {}, 400, "'key': Field required"),
        ("counts/get", {"key": "a", "as-of": "1"}, 400, "no parameter 'as-of' here: use as_of"),
        ("counts/get", {"key": "a", "as_of": "1"}, 400, "keeps no history"),
        ("counts/get", {"key": "a", "as_of": "noon"}, 400, "'noon' is not understood"),
        ("counts/get", {"key": "a", "partition": 4}, 400, "no partition 4"),
        ("counts/get", {"key": "a", "raw": "true", "partition": "x"}, 400, "'partition'"),
        ("blobs/get", {"key": "%%%"}, 400, "is not a valid BYTES"),
        ("numbers/get", {"key": "seven"}, 400, "is not a valid INT64"),
        ("ids/get", {"key": "seven"}, 400, "is not a valid UUID"),
        ("numbers/get", {"key": str(1 << 70)}, 400, "is not a valid INT64"),
        ("counts/history", {"key": "a"}, 400, "keeps no versions"),
        ("counts/range-history", {}, 400, "keeps no versions"),
        ("prices/range-history", {"from": 9, "to": 3}, 400, "swap them"),
        ("prices/range-history", {"from_key": "a", "prefix": "k"}, 400, "not both"),
        ("counts/windows", {"key": "a"}, 400, "has no windows"),
        ("by-window/get", {"key": "k1"}, 400, "as_of"),
        ("by-window/range", {"as_of": 5}, 400, "no history"),
        ("prices/history", {"key": "k1", "from": 9, "to": 3}, 400, "swap them"),
        ("counts/range", {"prefix": "a", "from": "b"}, 400, "not both"),
        ("counts/get", {"key": "a", "min_position": f"in:0:{'9' * 5000}"}, 400, "min_position"),
        ("counts/get", {"key": "a", "min_position": f"in:{'9' * 5000}:0"}, 400, "min_position"),
        ("counts/get", {"key": "a", "as_of": "9" * 5000}, 400, "after the year 9999"),
        ("counts/get", {"key": "a", "partition": "9" * 5000}, 400, "'partition'"),
        ("numbers/get", {"key": "[" * 20_000}, 400, "is not a valid INT64"),
        ("counts/range", {"limit": 0}, 400, "'limit'"),
        ("counts/range", {"limit": 10_000_000}, 400, "'limit'"),
        ("counts/nothing", {}, 404, "/openapi.json"),
    ],
)
def test_what_is_wrong_is_answered_with_what_where_and_the_way_out(
    shop: Shop, path: str, parameters: dict[str, Any], status: int, said: str
) -> None:
    response = shop.server.client.get(f"/v1/stores/{path}", params=parameters)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert said in problem["detail"]
    assert problem["status"] == status
    assert not problem["retry"]


def test_bodies_of_get_many_that_cannot_be_read_are_refused(shop: Shop) -> None:
    for body, said in (
        (b"{", "body: "),
        (b'{"keys": "a"}', "Expected `array`"),
        (b'{"keys": [1]}', "is not a valid STRING"),
        (b'{"keys": [], "raws": 1}', "unknown field `raws`"),
        (json.dumps({"keys": ["a"] * 10_001}).encode(), "at most 10000"),
        (b" " * (9 << 20), "fewer keys"),
        (b'{"keys": [' + b"[" * 50_000, "recursion"),
        (b'{"keys": ["\\ud800"]}', "body: "),
        (b'{"keys": ["\xff"]}', "body: "),
        (b'{"\xff": []}', "body: "),
    ):
        response = shop.server.client.post("/v1/stores/counts/get-many", content=body)
        assert response.status_code == 400
        assert said in response.json()["detail"]


def test_only_reading_methods_are_allowed(shop: Shop) -> None:
    for method in ("PUT", "DELETE", "PATCH", "POST"):
        assert shop.server.client.request(method, "/v1/stores/counts/get").status_code == 405


def test_the_document_describes_every_path_and_its_answers(shop: Shop) -> None:
    document = shop.server.client.get("/openapi.json").json()
    assert set(document["paths"]) >= {
        "/v1/stores",
        "/v1/tasks",
        *(
            f"/v1/stores/{{store}}/{one}"
            for one in ("get", "get-many", "range", "history", "range-history", "windows")
        ),
    }
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    for name in schemas:
        assert isinstance(schemas[name], dict)
    for reference in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert reference in schemas, reference


def test_stores_and_tasks_say_what_is_served_and_how_new_it_is(shop: Shop) -> None:
    stores = {one["store"]: one for one in shop.server.client.get("/v1/stores").json()["stores"]}
    assert stores["counts"]["served"]
    assert stores["counts"]["inputs"] == ["in"]
    assert not stores["recent"]["served"]
    assert "in memory" in stores["recent"]["why_not"]
    (task,) = shop.server.client.get("/v1/tasks").json()["tasks"]
    assert task["position"]["in"]["0"] > 0


def test_a_scrape_is_read_by_prometheus_parser(shop: Shop) -> None:
    shop.server.get("counts/get", key="k1")
    text = shop.server.client.get("/metrics").text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    (stale,) = found["statestore_serve_stale"].samples
    assert stale.labels == {"application_id": "shop", "task": "0_0"}
    asked = found["statestore_serve_requests"].samples
    assert any(
        one.labels == {"route": "/v1/stores/{store}/get", "status": "200"} and one.value >= 1
        for one in asked
    )
    assert found["statestore_serve_request_duration_seconds"].type == "histogram"


def test_a_thousand_requests_at_once_are_all_answered(shop: Shop) -> None:
    address = httpx.URL(shop.server.url)

    async def ask(number: int) -> bytes:
        # Without a client of HTTP, whose pool costs far more than the server.
        reader, writer = await asyncio.open_connection(address.host, address.port)
        asked = f"GET /v1/stores/counts/get?key=k{number % 10} HTTP/1.1\r\nHost: x\r\n"
        writer.write(f"{asked}Connection: close\r\n\r\n".encode())
        try:
            return await reader.readline()
        finally:
            writer.close()

    async def ask_all() -> list[bytes]:
        return await asyncio.gather(*map(ask, range(1000)))

    assert set(asyncio.run(ask_all())) == {b"HTTP/1.1 200 OK\r\n"}


# Servers with other limits and rights.


@pytest.fixture
def rig(tmp_path: Path) -> TaskRig:
    return TaskRig(pipeline(), tmp_path, settings=LONG_LEASE)


def test_without_a_right_token_nothing_but_health_is_told(rig: TaskRig) -> None:
    filled(rig)
    rig.end()
    with serving(rig.runtime, tokens=(TOKEN, "another-token-of-it")) as server:
        eventually(lambda: server.client.get("/ready").status_code == 200, "ready")
        assert server.get("counts/get", key="k1")["row"]["value"] == 3
        for header in (
            None,
            f"Bearer {TOKEN}x",
            f"Basic {TOKEN}",
            "Bearer",
            f"Bearer {TOKEN[:-1]}",
        ):
            headers = {} if header is None else {"authorization": header}
            for path in ("/v1/stores", "/openapi.json", "/metrics", "/nothing"):
                refused = httpx.get(f"{server.url}{path}", headers=headers, timeout=DEADLINE_S)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in refused.text
            assert (
                httpx.get(f"{server.url}/health", headers=headers, timeout=DEADLINE_S).status_code
                == 200
            )
        other = {"authorization": "bearer another-token-of-it"}
        assert (
            httpx.get(f"{server.url}/v1/stores", headers=other, timeout=DEADLINE_S).status_code
            == 200
        )


def test_a_server_without_tokens_answers_only_to_its_local_names(rig: TaskRig) -> None:
    filled(rig)
    rig.end()
    hosts = Listening().hosts(Tokens([]))
    with serving(rig.runtime, hosts=hosts) as server:
        for host in ("evil.example", "127.0.0.1.evil.example", ""):
            answer = server.client.get("/v1/stores", headers={"host": host})
            assert answer.status_code in {400, 421}
        assert server.client.get("/v1/stores", headers={"host": "localhost:1"}).status_code == 200


def test_more_requests_than_allowed_are_told_to_come_again(rig: TaskRig) -> None:
    filled(rig)
    rig.end()
    with serving(rig.runtime, limits=ServeLimits(requests_max=0)) as server:
        refused = server.client.get("/v1/stores")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["retry"]


def test_a_body_that_does_not_arrive_is_not_waited_for(rig: TaskRig) -> None:
    filled(rig)
    rig.end()
    with serving(rig.runtime, limits=ServeLimits(request_timeout_s=0.2)) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port), DEADLINE_S) as slow:
            slow.sendall(
                b"POST /v1/stores/counts/get-many HTTP/1.1\r\nHost: x\r\n"
                b'Content-Length: 99\r\n\r\n{"keys"'
            )
            assert slow.recv(1000).startswith(b"HTTP/1.1 503")
        eventually(lambda: server.client.get("/v1/stores").is_success, "others are answered")


def test_pages_expire_and_let_their_copy_go(rig: TaskRig) -> None:
    filled(rig)
    rig.end()
    with serving(rig.runtime, pages_kept_s=0) as server:
        eventually(lambda: server.client.get("/ready").status_code == 200, "ready")
        token = server.get("counts/range", limit=1)["next_page_token"]
        rig.clock.advance(1)
        gone = server.client.get("/v1/stores/counts/range", params={"page_token": token})
        assert gone.json()["error"] == "PageExpired"
        state = server.service._followers.state(TASK)
        assert state is not None
        assert state.replica is not None
        assert state.replica._readers == 0


def test_a_stream_that_its_client_cuts_off_lets_its_copy_go(rig: TaskRig) -> None:
    task = rig.start()
    deployed(rig)
    for number in range(6000):
        send(rig, f"k{number}", "x" * 2000, number // 100)
    commit(task, rig)
    rig.end()
    with serving(rig.runtime) as server:
        eventually(lambda: server.client.get("/ready").status_code == 200, "ready")
        with server.client.stream(
            "GET", "/v1/stores/prices/range", headers={"accept": ARROW}
        ) as response:
            next(response.iter_raw(1000))
        state = server.service._followers.state(TASK)
        assert state is not None
        assert state.replica is not None
        replica = state.replica
        eventually(lambda: replica._readers == 0, "the stream is closed")
        assert server.get("counts/get", key="k1")["row"]["value"] == 1


def test_a_stream_that_begins_too_late_for_its_request_lets_its_copy_go(rig: TaskRig) -> None:
    filled(rig)
    rig.end()
    with serving(rig.runtime, limits=ServeLimits(request_timeout_s=0.2)) as server:
        eventually(lambda: server.client.get("/ready").status_code == 200, "ready")
        state = server.service._followers.state(TASK)
        assert state is not None
        assert state.replica is not None
        replica = state.replica
        with replica.turn:  # as while a large commit is applied
            late = server.client.get("/v1/stores/counts/range", headers={"accept": ARROW})
            assert late.status_code == 503
            assert "no answer within 0.2 s" in late.json()["detail"]
        eventually(lambda: server.client.get("/v1/tasks").status_code == 200, "it answers")
        eventually(lambda: replica._readers == 0, "what nobody got is closed")


@pytest.mark.parametrize(
    ("listening", "tokens", "said"),
    [
        (Listening(host="0.0.0.0"), [], "others could read all state"),
        (Listening(host="::"), [], "others could read all state"),
        (Listening(host="example.com"), [], "others could read all state"),
        (Listening(tls_certificate="a.pem"), [], "TLS needs both"),
        (Listening(tls_client_ca="a.pem"), [], "needs a server with TLS"),
        (Listening(tls_certificate="no.pem", tls_key="no.pem"), [], "there is no file no.pem"),
    ],
)
def test_a_server_that_anybody_could_read_is_refused(
    listening: Listening, tokens: list[str], said: str
) -> None:
    with pytest.raises(Misuse, match=said):
        listening.check(Tokens(tokens))


def test_who_has_a_token_or_says_so_may_listen_anywhere() -> None:
    Listening(host="0.0.0.0").check(Tokens([TOKEN]))
    Listening(host="0.0.0.0", allow_unauthenticated=True).check(Tokens([]))
    for host in ("127.0.0.1", "127.3.2.1", "localhost", "::1"):
        Listening(host=host).check(Tokens([]))


def test_tokens_are_read_from_a_file_or_the_environment_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n\n  another-token-of-it \n")
    tokens = Tokens.read(str(file))
    assert tokens.admit(f"Bearer {TOKEN}".encode())
    assert tokens.admit(b"Bearer another-token-of-it")
    assert not tokens.admit(b"Bearer ")
    assert TOKEN not in repr(tokens) + repr(vars(tokens))
    for content, said in (("", "no token"), ("short", "16 or more"), ("\xff" * 20, "16 or more")):
        file.write_text(content)
        with pytest.raises(Misuse, match=said) as refused:
            Tokens.read(str(file))
        assert "short\n" not in str(refused.value)
    with pytest.raises(Misuse, match="--token-file"):
        Tokens.read(str(tmp_path / "none"))
    assert not Tokens.read(None)
    monkeypatch.setenv("STATESTORE_SERVE_TOKEN", TOKEN)
    assert Tokens.read(None).admit(f"Bearer {TOKEN}".encode())


def test_a_page_ends_before_its_limit_if_its_rows_are_large(
    rig: TaskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "_PAGE_MAX_BYTES", 10)
    filled(rig)
    rig.end()
    with serving(rig.runtime) as server:
        eventually(lambda: server.client.get("/ready").status_code == 200, "ready")
        whole = [f"k{n}" for n in range(10)]
        more: dict[str, str] = {}
        found: list[str] = []
        sizes: set[int] = set()
        while True:
            page = server.get("prices/range", **{"from": "k0", "to": "k9", "limit": 4}, **more)
            found += [row["key"] for row in page["rows"]]
            sizes.add(len(page["rows"]))
            if page["next_page_token"] is None:
                break
            more = {"page_token": page["next_page_token"]}
        assert found == whole
        assert sizes == {1}
