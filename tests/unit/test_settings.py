"""Settings: every key, its default, what it accepts and refuses; where secrets do not go."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from statestore.applications import ConfiguredApplication
from statestore.cli import cli
from statestore.errors import InvalidSetting
from statestore.model.modes import (
    ExportRestore,
    IsolationLevel,
    KafkaClient,
    OnError,
    Optimization,
    ProcessingGuarantee,
)
from statestore.settings import Settings, describe_settings, expand, is_secret, shows_secret
from tests.crash.pipeline import PREFIX_VARIABLE

AT_LEAST_ONCE, EXACTLY_ONCE = ProcessingGuarantee.AT_LEAST_ONCE, ProcessingGuarantee.EXACTLY_ONCE
NOT_NUMBERS = ("soon", "", "1.5", 1.5, True, [1])
NOT_FLAGS = ("yes", "", 1, 0.0, [True])
NOT_HANDLERS = ("ignore", "", 3)
DEAD_LETTERS = {"errors.dead.letter.queue.topic.name": "dead"}


class Key(NamedTuple):
    """A setting: given as text it becomes `value`; each of `refused` is an error."""

    key: str
    default: object
    text: str
    value: object
    refused: tuple[object, ...] = ()


def number(key: str, default: int, least: int) -> Key:
    return Key(key, default, str(least + 7), least + 7, (*NOT_NUMBERS, least - 1))


def handler(key: str) -> Key:
    return Key(key, OnError.FAIL, "continue", OnError.CONTINUE, NOT_HANDLERS)


KEYS = [
    Key("application.id", "", "shop-1.a_b", "shop-1.a_b", ("a/b", "..", ".shop", "a b", "x" * 201)),
    Key("bootstrap.servers", "", "one:9092,two:9092", "one:9092,two:9092", (["one:9092"],)),
    Key("state.dir", "", "/state", "/state", (["/state"],)),
    Key("processing.guarantee", AT_LEAST_ONCE, "exactly_once", EXACTLY_ONCE, ("twice", "", 2)),
    number("commit.interval.ms", 0, 0),
    number("transaction.timeout.ms", 60_000, 1),
    number("default.api.timeout.ms", 60_000, 1),
    Key("kafka.client", KafkaClient.WIRE, "Librdkafka", KafkaClient.LIBRDKAFKA, ("java", "", 1)),
    Key(
        "default.state.isolation.level",
        None,
        "read_committed",
        IsolationLevel.READ_COMMITTED,
        ("SERIALIZABLE", "", 1),
    ),
    number("statestore.uncommitted.max.bytes", 64 * 1024 * 1024, -1),
    number("statestore.uncommitted.max.records", -1, -1),
    number("statestore.flush.lag.max.bytes", 8 * 1024 * 1024, 1),
    number("statestore.flush.lag.max.records", 200_000, 1),
    number("statestore.flush.lag.max.ms", 300_000, 1),
    number("statestore.global.refresh.ms", 10_000, 1),
    number("statestore.pattern.refresh.ms", 60_000, 1),
    Key("statestore.wal", None, "False", False, NOT_FLAGS),
    number("statestore.memory.bytes", 128 * 1024 * 1024, 1024 * 1024),
    Key("rocksdb.config.setter", "", "shop.tuning:set", "shop.tuning:set", ([1],)),
    number("statestore.lock.wait.ms", 60_000, 0),
    Key("statestore.volume.locks", True, "false", False, NOT_FLAGS),
    number("statestore.snapshot.wait.ms", 60_000, 0),
    number("statestore.snapshot.lease.ms", 600_000, 1000),
    number("statestore.quarantine.retention.ms", 7 * 24 * 3_600_000, 0),
    number("statestore.audit.superseded.max.percent", 1, 0),
    Key("statestore.export.target", "", "s3://bucket/a", "s3://bucket/a", (["s3://bucket/a"],)),
    number("statestore.export.interval.ms", 0, 0),
    number("statestore.export.retention.ms", -1, -1),
    Key(
        "statestore.export.restore",
        ExportRestore.MOUNTED,
        "Copied",
        ExportRestore.COPIED,
        ("always", "", True),
    ),
    number("statestore.batch.max.records", 500_000, 1),
    number("max.task.idle.ms", 0, -1),
    number("statestore.idle.input.ms", 1_000, 0),
    number("replication.factor", -1, -1),
    Key("automatic.state.relocation", True, "FALSE", False, NOT_FLAGS),
    Key("ensure.explicit.internal.resource.naming", True, "false", False, NOT_FLAGS),
    Key("topology.optimization", Optimization.NONE, "all", Optimization.ALL, ("merge", "", 1)),
    Key("partitioner", "murmur2_random", "consistent_random", "consistent_random", ([1],)),
    handler("deserialization.exception.handler"),
    handler("processing.exception.handler"),
    handler("production.exception.handler"),
    Key("errors.dead.letter.queue.topic.name", "", "dead", "dead", (["dead"],)),
]
ATTRIBUTES = {
    knob.metadata["key"]: knob.name for knob in dataclasses.fields(Settings) if knob.metadata
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STATESTORE_")]:
        monkeypatch.delenv(name)


def of_key(settings: Settings, key: str) -> Any:
    return getattr(settings, ATTRIBUTES[key])


def test_the_table_of_this_module_has_every_key_once() -> None:
    assert sorted(row.key for row in KEYS) == sorted(ATTRIBUTES)


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row.key)
def test_a_key_has_its_default_and_takes_text(row: Key) -> None:
    assert of_key(Settings(), row.key) == row.default
    found = of_key(Settings.from_mapping({row.key: row.text}), row.key)
    assert (found, type(found)) == (row.value, type(row.value))


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row.key)
def test_a_key_takes_its_own_type_and_none_means_the_default(row: Key) -> None:
    assert of_key(Settings.from_mapping({row.key: row.value}), row.key) == row.value
    assert of_key(Settings.from_mapping({row.key: None}), row.key) == row.default


@pytest.mark.parametrize(
    ("row", "value"),
    [(row, value) for row in KEYS for value in row.refused],
    ids=lambda item: item.key if isinstance(item, Key) else repr(item)[:20],
)
def test_a_value_out_of_type_or_limits_is_refused_by_name(row: Key, value: object) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(row.key)):
        Settings.from_mapping({row.key: value})


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row.key)
def test_what_differs_from_the_default_round_trips_through_a_mapping(row: Key) -> None:
    settings = Settings.from_mapping({row.key: row.text})
    assert settings.to_mapping().keys() == {row.key}
    assert Settings.from_mapping(settings.to_mapping()) == settings


def test_settings_are_described_one_row_per_key_with_a_meaning() -> None:
    rows = list(describe_settings())
    assert [key for key, *_ in rows] == list(ATTRIBUTES)
    assert all(about for *_, about in rows)
    assert ("commit.interval.ms", "0", "ms") in [row[:3] for row in rows]


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().state_dir = "/elsewhere"  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("commit.interval.millis", "commit.interval.ms"),
        ("commit_interval_ms", "commit.interval.ms"),
        ("processing.guarantees", "processing.guarantee"),
        ("statestore.wall", "statestore.wal"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{re.escape(given)}.*{re.escape(nearest)}"):
        Settings.from_mapping({given: "1"})


def test_an_unknown_key_near_none_points_to_the_command_that_lists_all() -> None:
    with pytest.raises(InvalidSetting, match=r"'zzz'; `statestore settings` lists all"):
        Settings.from_mapping({"zzz": 1})


# What follows from the guarantee.


@pytest.mark.parametrize("word", ["exactly_once_v2", "exactly-once", "EXACTLY_ONCE"])
def test_the_words_of_others_for_exactly_once_are_taken(word: str) -> None:
    settings = Settings.from_mapping({"processing.guarantee": word})
    assert settings.processing_guarantee is EXACTLY_ONCE
    assert settings.exactly_once


@pytest.mark.parametrize(
    ("guarantee", "interval_ms", "level"),
    [("exactly_once", 100, "READ_COMMITTED"), ("at_least_once", 30_000, "READ_UNCOMMITTED")],
)
def test_commit_interval_and_isolation_follow_the_guarantee_unless_set(
    guarantee: str, interval_ms: int, level: str
) -> None:
    unset = Settings.from_mapping({"processing.guarantee": guarantee})
    assert unset.effective_commit_interval_ms == interval_ms
    assert unset.effective_isolation_level == level
    mapping = {"processing.guarantee": guarantee, "commit.interval.ms": 7}
    for chosen in IsolationLevel:
        own = Settings.from_mapping(mapping | {"default.state.isolation.level": chosen})
        assert own.effective_commit_interval_ms == 7
        assert own.effective_isolation_level is chosen


def test_commit_interval_must_be_less_than_the_transaction_timeout_under_exactly_once() -> None:
    equal = {"commit.interval.ms": 5000, "transaction.timeout.ms": 5000}
    with pytest.raises(InvalidSetting, match=r"5000 must be less than\s+transaction\.timeout\.ms"):
        Settings.from_mapping(equal | {"processing.guarantee": "exactly_once"})
    assert Settings.from_mapping(equal).commit_interval_ms == 5000


@pytest.mark.parametrize("stage", ["deserialization", "processing", "production"])
def test_a_dead_letter_handler_needs_a_topic(stage: str) -> None:
    key = f"{stage}.exception.handler"
    with pytest.raises(InvalidSetting, match=r"errors\.dead\.letter\.queue\.topic\.name"):
        Settings.from_mapping({key: "dead_letter"})
    settings = Settings.from_mapping({key: "dead_letter"} | DEAD_LETTERS)
    assert of_key(settings, key) is OnError.DEAD_LETTER


def test_required_keys_that_are_not_set_are_named() -> None:
    settings = Settings(application_id="shop")
    settings.require("application.id")
    with pytest.raises(InvalidSetting, match=r"bootstrap\.servers is not set"):
        settings.require("application.id", "bootstrap.servers", "state.dir")


def test_settings_come_from_settings_a_mapping_or_nothing() -> None:
    own = Settings(application_id="shop")
    assert Settings.of(own) is own
    assert Settings.of({"application.id": "shop"}) == own
    assert Settings.of(None) == Settings()


# Clients and secrets.

SECRETS = {
    "sasl.password": "hunter2",
    "sasl.jaas.config": "password='hunter2'",
    "ssl.key.password": "hunter2",
    "ssl.key.pem": "hunter2",
    "consumer.sasl.oauthbearer.client.secret": "hunter2",
    "producer.sasl.oauthbearer.token": "hunter2",
}


def test_secrets_are_in_no_repr_and_no_error() -> None:
    settings = Settings.from_mapping({"application.id": "shop"} | SECRETS)
    assert settings.client_config("consumer")["sasl.password"] == "hunter2"
    assert "hunter2" not in f"{settings!r} {settings} {dataclasses.replace(settings)!r}"
    application = ConfiguredApplication("shop", None, {"state_dir": "/s"}, SECRETS)
    assert "hunter2" not in f"{application!r} {application}"
    with pytest.raises(InvalidSetting) as caught:
        Settings.from_mapping({"sasl_password": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", SECRETS)
def test_keys_that_hold_secrets_are_known_as_such(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row.key)
def test_no_setting_of_our_own_is_taken_for_a_secret(row: Key) -> None:
    assert not is_secret(row.key)


def test_client_keys_reach_the_clients_they_are_meant_for() -> None:
    settings = Settings.from_mapping(
        {
            "bootstrap.servers": "one:9092",
            "security.protocol": "SASL_SSL",
            "sasl.username": "me",
            "consumer.fetch.wait.max.ms": 5,
            "producer.enable.idempotence": True,
            "admin.retries": 2,
            "https.ca.location": "probe",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
        }
    )
    shared = {
        "bootstrap.servers": "one:9092",
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "https.ca.location": "probe",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
    }
    assert settings.client_config("consumer") == shared | {"fetch.wait.max.ms": "5"}
    assert settings.client_config("producer") == shared | {"enable.idempotence": "true"}
    assert settings.client_config("admin") == shared | {"retries": "2"}


# ${VARIABLES}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${DATA}/state", "/data/state"),
        ("${DATA:-/elsewhere}", "/data"),
        ("${MISSING:-/elsewhere}", "/elsewhere"),
        ("${MISSING:-}", ""),
        ("${DATA}${DATA}", "/data/data"),
        ("plain $DATA", "plain $DATA"),
    ],
)
def test_variables_are_expanded_with_defaults(
    monkeypatch: pytest.MonkeyPatch, text: str, value: str
) -> None:
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.delenv("MISSING", raising=False)
    assert expand(text, "state.dir") == value
    assert Settings.from_mapping({"state.dir": text}).state_dir == value


def test_a_number_may_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERVAL", "250")
    assert Settings.from_mapping({"commit.interval.ms": "${INTERVAL}"}).commit_interval_ms == 250


def test_a_variable_that_is_not_set_is_named_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    with pytest.raises(InvalidSetting, match=r"state\.dir refers to \$\{MISSING\}"):
        Settings.from_mapping({"state.dir": "${MISSING}"})


def test_a_secret_in_a_variable_is_expanded_only_for_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", "hunter2")
    settings = Settings.from_mapping({"sasl.password": "${BROKER_PASSWORD}"})
    assert settings.clients == {"sasl.password": "${BROKER_PASSWORD}"}
    assert settings.to_mapping() == {"sasl.password": "${BROKER_PASSWORD}"}
    assert settings.client_config("admin")["sasl.password"] == "hunter2"
    monkeypatch.delenv("BROKER_PASSWORD")
    with pytest.raises(InvalidSetting, match=r"sasl\.password refers to \$\{BROKER_PASSWORD\}"):
        settings.client_config("admin")


# The applications file.

FILE = """
[applications.shop]
pipeline = "shop.orders:topology"
bootstrap_servers = "${BROKERS:-localhost:9092}"
state_dir = "/state"
processing_guarantee = "exactly_once"
schedule = "@hourly"

[applications.shop.settings]
"commit.interval.ms" = 1000
statestore.wal = true
consumer.fetch.wait.max.ms = 5
"sasl.password" = "${BROKER_PASSWORD}"

[applications.shop.alerts]
records_behind = 1_000

[applications.bare]
"""


def applications_file(folder: Path, text: str = FILE) -> Path:
    path = folder / "statestore.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_load_from_an_applications_file(tmp_path: Path) -> None:
    settings = Settings.load(applications_file(tmp_path), "shop")
    assert settings == Settings(
        application_id="shop",
        bootstrap_servers="localhost:9092",
        state_dir="/state",
        processing_guarantee=EXACTLY_ONCE,
        commit_interval_ms=1000,
        write_ahead_log=True,
        clients={"consumer.fetch.wait.max.ms": "5", "sasl.password": "${BROKER_PASSWORD}"},
    )


def test_an_application_knows_its_pipeline_and_may_name_nothing(tmp_path: Path) -> None:
    path = applications_file(tmp_path)
    assert ConfiguredApplication.load(path, "shop").pipeline == "shop.orders:topology"
    assert ConfiguredApplication.load(path, "bare").pipeline is None
    assert Settings.load(path, "bare") == Settings(application_id="bare")


@pytest.mark.parametrize(
    ("text", "application_id", "message"),
    [
        (FILE, "shoop", r"no \[applications\.shoop\]; it has: bare, shop"),
        ("", "shop", r"no \[applications\.shop\]; it has: none"),
        ("[applications.shop", "shop", "cannot read applications file"),
        ("[applications.shop]\nstate-dir = 'x'", "shop", "'state-dir'.*did you mean 'state_dir'"),
        ("[applications.shop.settings]\n'commit.interval' = 1", "shop", r"commit\.interval\.ms"),
        ("[applications.shop.settings]\ncommit.interval = 1", "shop", r"commit\.interval\.ms"),
        ("[applications.shop]\nsettings = 3", "shop", "settings"),
        ("[applications.shop]\nalerts = 3", "shop", "alerts"),
        ("[applications]\nshop = 3", "shop", "shop"),
        ("applications = 3", "shop", "applications"),
    ],
)
def test_a_wrong_applications_file_is_an_error_that_says_where(
    tmp_path: Path, text: str, application_id: str, message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        Settings.load(applications_file(tmp_path, text), application_id)


def test_an_applications_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"absent\.toml"):
        Settings.load(tmp_path / "absent.toml", "shop")


def test_the_error_of_a_wrong_file_shows_no_secret(tmp_path: Path) -> None:
    text = "[applications.shop]\nsasl_password = 'hunter2'\n"
    with pytest.raises(InvalidSetting, match="sasl_password") as caught:
        Settings.load(applications_file(tmp_path, text), "shop")
    assert "hunter2" not in str(caught.value)


def test_jobs_read_the_file_of_the_sample_with_the_tables_of_its_dags() -> None:
    path = Path(__file__).resolve().parents[2] / "statestore.toml"
    assert "[applications.flights.input]" in path.read_text(encoding="utf-8")
    assert ConfiguredApplication.load(path, "flights").pipeline == "jobs.pipelines.flights:topology"


@pytest.mark.parametrize(
    ("key", "value", "shows"),
    [
        ("sasl.password", "hunter2", True),
        ("sasl.password", "${PASSWORD}", False),
        ("ssl.key.pem", "-----BEGIN", True),
        ("sasl.username", "ann", False),
        ("sasl.oauthbearer.token.endpoint.url", "https://host/token", False),
        ("sasl.oauthbearer.token.endpoint.url", "https://host/token?key=hunter2", True),
        ("sasl.oauthbearer.client.credentials.client.secret", "hunter2", True),
        ("statestore.export.target", "s3://bucket/folder", False),
        ("statestore.export.target", "s3://key:hunter2@bucket/folder", True),
        ("statestore.export.target", "ftp://ann:p/w@host/folder", True),
        ("statestore.export.target", "https://host/folder?token=hunter2", True),
        ("statestore.export.target", "ftp://${USER}:${PASSWORD}@host/folder", False),
        ("statestore.export.target", "${TARGET}", False),
        ("statestore.export.target", "abfss://container@account.dfs.core.windows.net/x", False),
        ("statestore.export.target", "/exports?x=1:2@3", False),
        ("bootstrap.servers", "kafka-1:9092,kafka-2:9092", False),
        ("schema.registry.url", "https://registry:8081", False),
        ("pattern", "orders-.*@v1", False),
    ],
)
def test_a_value_shows_a_secret_unless_it_only_names_a_variable(
    key: str, value: str, shows: bool
) -> None:
    assert shows_secret(key, value) == shows


WRONG_SERVERS = ("a:b", "a:²", "a:0", "a:65536", "a:9092x", ":9092", "good:1,127.0.0.1:99999")


@pytest.mark.parametrize("servers", WRONG_SERVERS)
@pytest.mark.parametrize("role", ["consumer", "producer", "admin"])
def test_an_address_that_a_client_would_read_as_another_one_is_refused(
    role: str, servers: str
) -> None:
    """librdkafka looks for port 34463 when it is given 99999, and for localhost without a host."""
    settings = Settings.from_mapping({"bootstrap.servers": servers})
    with pytest.raises(InvalidSetting, match="is not host:port"):
        settings.client_config(role)


def test_a_run_with_such_an_address_is_not_tried_again(tmp_path: Path) -> None:
    flags = ["--pipeline=tests.crash.pipeline:topology", f"--state-dir={tmp_path}"]
    flags += ["--application-id=a", "--bootstrap-servers=127.0.0.1:99999"]
    told = CliRunner().invoke(cli, ["run", *flags], env={PREFIX_VARIABLE: "t"})
    assert isinstance(told.exception, InvalidSetting)
    assert list(tmp_path.iterdir()) == []
