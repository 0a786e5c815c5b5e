"""Commits whose answer never came, on a real broker behind a proxy that cuts at EndTxn (E4).

Whether the log has committed or not: no store is wiped, no record lost, none counted twice.
"""

import time
from collections.abc import Iterator

import pytest

from statestore.errors import Unavailable
from statestore.kafka.outbox import TransactionalOutbox
from statestore.model import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.cutting_proxy import Proxy, When
from tests.kafka.run_rig import App, counted, end_of, running, updates_in_order

pytestmark = pytest.mark.kafka

RECORDS = 600
SMALL = ("--set=commit.interval.ms=1", "--set=statestore.batch.max.records=40")
IMPATIENT = "--set=default.api.timeout.ms=2000"


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with Proxy() as made:
        yield made


@pytest.fixture(scope="module")
def kafka(proxy: Proxy) -> Iterator[LocalKafka]:
    with LocalKafka(proxy_port=proxy.port) as broker:
        proxy.lead_to(broker.behind_proxy)
        yield broker


def through(proxy: Proxy) -> str:
    return f"--bootstrap-servers={proxy.address}"


def assert_exact(app: App) -> None:
    """Output and store agree with the oracle, and no store was put aside."""
    numbers = range(RECORDS)
    assert updates_in_order(app.read()) == counted(numbers) == app.stored()
    assert not (app.state_dir / app.name / "quarantine").exists()


@pytest.fixture
def loaded(app: App) -> App:
    app.produce(range(20, RECORDS))
    return app


@pytest.mark.parametrize("when", When, ids=lambda when: when.name)
def test_a_connection_cut_at_a_commit_costs_nothing(loaded: App, proxy: Proxy, when: When) -> None:
    proxy.cut(when, f"{loaded.name}-1_0")
    loaded.drained(*SMALL, through(proxy))
    assert proxy.cuts == 1
    assert_exact(loaded)


@pytest.mark.parametrize("when", When, ids=lambda when: when.name)
def test_a_commit_that_stays_unanswered_is_settled_by_asking_the_log(
    loaded: App, proxy: Proxy, when: When
) -> None:
    proxy.cut(when, f"{loaded.name}-1_0", until_reopened=True)
    summary = loaded.drained(*SMALL, IMPATIENT, through(proxy))
    assert proxy.cuts > 1
    assert summary["records_in"] == 2 * RECORDS, "what was committed was not processed again"
    assert_exact(loaded)


@pytest.mark.parametrize("when", When, ids=lambda when: when.name)
def test_a_run_killed_while_its_commit_is_unanswered_is_settled_by_the_next(
    loaded: App, proxy: Proxy, when: When
) -> None:
    proxy.cut(when, f"{loaded.name}-1_0", until_reopened=True)
    process = loaded.start(*SMALL, through(proxy))
    running(loaded, process, lambda: proxy.cuts > 0)
    process.kill()
    end_of(process, time.monotonic())
    loaded.drained(*SMALL)
    assert_exact(loaded)


@pytest.mark.parametrize("lost", [(28,), (10, 28)], ids=["no answer", "no coordinator"])
def test_offsets_nobody_takes_are_given_up_in_time_and_the_next_try_goes_through(
    app: App, proxy: Proxy, lost: tuple[int, ...]
) -> None:
    """28 is TxnOffsetCommit, 10 FindCoordinator: the client alone would wait for them."""
    where = {"bootstrap.servers": proxy.address, "default.api.timeout.ms": 1500}
    settings = Settings.from_mapping(app.run_settings(**where))
    outbox = TransactionalOutbox(settings, transactional_id=f"{app.name}-x", group_id=app.name)
    offsets = {TopicPartition(f"{app.name}-in", 0): 1}
    outbox.open()
    outbox.begin()
    outbox.send(Records(f"{app.name}-out", [b"lost"], [b"0"], [1]))
    began_s = time.monotonic()
    proxy.swallow(*lost)
    try:
        with pytest.raises(Unavailable, match="could not send input offsets"):
            outbox.send_offsets(offsets, "")
        assert time.monotonic() - began_s < 10
        outbox.abort()
    finally:
        proxy.swallow()
    outbox.open()
    outbox.begin()
    outbox.send(Records(f"{app.name}-out", [b"kept"], [b"1"], [1]))
    outbox.send_offsets(offsets, "")
    outbox.commit()
    outbox.close()
    assert [row.key for row in app.read()] == ["kept"]
    assert app.committed() == {0: 1}
