"""The application of a test's own, and a proxy; a module brings its `kafka`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.fault_proxy import FaultProxy
from tests.kafka.run_rig import PASSWORD, USER, App, name_of


@pytest.fixture
def app_settings() -> Mapping[str, object]:
    """Settings of `app`; a module may have others."""
    return {}


@pytest.fixture
def user_settings(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, object]:
    """Settings of clients that name a user; the password is in the environment."""
    monkeypatch.setenv("BROKER_PASSWORD", PASSWORD)
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": "${BROKER_PASSWORD}",
        "default.api.timeout.ms": 30_000,
    }


@pytest.fixture
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    app_settings: Mapping[str, object],
) -> Iterator[App]:
    """An application of the test's own, with 20 records of input."""
    made = App(kafka, name_of(request.node.name), tmp_path / "state", settings=app_settings)
    made.create_topics().produce(range(20))
    yield made
    made.end_children()


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    """For a module whose `kafka` stands behind it."""
    with FaultProxy() as made:
        yield made
