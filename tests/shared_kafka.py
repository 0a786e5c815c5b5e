"""One broker for all processes of a test run, which ends with the last of them.

The first process that needs it starts a keeper, which starts the broker and ends it. Each process
of the run holds a lock of the file `users` while it may need the broker; the keeper waits until it
can have that lock for itself. The system lets go of the locks of a process that dies, so that
nothing goes on running, however the processes of a run end.
"""

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import pytest

from statestore.errors import Misuse
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT, eventually

# Abandoned transactions are looked for every 10 s by default, what to compact every 15 s. A busy
# machine may keep the broker from its own controller for seconds: that must not give it up.
CONFIG = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "log.cleaner.backoff.ms": 200,
    "broker.session.timeout.ms": 60_000,
}
_FOLDER = ROOT / ".scratch" / "shared-kafka"
_VARIABLE = "SHARED_KAFKA_RUN"
_START_S = 3 * DEADLINE_S


class SharedKafka(LocalKafka):
    """The broker that another process keeps; nobody stops, kills or freezes it."""

    def __init__(self, servers: str) -> None:
        super().__init__()
        self._servers = servers

    @property
    def bootstrap_servers(self) -> str:
        return self._servers

    def _check_entered(self) -> None:
        raise Misuse("other tests use this broker: start a LocalKafka of your own")


@contextmanager
def shared_kafka(run: str) -> Iterator[LocalKafka]:
    """The broker of this test run, started if nobody has yet."""
    folder = _FOLDER / run
    folder.mkdir(parents=True, exist_ok=True)
    ready, keeper = folder / "ready", folder / "keeper"
    with (folder / "users").open("w") as users:
        with (folder / "turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            # Waits while a keeper without users ends its broker.
            fcntl.flock(users, fcntl.LOCK_SH)
            if not (ready.exists() and _is_held(keeper)):
                eventually(lambda: not _is_held(keeper), "the last keeper has ended")
                ready.unlink(missing_ok=True)
                _start_keeper(folder)
                eventually(ready.exists, f"a broker, see {folder}/log", _START_S)
        yield SharedKafka(ready.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """One broker for all modules that neither stop it nor want one of their own making.

    They keep apart by the names of their topics and applications. Other processes of the run use it
    at the same time: a test that compares what there is before and after asks for its own names.
    """
    with shared_kafka(os.environ[_VARIABLE]) as broker:
        yield broker


def pytest_configure(config: pytest.Config) -> None:
    """Name the run, for the processes that it is going to start."""
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = uuid.uuid4().hex[:12]
        config.add_cleanup(_await_end)


def _await_end() -> None:
    """Return when the broker of the run is gone, if there was one; what it cost is a line."""
    folder = _FOLDER / os.environ.pop(_VARIABLE)
    if not folder.exists():
        return
    keeper = folder / "keeper"
    eventually(lambda: not _is_held(keeper), "the shared broker ends")
    shutil.rmtree(folder)


def _start_keeper(folder: Path) -> None:
    """In a session of its own, as the child of nobody: what it costs is not a test's cost."""
    keeper = [sys.executable, "-m", "tests.shared_kafka", str(folder)]
    with (folder / "log").open("ab") as log:
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *keeper],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def _is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _keep(folder: Path) -> None:
    with (folder / "keeper").open("w") as own, (folder / "users").open("w") as users:
        fcntl.flock(own, fcntl.LOCK_EX)
        began = perf_counter()
        with LocalKafka(config=CONFIG) as kafka:
            written = folder / "ready.new"
            written.write_text(kafka.bootstrap_servers, encoding="utf-8")
            written.rename(folder / "ready")
            fcntl.flock(users, fcntl.LOCK_EX)
            (folder / "ready").unlink()
        if times := os.environ.get("TEST_TIMES_OF_BROKER"):
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = {"real": perf_counter() - began, "cpu": used.ru_utime + used.ru_stime}
            line = {"what": "broker", "name": "", "phase": "", **took}
            with Path(times, "broker.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
