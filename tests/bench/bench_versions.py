"""Versioned stores against plain ones of ours, in one process and one run.

    python -m tests.bench.bench_versions [--repeats 5] [--records 300000]

The same records into both, the log (WAL) off, a commit every 100 000. What is compared is measured
right after each other, in turn; each pair on fresh folders. All figures are of processor time, that
of RocksDB's own threads included: it does not depend on what else the machine does, or little.
"""

import gc
import random
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click

import statestore as ss
from statestore.stores.versioned.store import TransactionalVersionedStore
from tests.bench.bench_stores import PER_COMMIT, SETTINGS
from tests.bench.harness import Bench, scratch

PLAIN = ss.persistent_key_value_store("plain")
HOUR_MS = 3_600_000
PER_CALL = 10_000
SEGMENT_ROWS = 1_000_000

Versions = list[tuple[bytes, bytes, int]]
Store = TransactionalVersionedStore[bytes, bytes]


def seconds(work: Callable[[], object]) -> float:
    """The processor time of it, the collector out of the way."""
    gc.collect()
    gc.disable()
    try:
        began = process_time()
        work()
        return process_time() - began
    finally:
        gc.enable()


def each(get: Callable[[Any], object], keys: list[Any]) -> None:
    """Ask for each, keep nothing."""
    for key in keys:
        get(key)


def versions_of(count: int, keys: int, seed: int = 1) -> Versions:
    """Random keys of 16 bytes, values of 24, times that rise by 10 ms."""
    rng = random.Random(seed)
    names = [rng.randbytes(16) for _ in range(keys)]
    return [(rng.choice(names), rng.randbytes(24), 10 * i) for i in range(count)]


def open_versions(folder: Path, retention_ms: int = 24 * HOUR_MS) -> Store:
    spec = ss.persistent_versioned_key_value_store("versions", retention_ms)
    store: Store = ss.open_store(spec, folder, settings=SETTINGS)
    return store


def in_commits(store: Any, records: list[Any], write: Callable[[list[Any]], None]) -> float:
    """How long it takes to write all, a commit every so many."""

    def work() -> None:
        for start in range(0, len(records), PER_COMMIT):
            write(records[start : start + PER_COMMIT])
            store.commit()

    return seconds(work)


def in_calls(put_all: Callable[[list[Any]], None]) -> Callable[[list[Any]], None]:
    def write(records: list[Any]) -> None:
        for start in range(0, len(records), PER_CALL):
            put_all(records[start : start + PER_CALL])

    return write


def put_plain(folder: Path, records: Versions, how: str) -> float:
    """Into a plain store."""
    pairs = [(key, value) for key, value, _ in records]
    with ss.open_store(PLAIN, folder, settings=SETTINGS) as store:

        def one_by_one(rows: list[Any]) -> None:
            put = store.put
            for key, value in rows:
                put(key, value)

        write = one_by_one if how == "put" else in_calls(store.put_all)
        return in_commits(store, pairs, write)


def put_versions(folder: Path, records: Versions, how: str) -> float:
    """Into a versioned store."""
    with open_versions(folder) as store:

        def one_by_one(rows: list[Any]) -> None:
            put = store.put
            for key, value, time in rows:
                put(key, value, time)

        write = one_by_one if how == "put" else in_calls(store.put_all)
        return in_commits(store, records, write)


def bench_writes(bench: Bench, records: int, repeats: int) -> None:
    for per_key in (1, 30):
        rows = versions_of(records, records // per_key)
        for how in ("put", "put_all"):
            ratios, rates = [], []
            for _ in range(repeats):
                with scratch() as folder:
                    plain = put_plain(folder, rows, how)
                    ours = put_versions(folder, rows, how)
                ratios.append(plain / ours)
                rates.append(records / ours)
            name = f"{how}, {per_key} versions a key"
            bench.add(f"{name}, versions", "1/s", rates)
            # With many versions a key the plain store writes one row a key and commit, ours all.
            goal = ">= 0.4" if per_key == 1 else ""
            bench.add(f"{name}, versioned / plain", "x", ratios, goal)


def bench_reads(bench: Bench, records: int, repeats: int) -> None:
    """Latest against a plain get; as of any time, and history, over 100 versions a key."""
    rows = versions_of(records, records // 100)
    chance = random.Random(2)
    asked = [(chance.choice(rows)[0], chance.randrange(10 * records)) for _ in range(20_000)]
    keys, times = [key for key, _ in asked], [time for _, time in asked]
    with scratch() as folder, ss.open_store(PLAIN, folder, settings=SETTINGS) as plain:
        in_commits(plain, [(key, value) for key, value, _ in rows], in_calls(plain.put_all))
        with open_versions(folder) as store:
            in_commits(store, rows, in_calls(store.put_all))
            plain.staged.make_durable()
            store.staged.make_durable()
            ratios, as_of, batched, history = [], [], [], []
            for _ in range(repeats):
                took = seconds(lambda: each(plain.get, keys))
                ratios.append(took / seconds(lambda: each(store.get, keys)))
                took = seconds(lambda: [store.get(key, as_of=time) for key, time in asked])
                as_of.append(len(asked) / took)
                took = seconds(lambda: store.table.get_many_as_of(keys, times))
                batched.append(len(asked) / took)
                took = seconds(lambda: [list(store.history(key)) for key in keys[:500]])
                history.append(500 * 100 / took)
    bench.add("latest get, versioned / plain", "x", ratios, ">= 0.8")
    bench.add("get as of any time, 100 versions a key", "1/s", as_of)
    bench.add("the same, in one batch as joins ask", "1/s", batched)
    bench.add("history, 100 versions a key", "versions/s", history)


def bench_expiry(bench: Bench, repeats: int) -> None:
    """The commit that drops a segment of a million versions; by the clock, as users wait for it."""
    rows = [(b"%08d" % (i % (SEGMENT_ROWS // 2)), b"v" * 24, i // 500) for i in range(SEGMENT_ROWS)]
    took, cpu, read = [], [], []
    for _ in range(repeats):
        with scratch() as folder, open_versions(folder, HOUR_MS) as store:
            in_commits(store, rows, in_calls(store.put_all))
            store.put_all([(key, b"w", 100_000) for key, _, _ in rows[: SEGMENT_ROWS // 2]])
            store.commit()
            assert len(list(store.history(rows[0][0]))) == 3
            # Else the commit also waits for the flush that a million records have made due.
            store.staged.make_durable()
            store.put(b"later", b"x", 100 * HOUR_MS)
            gc.collect()
            began, worked = perf_counter(), process_time()
            store.commit()
            took.append(1000 * (perf_counter() - began))
            cpu.append(1000 * (process_time() - worked))
            read.append(1000 * seconds(lambda: next(iter(store.table.history.scan(b"v")), None)))
            assert next(iter(store.table.history.scan(b"v")), None) is None
    bench.add(f"commit that expires {SEGMENT_ROWS} versions", "ms", took, "milliseconds")
    bench.add("the same, processor time", "ms", cpu)
    bench.add("the first scan over where they were, processor time", "ms", read)


@click.command()
@click.option("--repeats", default=5, show_default=True)
@click.option("--records", default=300_000, show_default=True)
@click.option("--only", multiple=True, help="writes, reads, expiry")
def main(repeats: int, records: int, only: tuple[str, ...]) -> None:
    """Measure versioned stores against plain ones."""
    bench = Bench("bench_versions")
    parts: dict[str, Callable[[], None]] = {
        "writes": lambda: bench_writes(bench, records, repeats),
        "reads": lambda: bench_reads(bench, records, repeats),
        "expiry": lambda: bench_expiry(bench, min(repeats, 3)),
    }
    for name, part in parts.items():
        if not only or name in only:
            part()
    bench.finish()


if __name__ == "__main__":
    main()
