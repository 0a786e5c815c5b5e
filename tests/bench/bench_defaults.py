"""What stands behind the defaults of a store: flush lag, write buffers, memory.

    python -m tests.bench.bench_defaults [--repeats 3] [--only lag]

Each candidate is measured right after the default, in turn; what counts is the quotient. `--only`
takes lag, buffers, memory.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click
from rocksdict import Options

import statestore as ss
from statestore.settings import Settings
from tests.bench.bench_stores import SPEC, Pairs, Store, pairs_of, seconds
from tests.bench.harness import Bench, scratch

RECORDS = 400_000
PER_COMMIT = 20_000
ROWS = 1_000_000
GETS = 100_000
_MIB = 1 << 20

# As often as the shares of a limit: bytes and records together.
_LAGS = {"1/8": 1 / 8, "1/2": 1 / 2, "1": 1, "2": 2, "8": 8}
_BUFFERS = (1, 4, 16, 64)
_MEMORIES = (16, 64, 128, 512)


def opened(folder: Path, settings: Mapping[str, object]) -> Store:
    store: Store = ss.open_store(SPEC, folder, settings={"statestore.wal": False, **settings})
    return store


def lag(share: float) -> dict[str, object]:
    """The limits of the durable lag, `share` times the defaults."""
    default = Settings()
    return {
        "statestore.flush.lag.max.bytes": int(share * default.flush_lag_max_bytes),
        "statestore.flush.lag.max.records": int(share * default.flush_lag_max_records),
    }


def write(settings: Mapping[str, object], pairs: Pairs) -> float:
    """Seconds to write these records, a commit every 20 000."""
    with scratch() as folder, opened(folder, settings) as store:

        def work() -> None:
            for at in range(0, len(pairs), PER_COMMIT):
                store.put_all(pairs[at : at + PER_COMMIT])
                store.commit()

        return seconds(work)


def replay(count: int, pairs: Pairs) -> float:
    """Seconds to write what a crash costs at most, as a restore does."""
    with scratch() as folder, opened(folder, {}) as store:

        def work() -> None:
            for at in range(0, count, PER_COMMIT):
                some: dict[bytes, bytes | None] = dict(pairs[at : min(at + PER_COMMIT, count)])
                store.staged.restore("data", some, {})

        return seconds(work)


def bench_lag(bench: Bench, repeats: int) -> None:
    default = Settings()
    for value_bytes in (84, 8):
        pairs = pairs_of(RECORDS, value_bytes)
        size = f"{16 + value_bytes} B"
        compared(
            bench,
            repeats,
            {name: partial(write, lag(share), pairs) for name, share in _LAGS.items()},
            f"writes with {{}} of the default lag / default, {size}",
            against="1",
        )
        most = min(default.flush_lag_max_records, default.flush_lag_max_bytes // (16 + value_bytes))
        for name, share in _LAGS.items():
            # A lag beyond what is at hand is measured in parts.
            count = min(int(share * most), RECORDS)
            parts = int(share * most) / count
            took = [1000 * parts * replay(count, pairs) for _ in range(repeats)]
            bench.add(f"replay of {name} of the default lag without reading it, {size}", "ms", took)


def buffers_1(_store: str, options: Options) -> None:
    options.set_write_buffer_size(1 * _MIB)


def buffers_4(_store: str, options: Options) -> None:
    options.set_write_buffer_size(4 * _MIB)


def buffers_16(_store: str, options: Options) -> None:
    options.set_write_buffer_size(16 * _MIB)


def buffers_64(_store: str, options: Options) -> None:
    options.set_write_buffer_size(64 * _MIB)


def bench_buffers(bench: Bench, repeats: int) -> None:
    pairs = pairs_of(RECORDS, 84)

    def hook(size: int) -> dict[str, object]:
        return {"rocksdb.config.setter": f"tests.bench.bench_defaults:buffers_{size}"}

    compared(
        bench,
        repeats,
        {f"{size} MiB": partial(write, hook(size), pairs) for size in _BUFFERS},
        "writes with write buffers of {} / 16 MiB",
        against="16 MiB",
    )


def bench_memory(bench: Bench, repeats: int) -> None:
    """Uniform gets over more rows than fit, the worst a cache can meet, and a hot tenth of them."""
    pairs = pairs_of(ROWS, 84)
    rng = random.Random(7)
    keys = [key for key, _ in pairs]
    asked = {"all rows": rng.choices(keys, k=GETS), "a tenth": rng.choices(keys[::10], k=GETS)}
    with scratch() as folder:
        with opened(folder, {}) as store:
            for at in range(0, ROWS, PER_COMMIT):
                store.put_all(pairs[at : at + PER_COMMIT])
                store.commit()
        for what, some in asked.items():
            compared(
                bench,
                repeats,
                {f"{size} MiB": partial(_gets, folder, size, some) for size in _MEMORIES},
                f"gets over {what} of {ROWS} with {{}} / 128 MiB",
                against="128 MiB",
            )


def _gets(folder: Path, size_mib: int, asked: list[bytes]) -> float:
    with opened(folder, {"statestore.memory.bytes": size_mib * _MIB}) as store:
        store.get_many(asked)

        def work() -> None:
            get = store.get
            for key in asked:
                get(key)

        return seconds(work)


def compared(
    bench: Bench, repeats: int, works: dict[str, Callable[[], float]], name: str, *, against: str
) -> None:
    """How much faster than `against`, which is measured anew for each."""
    for key, work in works.items():
        if key != against:
            took = [(works[against](), work()) for _ in range(repeats)]
            bench.ratios(name.format(key), [a for a, _ in took], [b for _, b in took])


@click.command()
@click.option("--repeats", default=3, show_default=True)
@click.option("--only", multiple=True, help="lag, buffers, memory")
def main(repeats: int, only: tuple[str, ...]) -> None:
    """Measure the defaults of stores against others."""
    bench = Bench("bench_defaults")
    parts = {"lag": bench_lag, "buffers": bench_buffers, "memory": bench_memory}
    for name, part in parts.items():
        if not only or name in only:
            part(bench, repeats)
    bench.finish()


if __name__ == "__main__":
    main()
