"""What the store benchmark measures in processes of their own: memory, and deaths by SIGKILL."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import NamedTuple, TypeVar

import psutil

import statestore as ss
from statestore.stores.specs import KeyValueSpec
from tests.bench.harness import ROOT, SCRATCH

T = TypeVar("T")
A = TypeVar("A")

SPEC = ss.persistent_key_value_store("bench")
LOG = ss.TopicPartition("bench-changelog", 0)
IDLE_MS = 200
_PER_COMMIT = 20_000


def in_child(work: Callable[[A], T], argument: A) -> T:
    """Run it in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, argument).result()


class CommitCost(NamedTuple):
    commit_ms: float
    pending_bytes: int
    peak_bytes: int


def measure_commit(count: int) -> CommitCost:
    """Stage `count` random records of 100 bytes, commit them; resident memory on the way."""
    folder = Path(mkdtemp(dir=SCRATCH))
    rng = random.Random(5)
    with ss.open_store(SPEC, folder, settings={"statestore.wal": False}) as store:
        store.put_all((rng.randbytes(16), rng.randbytes(84)) for _ in range(1000))
        store.commit()
        before = _resident()
        for _ in range(count):
            store.put(rng.randbytes(16), rng.randbytes(84))
        pending = _resident()
        _forget_peak()
        began = perf_counter()
        store.commit()
        took = perf_counter() - began
        peak = _peak()
    rmtree(folder)
    return CommitCost(1000 * took, pending - before, max(0, peak - pending))


def _resident() -> int:
    size: int = psutil.Process().memory_info().rss
    return size


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class Reopened(NamedTuple):
    open_ms: float
    lost: int


def reopened(
    folder: Path, spec: KeyValueSpec[bytes, bytes], count: int, *, run: int, idle: bool
) -> Reopened:
    """Let a writer over `count` rows be killed in its stride, or at rest; open what it left."""
    order = json.dumps({"folder": str(folder), "count": count, "run": run, "idle": idle})
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.store_children", order],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = child.communicate()
    assert child.returncode == -signal.SIGKILL, out
    committed = int(out.split()[-1])
    began = perf_counter()
    with ss.open_store(spec, folder, settings={"statestore.wal": False}) as store:
        store.get(b"nobody")
        took = perf_counter() - began
        offset = store.committed_offset(LOG)
    assert offset is not None
    return Reopened(1000 * took, committed - offset)


def write_until_killed(folder: str, count: int, run: int, *, idle: bool) -> None:
    """Fill a new store, go on writing, say how far the commits got, die."""
    settings: dict[str, object] = {"statestore.wal": False}
    if idle:
        settings["statestore.flush.lag.max.ms"] = IDLE_MS
    rng = random.Random(run)
    store = ss.open_store(SPEC, Path(folder), settings=settings)
    offset = store.committed_offset(LOG) or 0
    # Once filled, a writer dies at a random number of commits after its last flush.
    more = max(count - offset, 0) + rng.randrange(20) * _PER_COMMIT + 1
    while more > 0:
        size = min(more, _PER_COMMIT)
        store.put_all((rng.randbytes(16), rng.randbytes(84)) for _ in range(size))
        offset += size
        more -= size
        store.commit({LOG: offset})
    deadline = perf_counter() + 10 * IDLE_MS / 1000
    rest = threading.Event()
    while idle and store.durable_offset(LOG) != offset and perf_counter() < deadline:
        rest.wait(0.01)
        store.staged.maintain()
    print(offset, flush=True)  # noqa: T201  # the parent reads it
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    write_until_killed(**json.loads(sys.argv[1]))
