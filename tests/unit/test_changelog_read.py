"""What a restore is told where a changelog cannot be read: only lost records make a store wrong."""

from collections.abc import Mapping, Sequence

import pytest

from statestore.errors import (
    InputLost,
    InvalidSetting,
    MalformedRecords,
    StateStoreError,
    TaskCorrupted,
    Unavailable,
)
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.wire.fetching import FetchLimits
from statestore.kafka.wire.source import _limits
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.ports import Arrival
from statestore.settings import Settings

LOG = TopicPartition("log", 0)


class Broken:
    """A source that fails at its first poll."""

    def __init__(self, failure: StateStoreError) -> None:
        self._failure = failure

    def start(self, positions: Mapping[TopicPartition, int]) -> None: ...
    def poll(self, max_records: int, timeout_ms: int, *, soon: bool = False) -> list[Batch]:
        raise self._failure

    def arrival(self) -> Arrival | None:
        return None

    def position(self, tp: TopicPartition) -> int:
        return 3

    def at_end(self, tp: TopicPartition) -> bool:
        return False

    def log_end(self, tp: TopicPartition) -> int | None:
        return None

    def pause(self, tps: Sequence[TopicPartition]) -> None: ...
    def resume(self, tps: Sequence[TopicPartition]) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (MalformedRecords("a checksum is wrong"), Unavailable),
        (InputLost("offset 3 is gone"), TaskCorrupted),
        (Unavailable("nobody is there"), Unavailable),
    ],
)
def test_only_a_log_without_the_offset_condemns_a_store(
    failure: StateStoreError, told: type[StateStoreError]
) -> None:
    settings = Settings.of({"application.id": "a", "bootstrap.servers": "127.0.0.1:9"})
    changelog = KafkaChangelog(settings, None, lambda: Broken(failure))
    with pytest.raises(StateStoreError) as raised:
        list(changelog.replay(LOG, 0, 9))
    assert type(raised.value) is told


def waits(config: dict[str, str]) -> list[int]:
    limits: FetchLimits = _limits(config)
    return [limits.patience_ms(empty) for empty in (0, 1, 2, 3, 4, 99)]


def test_a_fetch_rests_longer_while_nothing_comes_unless_settings_say_how_long() -> None:
    assert waits({}) == [500, 1000, 2000, 4000, 5000, 5000]
    assert waits({"fetch.wait.max.ms": "20"}) == [20] * 6
    assert waits({"fetch.wait.max.ms": "9000"}) == [9000] * 6
    # Fewer bytes than wanted are held back until the wait is over.
    assert waits({"fetch.min.bytes": "1000"}) == [500] * 6


@pytest.mark.parametrize("text", ["soon", "-1", "²", "9" * 5000])
def test_a_limit_of_fetches_that_is_no_number_is_named(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"consumer.fetch.min.bytes = .*want a whole number"):
        _limits({"fetch.min.bytes": text})
