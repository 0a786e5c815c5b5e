"""Attempts behind a proxy that delays, drops and repeats what their clients say: each row once."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from statestore.errors import CommitUnknown, Fenced, Unavailable
from statestore.model.modes import KafkaClient
from statestore.runtime.outputs import close_outputs
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.fault_proxy import Fault, FaultProxy
from tests.kafka.fault_schedules import _TRANSACTIONAL, _drawn_fault
from tests.kafka.wire import Request
from tests.kafka.writing_rig import Sink
from tests.tiers import commit_seed

pytestmark = pytest.mark.kafka

BATCHES, TRIES_MAX = 4, 40
QUICK = {
    "kafka.transaction.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "8000",
    "kafka.socket.timeout.ms": "1000",
}


@pytest.fixture(scope="module")
def kafka(proxy: FaultProxy) -> Iterator[LocalKafka]:
    with LocalKafka(proxy_port=proxy.port) as broker:
        proxy.lead_to(broker.behind_proxy)
        yield broker
        close_outputs()  # their connections end before the proxy does


def many_faults(chosen: random.Random) -> Callable[[Request], Fault | None]:
    """Every tenth request of the transaction protocol is late, lost or repeated."""

    def plan(request: Request) -> Fault | None:
        is_hit = request.api in _TRANSACTIONAL and chosen.random() < 0.1
        return _drawn_fault(chosen) if is_hit else None

    return plan


@pytest.mark.parametrize("client", KafkaClient)
@pytest.mark.parametrize(
    "seed",
    [commit_seed(), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(12))],
)
def test_no_late_message_doubles_or_loses_a_row(
    kafka: LocalKafka, proxy: FaultProxy, seed: int, client: KafkaClient
) -> None:
    chosen = random.Random(seed)
    behind = {"kafka.bootstrap.servers": proxy.address, "kafka.client": str(client)}
    sink = Sink(kafka, f"late-{seed}-{client}", QUICK | behind).create()
    expected: Counter[str] = Counter()
    proxy.follow(sink.name, many_faults(random.Random(seed)))
    for batch in range(BATCHES):
        division = {
            place: [f"{batch}-{place}-{row}" for row in range(chosen.randint(0, 9))]
            for place in range(2)
        }
        expected += Counter(row for rows in division.values() for row in rows)
        whole = chosen.random() < 0.3
        for tries in range(TRIES_MAX):
            try:
                # Now and then a batch that Spark takes for lost was written all the same.
                for _ in range(chosen.choice((1, 1, 2))):
                    sink.save(batch, division, whole=whole)
            except (Unavailable, Fenced, CommitUnknown):
                assert tries < TRIES_MAX - 1, (seed, proxy.trace(sink.name))
            else:
                break
    proxy.follow(sink.name, None)
    proxy.release(sink.name)
    assert proxy.trace(sink.name), "no fault befell anything"
    assert sink.read() == expected, (seed, proxy.trace(sink.name))
