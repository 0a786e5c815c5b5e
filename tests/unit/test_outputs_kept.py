"""The clients of outputs that a process keeps for the next batch: few, and each used by one."""

import threading
from collections.abc import Iterator

import pytest

from statestore.runtime import outputs
from statestore.runtime.brokers import KafkaBrokers
from statestore.runtime.outputs import close_outputs, output_clients
from statestore.settings import Settings


def settings_of(query: str) -> Settings:
    """With librdkafka nothing is connected before it is used."""
    return Settings.of(
        {
            "application.id": query,
            "bootstrap.servers": "127.0.0.1:9",
            "kafka.client": "librdkafka",
        }
    )


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[KafkaBrokers]]:
    """Those that were closed."""
    found: list[KafkaBrokers] = []
    close = KafkaBrokers.close

    def noted(clients: KafkaBrokers) -> None:
        found.append(clients)
        close(clients)

    monkeypatch.setattr(KafkaBrokers, "close", noted)
    monkeypatch.setattr(outputs, "_kept", {})
    yield found
    close_outputs()


def test_the_next_batch_has_the_clients_of_the_last_one(closed: list[KafkaBrokers]) -> None:
    with output_clients(settings_of("a")) as first:
        pass
    with output_clients(settings_of("a")) as second:
        pass
    assert first is second
    assert not closed


def test_after_an_error_there_are_new_ones(closed: list[KafkaBrokers]) -> None:
    with pytest.raises(KeyError), output_clients(settings_of("a")) as first:
        raise KeyError
    assert closed == [first]
    with output_clients(settings_of("a")) as second:
        assert second is not first


def test_only_those_used_last_are_kept(closed: list[KafkaBrokers]) -> None:
    made = []
    for number in range(20):
        with output_clients(settings_of(f"output-{number}")) as clients:
            made.append(clients)
    assert closed == made[: -outputs._KEPT_MAX]


def test_threads_never_share_clients_nor_get_closed_ones(closed: list[KafkaBrokers]) -> None:
    in_use: set[int] = set()
    faults: list[str] = []
    lock = threading.Lock()

    def write() -> None:
        try:
            for _ in range(100):
                with output_clients(settings_of("a")) as clients:
                    with lock:
                        if id(clients) in in_use or clients in closed:
                            faults.append("shared or closed")
                        in_use.add(id(clients))
                    with lock:
                        in_use.discard(id(clients))
        except KeyError as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
