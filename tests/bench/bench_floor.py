"""What libraries alone take of the jobs in expressions, beside the jobs: the floor under a goal.

    python -m tests.bench.bench_floor [--batches 4] [--repeats 3]

One stream task runs a job over RocksDB and a broker in memory, whose work is not counted, nor is
intake: a filter and sums by key and minute, or the JSON job of `bench_peers`, which joins a table
of 10 000 rows, too. Beside the first the same batches pass through the calls that no such job does
without, one after the other: typed JSON decoded, one field as a column, Polars' filter and product,
sums by window, one get and one batch of RocksDB for the windows of a batch, and what was made for
it freed. No record is written, no window closes, nothing commits and no failure is told of any
record. Figures are of processor time.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from time import process_time

import click
import msgspec
import numpy as np
import polars as pl
from rocksdict import Options, Rdict, WriteBatch

import statestore as ss
from statestore.model.ids import TopicPartition
from statestore.tasks import kept_memory
from tests.bench import pipelines, pipelines_in_columns
from tests.bench.bench_guard import Counter, UncountedBroker
from tests.bench.harness import Bench, scratch
from tests.bench.peers.jobs import AMOUNT_LEAST, MINUTE_MS, Given, Job, records
from tests.contract.task_rig import TaskRig

BATCH = 100_000
_BEGIN_MS = 1_700_000_000_000 // MINUTE_MS * MINUTE_MS
_PARTITIONS = 4
_ROWS = 10_000
_ROW = b'{"customer":"someone","country":"DE"}'
_WHOLE, _LIBRARIES, _JOINED = "the job", "libraries alone", "the job with a join"


class _Clock(Counter):
    """Processor time, but for what the broker takes."""

    away_s: float = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = process_time()
        try:
            yield
        finally:
            self.away_s += process_time() - began


def task_us(make: Callable[[], ss.Topology], given: list[Given], folder: Path) -> float:
    """Microseconds a record of the task; the first batch fills the caches and is not counted."""
    os.environ.update({pipelines.JSON_VARIABLE: "in", pipelines.INPUT_VARIABLE: "in"})
    os.environ.update({pipelines.JSON_TABLE_VARIABLE: "table", pipelines.OUTPUT_VARIABLE: "out"})
    clock = _Clock()
    rig = TaskRig(
        make(),
        folder,
        broker=UncountedBroker(clock),
        settings={"statestore.batch.max.records": BATCH, "commit.interval.ms": 1},
    )
    if "table" in rig.topology.topics()[0]:
        for number in range(0, _ROWS, _PARTITIONS):
            row = ss.Record(b"key-%08d" % number, _ROW, _BEGIN_MS - 1)
            rig.broker.produce(TopicPartition("table", 0), row)
    for one in given:
        rig.broker.produce(TopicPartition("in", 0), ss.Record(*one))
    task = rig.start()
    began, warm = 0.0, 0
    while warm == 0 or task.report.records_in < len(given):
        task.step(0)
        rig.clock.advance(2_000)
        task.step_commit()
        if not warm and task.report.records_in >= BATCH:
            gc.collect()
            gc.disable()
            began, clock.away_s = process_time(), 0.0
            warm = task.report.records_in
    took = process_time() - began - clock.away_s
    gc.enable()
    counted = task.report.records_in - warm
    rig.end()
    return 1e6 * took / counted


class Libraries:
    """The calls, and the seconds that each kind of them took."""

    def __init__(self, folder: Path) -> None:
        self._rows = Rdict(str(folder / "rows"), Options(raw_mode=True))
        self._decode = msgspec.json.Decoder(pipelines.Order).decode
        self._sums = msgspec.json.Decoder(pipelines_in_columns.Sums).decode
        self._expressions = {
            "large": pl.col("amount") >= AMOUNT_LEAST,
            "cents": pl.col("amount") * 100,
        }
        self._at_s = 0.0
        self.took_s: dict[str, float] = {}

    def close(self) -> None:
        """Close RocksDB."""
        self._rows.close()

    def batch(self, given: list[Given]) -> None:
        """Have one batch through all of them."""
        keys, values = [one.key for one in given], [one.value for one in given]
        times = np.array([one.time_ms for one in given])
        self._at_s = process_time()
        orders = list(map(self._decode, values))
        self._took("JSON decoded")
        amounts = np.array([order.amount for order in orders], np.int64)
        self._took("a field as a column")
        made = pl.DataFrame({"amount": amounts}).select(**self._expressions)
        kept = made["large"].to_numpy()
        cents = made["cents"].to_numpy()[kept]
        self._took("expressions")
        numbers: dict[bytes, int] = {}
        large = compress(keys, kept.tolist())
        ranks = np.array([numbers.setdefault(key, len(numbers)) for key in large])
        minutes = times[kept] // MINUTE_MS
        windows, places = np.unique(minutes * BATCH + ranks, return_inverse=True)
        counts = np.bincount(places)
        sums = np.zeros(len(windows), np.int64)
        np.add.at(sums, places, cents)
        self._took("sums by window")
        names = list(numbers)
        starts = (windows // BATCH * MINUTE_MS).tolist()
        row_keys = [
            names[rank] + start.to_bytes(8, "big")
            for rank, start in zip((windows % BATCH).tolist(), starts, strict=True)
        ]
        found: list[bytes | None] = self._rows.get(row_keys) or []
        self._took("RocksDB, gets")
        rows = list[bytes]()
        for row, count, total in zip(found, counts.tolist(), sums.tolist(), strict=True):
            before = self._sums(row) if row else pipelines_in_columns.Sums()
            rows.append(b'{"n":%d,"cents":%d}' % (before.n + count, before.cents + total))
        self._took("sums as JSON")
        batch = WriteBatch(raw_mode=True)
        for row_key, row in zip(row_keys, rows, strict=True):
            batch.put(row_key, row)
        self._rows.write(batch)
        self._took("RocksDB, writes")
        del orders, row_keys, found, rows, batch
        self._took("objects freed")

    def _took(self, what: str) -> None:
        now_s = process_time()
        self.took_s[what] = self.took_s.get(what, 0.0) + now_s - self._at_s
        self._at_s = process_time()


def libraries_us(given: list[Given], folder: Path) -> dict[str, float]:
    """Microseconds a record of each kind of call; the first batch is not counted."""
    libraries = Libraries(folder)
    libraries.batch(given[:BATCH])
    libraries.took_s.clear()
    gc.collect()
    gc.disable()
    for at in range(BATCH, len(given), BATCH):
        libraries.batch(given[at : at + BATCH])
    gc.enable()
    libraries.close()
    return {what: 1e6 * s / (len(given) - BATCH) for what, s in libraries.took_s.items()}


@click.command()
@click.option("--batches", default=4, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(batches: int, repeats: int) -> None:
    """Measure both in turns."""
    bench = Bench("bench_floor")
    count = (batches + 1) * BATCH
    # A partition has a quarter of the keys.
    drawn = records(Job.JSON, (_PARTITIONS + 1) * count, seed=1, begin_ms=_BEGIN_MS)
    given = [one for one in drawn if int(one.key[-4:]) % _PARTITIONS == 0][:count]
    assert len(given) == count
    took: dict[str, list[float]] = {_WHOLE: [], _JOINED: [], _LIBRARIES: []}
    for _ in range(repeats):
        # As in a run, memory of a batch is kept for the next.
        with kept_memory.kept(), scratch() as folder:
            took[_WHOLE].append(task_us(pipelines_in_columns.expressing, given, folder))
        with kept_memory.kept(), scratch() as folder:
            took[_JOINED].append(task_us(pipelines_in_columns.enriching, given, folder))
        with kept_memory.kept(), scratch() as folder:
            parts = libraries_us(given, folder)
        took[_LIBRARIES].append(sum(parts.values()))
        for what, us in parts.items():
            took.setdefault(what, []).append(us)
    for name, found in took.items():
        bench.add(name, "us", found)
    bench.ratios(f"{_LIBRARIES} / {_WHOLE}", took[_LIBRARIES], took[_WHOLE])
    bench.finish()


if __name__ == "__main__":
    main()
