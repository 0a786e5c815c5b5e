"""What `make run` does, on a broker and in folders of its own: Kafka, Airflow, Spark, RocksDB.

The figures are compared with those of the CSVs in tests/kafka/test_flights.py; here the chain is
what is tested, and that a second run goes on from the committed offsets.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.pipelines.flights import topology
from statestore import Settings, run
from statestore.testing.local_kafka import LocalKafka

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.airflow,
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).resolve().parents[2]
SUMMARY = ROOT / ".scratch" / "demo-summary.json"
FLIGHTS = 336_776


def demo(kafka: LocalKafka, folder: Path) -> tuple[str, dict[str, object]]:
    """One `make run`: what it prints, and the job's summary."""
    environment = {
        **os.environ,
        "STATESTORE_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "STATESTORE_STATE_DIR": str(folder / "state"),
    }
    environment.pop("AIRFLOW_HOME", None)
    done = subprocess.run(
        [sys.executable, "-m", "scripts.demo", "run"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout, json.loads(SUMMARY.read_text(encoding="utf-8"))


def test_the_demo_counts_every_flight_once_and_a_second_run_has_nothing_to_do(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    shown, first = demo(kafka, tmp_path)
    # Once from the topic, once from the repartition topic.
    assert first["records_in"] == 2 * FLIGHTS
    assert first["stream_tasks"] == 8
    assert first["caught_up"] is True
    assert "58,665" in shown, "United's flights of the year are in the table"
    # The same application without Airflow and Spark: same lock, same offsets.
    settings = Settings.from_mapping(
        {
            "application.id": "flights",
            "bootstrap.servers": kafka.bootstrap_servers,
            "state.dir": str(tmp_path / "state"),
            "processing.guarantee": "exactly_once",
        }
    )
    second = run(topology(), settings)
    assert second.records_in == 0
    assert second.caught_up
