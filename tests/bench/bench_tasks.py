"""Stream tasks on Spark, exactly once, against two bare consumers of the same topic.

    python -m tests.bench.bench_tasks [--records 400000 | --full] [--repeats 3]

One broker, one Spark session (`local[2]`), the code of jobs/process.py; each run has an application
id of its own, so that store, changelog and transactions are new. Time runs from the moment the
poll began that brought the first record (so it includes connecting), to the end of the last commit,
over all tasks; that of bare consumers from their first record to their last.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from pyspark.sql import SparkSession

from statestore.commands.arguments import RunArguments
from statestore.commands.running import report_run
from statestore.operations.running.run import Run, RunSummary
from statestore.spark.session import Slots, spark_session
from statestore.spark.waves import commit_reports
from statestore.tasks.slot import Ending
from statestore.testing.local_kafka import LocalKafka
from tests.bench.harness import Bench, scratch
from tests.bench.pipelines import INPUT_VARIABLE, JSON_VARIABLE, OUTPUT_VARIABLE, TABLE_VARIABLE
from tests.bench.topic_children import KEYS, ORDERS, PARTITIONS, bare_rate, fill

MASTER = "local[2,4]"
# Spark's JVM has little to do, yet compiling that at the highest tier takes a tenth of 2 cores.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
MICRO_BATCH = 10_000
PHASES = ("start", "restore", "poll", "process", "commit")
Report = dict[str, Any]


@dataclass
class Rig:
    """The broker, the folder, the session, and the input topic all runs read."""

    kafka: LocalKafka
    folder: Path
    spark: SparkSession
    input: str
    records: int
    runs: int = 0
    settings: Sequence[str] = field(default_factory=tuple)

    def flags(self, pipeline: str, application_id: str, *extra: str) -> dict[str, Any]:
        """The command line of jobs/process.py, parsed."""
        absent = dict.fromkeys(("until", "run_for", "config", "summary_file"))
        return {
            **absent,
            "until": "latest",
            "pipeline": f"tests.bench.pipelines:{pipeline}",
            "application_id": application_id,
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "state_dir": str(self.folder),
            "processing_guarantee": "exactly_once",
            "pairs": (*self.settings, *extra),
            "accept_new_topology": False,
            "accept_empty_changelog": False,
        }

    def on_spark(self, pipeline: str, application_id: str | None = None) -> list[Report]:
        """A bounded run; the report of every stream task."""
        found: list[Report] = []

        def work(arguments: RunArguments, started: Run, _ending: Ending) -> RunSummary:
            summary = RunSummary(arguments.application_id)
            slots = Slots.of(self.spark)
            for planned in started.waves():
                frame = commit_reports(self.spark, arguments.for_workers(), planned, slots)
                found.extend(row.asDict() for row in frame.collect())
            return summary

        self.runs += 1
        report_run(self.flags(pipeline, application_id or f"bench-{self.runs}"), work)
        assert not any(report["error"] for report in found), found
        return found

    def command(self, program: Sequence[str], pipeline: str, application_id: str) -> list[str]:
        """A process of its own."""
        flags = self.flags(pipeline, application_id)
        wanted = ("pipeline", "application_id", "bootstrap_servers", "state_dir")
        named = [f"--{name.replace('_', '-')}={flags[name]}" for name in wanted]
        return [*program, *named, "--processing-guarantee=exactly_once"]


def rate(reports: list[Report]) -> float:
    """Records a second from the first record consumed to everything committed.

    Those of internal topics count, too. A task of a wave that repeats may have had no records.
    """
    began = min(r["first_record_ms"] for r in reports if r["first_record_ms"] is not None)
    ended = max(r["last_commit_ms"] for r in reports if r["last_commit_ms"] is not None)
    return float(1000 * sum(report["records_in"] for report in reports) / (ended - began))


KAFKA_STREAMS = "109 000-146 000"
GOALS = {
    "counting": "550 000",
    "per_record": KAFKA_STREAMS,
    "per_value": KAFKA_STREAMS,
    "joining": KAFKA_STREAMS,
    "joining_globally": "",
    "json_values": KAFKA_STREAMS,
    "windows": KAFKA_STREAMS,
    "hops": "",
    "sessions": "",
    "slides": "",
    "final_windows": "",
    "fewer_updates": "",
}


def bench_counting(bench: Bench, rig: Rig, repeats: int) -> None:
    _rates(bench, rig, repeats, ("counting",))


def bench_rates(bench: Bench, rig: Rig, repeats: int) -> None:
    _rates(bench, rig, repeats, ("counting", "per_record", "per_record_silent"))


def bench_operators(bench: Bench, rig: Rig, repeats: int) -> None:
    """Operators of the DSL beside counting and bare reading of the same run."""
    fill(rig.kafka.bootstrap_servers, os.environ[JSON_VARIABLE], rig.records, objects=ORDERS)
    _rates(
        bench,
        rig,
        repeats,
        (
            "counting",
            "per_value",
            "joining",
            "joining_near",
            "joining_globally",
            "json_values",
            "windows",
            "hops",
            "sessions",
            "slides",
            "tens",
            "last_tens",
            "reminding",
            "final_windows",
            "fewer_updates",
            "meeting",
            "missing",
            "both_tables",
            "regrouping",
            "referring",
            "cogrouped",
        ),
    )


def _rates(bench: Bench, rig: Rig, repeats: int, pipelines: tuple[str, ...]) -> None:
    bare: list[float] = []
    found: dict[str, list[list[Report]]] = {name: [] for name in pipelines}
    rig.on_spark("counting")  # the session's first Python workers
    for _ in range(repeats):
        for name in pipelines:
            if name == "counting":
                bare.append(bare_rate(rig.kafka.bootstrap_servers, rig.input, rig.records))
            found[name].append(rig.on_spark(name))
    bench.add("two bare consumers", "rec/s", bare)
    counting = [rate(reports) for reports in found["counting"]]
    for name in pipelines:
        rates = [rate(reports) for reports in found[name]]
        bench.add(name, "rec/s", rates, GOALS.get(name, ""))
        if name == "counting":
            bench.ratios("counting / bare", rates, bare, ">= 0.35")
        else:
            bench.ratios(f"{name} / counting", rates, counting, "")
        for phase in PHASES:
            spent = [sum(r[f"{phase}_seconds"] for r in reports) for reports in found[name]]
            bench.add(f"{name}, seconds of all tasks in phase: {phase}", "s", spent)
        commits = [sum(report["commits"] for report in reports) for reports in found[name]]
        bench.add(f"{name}, commits", "", commits)


def bench_micro_batches(bench: Bench, rig: Rig, repeats: int) -> None:
    """Runs over 10 000 new records each, by an application that is warm."""
    rig.on_spark("counting", "warm")
    whole, inside = [], []
    for number in range(repeats):
        fill(rig.kafka.bootstrap_servers, rig.input, MICRO_BATCH, seed=100 + number)
        began = perf_counter()
        reports = rig.on_spark("counting", "warm")
        whole.append(perf_counter() - began)
        assert sum(report["records_in"] for report in reports) == MICRO_BATCH
        first = min(report["first_record_ms"] for report in reports)
        inside.append((max(report["last_commit_ms"] for report in reports) - first) / 1000)
    bench.add("10 k records, the whole run on a warm session", "s", whole)
    bench.add("10 k records, first record to last commit", "s", inside)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def session() -> Iterator[SparkSession]:
    submit = f"--master {MASTER} --driver-java-options {JAVA_OPTIONS} pyspark-shell"
    with environment(PYSPARK_SUBMIT_ARGS=submit, PYSPARK_PYTHON=sys.executable):
        spark = spark_session("bench")
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


PARTS = {
    "rates": bench_rates,
    "counting": bench_counting,
    "operators": bench_operators,
    "micro": bench_micro_batches,
}
ALL = ("rates", "operators", "micro")


@click.command()
@click.option("--records", default=400_000, show_default=True)
@click.option("--full", is_flag=True, help="2 million records.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="counting: of rates.")
@click.option("--set", "settings", multiple=True, metavar="K=V", help="Any setting.")
def main(
    records: int, full: bool, repeats: int, only: tuple[str, ...], settings: tuple[str, ...]
) -> None:
    """Measure stream tasks on Spark."""
    records = 2_000_000 if full else records
    bench = Bench("bench_tasks")
    topics = {
        INPUT_VARIABLE: "bench-in",
        OUTPUT_VARIABLE: "bench-out",
        JSON_VARIABLE: "bench-json",
        TABLE_VARIABLE: "bench-table",
    }
    with LocalKafka() as kafka, scratch() as folder, environment(**topics), session() as spark:
        for topic in topics.values():
            kafka.create_topic(topic, partitions=PARTITIONS)
        # The table first: records meet the rows that are older than they.
        fill(kafka.bootstrap_servers, topics[TABLE_VARIABLE], KEYS, distinct_from=0)
        fill(kafka.bootstrap_servers, topics[INPUT_VARIABLE], records)
        rig = Rig(kafka, folder, spark, topics[INPUT_VARIABLE], records, settings=settings)
        for name in only or ALL:
            PARTS[name](bench, rig, repeats)
    bench.finish()


if __name__ == "__main__":
    main()
