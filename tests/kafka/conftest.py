"""The application of a test's own; a module brings its `kafka`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import App, name_of


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    """An application of the test's own, with 20 records of input."""
    made = App(kafka, name_of(request.node.name), tmp_path / "state").create_topics()
    made.produce(range(20))
    yield made
    made.end_children()
