"""What counts as the silence of brokers: the time in which somebody listened."""

from contextlib import closing

import pytest

from statestore.errors import Unavailable
from statestore.kafka.wire import fetching, source
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.source import WireSource
from statestore.model.ids import TopicPartition
from statestore.settings import Settings

NOBODY = Settings.of({"application.id": "a", "bootstrap.servers": "127.0.0.1:9"})
TIMEOUT_S = NOBODY.request_timeout_ms / 1000


class Time:
    """A clock that is moved by hand."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    for module in (source, fetching):
        monkeypatch.setattr(module, "monotonic", made.monotonic)
    return made


def begun(cluster: ClusterMap) -> WireSource:
    made = WireSource(NOBODY, cluster)
    made.start({TopicPartition("in", 0): 0})
    return made


def test_a_slot_that_was_busy_elsewhere_has_not_listened(time: Time) -> None:
    with closing(ClusterMap(NOBODY, "consumer")) as cluster, closing(begun(cluster)) as one:
        for _ in range(5):
            one.arrival()
            time.now_s += 10 * TIMEOUT_S  # other tasks process
            assert one.poll(10, 0) == []


def test_brokers_that_say_nothing_while_a_slot_listens_are_named(time: Time) -> None:
    with closing(ClusterMap(NOBODY, "consumer")) as cluster, closing(begun(cluster)) as one:
        for _ in range(int(TIMEOUT_S)):
            one.arrival()
            time.now_s += 1
            assert one.poll(10, 0) == []
        one.arrival()
        time.now_s += 1
        with pytest.raises(Unavailable, match="sent nothing about in-0"):
            one.poll(10, 0)
