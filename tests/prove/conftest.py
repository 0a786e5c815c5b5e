"""What the tests of several sections use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from statestore.testing.local_kafka import LocalKafka


@pytest.fixture
def over_given_broker(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[ModuleType], None]:
    """Has a section use a broker that is there already."""

    @contextmanager
    def broker(_section: str) -> Iterator[tuple[LocalKafka, Path]]:
        yield kafka, tmp_path

    return lambda section: monkeypatch.setattr(section, "broker_of", broker)
