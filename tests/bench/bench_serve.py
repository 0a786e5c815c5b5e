"""Serving state beside its writer: what it costs the writer, how fresh it is, how fast it answers.

The writer is a stream task over a broker in memory, so that nothing but the task and the server
work. The server is `statestore serve` in a process of its own, as in production. Both sides of the
writer's ratio alternate within one run. What one get costs the server is measured without
connections: its ASGI app is called in this process.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import statestore as ss
from statestore import serdes
from statestore.client import StateClient
from statestore.model.ids import TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Record
from statestore.operations.deployed import describe_deployment, publish_deployed
from statestore.serving.access import ServeLimits, Tokens
from statestore.serving.gate import App
from statestore.serving.http import make_app
from statestore.tasks.task import StreamTask
from statestore.topology.nodes import TopicName
from tests.bench.harness import Bench
from tests.builders import eventually
from tests.contract.task_rig import TaskRig
from tests.serving_rig import LONG_LEASE, service_of

ROUNDS = 5
COMMITS = 20
RECORDS = 5000
KEYS = 20_000
ASKED = 1000


def counting() -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    builder.stream("in").group_by_key().count("counts")
    return builder.build()


@contextmanager
def served(rig: TaskRig, task: StreamTask) -> Iterator[StateClient]:
    """A server that follows the task."""
    state = f"--state-dir={rig.layout.state_dir}"
    command = [sys.executable, "-m", "statestore", "serve", "--application-id=shop", "--port=0"]
    with subprocess.Popen([*command, state], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        with StateClient(server.stdout.readline().split()[-1]) as client:

            def follows() -> bool:
                task.step(0)
                rig.clock.advance(100)
                return any(one.owner == "running" and not one.stale for one in client.tasks())

            eventually(follows, "a copy follows the task")
            yield client
        server.terminate()


class Rates(NamedTuple):
    """Records per second of the writer, by the wall clock and by the time of its own process."""

    wall: float
    processor: float


def write(rig: TaskRig, task: StreamTask, number: int) -> Rates:
    """Process and commit some batches."""
    wall = processor = 0.0
    for commit in range(COMMITS):
        for each in range(RECORDS):
            key = f"k{(number + commit * RECORDS + each) * 7919 % KEYS}".encode()
            record: Record[bytes | None, bytes | None] = Record(key, b"1", each)
            rig.broker.produce(TopicPartition("in", 0), record)
        rig.clock.advance(1000)
        began, began_processor = time.perf_counter(), time.process_time()
        task.step(0)
        task.step_commit()
        task.step(0)
        wall += time.perf_counter() - began
        processor += time.process_time() - began_processor
    return Rates(COMMITS * RECORDS / wall, COMMITS * RECORDS / processor)


def staleness_ms(rig: TaskRig, task: StreamTask, client: StateClient) -> list[float]:
    """From the end of a commit to the first answer that has it."""
    found = []
    for number in range(100):
        record: Record[bytes | None, bytes | None] = Record(b"fresh", b"1", number)
        rig.broker.produce(TopicPartition("in", 0), record)
        rig.clock.advance(1000)
        task.step(0)
        wanted = task._committer.stamp.number
        began = time.perf_counter()
        while (client.get_rows("counts", ["fresh"]).freshness[0].commit_number or 0) < wanted:
            pass
        found.append(1000 * (time.perf_counter() - began))
    return found


def processor_us(rig: TaskRig) -> list[float]:
    """The processor's time of one get, from the request's head to the answer's last byte."""
    service = service_of(rig)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/v1/stores/counts/get",
        "query_string": b"key=k1&raw=false&wait_ms=100&partition=0",
        "headers": [(b"host", b"x"), (b"accept", b"*/*")],
    }
    statuses = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if "status" in message:
            statuses.append(message["status"])

    async def ask(app: App) -> float:
        began = time.process_time()
        for _ in range(ASKED):
            await app({**scope, "state": {}}, receive, send)
        return (time.process_time() - began) / ASKED * 1e6

    found = []
    with service:
        eventually(lambda: not service.unready(), "a copy is there")
        for _ in range(1 + 2 * ROUNDS):
            app = make_app(service, "shop", tokens=Tokens([]), hosts=None, limits=ServeLimits())
            found.append(asyncio.run(ask(app)))
    assert set(statuses) == {200}
    return found[1:]  # The first round imports and compiles.


def main() -> None:
    bench = Bench("bench_serve")
    alone: list[Rates] = []
    beside: list[Rates] = []
    with TemporaryDirectory() as folder:
        rig = TaskRig(counting(), Path(folder), settings=LONG_LEASE)
        task = rig.start()
        said = describe_deployment(
            rig.topology, ProcessingGuarantee.EXACTLY_ONCE, {TopicName("in"): 1}
        )
        publish_deployed(rig.layout, said)
        write(rig, task, 0)
        for number in range(ROUNDS):
            alone.append(write(rig, task, number))
            with served(rig, task):
                beside.append(write(rig, task, number))
        with served(rig, task) as client:
            fresh = sorted(staleness_ms(rig, task, client))
            rates, many = [], []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                for each in range(ASKED):
                    client.get("counts", f"k{each}")
                rates.append(ASKED / (time.perf_counter() - began))
                began = time.perf_counter()
                for _ in range(10):
                    client.get_many("counts", [f"k{each}" for each in range(ASKED)])
                many.append(10 * ASKED / (time.perf_counter() - began))
        rig.end()
        processor = processor_us(rig)
    walls = [rates.wall for rates in beside], [rates.wall for rates in alone]
    processors = [rates.processor for rates in beside], [rates.processor for rates in alone]
    bench.add("writer alone", "records/s", walls[1])
    bench.add("writer beside a server", "records/s", walls[0])
    bench.ratios("writer beside a server / alone", *walls, ">= 0.95")
    bench.ratios("the same by the time of the writer's process", *processors, ">= 0.95")
    bench.add("an answer has a commit after, p50", "ms", [statistics.median(fresh)])
    bench.add("an answer has a commit after, p99", "ms", [fresh[98]])
    bench.add("gets of one client, one after the other", "requests/s", rates)
    bench.add("keys in gets of 1000", "keys/s", many)
    bench.add("processor time of one get", "us", processor)
    bench.finish()


if __name__ == "__main__":
    main()
