"""A real schema registry behind TLS of an own authority and a login, and ids in headers."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidSetting, Misuse, Unavailable
from statestore.testing import TopologyTestDriver
from tests.kafka.registry_pipelines import ORDER, Order
from tests.schema_registry_front import LOGIN, Front, secured
from tests.schema_registry_rig import Registry, started_registry

pytestmark = pytest.mark.kafka
ONE = Order("ann", 5)


running = pytest.fixture(scope="module")(started_registry)


@pytest.fixture(scope="module")
def front(running: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with secured(running, tmp_path_factory.mktemp("front")) as made:
        yield made


@pytest.fixture(scope="module")
def strict(running: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """It also asks for a certificate."""
    with secured(running, tmp_path_factory.mktemp("strict"), of_clients=True) as made:
        yield made


def over(front: Front, **options: Any) -> ss.SchemaRegistry:
    config = {
        "auto_register": True,
        "max_retries": 0,
        "ssl_ca_location": str(front.authority),
        "basic_auth_user_info": "${REGISTRY_LOGIN}",
        **options,
    }
    given = {key: value for key, value in config.items() if value is not None}
    return ss.SchemaRegistry(front.url, **given)


@pytest.fixture(autouse=True)
def _login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_LOGIN", LOGIN)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


def written(registry: ss.SchemaRegistry, topic: str) -> bytes:
    return serdes.avro(ORDER, Order, registry=registry).at(topic, "value").serialize(ONE)


def test_who_logs_in_over_tls_writes_and_reads(front: Front, running: Registry) -> None:
    data = written(over(front), "secured")
    assert "secured-value" in running.subjects()
    as_written = serdes.avro(registry=over(front, subjects="record")).at("secured", "value")
    assert as_written.deserialize(data) == {"user": "ann", "number": 5}


def test_a_certificate_of_the_client_goes_with_it(strict: Front, running: Registry) -> None:
    with_it = over(
        strict,
        ssl_certificate_location=str(strict.client.certificate),
        ssl_key_location=str(strict.client.key),
    )
    assert written(with_it, "certified")[0] == 0
    assert "certified-value" in running.subjects()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"basic_auth_user_info": "joe:guess"}, r"denies access .*401.*basic_auth_user_info"),
    ({"basic_auth_user_info": None}, r"denies access .*401.*basic_auth_user_info"),
    ({"basic_auth_user_info": "joe"}, r"must be in the form"),
    ({"ssl_ca_location": None}, r"certificate.*CERTIFICATE_VERIFY_FAILED.*ssl_ca_location"),
    ({"ssl_ca_location": "/no/such.pem"}, r"cannot use its certificates.*No such file"),
    ({"ssl_ca_location": __file__}, r"cannot use its certificates"),
    ({"ssl_certificate_location": "/no/such.pem"}, r"cannot use its certificates.*No such file"),
    ({"ssl_key_location": "/no/such.pem"}, r"ssl\.certificate\.location required"),
]


@pytest.mark.parametrize(("options", "expected"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_login_or_certificate_ends_the_run_with_what_to_correct(
    front: Front, options: dict[str, Any], expected: str
) -> None:
    registry = over(front, timeout=11, **options)
    with pytest.raises(InvalidSetting, match=expected) as refused:
        written(registry, "refused")
    assert "hid:den" not in str(refused.value)
    assert "guess" not in str(refused.value)


def test_who_has_no_certificate_gets_nothing_of_a_registry_that_wants_one(strict: Front) -> None:
    """Whether an alert of TLS or the end of the connection arrives first is left to chance."""
    with pytest.raises((InvalidSetting, Unavailable), match="the schema registry at https://"):
        written(over(strict), "refused")


def copying(serde: ss.Serde[Any], name: str) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serde)
    orders = builder.stream(f"{name}-in")
    orders.to(f"{name}-out")
    by_user = orders.group_by(lambda _key, order: order.user)
    by_user.reduce(
        lambda old, new: Order(new.user, old.number + new.number),
        ss.Materialized("sums", caching=False),
    ).to_stream().to(f"{name}-sums")
    return builder.build()


def test_ids_go_out_in_headers_and_before_the_rows_of_stores(
    front: Front, running: Registry
) -> None:
    serde = serdes.avro(ORDER, Order, registry=over(front, ids="headers"))
    with TopologyTestDriver(copying(serde, "ids"), {"application.id": "ids"}) as driver:
        for number in (5, 450):
            driver.pipe("ids-in", "k", Order("ann", number), 0, headers=[("other", b"x")])
        found = driver._broker.records("ids-out")
        assert [record.value for record in found] == [b"\x06ann\x0a", b"\x06ann\x84\x07"]
        names = [[name for name, _ in record.headers] for record in found]
        assert names == [["other", "__value_schema_id"]] * 2
        assert driver.read("ids-sums")[-1].value == Order("ann", 455)
        driver.crash()
        driver.pipe("ids-in", "k", Order("ann", 1), 0)
        assert driver.read("ids-sums")[-1].value == Order("ann", 456)
        rows = driver._broker.records("ids-sums-changelog")
        assert all(row.value is not None and row.value[0] == 0 for row in rows)
    with SchemaRegistryClient({"url": running.url}) as client:
        value = found[1].value
        headers: list[Any] = list(found[1].headers)
        context = SerializationContext("ids-out", MessageField.VALUE, headers)
        assert AvroDeserializer(client)(value, context) == {"user": "ann", "number": 450}


def test_keys_keep_their_ids_before_them(front: Front) -> None:
    serde = serdes.avro(ORDER, Order, registry=over(front, ids="headers"))
    builder = ss.StreamsBuilder(key_serde=serde, value_serde=serde)
    builder.stream("keyed-in").to("keyed-out")
    with TopologyTestDriver(builder.build(), {"application.id": "keyed"}) as driver:
        driver.pipe("keyed-in", ONE, ONE)
        (record,) = driver._broker.records("keyed-out")
        assert record.key is not None
        assert record.key[0] == 0
        assert [name for name, _ in record.headers] == ["__value_schema_id"]


def test_ids_are_before_the_bytes_or_in_headers(front: Front) -> None:
    with pytest.raises(Misuse, match="pass one of prefix, headers"):
        over(front, ids="elsewhere")
