"""What of the Kafka edge needs no broker: decisions, hashes, error classes, client settings."""

import logging
from time import monotonic

import pytest
from confluent_kafka import KafkaError, KafkaException

from statestore.errors import (
    BrokerTooOld,
    Fenced,
    InvalidSetting,
    Misuse,
    RecordFailed,
    StateStoreError,
    TopicMissing,
    Unavailable,
)
from statestore.kafka.clients import Trouble, admin_client, consumer, producer, unanswered
from statestore.kafka.cluster import judge_protocol
from statestore.kafka.error_codes import is_transient, translated
from statestore.kafka.partitioner import (
    crc32_partition,
    crc32_partitions,
    murmur2,
    murmur2_partition,
    murmur2_partitions,
)
from statestore.settings import Settings

# Digests of Java Kafka's Utils.murmur2, as signed 32-bit numbers.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "digest"), MURMUR2.items())
def test_murmur2_is_javas(key: bytes, digest: int) -> None:
    assert murmur2(key) == digest & 0xFFFFFFFF
    assert murmur2_partition(key, 11) == (digest & 0x7FFFFFFF) % 11


def test_many_keys_are_placed_as_each_alone_would_be() -> None:
    keys = [*MURMUR2, b"", b"\xff" * 7, *(b"%d" % n for n in range(300))]
    assert murmur2_partitions(keys, 11) == [murmur2_partition(key, 11) for key in keys]
    assert crc32_partitions(keys, 11) == [crc32_partition(key, 11) for key in keys]
    assert murmur2_partitions([], 11) == []


def test_crc32_is_the_usual_one() -> None:
    assert crc32_partition(b"123456789", 1 << 40) == 0xCBF43926


def test_a_broker_with_the_old_protocol_setting_is_too_old() -> None:
    with pytest.raises(BrokerTooOld, match=r"4\.0"):
        judge_protocol(["log.dirs", "inter.broker.protocol.version"])


def test_a_broker_without_it_is_new_enough(caplog: pytest.LogCaptureFixture) -> None:
    judge_protocol(["log.dirs", "transaction.max.timeout.ms"])
    assert not caplog.records


def test_a_broker_whose_settings_may_not_be_read_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        judge_protocol(None)
    assert "4.0" in caplog.text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._FENCED, Fenced),
        (KafkaError.INVALID_PRODUCER_EPOCH, Fenced),
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordFailed),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError._UNKNOWN_PARTITION, TopicMissing),
        (KafkaError.SASL_AUTHENTICATION_FAILED, InvalidSetting),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Misuse),
        (KafkaError._TIMED_OUT, Unavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, Unavailable),
        (KafkaError._INVALID_DIFFERENT_RECORD, RecordFailed),
        (KafkaError.INVALID_TIMESTAMP, RecordFailed),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, Unavailable),
    ],
)
def test_a_code_decides_the_class_and_the_message_says_where(
    code: int, kind: type[StateStoreError]
) -> None:
    found = translated(KafkaException(KafkaError(code, "what the client said")), "send to flights")
    assert type(found) is kind
    assert "send to flights" in str(found)
    assert "what the client said" in str(found)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Unable to replicate … 1 time(s): All brokers are currently fenced.", Unavailable),
        ("All brokers are currently fenced, or have all their log directories…", Unavailable),
        ("The target replication factor of 3 cannot be reached because only 1 broker(s)…", Misuse),
    ],
)
def test_a_topic_asked_for_while_brokers_start_may_be_asked_for_again(
    said: str, kind: type[StateStoreError]
) -> None:
    failure = KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, said))
    assert type(translated(failure, "create topic counts")) is kind
    assert is_transient(failure) is (kind is Unavailable)


def settings(**clients: str) -> Settings:
    named = {key.replace("__", "."): value for key, value in clients.items()}
    return Settings(application_id="a", bootstrap_servers="127.0.0.1:9", clients=named)


@pytest.mark.parametrize(
    "key",
    ["consumer.isolation.level", "consumer.group.id", "consumer.enable.auto.commit"],
)
def test_what_the_guarantees_rest_on_cannot_be_set(key: str) -> None:
    with pytest.raises(InvalidSetting, match=key):
        consumer(settings(**{key: "x"}), "group", Trouble())
    with pytest.raises(InvalidSetting, match=r"producer\.transactional\.id"):
        producer(settings(producer__transactional__id="x"), {"transactional.id": "y"}, Trouble())


def test_an_unknown_client_property_is_named() -> None:
    for make in (
        lambda s: consumer(s, "group", Trouble()),
        lambda s: producer(s, {}, Trouble()),
        lambda s: admin_client(s, Trouble()),
    ):
        with pytest.raises(InvalidSetting, match=r"no\.such\.property"):
            make(
                settings(
                    consumer__no__such__property="1",
                    producer__no__such__property="1",
                    admin__no__such__property="1",
                )
            )


def test_a_missing_address_is_named() -> None:
    with pytest.raises(InvalidSetting, match=r"bootstrap\.servers"):
        admin_client(Settings(application_id="a"), Trouble())


def test_a_call_without_an_answer_says_how_long_it_waited_and_not_how_long_it_might_have() -> None:
    settings = Settings.from_mapping(
        {"application.id": "a", "bootstrap.servers": "b:1", "default.api.timeout.ms": 60_000}
    )
    error = unanswered(settings, Trouble(), "read x", since_s=monotonic() - 17)
    assert str(error).startswith("could not read x: b:1 did not answer for 17 s")
    assert "60" not in str(error)


@pytest.mark.parametrize(
    ("code", "text", "way_out"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error: failed", "correct sasl.username"),
        (KafkaError._SSL, "certificate verify failed: broker certificate", "ssl.ca.location"),
        (KafkaError._SSL, "ssl/tls alert bad certificate: 42", "ssl.certificate.location"),
        (KafkaError._TRANSPORT, "tlsv1 alert unknown ca", "ssl.certificate.location"),
        (KafkaError._AUTHENTICATION, "SASL handshake: Disconnected", None),
        (KafkaError._SSL, "tlsv1 alert internal error", None),
        (KafkaError._TRANSPORT, "Connection refused", None),
    ],
)
def test_what_the_brokers_refuse_is_no_lack_of_an_answer(
    code: int, text: str, way_out: str | None
) -> None:
    trouble = Trouble()
    trouble(KafkaError(code, text))
    failure = trouble.failure("read x", "b:1 did not answer for 5 s")
    assert trouble.is_refusal == (way_out is not None) == isinstance(failure, InvalidSetting)
    assert text in str(failure)
    assert (way_out or "b:1 did not answer for 5 s") in str(failure)
