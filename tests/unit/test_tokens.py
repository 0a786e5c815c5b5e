"""Tokens for OAUTHBEARER before a real token server: what is cached, what is told, what is not."""

import json
import socket
import ssl
import subprocess
import threading
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, time

import pytest

from statestore.errors import InvalidSetting
from statestore.kafka.token_endpoint import NoToken, TokenEndpoint
from statestore.kafka.tokens import FetchedTokens, UnsecuredTokens, tokens_of
from statestore.kafka.wire.security import Security
from tests.builders import DEADLINE_S, eventually
from tests.certificates import Authority
from tests.token_server import CLIENT, SECRET, Answer, TokenServer

URL = "sasl.oauthbearer.token.endpoint.url"


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer().serving() as made:
        yield made


def config(server: TokenServer, **changed: str) -> dict[str, str]:
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        URL: server.url,
    }
    return given | changed


def tokens(server: TokenServer, **changed: str) -> FetchedTokens:
    return FetchedTokens(TokenEndpoint.of(config(server, **changed)))


def soon() -> float:
    return monotonic() + DEADLINE_S


def claims(token: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))
    return found


# One token.


def test_all_clients_of_a_process_share_one_token(server: TokenServer) -> None:
    server.blocked.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(tokens_of(config(server)).token, soon()) for _ in range(8)]
        eventually(lambda: len(server.asked) == 1, "somebody asks")
        server.blocked.set()
        assert len({one.result() for one in asked}) == 1
    assert server.asked == [{"grant_type": "client_credentials"}]
    # Another secret is another client.
    other = tokens_of(config(server, **{"sasl.oauthbearer.client.secret": "wrong"}))
    with pytest.raises(InvalidSetting):
        other.token(soon())


def test_scope_and_extensions_are_told(server: TokenServer) -> None:
    extra = {
        "sasl.oauthbearer.scope": "orders/read + more",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, poolId=a:b",
    }
    made = tokens(server, **extra)
    assert claims(made.token(soon()))["scope"] == "orders/read + more"
    assert made.extensions == {"logicalCluster": "lkc-1", "poolId": "a:b"}
    login = Security.of(config(server, **extra)).login
    assert login is not None
    message = login.begin(soon()).messages.auth_bytes()
    assert message.startswith(b"n,,\x01auth=Bearer ey")
    assert message.endswith(b"\x01logicalCluster=lkc-1\x01poolId=a:b\x01\x01")


def test_a_token_is_fetched_anew_while_the_last_one_is_good(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long before its end, however slow the machine is.
    monkeypatch.setattr("statestore.kafka.tokens._REFRESHED", 2 / DEADLINE_S)
    server.life_s = DEADLINE_S
    made = tokens(server)
    first = made.token(soon())
    seen: list[str] = []

    def is_another() -> bool:
        seen.append(made.token(soon()))
        return seen[-1] != first

    eventually(is_another, "another token")
    assert claims(first)["exp"] > time(), "the last one was good until then"  # type: ignore[operator]
    assert len(server.asked) == 2


def test_a_good_token_is_used_while_the_endpoint_is_down(
    server: TokenServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is due at once, and good for so long that a slow machine looks at it in time.
    monkeypatch.setattr("statestore.kafka.tokens._REFRESHED", 0.01)
    server.life_s = 12
    made = tokens(server)
    first = made.token(soon())
    server.instead = Answer.of(503, {"error": "temporarily_unavailable"})
    eventually(lambda: made.token(soon()) == first and len(server.asked) > 1, "it asks for another")
    assert made.token(soon()) == first
    assert made.trouble() == ""
    assert "HTTP 503: temporarily_unavailable" in caplog.text
    assert "the last token is used until it expires" in caplog.text

    def has_failed() -> bool:
        try:
            return made.token(soon()) != first
        except NoToken:
            return True

    eventually(has_failed, "the last one expired")
    assert "503" in made.trouble()
    server.instead = None

    def has_come() -> bool:
        try:
            return made.token(soon()) != first
        except NoToken:
            return False

    eventually(has_come, "the endpoint is back")
    assert made.trouble() == ""


def test_a_slow_answer_is_there_for_the_next_who_asks(server: TokenServer) -> None:
    server.blocked.clear()
    made = tokens(server)
    with pytest.raises(NoToken, match=rf"{URL} = {server.url}: no answer yet: is it up"):
        made.token(monotonic() + 0.05)
    assert "no answer yet" in made.trouble()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(made.token, soon())
        server.blocked.set()
        waiting.result()
    assert len(server.asked) == 1


def test_a_token_that_brokers_took_before_is_fetched_anew_once(server: TokenServer) -> None:
    made = tokens(server)
    first = made.token(soon())
    assert not made.refused(first), "the first one tells that this client is refused"
    second = made.token(soon())
    made.accepted(second)
    assert made.refused(second), "a key may have changed"
    made.token(soon())
    assert len(server.asked) == 3


# What endpoints answer.

NO_JWT = {"access_token": "abc", "token_type": "bearer"}
WRONG: dict[str, tuple[Answer, str]] = {
    "refused": (
        Answer.of(401, {"error": "invalid_client", "error_description": f"not {SECRET}"}),
        r"HTTP 401: invalid_client: not …: correct sasl.oauthbearer.client.id and .*secret",
    ),
    "refused without a word": (Answer(403, b"<html>"), r"HTTP 403: correct .*client.id and"),
    "scope": (
        Answer.of(400, {"error": "invalid_scope"}),
        r"HTTP 400: invalid_scope: correct sasl.oauthbearer.scope",
    ),
    "grant": (
        Answer.of(400, {"error": "unauthorized_client"}),
        r"allow the grant client_credentials to sasl.oauthbearer.client.id",
    ),
    "nobody": (Answer(404, b"not here"), rf"HTTP 404: correct {URL}"),
    "elsewhere": (
        Answer(302, b"", {"Location": "http://127.0.0.1:1/token"}),
        rf"HTTP 302: set {URL} to the address it has now",
    ),
    "no JSON": (Answer(200, b"<html>hello"), rf"no JSON: correct {URL}"),
    "no end": (Answer(200, b"[" * (2 << 20)), rf"no JSON: correct {URL}"),
    "deep": (Answer(200, b"[" * 100_000), rf"no JSON: correct {URL}"),
    "no object": (Answer.of(200, [1]), "no access_token"),
    "no token": (Answer.of(200, {"token": "abc"}), "no access_token"),
    "empty": (Answer.of(200, {"access_token": "", "expires_in": 9}), "no access_token"),
    "two lines": (Answer.of(200, {"access_token": "a\nb", "expires_in": 9}), "no access_token"),
    "another kind": (
        Answer.of(200, {"access_token": "a", "token_type": "mac", "expires_in": 9}),
        "token_type is 'mac', not Bearer",
    ),
    "no time": (Answer.of(200, NO_JWT), "does not tell when it expires: have it give a JWT"),
    "no number": (Answer.of(200, {**NO_JWT, "expires_in": "soon"}), "does not tell when"),
    "no float": (Answer.of(200, {**NO_JWT, "expires_in": 10**400}), "does not tell when"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_another_attempt_would_not_change_is_an_invalid_setting(
    server: TokenServer, case: str
) -> None:
    server.instead, said = WRONG[case]
    with pytest.raises(InvalidSetting, match=said) as told:
        tokens(server).token(soon())
    assert str(told.value).startswith(f"no token from {URL} = {server.url}: ")
    assert SECRET not in str(told.value)
    assert b64encode(f"{CLIENT}:{SECRET}".encode()).decode() not in str(told.value)
    assert len(server.asked) == 1


def test_what_may_pass_is_tried_again(server: TokenServer) -> None:
    passing = {
        "busy": (Answer.of(503, {}), "HTTP 503: is it up"),
        "too often": (Answer(429, b"slow down"), "HTTP 429: is it up"),
        "expired": (
            Answer.of(200, {"access_token": server.token(exp=int(time()) - 60)}),
            "its token expired 6. s ago: compare the clocks",
        ),
        "no life": (Answer.of(200, {**NO_JWT, "expires_in": 0}), "expired 0 s ago"),
    }
    for answer, said in passing.values():
        server.instead = answer
        made = tokens(server)
        with pytest.raises(NoToken, match=said):
            made.token(soon())
        assert str(made.trouble()).startswith(f"no token from {URL} = {server.url}: ")
    server.instead = None

    def has_come() -> bool:
        try:
            return bool(made.token(soon()))
        except NoToken:
            return False

    eventually(has_come, "a token")


def test_tokens_of_any_form_last_as_long_as_the_answer_says(server: TokenServer) -> None:
    server.instead = Answer.of(200, {**NO_JWT, "expires_in": "60"})
    made = tokens(server)
    assert made.token(soon()) == made.token(soon()) == "abc"
    assert len(server.asked) == 1


def test_nobody_at_the_endpoint_is_told_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    gone = f"http://127.0.0.1:{port}/token?key={SECRET}"
    given = {"sasl.oauthbearer.client.id": CLIENT, "sasl.oauthbearer.client.secret": SECRET}
    made = FetchedTokens(TokenEndpoint.of({**given, URL: gone}))
    with pytest.raises(NoToken, match=rf"{URL} = http://127.0.0.1:{port}/token: .*refused") as told:
        made.token(soon())
    assert SECRET not in str(told.value)
    assert SECRET not in repr(TokenEndpoint.of({**given, URL: gone}))


def test_an_endpoint_that_hangs_up_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as caller:
                # All of it: what is left unread resets the connection, before the answer is read.
                asked = b""
                while not asked.endswith(b"grant_type=client_credentials"):
                    asked += caller.recv(1 << 16)
                caller.sendall(b"what is this?")

        thread = threading.Thread(target=answer)
        thread.start()
        given = {"sasl.oauthbearer.client.id": CLIENT, "sasl.oauthbearer.client.secret": SECRET}
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(NoToken, match="what is this"):
            FetchedTokens(TokenEndpoint.of({**given, URL: url})).token(soon())
        thread.join()


@pytest.mark.parametrize("named", ["https.ca.location", "https.ca.pem", "a folder"])
def test_an_endpoint_has_a_certificate_of_an_authority_that_is_named(
    tmp_path: Path, named: str
) -> None:
    authority = Authority(tmp_path, "ours")
    issued = authority.issue("login")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(issued.certificate, issued.key)
    with TokenServer(tls=tls).serving() as server:
        key, value = named, str(authority.certificate)
        if named == "https.ca.pem":
            value = authority.certificate.read_text()
        elif named == "a folder":
            key, value = "https.ca.location", str(hashed(tmp_path / "all", authority.certificate))
        assert tokens(server, **{key: value}).token(soon())
        with pytest.raises(
            InvalidSetting, match=r"issuer certificate: correct https\.ca\.location"
        ):
            tokens(server).token(soon())
        other = str(Authority(tmp_path, "other").certificate)
        with pytest.raises(InvalidSetting, match=r"correct https\.ca\.location"):
            tokens(server, **{"https.ca.location": other}).token(soon())
    assert len(server.asked) == 1


def hashed(folder: Path, certificate: Path) -> Path:
    """A folder as OpenSSL reads it: each certificate is called by the hash of its subject."""
    folder.mkdir()
    command = ["openssl", "x509", "-noout", "-hash", "-in", str(certificate)]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    (folder / f"{name}.0").write_bytes(certificate.read_bytes())
    return folder


# Settings.


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({URL: ""}, rf"{URL} is not set"),
        ({URL: "ftp://host/token"}, rf"{URL}: want http"),
        ({URL: "file:///etc/passwd"}, rf"{URL}: want http"),
        ({URL: "https://me:secret@host/token"}, rf"{URL}: want http.* without a user"),
        ({URL: "https://host:port/"}, rf"{URL}: want http"),
        ({URL: f"https://{'a' * 64}.example/"}, rf"{URL}: want http"),
        ({URL: "https://a..example/"}, rf"{URL}: want http"),
        ({"sasl.oauthbearer.client.secret": "\udcff"}, "client.secret: its bytes are not UTF-8"),
        ({"sasl.oauthbearer.scope": "\udcff"}, "scope: its bytes are not UTF-8"),
        ({"sasl.oauthbearer.client.id": ""}, "client.id is not set"),
        ({"sasl.oauthbearer.client.secret": ""}, "client.secret is not set"),
        ({"sasl.oauthbearer.extensions": "auth=me"}, "extensions: auth=me"),
        ({"sasl.oauthbearer.extensions": "a1=me"}, "letters only"),
        ({"https.ca.location": "/nowhere.pem"}, "https.ca.location = '/nowhere.pem'"),
        ({"https.ca.pem": "no certificate"}, "https.ca.pem"),
        ({"enable.sasl.oauthbearer.unsecure.jwt": "true"}, "exclude each other"),
        ({"sasl.oauthbearer.method": "default"}, "OAUTHBEARER needs tokens: set"),
    ],
)
def test_wrong_settings_are_named(server: TokenServer, changed: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as told:
        Security.of(config(server, **changed))
    assert SECRET not in str(told.value)


def test_librdkafkas_later_names_are_taken_and_its_other_ways_are_not(server: TokenServer) -> None:
    given = config(server)
    for name in ("id", "secret"):
        value = given.pop(f"sasl.oauthbearer.client.{name}")
        given[f"sasl.oauthbearer.client.credentials.client.{name}"] = value
    given |= {"sasl.oauthbearer.grant.type": "client_credentials", "https.ca.location": "probe"}
    assert Security.not_taken(given) == []
    login = Security.of(given).login
    assert login is not None
    assert claims(login.begin(soon()).token)["sub"] == CLIENT
    assert SECRET not in repr(login)
    grant = "sasl.oauthbearer.grant.type"
    jwt = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    others = {grant: jwt, "sasl.oauthbearer.metadata.authentication.type": "azure_imds"}
    assert Security.not_taken(given | others) == [
        f"{grant}={jwt}",
        "sasl.oauthbearer.metadata.authentication.type",
    ]


def test_tokens_without_a_signature_are_librdkafkas() -> None:
    text = "principal=me scope=a,b lifeSeconds=60 scopeClaimName=roles extension_traceId=1"
    made, begun_s = UnsecuredTokens.of(text), time()
    head, body, signature = made.token(soon()).split(".")
    assert json.loads(urlsafe_b64decode(head + "==")) == {"alg": "none"}
    assert signature == ""
    found = json.loads(urlsafe_b64decode(body + "=="))
    assert found["sub"] == "me"
    assert found["roles"] == ["a", "b"]
    assert begun_s + 60 <= found["exp"] <= time() + 60
    assert found["iat"] < begun_s - 20, "a broker whose clock is behind takes it, too"
    assert made.extensions == {"traceId": "1"}
    assert made.trouble() == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs principal=NAME"),
        ("scope=a", "needs principal=NAME"),
        ("principal=me life=5", "'life=5'"),
        ("principal", "'principal'"),
        ('principal="me"', "principal"),
        ("principal=me lifeSeconds=long", "lifeSeconds=long"),
        ("principal=me lifeSeconds=0", "lifeSeconds=0"),
        ("principal=me lifeSeconds=²", "lifeSeconds=²"),
        (f"principal=me lifeSeconds={'9' * 5000}", "lifeSeconds=9"),
        ("principal=me extension_auth=5", "auth=5"),
    ],
)
def test_a_wrong_configuration_of_unsigned_tokens_is_named(text: str, said: str) -> None:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    given |= {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": text}
    with pytest.raises(InvalidSetting, match=said):
        Security.of(given)
