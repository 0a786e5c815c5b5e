"""Spark reads a store of one partition: without splits, and with as many as there are cores.

    python -m tests.bench.bench_splits [--rows 1000000] [--rows 10000000] [--cores 2] [--repeats 3]

Each read counts the rows after Spark has all columns, decoded: a text of 18 bytes and an integer.
Reads alternate within one session; ratios are taken repeat by repeat. The clock that counts is the
wall's, since that is what splits save, so other work on the machine shows in it: see the load.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import click
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own way

import statestore as ss
from statestore import serdes
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import Deployed, DeployedStore, publish_deployed
from statestore.spark.datasource import TransactionalStore
from tests.bench.harness import Bench, scratch
from tests.spark.local_spark import local_spark

SPEC = ss.persistent_key_value_store("spent", key_serde=serdes.STRING, value_serde=serdes.INT64)
_AT_ONCE = 100_000


def filled(folder: Path, rows: int) -> None:
    """Make a store of one partition, written in the order of a hash of its keys."""
    layout = StateLayout(folder, "shop")
    with ss.open_store(SPEC, layout.task_dir(TaskId(0, 0)) / "rocksdb") as store:
        for start in range(0, rows, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, rows))
            store.put_all([(f"customer-{n * 7_919 % rows:09d}", n) for n in numbers])
            store.commit({TopicPartition("shop-spent-changelog", 0): start})
    deployed = DeployedStore(0, serdes.STRING.name, serdes.INT64.name, persistent=True)
    publish_deployed(layout, Deployed(stores={"spent": deployed}))


def seconds_of(spark: SparkSession, folder: Path, rows: int, **options: str) -> float:
    named = {"state_dir": str(folder), "application_id": "shop", "store": "spent"}
    began_s = perf_counter()
    frame = spark.read.format("transactional_store").options(**named, **options).load()
    found = frame.agg(F.count("key"), F.sum(F.length("key")), F.sum("value")).first()
    assert found is not None
    assert found[0] == rows, found
    return perf_counter() - began_s


@click.command()
@click.option("--rows", type=int, multiple=True, default=[1_000_000, 10_000_000])
@click.option("--cores", type=int, default=2)
@click.option("--repeats", type=int, default=3)
def main(rows: Sequence[int], cores: int, repeats: int) -> None:
    """Measure."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    bench = Bench("splits")
    with scratch() as folder, local_spark("splits", f"local[{cores}]") as spark:
        spark.dataSource.register(TransactionalStore)
        for count in rows:
            filled(folder / str(count), count)
            ways = {
                "one Spark task": {"splits": "1"},
                f"splits={cores}": {"splits": str(cores)},
                "splits of 500 000 rows": {},
            }
            seconds_of(spark, folder / str(count), count, splits=str(cores))  # starts the workers
            took: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(repeats):
                for way, options in ways.items():
                    took[way].append(seconds_of(spark, folder / str(count), count, **options))
            alone = took["one Spark task"]
            for way, seconds in took.items():
                bench.add(f"{count} rows, {way}", "rows/s", [count / one for one in seconds])
                if seconds is not alone:
                    ratios = [one / other for one, other in zip(alone, seconds, strict=True)]
                    bench.add(f"{count} rows, {way}, times one Spark task", "x", ratios)
    bench.finish()


if __name__ == "__main__":
    main()
