"""Long stretches of aborted records, which a consumer skips without handing on a single one.

A proxy holds back every fetch, so that skipping takes longer than `default.api.timeout.ms`: as long
as the client gets on inside the stretch, the broker is not silent.
"""

import random
import shutil
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from statestore.errors import Unavailable
from statestore.kafka.audit_log_reader import KafkaAuditLogReader
from statestore.kafka.source import KafkaSource
from statestore.model.ids import TopicPartition
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.builders import eventually
from tests.kafka.fault_proxy import Action, Fault, FaultProxy, Plan
from tests.kafka.run_rig import DEADLINE_S, App, assert_refused, counted, updates_in_order
from tests.kafka.wire import Api

pytestmark = pytest.mark.kafka

FETCH_S = 0.1
BATCHES, BATCH_BYTES = 80, 3_000
PATIENCE_S = 2.0
CLIENT = {
    "default.api.timeout.ms": int(PATIENCE_S * 1000),
    # One batch of the stretch in each fetch; the client raises the one to the other.
    "consumer.fetch.max.bytes": BATCH_BYTES + 500,
    "consumer.message.max.bytes": BATCH_BYTES + 500,
}
FLAGS = [f"--set={key}={value}" for key, value in CLIENT.items()]


@pytest.fixture(scope="module")
def kafka(proxy: FaultProxy) -> Iterator[LocalKafka]:
    with LocalKafka(proxy_port=proxy.port) as broker:
        proxy.lead_to(broker.behind_proxy)
        yield broker


def every_fetch(fault: Fault) -> Plan:
    return lambda request: fault if request.api == Api.FETCH else None


SLOW = every_fetch(Fault(Action.DELAY, delay_s=FETCH_S))
SILENT = every_fetch(Fault(Action.SWALLOW))


@pytest.fixture
def slowly(app: App, proxy: FaultProxy) -> str:
    """Where every fetch takes its time."""
    proxy.follow(app.name, SLOW)
    return f"--bootstrap-servers={proxy.address}"


def abort_a_long_stretch(app: App, topic: str, partition: int) -> None:
    """One transaction of many batches, aborted: its only control record comes at its end."""
    producer = Producer(
        {
            "bootstrap.servers": app.kafka.bootstrap_servers,
            "transactional.id": f"{app.name}-aborter",
            "batch.num.messages": 1,
            "log_level": 0,
        }
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    noise = random.Random(1)
    for _ in range(BATCHES):
        producer.produce(topic, noise.randbytes(BATCH_BYTES), b"aborted", partition)
    assert producer.flush(DEADLINE_S) == 0
    producer.abort_transaction(DEADLINE_S)


def source_settings(app: App, proxy: FaultProxy) -> Settings:
    return Settings.from_mapping(app.run_settings(**{"bootstrap.servers": proxy.address, **CLIENT}))


@pytest.mark.thorough
def test_input_behind_a_stretch_that_takes_longer_than_the_timeout_is_processed(
    app: App, slowly: str
) -> None:
    abort_a_long_stretch(app, f"{app.name}-in", 0)
    app.produce(range(20, 40), partition=0)
    began = time.monotonic()
    app.drained(slowly, *FLAGS)
    assert time.monotonic() - began > BATCHES * FETCH_S > 2 * PATIENCE_S
    assert updates_in_order(app.read()) == counted(range(40)) == app.stored()


def test_a_restore_over_such_a_stretch_of_the_changelog_comes_to_its_end(
    app: App, slowly: str
) -> None:
    app.drained()
    abort_a_long_stretch(app, f"{app.name}-counts-changelog", 0)
    shutil.rmtree(app.state_dir)
    app.produce(range(20, 40))
    summary = app.drained(slowly, *FLAGS)
    assert summary["restored_records"] > 0
    assert updates_in_order(app.read()) == counted(range(40)) == app.stored()


@pytest.mark.usefixtures("slowly")
def test_an_audit_reads_over_such_a_stretch(app: App, proxy: FaultProxy) -> None:
    tp = TopicPartition(f"{app.name}-in", 0)
    before = KafkaAuditLogReader(source_settings(app, proxy)).bounds(tp).end
    abort_a_long_stretch(app, tp.topic, 0)
    app.produce(range(20, 40), partition=0)
    audit_log = KafkaAuditLogReader(source_settings(app, proxy))
    end = before + BATCHES + 1 + 20

    def is_aborted() -> bool:
        """A broker answers an abort before its marker is in the log."""
        return audit_log.bounds(tp).end == end

    eventually(is_aborted, "readers see the end of the aborted transaction")
    assert sum(len(lot.keys) for lot in audit_log.read(tp, before, end)) == 20


def test_a_run_whose_input_stays_silent_gives_up_in_the_end(
    app: App, slowly: str, proxy: FaultProxy
) -> None:
    """Silence lasts as long as the timeout each time, and is not a pause between two failures."""
    app.drained()
    app.produce(range(20, 40))
    proxy.follow(app.name, SILENT)
    ended = app.run(slowly, *FLAGS)
    assert_refused(ended, 7, "Unavailable", "sent nothing about", f"{app.name}-in-")
    app.drained()
    assert updates_in_order(app.read()) == counted(range(40)) == app.stored()


@pytest.mark.thorough
@pytest.mark.usefixtures("slowly")
def test_a_broker_that_falls_silent_inside_a_stretch_is_given_up_in_time(
    app: App, proxy: FaultProxy
) -> None:
    tp = TopicPartition(f"{app.name}-in", 0)
    settings = source_settings(app, proxy)
    before = KafkaAuditLogReader(settings).bounds(tp).end
    abort_a_long_stretch(app, tp.topic, 0)
    source = KafkaSource(settings, group_id=app.name)
    source.start({tp: before})
    began = time.monotonic()
    with pytest.raises(Unavailable, match="sent nothing about"):  # noqa: PT012 - the poll that meets it
        while time.monotonic() - began < DEADLINE_S:
            source.poll(100, 200)
            if time.monotonic() - began > 2 * PATIENCE_S:
                proxy.follow(app.name, SILENT)
    source.close()
    assert source.position(tp) == before
