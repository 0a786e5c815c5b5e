"""Which Kafka client does the work: our own, or librdkafka where ours cannot."""

import logging
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from time import monotonic

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest, UpdateFeaturesResponse

import statestore as ss
from statestore.kafka.clients import tell_unused
from statestore.kafka.groups import Groups
from statestore.kafka.outbox import TransactionalOutbox
from statestore.kafka.source import KafkaSource
from statestore.kafka.wire import codec
from statestore.kafka.wire.client import WireClient
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.outbox import WireOutbox
from statestore.kafka.wire.source import WireSource
from statestore.model.ids import TaskId, TopicPartition
from statestore.runtime.brokers import KafkaBrokers
from statestore.settings import Settings
from statestore.tasks.plan import TaskPlan
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.kafka.run_pipelines import PREFIX_VARIABLE, counts_by_key
from tests.kafka.run_rig import App

pytestmark = pytest.mark.kafka

_SAFE_DOWNGRADE = 2


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    """A process says each reason once."""
    tell_unused.cache_clear()


@pytest.fixture
def app(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """With settings that say nothing of a client, whatever the commit has chosen for others."""
    monkeypatch.setenv(PREFIX_VARIABLE, app.name)
    monkeypatch.delenv("KAFKA_CLIENT", raising=False)
    return app


def settings_of(app: App, **more: object) -> dict[str, object]:
    """Those of a user who chooses no client."""
    made = app.run_settings(**more)
    if "kafka.client" not in more:
        made.pop("kafka.client", None)
    return made


def clients(settings: dict[str, object]) -> tuple[type, type]:
    """What reads and what writes for a stream task."""
    brokers = KafkaBrokers(Settings.from_mapping(settings))
    part, *_ = counts_by_key().sub_topologies
    plan = TaskPlan(TaskId(0, 0), part, {}, (TopicPartition("in", 0),), None)
    source, outbox = brokers.source(), brokers.task_outbox(plan, None)
    source.close()
    outbox.close()
    brokers.close()
    return type(source), type(outbox)


def runs_with_librdkafka(
    app: App, caplog: pytest.LogCaptureFixture, why: str, **settings: object
) -> None:
    """Two runs do it all, and one line says why our own client does not."""
    given = settings_of(app, **settings)
    with caplog.at_level(logging.WARNING, "statestore.kafka"):
        assert clients(given) == (KafkaSource, TransactionalOutbox)
        assert ss.run(counts_by_key(), given).records_in == 20
        app.produce(range(20, 30))
        assert ss.run(counts_by_key(), given).records_in == 10
    (said,) = [line for line in caplog.messages if "kafka.client" in line]
    assert said.startswith("kafka.client=wire is not used, librdkafka is: ")
    assert why in said
    assert said.endswith("set kafka.client=librdkafka if that is what you want")
    assert app.stored(ordinal=0) == {f"k{n}": 1 for n in range(30)}


def test_our_own_does_the_work_if_nobody_chooses(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    assert clients(settings_of(app)) == (WireSource, WireOutbox)
    assert not caplog.messages


def test_librdkafka_does_the_work_if_it_is_chosen_and_nothing_is_said(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = settings_of(app, **{"kafka.client": "librdkafka"})
    assert clients(chosen) == (KafkaSource, TransactionalOutbox)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("consumer.client.rack", "a"),
        ("producer.compression.level", "3"),
        ("partitioner", "fnv1a"),
    ],
)
def test_librdkafka_does_what_only_it_knows(
    app: App, caplog: pytest.LogCaptureFixture, key: str, value: str
) -> None:
    why = key if key != "partitioner" else f"{key}={value}"
    runs_with_librdkafka(app, caplog, f"it does not know {why}", **{key: value})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI"),
        ({}, "sasl.mechanism=GSSAPI"),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            },
            "sasl.oauthbearer.grant.type=urn:ietf:params:oauth:grant-type:jwt-bearer",
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
            },
            "sasl.oauthbearer.metadata.authentication.type",
        ),
    ],
)
def test_librdkafka_does_logins_that_only_it_knows(
    caplog: pytest.LogCaptureFixture, given: dict[str, str], why: str
) -> None:
    base = {"application.id": "any", "bootstrap.servers": "127.0.0.1:1"}
    settings = Settings.from_mapping(base | {"security.protocol": "SASL_SSL"} | given)
    with (
        closing(Groups(settings)) as groups,
        caplog.at_level(logging.WARNING, "statestore.kafka"),
    ):
        assert WireClient.of(settings, groups) is None
        assert WireClient.of(settings, groups) is None
    (said,) = caplog.messages
    assert f"it does not know {why};" in said


def test_librdkafka_does_it_where_the_codec_was_not_built(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "_UNAVAILABLE", "there was no compiler")
    runs_with_librdkafka(app, caplog, "there was no compiler")


def test_librdkafka_does_it_where_another_package_has_the_name_of_kafka_python(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "statestore.kafka.wire.client"
    monkeypatch.setitem(sys.modules, name, None)
    runs_with_librdkafka(app, caplog, name)


@pytest.fixture(scope="module")
def old() -> Iterator[LocalKafka]:
    """A cluster whose feature transaction.version is 1, as after an upgrade from Kafka 3."""
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=1, upgrade_type=_SAFE_DOWNGRADE
    )
    with LocalKafka() as kafka:
        kafka.create_topic("any", 1)
        settings = Settings(application_id="old", bootstrap_servers=kafka.bootstrap_servers)
        with closing(ClusterMap(settings, "producer")) as cluster:
            assert cluster.has_transactions()
            tp, deadline_s = TopicPartition("any", 0), monotonic() + DEADLINE_S
            with closing(cluster.connect(cluster.leaders([tp])[tp].node, deadline_s)) as link:
                answer = link.ask(
                    UpdateFeaturesRequest(
                        version=1, timeout_ms=10_000, feature_updates=[update], validate_only=False
                    ),
                    UpdateFeaturesResponse,
                    deadline_s=deadline_s,
                )
        assert answer.error_code == 0, answer
        yield kafka


def test_librdkafka_does_it_where_brokers_have_transactions_of_before(
    old: LocalKafka, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    there = replace(app, kafka=old)
    there.create_topics().produce(range(20))
    runs_with_librdkafka(there, caplog, "transaction.version is below 2 (KIP-890)")
