"""Which paths `statestore serve` answers, how it counts requests, and its OpenAPI document."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from statestore.serving.documents import ARROW
from tests.builders import eventually
from tests.contract.task_rig import TaskRig
from tests.contract.test_serve_http import TOKEN, filled, pipeline
from tests.serving_rig import LONG_LEASE, Server, serving

ONE = "/v1/stores/{store}"
QUERIES = {
    "get": {"key", "as_of"},
    "range": {"from", "to", "prefix", "reverse", "as_of", "limit", "page_token"},
    "history": {"key", "from", "to", "ascending", "limit"},
    "range-history": {
        *("from_key", "to_key", "prefix", "from", "to", "ascending", "reverse"),
        *("limit", "page_token"),
    },
    "windows": {"key", "from", "to", "limit"},
}
OF_ALL = {"store", "raw", "partition", "min_position", "wait_ms"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    rig = TaskRig(pipeline(), tmp_path_factory.mktemp("state"), settings=LONG_LEASE)
    filled(rig)
    rig.end()
    with serving(rig.runtime, tokens=(TOKEN,)) as found:
        eventually(lambda: found.client.get("/ready").is_success, "ready")
        yield found


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return server.client.get("/openapi.json").json()


def asked(server: Server, method: str, path: str) -> httpx.Response:
    return server.client.request(method, path, follow_redirects=False)


@pytest.mark.parametrize(
    ("method", "path", "status", "header"),
    [
        ("GET", "/openapi.json", 200, ("content-type", "application/json")),
        ("GET", "/openapi.json?x=1", 200, ("content-type", "application/json")),
        ("HEAD", "/openapi.json", 200, ("content-type", "application/json")),
        ("GET", "/health", 200, ("cache-control", "no-store")),
        ("GET", "/v1/stores/counts/get?key=k1", 200, ("cache-control", "no-store")),
        ("GET", "/v1/stores/co%75nts/get?key=k1", 200, ("content-type", "application/json")),
        ("GET", "/v1/stores/", 307, ("location", "/v1/stores")),
        ("GET", "/v1/stores/counts/get/?key=k1", 307, ("location", "/counts/get?key=k1")),
        ("GET", "/health?x=1", 400, None),
        ("GET", "/v1/stores?x=1", 400, None),
        ("POST", "/v1/stores/counts/get-many?raw=1", 400, None),
        *(("GET", path, 404, None) for path in ("/", "/docs", "/redoc", "/v1", "//v1/stores")),
        ("GET", "/v1/stores//get?key=k1", 404, None),
        ("GET", "/v1/stores/a%2Fb/get?key=k1", 404, None),
        ("GET", "/v1/stores/%FF/get?key=k1", 404, None),
        *(
            (method, "/v1/stores/counts/get", 405, ("allow", "GET"))
            for method in ("HEAD", "OPTIONS", "PUT", "POST")
        ),
        ("GET", "/v1/stores/counts/get-many", 405, ("allow", "POST")),
        ("HEAD", "/metrics", 405, ("allow", "GET")),
    ],
)
def test_each_path_has_its_methods_and_nothing_else_is_there(
    server: Server, method: str, path: str, status: int, header: tuple[str, str] | None
) -> None:
    answer = asked(server, method, path)
    assert answer.status_code == status
    name, value = header or ("content-type", "application/problem+json")
    assert answer.headers[name].endswith(value)
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert method == "HEAD" or answer.json()["status"] == status


def test_requests_are_counted_by_route_whatever_became_of_them(server: Server) -> None:
    for method, path in (
        ("GET", "/v1/stores/counts/history?key=k1"),
        ("PUT", "/v1/stores/nowhere/history"),
        ("GET", "/nothing"),
    ):
        asked(server, method, path)
    text = server.client.get("/metrics").text
    counted = set(re.findall(r'requests_total\{route="([^"]+)",status="(\d+)"\}', text))
    assert {(f"{ONE}/history", "400"), (f"{ONE}/history", "405"), ("other", "404")} <= counted
    assert all("counts" not in route for route, _ in counted)


@pytest.mark.parametrize("name", QUERIES)
def test_the_document_has_each_parameter_with_what_it_means(document: Any, name: str) -> None:
    parameters = {
        one["name"]: one for one in document["paths"][f"{ONE}/{name}"]["get"]["parameters"]
    }
    assert set(parameters) == QUERIES[name] | OF_ALL
    for one in parameters.values():
        assert one["description"]
        assert one["in"] == ("path" if one["name"] == "store" else "query")
        assert one["required"] == (one["name"] in {"store", "key"})
        jsonschema.Draft202012Validator.check_schema(one["schema"])
    wait = parameters["wait_ms"]["schema"]
    assert (wait["default"], wait["minimum"], wait["maximum"]) == (5000, 0, 60_000)
    if "limit" in parameters:
        limit = parameters["limit"]["schema"]
        expected = 1000 if name.startswith("range") else 10_000
        assert (limit["default"], limit["minimum"], limit["maximum"]) == (expected, 1, 10_000)


def test_the_document_says_what_is_answered_and_that_a_token_is_asked_for(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["security"] == [{"token": []}]
    names = {one["operationId"] for each in document["paths"].values() for one in each.values()}
    assert {"get_v1_stores__store__get_get", "get_many_v1_stores__store__get_many_post"} <= names
    assert len(names) == len(document["paths"])
    for name in QUERIES:
        said = document["paths"][f"{ONE}/{name}"]["get"]["responses"]
        assert {"200", "400", "401", "404", "410", "503", "504"} == set(said)
        assert (ARROW in said["200"]["content"]) == name.startswith("range")
    body = document["paths"][f"{ONE}/get-many"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["$ref"].endswith("/ManyKeys")
