"""Stores against plain rocksdict, in one process and one run: issue of speed, not of correctness.

    python -m tests.bench.bench_stores [--repeats 5] [--long]

Both sides have identical Options and the log (WAL) off. What is compared is measured right after
each other, in turn, several times; each pair on a fresh folder.
"""

import gc
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, cast

import click
from rocksdict import Rdict

import statestore as ss
from statestore.engines.rocks import RocksMemory, RocksTuning, options, write_options
from statestore.settings import Settings
from statestore.stores.keyvalue import TransactionalKeyValueStore
from tests.bench.harness import Bench, scratch
from tests.bench.store_children import in_child, measure_commit, reopened

SPEC = ss.persistent_key_value_store("bench")
RECORDS = 500_000
PER_COMMIT = 100_000
PER_CALL = 10_000
ROWS = 200_000
SETTINGS = {"statestore.wal": False}

Pairs = list[tuple[bytes, bytes]]
Store = TransactionalKeyValueStore[bytes, bytes]


def pairs_of(count: int, value_bytes: int, seed: int = 1) -> Pairs:
    """Random records, keys of 16 bytes."""
    rng = random.Random(seed)
    return [(rng.randbytes(16), rng.randbytes(value_bytes)) for _ in range(count)]


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, the collector out of the way."""
    gc.collect()
    gc.disable()
    try:
        began = perf_counter()
        work()
        return perf_counter() - began
    finally:
        gc.enable()


def open_plain(folder: Path) -> tuple[Rdict, Rdict]:
    """A database as our engine opens it, and its data family, without anything of ours."""
    tuning = RocksTuning(memory=RocksMemory.of_bytes(Settings().memory_bytes))
    families = {name: options(tuning) for name in ("default", "data", "offsets")}
    db = Rdict(str(folder), options(tuning), families)
    db.set_write_options(write_options(tuning))
    family = db.get_column_family("data")
    family.set_write_options(write_options(tuning))
    return db, family


def open_store(folder: Path) -> Store:
    store: Store = ss.open_store(SPEC, folder, settings=SETTINGS)
    return store


# The commit path.


def plain_puts(folder: Path, pairs: Pairs) -> float:
    """The same records put one by one, as rocksdict offers it."""
    db, family = open_plain(folder)

    def work() -> None:
        put = family.put
        for key, value in pairs:
            put(key, value)

    took = seconds(work)
    family.close()
    db.close()
    return took


def store_puts(folder: Path, pairs: Pairs, how: Literal["put", "put_all"]) -> float:
    """The same through a store, a commit every 100 000."""
    with open_store(folder) as store:

        def work() -> None:
            put = store.put
            for start in range(0, len(pairs), PER_COMMIT):
                stop = start + PER_COMMIT
                if how == "put":
                    for key, value in pairs[start:stop]:
                        put(key, value)
                else:
                    for at in range(start, stop, PER_CALL):
                        store.put_all(pairs[at : at + PER_CALL])
                store.commit()

        return seconds(work)


def bench_writes(bench: Bench, repeats: int) -> None:
    for value_bytes in (84, 8):
        pairs = pairs_of(RECORDS, value_bytes)
        took: dict[str, list[float]] = {"plain": [], "put": [], "put_all": []}
        for _ in range(repeats):
            for name, work in (
                ("plain", lambda folder: plain_puts(folder, pairs)),  # noqa: B023  # called at once
                ("put_all", lambda folder: store_puts(folder, pairs, "put_all")),  # noqa: B023
                ("put", lambda folder: store_puts(folder, pairs, "put")),  # noqa: B023
            ):
                with scratch() as folder:
                    took[name].append(cast("Callable[[Path], float]", work)(folder))
        size = f"{16 + value_bytes} B"
        bench.add(f"plain puts, {size}", "rec/s", [RECORDS / s for s in took["plain"]])
        for name in ("put_all", "put"):
            bench.add(f"{name} and commit, {size}", "rec/s", [RECORDS / s for s in took[name]])
            bench.ratios(
                f"commit path by {name} / plain puts, {size}",
                took["plain"],
                took[name],
                ">= 1.0 (1.5)",
            )


# Reads.


def bench_reads(bench: Bench, repeats: int) -> None:
    pairs = pairs_of(ROWS, 84)
    keys = [key for key, _ in pairs]
    random.Random(2).shuffle(keys)
    with scratch() as folder, open_store(folder) as store:
        store.put_all(pairs)
        store.commit()
        store.staged.make_durable()
        _bench_gets(bench, store, keys, repeats, "nothing pending")
        _bench_lists(bench, store, keys, repeats, "nothing pending")
        _bench_ranges(bench, store, sorted(keys), repeats, "nothing pending")
        store.put_all(pairs_of(PER_CALL, 84, seed=3))
        _bench_gets(bench, store, keys, repeats, "10 k others pending")
        _bench_lists(bench, store, keys, repeats, "10 k others pending")
        _bench_ranges(bench, store, sorted(keys), repeats, "10 k others pending")
        store.rollback()


def _engine_get(store: Store) -> Callable[[Any], Any]:
    """rocksdict's own get on the very same database: same cache, same files."""
    get: Callable[[Any], Any] = store.staged.table("data").get
    assert type(get.__self__).__name__ == "Rdict"  # type: ignore[attr-defined]  # a bound method
    return get


def _bench_gets(bench: Bench, store: Store, keys: list[bytes], repeats: int, pending: str) -> None:
    raw = _engine_get(store)

    def each(get: Callable[[bytes], object]) -> Callable[[], None]:
        def work() -> None:
            for key in keys:
                get(key)

        return work

    reader = store.reader(ss.IsolationLevel.READ_UNCOMMITTED)
    took = in_turn(
        repeats, {"raw": each(raw), "store": each(store.get), "reader": each(reader.get)}
    )
    bench.add(f"raw get, {pending}", "get/s", [len(keys) / s for s in took["raw"]])
    bench.ratios(f"get / raw get, {pending}", took["raw"], took["store"], ">= 0.7")
    bench.ratios(f"reader's get / raw get, {pending}", took["raw"], took["reader"])


def _bench_lists(bench: Bench, store: Store, keys: list[bytes], repeats: int, pending: str) -> None:
    raw = _engine_get(store)
    for count in (100, 10_000, 100_000):
        lists = [keys[at : at + count] for at in range(0, len(keys), count)]

        def each(get: Callable[[list[bytes]], object], of: list[list[bytes]]) -> Callable[[], None]:
            def work() -> None:
                for some in of:
                    get(some)

            return work

        took = in_turn(repeats, {"raw": each(raw, lists), "store": each(store.get_many, lists)})
        bench.ratios(
            f"get_many / raw list-get, {count} keys, {pending}",
            took["raw"],
            took["store"],
            ">= 0.9",
        )


def _bench_ranges(
    bench: Bench, store: Store, ordered: list[bytes], repeats: int, pending: str
) -> None:
    family: Rdict = _engine_get(store).__self__  # type: ignore[attr-defined]  # a bound method
    spans = [(ordered[at], ordered[at + 99]) for at in range(0, len(ordered) - 100, 1000)]

    def raw_short() -> None:
        for lo, hi in spans:
            for pair in family.items(from_key=lo):
                if cast("bytes", pair[0]) >= hi:
                    break

    def short() -> None:
        for lo, hi in spans:
            for _ in store.range(lo, hi):
                pass

    def drain(pairs: Callable[[], Any]) -> Callable[[], None]:
        def work() -> None:
            for _ in pairs():
                pass

        return work

    took = in_turn(repeats, {"raw": drain(family.items), "store": drain(store.all)})
    bench.add(f"raw iteration, {pending}", "rec/s", [ROWS / s for s in took["raw"]])
    bench.ratios(f"range / raw, all rows, {pending}", took["raw"], took["store"], ">= 0.5")
    took = in_turn(repeats, {"raw": raw_short, "store": short})
    bench.ratios(f"range / raw, 100 rows, {pending}", took["raw"], took["store"], ">= 0.5")


def in_turn(repeats: int, works: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each work, one after the other, `repeats` times; a first round warms up."""
    took: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            spent = seconds(work)
            if repeat:
                took[name].append(spent)
    return took


# Pending entries: latency and memory.


def bench_pending(bench: Bench, repeats: int) -> None:
    for count in (1_000, 10_000, 100_000, 300_000, 1_000_000):
        found = [in_child(measure_commit, count) for _ in range(repeats if count < 1e6 else 3)]
        bench.add(f"commit of {count} entries", "ms", [each.commit_ms for each in found])
        bench.add(
            f"commit of {count} entries, per entry",
            "us",
            [1000 * each.commit_ms / count for each in found],
            "linear",
        )
        bench.add(
            f"pending {count} entries, memory per entry",
            "B",
            [each.pending_bytes / count for each in found],
        )
        bench.add(
            f"commit of {count} entries, peak beyond pending, per entry",
            "B",
            [each.peak_bytes / count for each in found],
        )


# Readers beside the writer.


@dataclass(frozen=True)
class Load:
    """What reader threads ask for, a second and in all."""

    gets: int
    ranges: int
    threads: int


def bench_readers(bench: Bench, repeats: int) -> None:
    """Paced readers: a thread that reads without pause takes its share of any interpreter."""
    pairs = pairs_of(RECORDS, 84)
    levels: Sequence[ss.IsolationLevel | None] = (
        None,
        ss.IsolationLevel.READ_COMMITTED,
        ss.IsolationLevel.READ_UNCOMMITTED,
    )
    for load in (Load(gets=1000, ranges=0, threads=2), Load(gets=500, ranges=10, threads=2)):
        took: dict[str, list[float]] = {str(level): [] for level in levels}
        for _ in range(repeats):
            for level in levels:
                with scratch() as folder:
                    took[str(level)].append(_written_beside(folder, pairs, level, load))
        what = f"{load.gets} gets/s and {load.ranges} ranges/s on {load.threads} threads"
        for level in levels[1:]:
            bench.ratios(
                f"writer beside {level} readers / alone, {what}",
                took["None"],
                took[str(level)],
                ">= 0.9" if level is ss.IsolationLevel.READ_UNCOMMITTED else "",
            )


def _written_beside(
    folder: Path, pairs: Pairs, level: ss.IsolationLevel | None, load: Load
) -> float:
    done = threading.Event()
    with open_store(folder) as store:
        readers = []
        if level is not None:
            readers = [
                threading.Thread(target=_read_along, args=(store.reader(level), pairs, load, done))
                for _ in range(load.threads)
            ]
        for reader in readers:
            reader.start()

        def work() -> None:
            for start in range(0, len(pairs), PER_COMMIT):
                for at in range(start, start + PER_COMMIT, PER_CALL):
                    store.put_all(pairs[at : at + PER_CALL])
                store.commit()

        took = seconds(work)
        done.set()
        for reader in readers:
            reader.join()
    return took


def _read_along(reader: Any, pairs: Pairs, load: Load, done: threading.Event) -> None:
    rng = random.Random(4)
    ticks = 100
    tick = 0
    while not done.wait(1 / ticks):
        tick += 1
        for _ in range(load.gets // load.threads // ticks):
            reader.get(rng.choice(pairs)[0])
        if load.ranges and tick % (ticks * load.threads // load.ranges) == 0:
            lo = rng.choice(pairs)[0]
            with reader.range(lo, lo[:2] + b"\xff" * 14) as found:
                for _ in found:
                    pass


# After a kill.


def bench_reopen(bench: Bench, repeats: int, *, long: bool) -> None:
    for count in (10_000, 100_000, 1_000_000, *((10_000_000,) if long else ())):
        with scratch() as folder:
            found = [
                reopened(folder, SPEC, count, run=run, idle=False)
                for run in range(repeats if count < 1e7 else 3)
            ]
            idle = reopened(folder, SPEC, count, run=-1, idle=True)
        limit = f"<= {Settings().flush_lag_max_records}"
        bench.add(
            f"reopen after SIGKILL, {count} rows", "ms", [each.open_ms for each in found], "flat"
        )
        bench.add(
            f"records past the durable offset, {count} rows",
            "records",
            [each.lost for each in found],
            limit,
        )
        bench.add(f"the same, idle for its limit, {count} rows", "records", [idle.lost], "0")


@click.command()
@click.option("--repeats", default=5, show_default=True)
@click.option("--long", is_flag=True, help="Also 10 million rows.")
@click.option("--only", multiple=True, help="writes, reads, pending, readers, reopen")
def main(repeats: int, long: bool, only: tuple[str, ...]) -> None:
    """Measure stores against plain rocksdict."""
    bench = Bench("bench_stores")
    parts: dict[str, Callable[[], None]] = {
        "writes": lambda: bench_writes(bench, repeats),
        "reads": lambda: bench_reads(bench, repeats),
        "pending": lambda: bench_pending(bench, repeats),
        "readers": lambda: bench_readers(bench, repeats),
        "reopen": lambda: bench_reopen(bench, repeats, long=long),
    }
    for name, part in parts.items():
        if not only or name in only:
            part()
    bench.finish()


if __name__ == "__main__":
    main()
