"""A kernel of Jupyter: its cells are interrupted, a thread of it runs, and it is started again."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from jupyter_client.manager import KernelManager

from statestore import serdes
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT, eventually

pytestmark = pytest.mark.kafka
CELL = """
import json, os, threading
from pathlib import Path
import statestore as ss
from statestore import serdes

SETTINGS, REACHED = json.loads(os.environ["SETTINGS"]), Path(os.environ["REACHED"])

def pipeline():
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    orders = b.stream(os.environ["TOPIC"]).peek(lambda key, value: REACHED.touch(), name="told")
    orders.group_by_key().reduce(lambda sum_, value: sum_ + value, "sums")
    return b.build()

def committed():
    try:
        with ss.open_snapshot(SETTINGS["state.dir"], SETTINGS["application.id"], "sums") as sums:
            return dict(sums.all())
    except ss.errors.UnknownStore:
        return {}

def run(**options):
    return ss.run(pipeline(), SETTINGS, **options)
"""
FOREVER = 'run(run_for="forever")'
THREAD = """
threading.Thread(target=run, kwargs={"run_for": "forever"}).start()
while not REACHED.exists():
    pass
"""


class Kernel:
    """A kernel as Jupyter starts it; cells are run in turn."""

    def __init__(self, env: dict[str, str]) -> None:
        self.manager: Any = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, "PYTHONPATH": str(ROOT), **env})
        self.client: Any = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(DEADLINE_S)

    def run(self, code: str) -> str:
        """What a cell returns, or the error that ends it."""
        told: list[str] = []

        def take(message: Any) -> None:
            content = message["content"]
            if message["msg_type"] == "execute_result":
                told.append(content["data"]["text/plain"])
            elif message["msg_type"] == "error":
                told.append(f"{content['ename']}: {content['evalue']}")

        self.client.execute_interactive(
            code, allow_stdin=False, output_hook=take, timeout=DEADLINE_S
        )
        return "".join(told)

    def restart(self) -> None:
        """As the button does it: the kernel is asked to end, and killed if it does not."""
        self.manager.restart_kernel(now=False)
        self.client.wait_for_ready(DEADLINE_S)

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture
def env(kafka: LocalKafka, tmp_path: Path) -> dict[str, str]:
    settings = {
        "application.id": "in-a-kernel",
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "processing.guarantee": "exactly_once",
        "commit.interval.ms": 10,
        "statestore.lock.wait.ms": 0,
    }
    kafka.create_topic("kernel-orders", partitions=2)
    reached = str(tmp_path / "reached")
    return {"SETTINGS": json.dumps(settings), "TOPIC": "kernel-orders", "REACHED": reached}


@pytest.fixture
def kernel(env: dict[str, str]) -> Iterator[Kernel]:
    one = Kernel(env)
    try:
        assert not one.run(CELL)
        yield one
    finally:
        one.end()


def test_an_interrupt_a_thread_and_a_restart_leave_the_application_usable(
    kafka: LocalKafka, env: dict[str, str], kernel: Kernel
) -> None:
    reached = Path(env["REACHED"])

    def produce(count: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for _ in range(count):
            producer.produce("kernel-orders", key=b"a", value=serdes.INT64.serialize(1))
        producer.flush()

    produce(10)
    assert kernel.run("run().records_in, committed()") == "(10, {'a': 10})"
    for so_far in (20, 30):
        # A cell is interrupted twice, as whoever presses the button once does it again.
        reached.unlink()
        produce(10)
        message = kernel.client.execute(FOREVER)
        eventually(reached.exists, "the cell is at work")
        kernel.manager.interrupt_kernel()
        reply = kernel.client.get_shell_msg(timeout=DEADLINE_S)
        while reply["parent_header"]["msg_id"] != message:
            reply = kernel.client.get_shell_msg(timeout=DEADLINE_S)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert kernel.run("_ = run(); committed()") == f"{{'a': {so_far}}}"
    reached.unlink()
    produce(10)
    assert not kernel.run(THREAD)
    assert "that is this process, where another thread has it" in kernel.run("run()")
    kernel.restart()
    kernel.run(CELL)
    assert kernel.run("_ = run(); committed()") == "{'a': 40}"
