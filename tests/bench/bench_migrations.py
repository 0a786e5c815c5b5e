"""What a change of values costs while the pipeline goes on: V1, then V2, then V3, exactly once.

    python -m tests.bench.bench_migrations [--rows 1000000]

A sum for each key, over a topic with a record for each key. V1 makes all rows. V2 changes a tenth
of them, and V3 every one, so that it meets rows of V1 and of V2. Beside it, a pipeline that has
written V3 from the start takes the same records. Each step is a process of its own, from its start
to its last commit. At the end every row is read and compared. A third application has its rows of
V1 written anew at rest.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import click

import statestore as ss
from statestore import serdes
from statestore.operations.rewriting.migrate import migrate
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.bench.harness import ROOT, Bench, scratch
from tests.bench.topic_children import PARTITIONS, fill

V1: ss.Serde[int] = serdes.INT64
V2: ss.Serde[Any] = ss.Serde("V2", serdes.JSON.serialize, serdes.JSON.deserialize)
V3: ss.Serde[Any] = ss.Serde("V3", serdes.MSGPACK.serialize, serdes.MSGPACK.deserialize)
INPUT = "bench-migrations"


def to_v2(count: int) -> dict[str, int]:
    return {"count": count}


def to_v3(value: dict[str, int]) -> list[int]:
    return [value["count"], 0]


def plus_v1(_key: str, _value: bytes, count: int) -> int:
    return count + 1


def plus_v2(_key: str, _value: bytes, value: dict[str, int]) -> dict[str, int]:
    return {"count": value["count"] + 1}


def plus_v3(_key: str, _value: bytes, value: list[int]) -> list[int]:
    return [value[0] + 1, value[1]]


STEPS = (ss.Migration(V1, to_v2), ss.Migration(V2, to_v3))
VERSIONS: tuple[tuple[ss.Serde[Any], Any, Any], ...] = (
    (V1, int, plus_v1),
    (V2, lambda: {"count": 0}, plus_v2),
    (V3, lambda: [0, 0], plus_v3),
)


def pipeline(version: int, *, migrating: bool) -> ss.Topology:
    serde, initial, plus = VERSIONS[version]
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    steps = STEPS[:version] if migrating else None
    kept: ss.Materialized[str, Any] = ss.Materialized("sums", value_serde=serde, migrate=steps)
    builder.stream(INPUT).group_by_key().aggregate(initial, plus, kept)
    return builder.build()


def one_run(version: int, *, migrating: bool, settings: dict[str, Any]) -> dict[str, float]:
    """Process what there is, in this process."""
    topology = pipeline(version, migrating=migrating)
    began = perf_counter()
    summary = ss.run(topology, settings)
    return {
        "seconds": perf_counter() - began,
        "records": summary.records_in,
        "restored": summary.restored_records,
    }


def at_rest(settings: dict[str, Any]) -> dict[str, float]:
    """Write all rows anew, in this process."""
    with Runtime(Settings.of(settings)) as runtime:
        began = perf_counter()
        report = migrate(runtime, pipeline(1, migrating=True), dry_run=False)
        return {
            "seconds": perf_counter() - began,
            "rows": sum(one.rows for one in report.migrated),
        }


def in_child(order: dict[str, Any]) -> dict[str, float]:
    """One run in a process of its own."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_migrations", "--child", json.dumps(order)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
    return found


def counts(folder: Path, application: str, *, migrating: bool) -> Iterator[int]:
    """The counts of all rows, as the newest pipeline reads them."""
    topology = pipeline(2, migrating=migrating)
    with ss.open_snapshot(folder, application, "sums", topology=topology) as sums:
        for _, value in sums.all():
            yield value[0]


def measure(bench: Bench, kafka: LocalKafka, rows: int, folder: Path) -> None:
    """Both pipelines in turn, step by step."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    idle: dict[bool, list[float]] = {True: [], False: []}
    for step, changed in enumerate((rows, rows // 10, rows)):
        fill(kafka.bootstrap_servers, INPUT, changed, seed=step, distinct_from=0)
        for migrating in (True, False):
            settings = {
                "application.id": f"migrations-{migrating}".lower(),
                "bootstrap.servers": kafka.bootstrap_servers,
                "state.dir": str(folder),
                "processing.guarantee": "exactly_once",
            }
            order: dict[str, Any] = {"migrating": migrating, "settings": settings}
            order["version"] = step if migrating else 2
            done = in_child(order)
            assert (done["records"], done["restored"]) == (changed, 0), done
            seconds[migrating].append(done["seconds"])
            # The same again without a record: what a start itself takes.
            idle[migrating].append(in_child(order)["seconds"])
        if step == 0:
            settings = {**settings, "application.id": "migrations-at-rest"}
            in_child({"migrating": True, "version": 0, "settings": settings})
            anew = in_child({"settings": settings})
            assert anew["rows"] == rows
            bench.add("written anew at rest", "rows/s", [rows / anew["seconds"]])
        what = ("V1 makes the rows", "V2 changes a tenth", "V3 changes all, of V1 and of V2")[step]
        bench.add(f"{what}: rate", "records/s", [changed / seconds[True][-1]])
        bench.add(f"{what}: rate beside V3 alone", "x", [seconds[False][-1] / seconds[True][-1]])
        bench.add(f"{what}: a start without records", "s", [idle[True][-1]])
        bench.add(f"{what}: a start beside V3 alone", "x", [idle[True][-1] / idle[False][-1]])
    for migrating in (True, False):
        found = list(counts(folder, f"migrations-{migrating}".lower(), migrating=migrating))
        assert sorted(found) == [2] * (rows - rows // 10) + [3] * (rows // 10)
    bench.add("rows compared", "", [rows])


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--child", hidden=True, help="One measurement, as JSON.")
def main(rows: int, child: str | None) -> None:
    """Measure what a change of values costs."""
    if child is not None:
        order = json.loads(child)
        done = one_run(**order) if "version" in order else at_rest(**order)
        click.echo(json.dumps(done))
        return
    bench = Bench("bench_migrations")
    with LocalKafka() as kafka, scratch() as folder:
        kafka.create_topic(INPUT, PARTITIONS)
        measure(bench, kafka, rows, folder)
    bench.finish()


if __name__ == "__main__":
    main()
