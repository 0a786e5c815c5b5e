"""Our own client over TLS, with and without a certificate of its own, before a real broker."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from statestore.errors import InvalidSetting, Unavailable
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.outbox import WireOutbox
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.certificates import Authority, Issued
from tests.kafka.writing_rig import committed

pytestmark = pytest.mark.kafka


class Secured(NamedTuple):
    """A broker whose clients come over TLS, and are told to come back so."""

    kafka: LocalKafka
    address: str
    authority: Authority
    client: Issued


@contextmanager
def front(listener: socket.socket, tls: ssl.SSLContext) -> Iterator[list[tuple[str, int]]]:
    """Takes TLS off whatever comes, and passes it on to the address that the caller adds."""
    target: list[tuple[str, int]] = []
    with ExitStack() as stack:

        def serve() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=bridge, args=(plain,), daemon=True).start()

        def bridge(plain: socket.socket) -> None:
            with (
                suppress(OSError),
                plain,
                tls.wrap_socket(plain, server_side=True) as caller,
                socket.create_connection(target[0]) as broker,
            ):
                back = threading.Thread(target=copy, args=(broker, caller), daemon=True)
                back.start()
                copy(caller, broker)
                back.join()

        stack.callback(listener.close)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        threading.Thread(target=serve, daemon=True).start()
        yield target


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module", params=[False, True], ids=["one side", "both sides"])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder, "ours")
    issued = authority.issue("broker")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(issued.certificate, issued.key)
    if request.param:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(authority.certificate)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with front(listener, tls) as target, LocalKafka(proxy_port=port) as kafka:
        target.append(kafka.behind_proxy)
        yield Secured(kafka, f"127.0.0.1:{port}", authority, authority.issue("client", b"secret-3"))


def settings(secured: Secured, **changed: str) -> Settings:
    given = {
        "application.id": "secured",
        "bootstrap.servers": secured.address,
        "default.api.timeout.ms": "20000",
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.authority.certificate),
        "ssl.certificate.location": str(secured.client.certificate),
        "ssl.key.location": str(secured.client.key),
        "ssl.key.password": "secret-3",
    }
    return Settings.from_mapping(given | changed)


def test_transactions_are_written_over_tls(secured: Secured) -> None:
    secured.kafka.create_topic("out", 1)
    given = settings(secured)
    with closing(ClusterMap(given, "producer")) as cluster:
        outbox = WireOutbox(given, cluster, transactional_ids=["a", "b"], group_id=None)
        with closing(outbox):
            outbox.open()
            for number in range(2):
                outbox.begin()
                values = [b"%d" % number + bytes(1000)] * 3000
                outbox.send(Records("out", values, values, [5] * 3000, partition=0), tracked=True)
                outbox.commit()
            # The marker of the first transaction may come behind the records of the second.
            assert outbox.ends()[TopicPartition("out", 0)] in {6000, 6001}
    assert len(committed(secured.kafka.bootstrap_servers, "out")) == 6000


def test_only_the_authority_that_is_named_is_trusted(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What OpenSSL takes for the authorities of the machine.
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.authority.certificate))
    unnamed = settings(secured, **{"ssl.ca.location": ""})
    with closing(ClusterMap(unnamed, "producer")) as cluster:
        assert cluster.has_transactions()
    other = str(Authority(tmp_path, "other").certificate)
    with pytest.raises(InvalidSetting, match=r"correct ssl\.ca\.location"):
        ClusterMap(settings(secured, **{"ssl.ca.location": other}), "producer").has_transactions()


def test_what_is_not_trusted_is_named(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    wrong: dict[str, tuple[dict[str, str], str]] = {
        "the broker": ({"ssl.ca.location": str(other.certificate)}, "correct ssl.ca.location"),
        "no file": ({"ssl.ca.location": str(tmp_path / "none")}, "ssl.ca.location = .*No such"),
        "password": ({"ssl.key.password": "secret-4"}, "ssl.certificate.location and"),
        "protocol": ({"security.protocol": "TLS"}, "use one of PLAINTEXT, SSL"),
    }
    for changed, said in wrong.values():
        with pytest.raises(InvalidSetting, match=said) as told:
            ClusterMap(settings(secured, **changed), "producer").has_transactions()
        assert "secret" not in str(told.value)
    plain = settings(secured, **{"security.protocol": "PLAINTEXT", "default.api.timeout.ms": "300"})
    with (
        closing(ClusterMap(plain, "producer")) as cluster,
        pytest.raises(Unavailable, match="did not answer"),
    ):
        cluster.has_transactions()
