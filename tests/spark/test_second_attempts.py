"""Two attempts at one Spark task, as Spark makes them: none tears or doubles anything.

Speculation, executors that are killed, decommissioned and given back, on a real standalone Spark.
"""

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.crash.kill_harness import Rig
from tests.spark.cluster_rig import CHECKOUT, RUN_S, Cluster, standalone, submit, tree_of
from tests.spark.gated_pipeline import GATE_VARIABLE, TOPICS_VARIABLE

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
RECORDS = 4000
WAITS = "another attempt at this Spark task is at work"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
}


@dataclass
class Job:
    """A run on the way, whose second partition waits at the gate."""

    rig: Rig
    cluster: Cluster
    process: "subprocess.Popen[bytes]"
    log: Path
    gate: Path
    summary: Path

    def await_gate(self) -> int:
        """The worker of Spark whose executor has the task that waits at the gate."""
        reached = self.gate.with_suffix(".reached")
        self.eventually(lambda: reached.exists() and bool(reached.read_text()), "at the gate")
        pid = int(reached.read_text())
        parents = {one.pid for one in psutil.Process(pid).parents()}
        (number,) = (
            number
            for number, worker in enumerate(self.cluster.workers)
            if worker.process.pid in parents
        )
        return number

    def await_second(self, number: int) -> None:
        """Until the executor of that worker says that its attempt waits for another one."""
        self.eventually(lambda: WAITS in self.cluster.said(number), "a second attempt waits")

    def open_gate(self) -> None:
        self.gate.touch()

    def finish(self) -> dict[str, Any]:
        """Its summary."""
        assert self.process.wait(RUN_S) == 0, self.tail()
        summary: dict[str, Any] = json.loads(self.summary.read_text())
        return summary

    def eventually(self, holds: Any, what: str) -> None:
        def going_on() -> bool:
            assert self.process.poll() is None, self.tail()
            return bool(holds())

        eventually(going_on, what, RUN_S)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def gated(
    kafka: LocalKafka, folder: Path, name: str, conf: Mapping[str, object], **settings: object
) -> Iterator[Job]:
    """A cluster, and on it a run that was begun with 2 * RECORDS to count."""
    rig = Rig(
        kafka,
        folder / "state",
        application_id=name,
        topic_prefix=name,
        pipeline="tests.spark.gated_pipeline:topology",
        settings={"statestore.lock.wait.ms": 500, **settings},
    )
    rig.create_topics()
    rig.produce(RECORDS)
    gate, log, summary = folder / "gate", folder / "submit.log", folder / "summary.json"
    variables = {**CHECKOUT, TOPICS_VARIABLE: name, GATE_VARIABLE: str(gate)}
    with standalone(folder, variables=variables) as cluster, log.open("wb") as file:
        process = submit(
            cluster.address,
            ROOT / "jobs" / "process.py",
            *rig.command(summary),
            cwd=folder,
            log=file,
            conf=conf,
            variables=variables,
        )
        try:
            yield Job(rig, cluster, process, log, gate, summary)
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def assert_exact(job: Job) -> None:
    summary = job.finish()
    assert summary["caught_up"]
    assert summary["records_in"] == 2 * RECORDS, "once, and once more out of the repartition topic"
    assert job.rig.findings() == []


def test_a_speculative_attempt_waits_and_its_end_is_quiet(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    with gated(kafka, tmp_path, "speculated", SPECULATION) as job:
        first = job.await_gate()
        job.await_second(1 - first)
        job.open_gate()
        assert_exact(job)
        assert "Locked" not in job.tail()


def test_a_speculative_attempt_goes_on_where_the_executor_of_the_first_one_died(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    with gated(kafka, tmp_path, "taken-over", SPECULATION) as job:
        first = job.await_gate()
        job.await_second(1 - first)
        job.cluster.workers[first].kill()
        job.open_gate()
        assert_exact(job)


def test_an_attempt_waits_for_one_whose_executor_spark_lost_but_which_is_still_alive(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    conf = {
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "2s",
        "spark.executor.heartbeatInterval": "2s",
    }
    with gated(kafka, tmp_path, "lost", conf) as job:
        first = job.await_gate()
        tree = tree_of(job.cluster.workers[first].process)
        javas = [one for one in tree if one.name() == "java"]
        for java in javas:
            java.suspend()
        try:
            job.await_second(1 - first)
            job.open_gate()
            assert_exact(job)
        finally:
            for java in javas:
                java.resume()


def test_executors_that_come_and_go_and_are_decommissioned_leave_an_exact_result(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    conf = SPECULATION | {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.decommission.enabled": "true",
        "spark.log.level": "INFO",
    }
    with gated(kafka, tmp_path, "decommissioned", conf) as job:
        first = job.await_gate()
        job.cluster.workers[first].process.send_signal(signal.SIGPWR)
        job.eventually(lambda: "ecommission" in job.log.read_text(), "it is decommissioned")
        job.open_gate()
        assert_exact(job)


def test_speculation_without_locks_is_refused(kafka: LocalKafka, tmp_path: Path) -> None:
    settings = {"statestore.volume.locks": "false"}
    with gated(kafka, tmp_path, "no-locks", SPECULATION, **settings) as job:
        assert job.process.wait(RUN_S) == 2
        assert "spark.speculation is on" in job.tail()
