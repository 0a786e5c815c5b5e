"""Brokers that ask for tokens (SASL's OAUTHBEARER): unsigned ones, and those of a token server."""

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from time import monotonic

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from statestore.errors import InvalidSetting, Unavailable
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.connection import Connection
from statestore.kafka.wire.security import Security
from statestore.kafka.wire.source import not_taken
from statestore.model.broker_addresses import BrokerAddress
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.kafka.run_rig import App, assert_refused, counted, end_of, running, updates_in_order
from tests.token_server import CLIENT, SECRET, Answer, TokenServer

pytestmark = pytest.mark.kafka
SESSION_S = 3.0
SESSIONS = 3.5
_LISTENER = "listener.name.sasl.oauthbearer"
_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
# Brokers ask for keys only where they are allowed to.
_ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
ASKS_FOR_TOKENS: dict[str, str | int | float | bool] = {
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "connections.max.reauth.ms": int(SESSION_S * 1000),
}
CLIENTS = ["wire", "librdkafka"]


@pytest.fixture(scope="module")
def unsigned() -> Iterator[LocalKafka]:
    """A broker that takes tokens without a signature."""
    module = f'{_MODULE} unsecuredLoginStringClaim_sub="broker";'
    config = ASKS_FOR_TOKENS | {f"{_LISTENER}.sasl.jaas.config": module}
    with LocalKafka(users={"nobody": "nothing"}, config=config) as broker:
        yield broker


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with TokenServer().serving() as made:
        yield made


@pytest.fixture(scope="module")
def signed(server: TokenServer) -> Iterator[LocalKafka]:
    """A broker that takes the tokens of the server."""
    config = ASKS_FOR_TOKENS | {
        f"{_LISTENER}.sasl.jaas.config": f"{_MODULE};",
        f"{_LISTENER}.sasl.server.callback.handler.class": _VALIDATOR,
        f"{_LISTENER}.sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        f"{_LISTENER}.sasl.oauthbearer.expected.audience": "brokers",
        f"{_LISTENER}.sasl.oauthbearer.expected.issuer": "tests",
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAVA_TOOL_OPTIONS", f"-D{_ALLOWED}={server.keys_url}")
        with LocalKafka(users={"nobody": "nothing"}, config=config) as broker:
            yield broker


UNSIGNED = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": "principal=shop scope=orders lifeSeconds=600",
}


def of_server(server: TokenServer) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": server.url,
        "sasl.oauthbearer.scope": "orders",
        "sasl.oauthbearer.extensions": "team=shop",
    }


def settings(kafka: LocalKafka, **given: str) -> Settings:
    base = {"application.id": "tokens", "bootstrap.servers": kafka.sasl_servers}
    base["default.api.timeout.ms"] = given.pop("timeout_ms", "20000")
    return Settings.from_mapping(base | given)


@pytest.fixture
def kafka(request: pytest.FixtureRequest, kind: str) -> LocalKafka:
    """The broker of the case."""
    found: LocalKafka = request.getfixturevalue(kind)
    return found


@pytest.fixture
def app_settings(kind: str, server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    if kind == "unsigned":
        return UNSIGNED
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    return of_server(server) | {"sasl.oauthbearer.client.secret": "${CLIENT_SECRET}"}


SIGNED = pytest.mark.parametrize("kind", ["signed"])


@pytest.mark.parametrize("client", ["wire", pytest.param("librdkafka", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["unsigned", "signed"])
def test_a_run_of_many_sessions_and_tokens_counts_each_record_once(
    app: App, server: TokenServer, client: str
) -> None:
    server.life_s = 8
    servers = f"--bootstrap-servers={app.kafka.sasl_servers}"
    by = ["--set=commit.interval.ms=50", f"--set=kafka.client={client}", "--workers=2"]
    process = app.start("--run-for=300s", servers, *by)
    over_s, count, pause = monotonic() + SESSIONS * SESSION_S, 20, threading.Event()
    running(app, process, lambda: sum(app.committed().values()) == 20)
    while monotonic() < over_s:
        app.produce(range(count, count + 5))
        count += 5
        pause.wait(0.1)
    running(app, process, lambda: sum(app.committed().values()) == count)
    process.terminate()
    ended = end_of(process, 0)
    assert ended.code in {0, -15}, ended.err
    assert "not used" not in ended.err
    assert SECRET not in ended.err + ended.out
    # What was on its way between the two steps of the pipeline is left for the next run.
    app.drained(servers, *by)
    assert updates_in_order(app.read()) == counted(range(count)) == app.stored()


@pytest.mark.parametrize("kind", ["unsigned"])
def test_a_token_of_this_millisecond_is_taken(kafka: LocalKafka) -> None:
    """Brokers know whole milliseconds, and refuse what was issued after their own time."""
    for _ in range(100):
        Connection(
            BrokerAddress.of(kafka.sasl_servers),
            Security.of(UNSIGNED),
            client_id="a",
            deadline_s=monotonic() + DEADLINE_S,
        ).close()


@SIGNED
def test_a_connection_outlives_its_tokens(kafka: LocalKafka, server: TokenServer) -> None:
    server.life_s = 8
    given = of_server(server) | {"sasl.oauthbearer.scope": "short"}
    link = Connection(
        BrokerAddress.of(kafka.sasl_servers),
        Security.of(given),
        client_id="a",
        deadline_s=monotonic() + DEADLINE_S,
    )
    asked, descriptor, pause = len(server.asked), link.fileno(), threading.Event()
    over_s = monotonic() + SESSIONS * SESSION_S
    while monotonic() < over_s:
        request = MetadataRequest(version=12, topics=[])
        link.ask(request, MetadataResponse, deadline_s=monotonic() + DEADLINE_S)
        pause.wait(0.02)
    assert link.fileno() == descriptor
    assert len(server.asked) > asked, "another token was fetched"
    link.close()


@SIGNED
def test_tokens_that_brokers_no_longer_take_are_fetched_anew(
    kafka: LocalKafka, server: TokenServer
) -> None:
    server.life_s = 3600
    given = of_server(server) | {"sasl.oauthbearer.scope": "changed"}
    with closing(ClusterMap(settings(kafka, **given), "producer")) as cluster:
        assert cluster.has_transactions()
        (taken,) = [one for one in [Security.of(given).login] if one is not None and one.tokens]
        assert taken.tokens is not None
        # The provider forgot the token; brokers are told another one.
        first = taken.tokens.token(monotonic() + DEADLINE_S)
        assert taken.tokens.refused(first)
        assert cluster.has_transactions()
        assert taken.tokens.token(monotonic() + DEADLINE_S) != ""


@SIGNED
def test_tokens_that_brokers_do_not_take_are_an_invalid_setting(
    kafka: LocalKafka, server: TokenServer
) -> None:
    given = of_server(server) | {"sasl.oauthbearer.scope": "others"}
    token = server.token(aud="others")
    server.instead = Answer.of(200, {"access_token": token, "expires_in": 60})
    try:
        with (
            closing(ClusterMap(settings(kafka, **given), "producer")) as cluster,
            pytest.raises(InvalidSetting, match=r"refuses this user .*oauthbearer.scope") as told,
        ):
            cluster.has_transactions()
    finally:
        server.instead = None
    assert token not in str(told.value)


def _has_transactions(cluster: ClusterMap) -> bool:
    """Whether the brokers answered in time that they do; a slow one has not yet."""
    with suppress(Unavailable):
        return cluster.has_transactions()
    return False


@SIGNED
def test_an_endpoint_that_is_down_is_unavailable_and_no_broker_is_blamed(
    kafka: LocalKafka, server: TokenServer
) -> None:
    given = of_server(server) | {"sasl.oauthbearer.scope": "down"}
    url = rf"sasl.oauthbearer.token.endpoint.url = {server.url}"
    server.instead = Answer.of(503, {"error": "temporarily_unavailable"})
    try:
        with closing(
            ClusterMap(settings(kafka, **given, timeout_ms="3000"), "producer")
        ) as cluster:
            with pytest.raises(Unavailable, match=rf"no token from {url}: HTTP 503.*: is it up"):
                cluster.has_transactions()
            server.instead = None
            eventually(lambda: _has_transactions(cluster), "the endpoint is back")
    finally:
        server.instead = None


@SIGNED
def test_an_endpoint_that_is_back_in_time_is_not_noticed(
    kafka: LocalKafka, server: TokenServer
) -> None:
    given = of_server(server) | {"sasl.oauthbearer.scope": "back"}
    server.instead = Answer.of(503, {"error": "temporarily_unavailable"})
    asked = len(server.asked)

    def come_back() -> None:
        eventually(lambda: len(server.asked) > asked + 1, "it was asked twice")
        server.instead = None

    back = threading.Thread(target=come_back)
    back.start()
    with closing(ClusterMap(settings(kafka, **given), "producer")) as cluster:
        assert cluster.has_transactions()
    back.join()


@SIGNED
def test_what_only_librdkafka_knows_is_left_to_it(app: App, server: TokenServer) -> None:
    server.life_s = 3600
    given = settings(app.kafka, **of_server(server), **{"consumer.client.rack": "a"})
    assert "consumer.client.rack" in not_taken(given)
    ended = app.run(
        f"--bootstrap-servers={app.kafka.sasl_servers}",
        "--set=consumer.client.rack=a",
        "--set=kafka.client=wire",
    )
    assert ended.code == 0, ended.err
    assert ended.err.count("kafka.client=wire is not used") == 1
    assert updates_in_order(app.read()) == counted(range(20)) == app.stored()


@SIGNED
@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_secret_ends_a_run_with_its_setting(
    app: App, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "battery staple")
    with app.unchanged():
        ended = app.run(
            f"--bootstrap-servers={app.kafka.sasl_servers}", f"--set=kafka.client={client}"
        )
    assert_refused(ended, 2, "InvalidSetting", "sasl.oauthbearer.client.secret")
    assert "battery" not in ended.err + ended.out
