"""Metrics over OTLP: what a receiver gets from a stream task through the SDK's own exporter."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc

from tests.builders import DEADLINE_S, child

WORK = """
import sys
from pathlib import Path
from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

exporter = OTLPMetricExporter(endpoint=sys.argv[1], insecure=True)
provider = MeterProvider([PeriodicExportingMetricReader(exporter)])
metrics.set_meter_provider(provider)

import statestore as ss
from statestore import serdes
from tests.contract.task_rig import TaskRig

b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
numbers = b.stream("in").map_values(lambda text: str(int(text)))
numbers.group_by_key().count("counts").to_stream().to("out")
rig = TaskRig(b.build(), Path(sys.argv[2]))
task = rig.start()
rig.send("in", [("a", "1"), ("b", "1"), ("a", "2")])
task.step(0)
task.step_commit()
rig.send("in", [("a", "none")])
try:
    while True:
        task.step(0)
except ss.errors.StateStoreError:
    task.close()
provider.shutdown()
"""


class Receiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.got: dict[str, list[tuple[dict[str, str], Any]]] = {}
        self._lock = threading.Lock()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's names
        with self._lock:
            for metric in (
                metric
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            ):
                kind = getattr(metric, metric.WhichOneof("data"))
                self.got[metric.name] = [
                    ({a.key: a.value.string_value for a in point.attributes}, point)
                    for point in kind.data_points
                ]
        return metrics_service_pb2.ExportMetricsServiceResponse()


@pytest.fixture
def receiver() -> Iterator[tuple[str, Receiver]]:
    made = Receiver()
    server = grpc.server(ThreadPoolExecutor(2))
    register: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    register(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", made
    server.stop(None).wait()


def test_a_receiver_gets_stores_and_messages_under_their_names(
    receiver: tuple[str, Receiver], tmp_path: Path
) -> None:
    address, made = receiver
    with child(WORK, address, tmp_path) as process:
        _, errors = process.communicate(timeout=DEADLINE_S * 3)
    assert process.returncode == 0, errors
    ((consumed, taken),) = made.got["messaging.client.consumed.messages"]
    assert taken.as_int == 3
    assert consumed == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": "shop",
        "messaging.destination.name": "in",
        "messaging.destination.partition.id": "0",
        "task": "0_0",
    }
    batches = {
        point.get("error.type"): point for point, _ in made.got["messaging.process.duration"]
    }
    assert batches.pop(None) == consumed
    assert batches == {"ValueError": consumed | {"error.type": "ValueError"}}
    ((sent, given),) = made.got["messaging.client.sent.messages"]
    assert sent["messaging.destination.name"] == "out"
    assert given.as_int > 0
    ((store, commits),) = made.got["statestore.commits"]
    assert (store, commits.as_int) == ({"store": "counts", "task": "0_0"}, 1)
    assert made.got["statestore.commit.duration"][0][1].count == 1
    ((task, whole),) = made.got["statestore.task.commit.duration"]
    assert (task, whole.count) == ({"task": "0_0"}, 1)
    waits = made.got["statestore.task.commit.wait.duration"]
    assert sorted(part["part"] for part, _ in waits) == ["end", "flush", "offsets"]
