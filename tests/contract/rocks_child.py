"""What processes of their own do in the RocksDB tests.

`python -m tests.contract.rocks_child VERB FOLDER`

A verb says JSON lines; several end by SIGKILL, by their own hand or by the test's.
"""

import importlib
import json
import os
import random
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from statestore.engines.rocks import RocksEngine, RocksMemory, RocksTuning, open_rocks
from statestore.errors import StateStoreError, StoreClosed

TABLES = ("data", "offsets")
KEYS = 200
ROUNDS = 50
HELD: list[Exception] = []  # with their tracebacks: they must keep no folder locked


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def tuning(*, wal: bool = False, buffer_bytes: int = 1 << 20, files: int = 64) -> RocksTuning:
    return RocksTuning(
        memory=RocksMemory.of_bytes(16 << 20),
        write_ahead_log=wal,
        write_buffer_bytes=buffer_bytes,
        options_hook=lambda options: options.set_max_open_files(files),
    )


def write(engine: RocksEngine, number: int) -> None:
    """One commit: all data rows and the offset carry its number."""
    value = b"%d" % number
    rows: dict[bytes, bytes | None] = {
        b"%04d" % key: value + b"." + random.randbytes(100) for key in range(KEYS)
    }
    engine.write({"data": rows, "offsets": {b"t-0": value}})


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def flush_then_die(folder: Path) -> None:
    engine = open_rocks(folder, tables=TABLES, tuning=tuning())
    write(engine, 1)
    engine.flush()
    write(engine, 2)
    die()


def checkpoint_then_die(folder: Path) -> None:
    engine = open_rocks(folder, tables=TABLES, tuning=tuning())
    write(engine, 1)
    engine.checkpoint(folder.with_name("checkpoint"))
    die()


def log_then_die(folder: Path) -> None:
    engine = open_rocks(folder, tables=TABLES, tuning=tuning(wal=True))
    write(engine, 1)
    write(engine, 2)
    die()


def write_until_killed(folder: Path) -> None:
    """Commit without end; memtables fill and flush by themselves, and `flush` comes in between."""
    engine = open_rocks(folder, tables=TABLES, tuning=tuning(buffer_bytes=64 << 10))
    number = int(engine.table("offsets").get(b"t-0") or b"0")
    while True:
        number += 1
        write(engine, number)
        if number % 7 == 0:
            engine.flush()
            say(durable=number)


def leave_open(folder: Path) -> None:
    """End without close."""
    engine = open_rocks(folder, tables=TABLES, tuning=tuning())
    write(engine, 1)
    engine.flush()
    write(engine, 2)
    cycle: list[object] = [engine]
    cycle.append(cycle)


def hold(folder: Path) -> None:
    engine = open_rocks(folder, tables=TABLES, tuning=tuning())
    say(open=True)
    sys.stdin.read()
    engine.close()


def fill_disk(folder: Path) -> None:
    """No file may grow beyond 20 kB: a flush fails half-way, as on a full disk."""
    engine = open_rocks(folder, tables=TABLES, tuning=tuning())
    write(engine, 1)
    engine.flush()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    for number in range(2, 5):
        write(engine, number)
    say(flush=outcome(engine.flush))
    say(write=outcome(lambda: write(engine, 5)))
    say(checkpoint=outcome(lambda: engine.checkpoint(folder.with_name("checkpoint"))))
    say(close=outcome(engine.close))


def few_files(folder: Path) -> None:
    """Open with 1, 2, … spare file descriptors until there are enough."""
    for number in range(1, 4):
        engine = open_rocks(folder, tables=TABLES, tuning=tuning())
        write(engine, number)
        engine.close()
    made = tuning(files=-1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = ["not tried"]
    while outcomes[-1] != "done":
        spare = len(outcomes) + len(list(Path("/proc/self/fd").iterdir())) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, most))
        outcomes.append(outcome(lambda: open_rocks(folder, tables=TABLES, tuning=made).close()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    say(outcomes=outcomes[1:])


def as_nobody(folder: Path) -> None:
    """Open a folder this user must not write to."""
    importlib.import_module("pickle")  # rocksdict's, and the library may be closed to nobody
    folder.mkdir()
    folder.chmod(0o555)
    folder.parent.chmod(0o755)
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    say(open=outcome(lambda: open_rocks(folder, tables=TABLES, tuning=tuning())))


def read_all(folder: Path) -> None:
    """Read everything in every way: the values of commit 1, or an error, or a wrong answer."""
    try:
        engine = open_rocks(folder, tables=TABLES, tuning=tuning())
    except StateStoreError as error:
        say(open=f"{type(error).__name__}: {error}")
        return
    data = engine.table("data")
    keys = [b"%04d" % key for key in range(KEYS)]

    def whole(values: list[bytes | None]) -> None:
        assert len(values) == KEYS, f"{len(values)} rows of {KEYS}"
        assert all(value is not None and value.startswith(b"1.") for value in values), "lost rows"

    reads: dict[str, Callable[[], None]] = {
        "get": lambda: whole([data.get(key) for key in keys]),
        "get_many": lambda: whole(data.get_many(keys)),
        "scan": lambda: whole([value for _, value in data.scan()]),
        "reverse": lambda: whole([value for _, value in data.scan(reverse=True)]),
    }
    said = {name: outcome(read, engine) for name, read in reads.items()}
    engine.close()
    reopened = outcome(lambda: open_rocks(folder, tables=TABLES, tuning=tuning()))
    say(open="done", reopen=reopened, **said)


def outcome(action: Callable[[], object], engine: RocksEngine | None = None) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the test judges it
        HELD.append(error)
        ours = engine.failure(error) if engine else None
        return f"{type(ours or error).__name__}: {ours or error}"
    return "done"


def stress(folder: Path) -> None:
    """Threads read, list and scan while the owner writes and closes; then open again at once."""
    shared = tuning(buffer_bytes=64 << 10)
    for number in range(1, ROUNDS + 1):
        engine = open_rocks(folder, tables=TABLES, tuning=shared)
        threads = [
            threading.Thread(target=read_until_closed, args=(engine, seed)) for seed in range(4)
        ]
        for thread in threads:
            thread.start()
        for step in range(number % 5 + 1):
            write(engine, number * 10 + step)
            if step == 3:
                engine.flush()
        engine.close()
        open_rocks(folder, tables=TABLES, tuning=shared).close()
        for thread in threads:
            thread.join()
    say(rounds=ROUNDS)


def read_until_closed(engine: RocksEngine, seed: int) -> None:
    chosen = random.Random(seed)
    data = engine.table("data")
    keys = [b"%04d" % key for key in range(KEYS)]
    kept = []
    reads: list[Callable[[], object]] = [
        lambda: [data.get(key) for key in keys],
        lambda: data.get_many(keys * 5),
        lambda: list(data.scan(reverse=chosen.random() < 0.5)),
        lambda: kept.append(data.scan(b"0010")),
        lambda: next(chosen.choice(kept)) if kept else None,
        data.approximate_count,
    ]
    while True:
        try:
            with suppress(StopIteration):
                chosen.choice(reads)()
        except Exception as error:
            if isinstance(engine.failure(error) or error, StoreClosed):
                return
            raise


VERBS = {
    function.__name__: function
    for function in (
        *(flush_then_die, checkpoint_then_die, log_then_die, write_until_killed, leave_open),
        *(hold, fill_disk, few_files, as_nobody, read_all, stress),
    )
}

if __name__ == "__main__":
    VERBS[sys.argv[1]](Path(sys.argv[2]))
