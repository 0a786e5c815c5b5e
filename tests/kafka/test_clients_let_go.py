"""Clients are let go of in the middle of a transaction, which can end the process."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic

import pytest
from confluent_kafka import KafkaException, Producer

from statestore.kafka.clients import Trouble
from statestore.kafka.sender import Sender
from statestore.ports import Records
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import ROOT, eventually
from tests.kafka.fault_proxy import Action, Fault, FaultProxy, Of
from tests.kafka.fault_schedules import FaultPlan
from tests.kafka.run_rig import App
from tests.kafka.wire import Api, Request
from tests.processes import Process

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0
REPEATED_S = 0.5  # librdkafka asks again after this time


@pytest.fixture(scope="module")
def kafka(proxy: FaultProxy) -> Iterator[LocalKafka]:
    with LocalKafka(proxy_port=proxy.port) as broker:
        proxy.lead_to(broker.behind_proxy)
        yield broker


def child(case: str, app: App, address: str) -> Process:
    return processes.start(
        [sys.executable, "-m", "tests.kafka.let_go", case, app.name, address],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def assert_lived(process: Process) -> None:
    _, errors = process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode == 0, errors[-4000:]


def begun(app: App, proxy: FaultProxy, name: str | None = None) -> Sender:
    """A client in a transaction of its own."""
    where = {"bootstrap.servers": proxy.address, "producer.socket.timeout.ms": 2_000}
    settings = Settings.from_mapping(app.run_settings(**where))
    sender = Sender(settings, {"transactional.id": name or f"{app.name}-x"}, Trouble())
    sender.client.init_transactions(DEADLINE_S)
    sender.begin()
    return sender


def send_one(sender: Sender, app: App) -> None:
    records = Records(f"{app.name}-out", [b"k"], [b"v"], [1], partition=0)
    sender.send(records, each=None, last=sender.on_report)


def closers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "close client"]


def _serve(client: Producer, time_s: float) -> None:
    until_s = monotonic() + time_s
    while monotonic() < until_s:
        with suppress(KafkaException):
            client.poll(0.05)


def test_an_outbox_is_closed_while_a_partition_waits_for_its_answer(
    app: App, proxy: FaultProxy
) -> None:
    lost = Fault(Action.SWALLOW, Of.ANSWER)
    proxy.follow(app.name, FaultPlan({(Api.ADD_PARTITIONS_TO_TXN, 1): lost}))
    with child("unanswered", app, proxy.address) as process:
        eventually(lambda: bool(proxy.trace(app.name)), "the answer is lost", DEADLINE_S)
        assert_lived(process)


def test_clients_are_let_go_of_while_they_ask_for_their_first_partition(app: App) -> None:
    with child("at-once", app, app.kafka.bootstrap_servers) as process:
        assert_lived(process)


def test_fenced_clients_are_let_go_of_while_more_answers_fence_them(app: App) -> None:
    with child("fenced", app, app.kafka.bootstrap_servers) as process:
        assert_lived(process)


def test_a_client_that_was_let_go_of_asks_for_no_partition_again(
    app: App, proxy: FaultProxy
) -> None:
    asked: list[Request] = []

    def plan(request: Request) -> Fault | None:
        if request.api != Api.ADD_PARTITIONS_TO_TXN:
            return None
        asked.append(request)
        return Fault(Action.CUT)

    sender = begun(app, proxy)
    proxy.follow(app.name, plan)
    send_one(sender, app)
    while not asked:
        sender.client.poll(0.01)
    client = sender.client  # or it would be gone, and with it what it may do
    sender.close()
    _serve(client, 2 * REPEATED_S)  # a request sent before it was closed arrives meanwhile
    before = len(asked)
    _serve(client, 4 * REPEATED_S)
    assert len(asked) == before


def test_a_thread_closes_the_client_that_waits_for_an_answer(app: App, proxy: FaultProxy) -> None:
    lost = Fault(Action.SWALLOW, Of.ANSWER)
    proxy.follow(app.name, FaultPlan({(Api.PRODUCE, 0): lost}))
    sender = begun(app, proxy)
    send_one(sender, app)
    while not proxy.trace(app.name):
        sender.client.poll(0.01)
    sender.close()
    assert len(closers()) == 1
    eventually(lambda: not closers(), "the client gives up the request", DEADLINE_S)


@pytest.mark.thorough
def test_no_client_of_many_is_destroyed_while_it_waits_for_an_answer(
    app: App, proxy: FaultProxy
) -> None:
    """A 17th one used to be: destroyed within a transaction, a client may end the process."""
    many = 20
    senders = [begun(app, proxy, f"{app.name}-{number}") for number in range(many)]
    clients = [sender.client for sender in senders]
    lost = Fault(Action.SWALLOW, Of.ANSWER)
    proxy.follow(app.name, lambda request: lost if request.api == Api.PRODUCE else None)
    for sender in senders:
        send_one(sender, app)
    eventually(lambda: len(proxy.trace(app.name)) >= many, "all have sent", DEADLINE_S)
    with ThreadPoolExecutor(many) as pool:
        for done in [pool.submit(sender.close) for sender in senders]:
            done.result()
    waiting = sum(len(client) > 0 for client in clients)
    assert len(closers()) == waiting > 16
    proxy.follow(app.name, None)
    eventually(lambda: not closers(), "the clients give up their requests", DEADLINE_S)
