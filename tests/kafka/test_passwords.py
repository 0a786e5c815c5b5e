"""Brokers that ask for a password, by SASL's PLAIN and SCRAM, and one that is gone."""

from collections.abc import Iterator, Mapping

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import (
    PASSWORD,
    USER,
    App,
    assert_refused,
    counted,
    end_of,
    running,
    updates_in_order,
)

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(users={USER: PASSWORD}) as broker:
        yield broker


@pytest.fixture
def app_settings(user_settings: Mapping[str, object]) -> Mapping[str, object]:
    return user_settings


MECHANISMS = [
    "PLAIN",
    pytest.param("SCRAM-SHA-256", marks=pytest.mark.thorough),
    "SCRAM-SHA-512",
]
CLIENTS = ["wire", pytest.param("librdkafka", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_with_the_right_password_is_let_in(app: App, mechanism: str, client: str) -> None:
    servers = f"--bootstrap-servers={app.kafka.sasl_servers}"
    by = [f"--set=sasl.mechanism={mechanism}", f"--set=kafka.client={client}"]
    app.drained(servers, *by, "--workers=2")
    assert updates_in_order(app.read()) == counted(range(20)) == app.stored()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_a_mistake_that_is_not_retried(
    app: App, monkeypatch: pytest.MonkeyPatch, mechanism: str, client: str
) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", "battery staple")
    by = [f"--set=sasl.mechanism={mechanism}", f"--set=kafka.client={client}"]
    with app.unchanged():
        ended = app.run(f"--bootstrap-servers={app.kafka.sasl_servers}", *by)
    assert_refused(ended, 2, "InvalidSetting", "sasl.password", "refuse")
    assert "battery" not in ended.err + ended.out


def test_a_broker_that_is_gone_is_told_in_a_few_lines_and_is_no_wrong_password(app: App) -> None:
    servers = f"--bootstrap-servers={app.kafka.sasl_servers}"
    process = app.start("--run-for=300s", servers, "--set=default.api.timeout.ms=4000")
    running(app, process, lambda: sum(app.committed().values()) == 20)
    app.kafka.kill_broker(0)
    ended = end_of(process, 0)
    assert ended.code == 7, ended.err
    assert "Traceback" not in ended.err, ended.err
    assert len(ended.err.splitlines()) < 60, ended.err
    assert "Unavailable" in ended.message
    ended = app.run(servers, "--set=default.api.timeout.ms=2000")
    assert_refused(ended, 7, "Unavailable", "did not answer")
