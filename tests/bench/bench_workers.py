"""Runs without Spark: two worker processes against one process, exactly once, without restarts.

    python -m tests.bench.bench_workers [--records 400000] [--repeats 3]

Each repeat runs the same input once with `workers=1`, as `statestore run` does by default, and once
with `workers=2`; which of them comes first changes from repeat to repeat. Each run has an
application id of its own. Time runs from the moment the poll began that brought the first record to
the end of the last commit, over all stream tasks. The broker works on the same cores.
"""

import os
import threading
from pathlib import Path

import click

from statestore.operations.running.run import PlannedTask
from statestore.operations.running.runner import run_request, serve_planned, start_run, untold
from statestore.runtime import Runtime
from statestore.runtime.workers import Workers
from statestore.tasks.plan import TaskReport
from statestore.testing.local_kafka import LocalKafka
from tests.bench import pipelines
from tests.bench.harness import Bench, scratch
from tests.bench.pipelines import INPUT_VARIABLE, OUTPUT_VARIABLE
from tests.bench.topic_children import PARTITIONS, fill

PIPELINES = {"counting": pipelines.counting, "per_record": pipelines.per_record}


def rate(servers: str, folder: Path, pipeline: str, workers: int, number: int) -> float:
    """Records a second of a bounded run."""
    settings = {
        "application.id": f"bench-{pipeline}-{workers}-{number}",
        "bootstrap.servers": servers,
        "state.dir": str(folder),
        "processing.guarantee": "exactly_once",
    }
    topology, request, stop = PIPELINES[pipeline](), run_request(), threading.Event()
    reports: list[TaskReport] = []
    with Runtime(settings) as runtime, start_run(runtime, topology, request) as started:
        name = f"tests.bench.pipelines:{pipeline}"
        with Workers(started, name, workers, stop, untold) as processes:

            def serve(wave: list[PlannedTask]) -> None:
                if workers > 1:
                    processes.serve(wave, reports)
                else:
                    reports.extend(
                        serve_planned(runtime, topology, wave, request, slots=1, stop=stop)
                    )

            for wave in started.waves():
                serve(wave)
    began_ms = min(it.first_record_ms for it in reports if it.first_record_ms is not None)
    ended_ms = max(it.last_commit_ms for it in reports if it.last_commit_ms is not None)
    return 1000 * sum(it.records_in for it in reports) / (ended_ms - began_ms)


@click.command()
@click.option("--records", default=400_000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--only", type=click.Choice(list(PIPELINES)), multiple=True)
def main(records: int, repeats: int, only: tuple[str, ...]) -> None:
    """Measure what a second process brings."""
    bench = Bench("bench_workers")
    os.environ[INPUT_VARIABLE], os.environ[OUTPUT_VARIABLE] = "bench-in", "bench-out"
    with LocalKafka() as kafka, scratch() as folder:
        for topic in ("bench-in", "bench-out"):
            kafka.create_topic(topic, partitions=PARTITIONS)
        fill(kafka.bootstrap_servers, "bench-in", records)
        for pipeline in only or PIPELINES:
            rates: dict[int, list[float]] = {1: [], 2: []}
            for number in range(repeats):
                for workers in (1, 2) if number % 2 else (2, 1):
                    made = rate(kafka.bootstrap_servers, folder, pipeline, workers, number)
                    rates[workers].append(made)
            for workers, found in rates.items():
                bench.add(f"{pipeline}, workers: {workers}", "rec/s", found)
            bench.ratios(f"{pipeline}, 2 workers / 1", rates[2], rates[1])
    bench.finish()


if __name__ == "__main__":
    main()
