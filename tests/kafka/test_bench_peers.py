"""A run of `make bench-peers`: who does the job is measured, who does not is named."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.bench.peers.environments import Environment, environment_of
from tests.bench.peers.jobs import MINUTE_MS, Given, Job, records
from tests.bench.peers.running import Failed, Run
from tests.bench.peers.table import PEERS

pytestmark = pytest.mark.kafka


def given(job: Job) -> list[Given]:
    now_ms = int(time.time() * 1000)
    return records(job, 3000, seed=5, begin_ms=now_ms - now_ms % MINUTE_MS - 60 * MINUTE_MS)


@pytest.mark.parametrize("name", ["statestore", "statestore-typed", "statestore-columns"])
def test_statestore_sums_json_and_is_measured(name: str, kafka: LocalKafka, tmp_path: Path) -> None:
    us = PEERS[name]
    environment = environment_of(name, us)
    run = Run(kafka, us, environment, Job.JSON, f"peers-{name}", tmp_path / "state")
    used = run.measure(given(Job.JSON), 1000)
    assert used.cpu_s > 0
    assert used.clock_s > 0
    assert used.rss_bytes > 1 << 20


def test_a_peer_that_does_not_start_is_named_with_the_last_line_of_its_error(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    peer = replace(PEERS["quix"], module="on_nothing")
    environment = Environment(Path(sys.executable), tmp_path, tmp_path)
    run = Run(kafka, peer, environment, Job.COUNT, "peers-none", tmp_path / "state")
    with pytest.raises(Failed, match=r"ended with 1: .*No module named tests.bench.peers.on_no"):
        run.measure(given(Job.COUNT), 1000)
