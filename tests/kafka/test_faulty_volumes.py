"""Volumes that fail under `statestore run`: full, read-only, broken, slow, without locks.

A library that is loaded before all others (`faulty_volume.c`) has calls fail that write to the
state dir, from the n-th one on: whichever it is, the run ends with its results, or as a failure of
the host that a scheduler repeats, with one line and no traceback. Then the volume is whole again,
and the next run has every record exactly once, in topics and stores (E5).
"""

import errno
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from statestore.errors import HostFailure, InvalidSetting, Unavailable
from tests.kafka import faulty_volume
from tests.kafka.run_rig import SMALL_COMMITS, STATESTORE, App, Ended, counted, updates_in_order

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

SEED = int(os.environ.get("BAD_INPUT_SEED", "31"))
COUNT = 300
FLUSHES = "--set=statestore.flush.lag.max.records=40"
FAILURES = ("ENOSPC", "EIO", "EROFS", "EDQUOT")
OPEN_FILES = (24, 40, 64, 96)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faulty_volume.built(tmp_path_factory.mktemp("library"))


def faulty(app: App, library: Path, **how: object) -> Sequence[str]:
    """What runs a command over a volume with these faults."""
    return faulty_volume.over(library, app.state_dir, **how)


def assert_foreseen(ended: Ended, *codes: int) -> None:
    """It ended as promised: with a line that says what failed, and no traceback."""
    assert ended.code in {0, *codes}, ended.err[-4000:]
    assert "Traceback" not in ended.err, ended.err[-4000:]
    if ended.code:
        assert ended.message.count(":") >= 1, ended.err[-2000:]


def assert_goes_on(app: App, count: int) -> None:
    """The next run, with nothing in its way, has every record once."""
    app.drained(*SMALL_COMMITS, FLUSHES)
    assert updates_in_order(app.read()) == counted(range(count)) == app.stored()


def calls_of(app: App, library: Path) -> int:
    """How often a whole run writes; the runs of another application have no more."""
    told = app.state_dir.parent / "count"
    through = faulty(app, library, count=told)
    ended = app.run(*SMALL_COMMITS, FLUSHES, through=through)
    assert ended.code == 0, ended.err[-4000:]
    return sum(map(int, told.read_text().split()))


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(("points", "calls"), [(1, 1), (8, 0)])
def test_a_volume_that_fails_at_any_call_costs_nothing(
    app: App, library: Path, failure: str, points: int, calls: int
) -> None:
    chance = random.Random(f"{SEED} {failure} {points}")
    app.produce(range(20, COUNT))
    most = 60 if calls else calls_of(app, library)
    done = COUNT
    for number in range(points):
        app.produce(range(done, done + COUNT))
        done += COUNT
        # For good, as a volume that is full; or for some calls only.
        how_many = calls or chance.choice((0, 0, 1, 20))
        after = chance.randrange(1, most) if number or calls else 1
        through = faulty(
            app, library, errno=getattr(errno, failure), after=after, **{"for": how_many}
        )
        ended = app.run(*SMALL_COMMITS, FLUSHES, through=through)
        assert_foreseen(ended, HostFailure.exit_code)
        assert_goes_on(app, done)


@pytest.mark.parametrize(
    "how",
    [
        {"slow_us": 20_000, "after": 20},
        {"step_s": 86_400, "after": 60},
        {"step_s": -86_400, "after": 60},
        {"step_s": -40 * 365 * 86_400, "after": 1},
    ],
)
def test_slow_volumes_and_clocks_that_are_set_change_no_result(
    app: App, library: Path, how: dict[str, int]
) -> None:
    app.produce(range(20, COUNT))
    ended = app.run(*SMALL_COMMITS, FLUSHES, through=faulty(app, library, **how))
    assert ended.code == 0, ended.err[-4000:]
    assert updates_in_order(app.read()) == counted(range(COUNT)) == app.stored()
    app.produce(range(COUNT, 2 * COUNT))
    assert_goes_on(app, 2 * COUNT)


@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS"])
def test_a_volume_without_flock_is_refused_and_works_once_that_is_said(
    app: App, library: Path, code: str
) -> None:
    app.produce(range(20, COUNT))
    through = faulty(app, library, flock=getattr(errno, code))
    ended = app.run(through=through)
    assert ended.code == InvalidSetting.exit_code, ended.err[-4000:]
    assert "statestore.volume.locks" in ended.message
    for count in (COUNT, 2 * COUNT):
        ended = app.run("--set=statestore.volume.locks=false", FLUSHES, through=through)
        assert ended.code == 0, ended.err[-4000:]
        assert updates_in_order(app.read()) == counted(range(count))
        app.produce(range(count, count + COUNT))


@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_a_volume_without_posix_locks_is_named_and_costs_nothing(
    app: App, library: Path, code: str
) -> None:
    app.produce(range(20, COUNT))
    ended = app.run(through=faulty(app, library, fcntl=getattr(errno, code)))
    assert ended.code == HostFailure.exit_code, ended.err[-4000:]
    assert "has no POSIX locks" in ended.message
    assert_goes_on(app, COUNT)


@pytest.mark.parametrize("files", OPEN_FILES)
def test_a_run_that_may_open_too_few_files_says_so_and_loses_nothing(app: App, files: int) -> None:
    app.produce(range(20, COUNT))
    # A connection that cannot be opened is tried again for so long, several times.
    patience = "--set=default.api.timeout.ms=5000"
    ended = app.run(*SMALL_COMMITS, FLUSHES, patience, through=("prlimit", f"--nofile={files}"))
    assert_foreseen(ended, HostFailure.exit_code, Unavailable.exit_code)
    assert_goes_on(app, COUNT)


def test_a_state_dir_may_have_any_name(app: App) -> None:
    folder = app.state_dir.parent / "état d'été ✓ 'q\" $x %s"
    target = folder.with_name("exports ü ✓ #1")
    here = App(app.kafka, app.name, folder, children=app.children)
    here.drained()
    where = ["--json", f"--application-id={app.name}", f"--state-dir={folder}"]
    brokers = f"--bootstrap-servers={app.kafka.bootstrap_servers}"
    for command in (
        ["export", f"--target={target}", brokers],
        ["exports", "verify", "--open", f"--target={target}"],
        ["status", brokers],
    ):
        told = subprocess.run(
            [str(STATESTORE), *command, *where], capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, (command, told.stderr)
    here.produce(range(20, COUNT))
    here.drained()
    assert updates_in_order(here.read()) == counted(range(COUNT)) == here.stored()
