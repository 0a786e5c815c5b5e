"""Metrics: plain numbers always, OpenTelemetry's when somebody listens, per commit only."""

import json

from tests.builders import DEADLINE_S, child

LISTENING = """
import json
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from statestore.metrics import count_quarantine
from tests.builders import memory_store

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
store = memory_store()
for number in range(3):
    store.put_all([(b"a", b"1"), (b"%d" % number, b"2")])
    store.get(b"a")
    store.commit()
store.staged.restore("data", {b"c": b"1", b"d": None}, {})
count_quarantine("prices", "unreadable")
found = {}
for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics:
    for metric in scope.metrics:
        for point in metric.data.data_points:
            value = point.count if hasattr(point, "count") else point.value
            found[metric.name] = [value, dict(point.attributes), metric.unit]
print(json.dumps(found))
"""


def test_a_listener_gets_commits_rows_and_restores_by_store() -> None:
    with child(LISTENING) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert errors == ""
    found = json.loads(output)
    prices = {"store": "prices"}
    assert found["statestore.commits"] == [3, prices, "1"]
    assert found["statestore.commit.duration"] == [3, prices, "s"]
    assert found["statestore.records.written"] == [6, prices, "1"]
    assert found["statestore.records.restored"] == [2, prices, "1"]
    quarantined, attributes, _ = found["statestore.stores.quarantined"]
    assert (quarantined, attributes["store"], attributes["reason"]) == (1, "prices", "unreadable")
