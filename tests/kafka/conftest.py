"""The application of a test's own, and a proxy; a module brings its `kafka`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.fault_proxy import FaultProxy
from tests.kafka.run_rig import App, name_of


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    """An application of the test's own, with 20 records of input."""
    made = App(kafka, name_of(request.node.name), tmp_path / "state").create_topics()
    made.produce(range(20))
    yield made
    made.end_children()


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    """For a module whose `kafka` stands behind it."""
    with FaultProxy() as made:
        yield made
