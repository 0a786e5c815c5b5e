"""What each test costs: real seconds, and those of a processor with the processes it started.

A plugin of pytest. With TEST_TIMES=FOLDER every process of a run appends lines of JSON to a file of
its own in that folder, so that nothing is lost when one of them dies. `scripts/test_times.py` reads
them.
"""

import json
import os
import resource
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_WORTH_TELLING_S = 0.01
_FRESH_S = 0.02
_VARIABLE = "TEST_TIMES"


class Clock(NamedTuple):
    """Seconds since some moment: those that passed, and those a processor worked."""

    real: float
    cpu: float

    @classmethod
    def now(cls) -> "Clock":
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        dead = used.ru_utime + used.ru_stime
        return cls(time.perf_counter(), time.process_time() + dead + _below.cpu(dead))

    def since(self, earlier: "Clock") -> dict[str, float]:
        return {
            "real": round(self.real - earlier.real, 4),
            "cpu": round(max(self.cpu - earlier.cpu, 0.0), 4),
        }


class Below:
    """What the processes below this one cost.

    Looking takes as long as a short test does, so what was found serves for some milliseconds, if
    no process has died meanwhile: its cost is that of dead ones then.
    """

    def __init__(self) -> None:
        self._found, self._at, self._dead = 0.0, 0.0, -1.0

    def cpu(self, dead: float) -> float:
        if dead != self._dead or time.perf_counter() - self._at > _FRESH_S:
            self._found = _cpu_below(os.getpid()) if _has_children() else 0.0
            self._at, self._dead = time.perf_counter(), dead
        return self._found


_below = Below()


def _has_children() -> bool:
    """Most tests have none, and it takes long to look through all threads."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _cpu_below(pid: int) -> float:
    """Of all processes below one; those that died and were waited for count at their parent."""
    total = 0.0
    for child in _children(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) / _TICKS + _cpu_below(child)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it ends meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


class Recorder:
    """Writes what one process of a run did."""

    def __init__(self, folder: Path, process: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{process}.jsonl").open("w", buffering=1, encoding="utf-8")
        self._began = Clock.now()

    def _write(self, what: str, since: Clock, name: str = "", phase: str = "") -> None:
        took = Clock.now().since(since)
        self._file.write(json.dumps({"what": what, "name": name, "phase": phase, **took}) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        start = Clock.now()
        result = yield
        self._write("collection", start)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        start = Clock.now()
        result = yield
        if isinstance(collector, pytest.Module):
            self._write("module", start, collector.nodeid)
        return result

    def _phase(self, item: pytest.Item, phase: str) -> Generator[None, object, object]:
        start = Clock.now()
        try:
            return (yield)
        finally:
            self._write("test", start, item.nodeid, phase)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item, "call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase(item, "teardown"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        start = Clock.now()
        try:
            return (yield)
        finally:
            if time.perf_counter() - start.real > _WORTH_TELLING_S:
                name = f"{fixturedef.baseid}::{fixturedef.argname}"
                self._write("fixture", start, name, fixturedef.scope)

    def pytest_sessionfinish(self) -> None:
        self._write("whole", self._began)
        self._file.close()


def pytest_configure(config: pytest.Config) -> None:
    if _VARIABLE not in os.environ:
        return
    folder = str(Path(os.environ[_VARIABLE]).resolve())
    process = os.environ.get("PYTEST_XDIST_WORKER")
    if process is None:
        for old in Path(folder).glob("*.jsonl"):
            old.unlink()
        os.environ["TEST_TIMES_OF_BROKER"] = folder  # for who keeps the shared one
    else:
        del os.environ[_VARIABLE]  # a pytest that a test starts is another run
    config.pluginmanager.register(Recorder(Path(folder), process or "controller"), "test-times")
