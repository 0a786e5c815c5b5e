# ruff: noqa: T201 - the seed and what the kills met are part of the result
"""SIGKILL of a store's owner: the next opening finds one past commit, whole, with its offsets.

The store is real RocksDB with the log off, small write buffers and a small durable lag, so that
flushes and compactions run all the time. Every opening is in a new process. `STATESTORE_SEED`
repeats the data and the choice of moments.

Shows I1.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from statestore.faults import VARIABLE, CrashPoint
from tests import processes
from tests.builders import ROOT
from tests.processes import Process

SMALL = {
    "statestore.wal": "false",
    "statestore.memory.bytes": 1 << 20,
    "statestore.flush.lag.max.bytes": 200_000,
    "statestore.flush.lag.max.records": 1500,
}
FOREVER = 10**9


@dataclass
class Life:
    """What one process said before it ended."""

    found: int = 0
    problems: list[str] = field(default_factory=list)
    commit: int = 0
    durable: int = 0
    closed: bool = False
    returncode: int | None = None

    def hear(self, line: str) -> None:
        for name, value in json.loads(line).items():
            setattr(self, name, value)


@dataclass
class Rig:
    """A store's folder and the processes that own it one after the other."""

    folder: Path
    seed: int = field(
        default_factory=lambda: int(os.environ.get("STATESTORE_SEED") or secrets.randbits(32))
    )
    settings: dict[str, object] = field(default_factory=lambda: dict(SMALL))
    last: Life = field(default_factory=Life)
    writer: str = "tests.crash.store_writer"
    opened: int = 0
    lost: int = 0

    @contextmanager
    def owner(self, commits: int, crash_at: str = "") -> Iterator[Process]:
        """A process that owns the store; what it says on the way out is judged."""
        said = Life()
        arguments = [
            self.folder,
            self.seed,
            commits,
            *(f"{k}={v}" for k, v in self.settings.items()),
        ]
        with processes.start(
            [sys.executable, "-m", self.writer, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | {VARIABLE: crash_at},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            said.hear(process.stdout.readline() or json.dumps({"problems": ["said nothing"]}))
            self.judge(said)
            yield process
            # The last line may be cut: then it does not count.
            for line in process.stdout:
                if line.endswith("\n"):
                    said.hear(line)
            assert process.stderr is not None
            errors = process.stderr.read()
        said.returncode = process.returncode
        assert said.returncode in {0, -signal.SIGKILL}, errors
        self.last = said

    def judge(self, now: Life) -> None:
        """Hold what was found against what the last owner had said."""
        before = self.last
        print(f"found {now.found}, before: commit {before.commit}, durable {before.durable}")
        assert now.problems == [], self.repeat()
        assert now.found >= before.durable, self.repeat()
        # One more may have been committed than said.
        assert now.found <= max(before.commit, before.found) + 1, self.repeat()
        self.opened += 1
        self.lost += max(0, before.commit - now.found)

    def repeat(self) -> str:
        return f"opening {self.opened + 1}: repeat with STATESTORE_SEED={self.seed}"

    def live(self, commits: int, crash_at: str = "") -> Life:
        """A life to its own end, or to its crash point."""
        with self.owner(commits, crash_at):
            pass
        return self.last

    def check(self) -> Life:
        """Open once more, commit nothing, close."""
        life = self.live(0)
        assert (life.closed, life.returncode) == (True, 0)
        return life


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    print(f"STATESTORE_SEED={made.seed}")
    return made


def kill_at_random_moments(rig: Rig, kills: int) -> None:
    chance = random.Random(rig.seed)
    for _ in range(kills):
        with rig.owner(FOREVER) as process:
            threading.Timer(chance.uniform(0, 0.25), process.kill).start()
        assert rig.last.returncode == -signal.SIGKILL
    rig.check()
    print(f"{kills} kills, {rig.opened} openings, torn 0, commits not yet durable lost: {rig.lost}")
    assert rig.lost > 0, "no kill met a commit that was not durable: nothing was proven"


@pytest.mark.thorough
def test_ten_random_kills_leave_one_past_commit_whole_each_time(rig: Rig) -> None:
    kill_at_random_moments(rig, 10)


@pytest.mark.slow
def test_two_hundred_random_kills_leave_one_past_commit_whole_each_time(tmp_path: Path) -> None:
    """Half of them with a lag so large that only RocksDB's own flushes happen."""
    for share, settings in enumerate(
        (
            SMALL,
            SMALL
            | {
                "statestore.flush.lag.max.bytes": 1 << 30,
                "statestore.flush.lag.max.records": 10**9,
            },
        )
    ):
        rig = Rig(tmp_path / str(share), settings=dict(settings))
        print(f"STATESTORE_SEED={rig.seed}")
        kill_at_random_moments(rig, 100)


@pytest.mark.parametrize(
    "visit", [1, *(pytest.param(visit, marks=pytest.mark.thorough) for visit in (2, 7))]
)
def test_a_kill_before_a_flush_keeps_the_last_flushed_commit_or_a_later_one(
    rig: Rig, visit: int
) -> None:
    for _ in range(2):
        life = rig.live(FOREVER, f"{CrashPoint.STORE_FLUSH}:{visit}")
        assert life.returncode == -signal.SIGKILL
        assert life.commit - life.durable >= 30, "flushes are rarer than this"
    rig.check()


def test_a_kill_at_close_keeps_what_was_durable_and_a_clean_close_keeps_all(rig: Rig) -> None:
    life = rig.live(70, CrashPoint.STORE_CLOSE)
    assert (life.returncode, life.closed, life.commit) == (-signal.SIGKILL, False, 70)
    assert 0 < life.durable < 70
    life = rig.live(70)
    assert life.closed
    assert rig.check().found == life.commit


def test_what_an_idle_store_committed_becomes_durable_in_time(rig: Rig) -> None:
    rig.settings |= {"statestore.flush.lag.max.ms": 50, "maintain": "true"}
    with rig.owner(5) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["durable"] < 5:
            pass
        process.kill()
    rig.last.commit = rig.last.durable = 5
    del rig.settings["maintain"]
    assert rig.check().found == 5


def test_a_store_on_its_own_loses_no_commit_it_made(rig: Rig) -> None:
    """Without a changelog the log of RocksDB is on unless told otherwise (S3)."""
    del rig.settings["statestore.wal"]
    for _ in range(3):
        life = rig.live(12, CrashPoint.STORE_CLOSE)
        assert life.returncode == -signal.SIGKILL
        rig.last.durable = life.commit
    assert rig.check().found == 36


def test_the_check_finds_a_store_whose_offset_and_rows_are_of_two_commits(rig: Rig) -> None:
    rig.live(50)
    folder = str(rig.folder / "prices")
    families: dict[str, Any] = {name: Options(raw_mode=True) for name in Rdict.list_cf(folder)}
    db = Rdict(folder, Options(raw_mode=True), families)
    offsets = db.get_column_family("offsets")
    offsets[b"oshop-prices-changelog\0\0\0\0\0"] = (49).to_bytes(8, "big")
    del offsets
    db.close()
    with pytest.raises(AssertionError, match=r"torn: .* rows are not commit 49's but of"):
        rig.check()
