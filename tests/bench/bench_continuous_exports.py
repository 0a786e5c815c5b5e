"""What continuous exports cost the run that makes them.

A table of one partition on a real broker that holds its rows already. The same number of changes,
at random among the rows, is processed by a continuous run in one process, once without exports and
once with one every few seconds, right after each other. That is the worst case: the run has no rest
between records, and its exports are made in its own process, to a folder of the same disk.
"""

import os
import random
import shutil
import threading
from time import perf_counter, process_time

import click

import statestore as ss
from statestore import metrics
from statestore.model.ids import TopicPartition
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.bench.bench_lost_volumes import TOPIC_VARIABLE, produce, topology
from tests.bench.harness import Bench, scratch

TOPIC = "rows"


def processed(settings: dict[str, object], end: int) -> tuple[float, float]:
    """Seconds by the clock and of the processor, until the group has committed everything."""
    stop = threading.Event()

    def watch() -> None:
        tp = TopicPartition(TOPIC, 0)
        with Runtime(settings) as runtime:
            while runtime.cluster.group_offsets([tp])[tp].offset < end:
                stop.wait(0.05)
        stop.set()

    watching = threading.Thread(target=watch)
    began_s, busy_s = perf_counter(), process_time()
    watching.start()
    ss.run(topology(), settings, run_for="forever", stop=stop)
    watching.join()
    return perf_counter() - began_s, process_time() - busy_s


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--changes", default=3_000_000, show_default=True)
@click.option("--every-ms", default=10_000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(rows: int, changes: int, every_ms: int, repeats: int) -> None:
    """Measure runs with and without exports in turn."""
    bench = Bench("bench_continuous_exports")
    os.environ[TOPIC_VARIABLE] = TOPIC
    took: dict[str, list[float]] = {}
    with scratch() as folder, LocalKafka() as kafka:
        kafka.create_topic(TOPIC, 1, {"retention.ms": -1})
        plain: dict[str, object] = {
            "application.id": "bench",
            "bootstrap.servers": kafka.bootstrap_servers,
            "state.dir": str(folder / "state"),
            "processing.guarantee": "exactly_once",
        }
        exporting = plain | {
            "statestore.export.target": str(folder / "exports"),
            "statestore.export.interval.ms": every_ms,
        }
        produce(kafka, TOPIC, range(rows))
        ss.run(topology(), plain)
        with Runtime(plain) as runtime:
            tp = TopicPartition(TOPIC, 0)
            for number in range(repeats):
                for name, settings in (("without", plain), ("with", exporting)):
                    picked = random.Random(number).choices(range(rows), k=changes)
                    produce(kafka, TOPIC, picked)
                    before = sum(one.made for one in metrics.export_figures())
                    end = runtime.cluster.bounds([tp])[tp].end
                    elapsed_s, busy_s = processed(settings, end)
                    took.setdefault(f"{name} clock", []).append(elapsed_s)
                    took.setdefault(f"{name} processor", []).append(busy_s)
                    made = sum(one.made for one in metrics.export_figures()) - before
                    took.setdefault(f"{name} exports", []).append(made)
        (told,) = metrics.export_figures()
        shutil.rmtree(folder / "state")
    for name in ("without", "with"):
        rates = [changes / seconds for seconds in took[f"{name} clock"]]
        bench.add(f"changes {name} exports", "1/s", rates)
        bench.add(f"processor {name} exports", "s", took[f"{name} processor"])
    bench.add("exports made", "", took["with exports"])
    bench.add("one export", "s", [told.seconds / told.made])
    bench.add("one export uploaded", "MB", [told.uploaded_bytes / told.made / 1e6])
    bench.ratios("clock, with over without", took["with clock"], took["without clock"])
    bench.ratios("processor, with over without", took["with processor"], took["without processor"])
    bench.finish()


if __name__ == "__main__":
    main()
