"""Crash points: the armed visit dies by SIGKILL in a real process, every other one lives."""

import json
import signal
from pathlib import Path

import pytest

from statestore import faults
from statestore.errors import Misuse
from statestore.faults import CrashPoint
from tests.builders import DEADLINE_S, child

VISITING = """
import atexit, sys
from statestore import faults
atexit.register(lambda: print("left cleanly", flush=True))
if sys.argv[1] == "environment":
    faults.arm_from_environment()
else:
    faults.arm(sys.argv[1])
try:
    for visit in range(1, 6):
        print(visit, flush=True)
        faults.reach(faults.CrashPoint.COMMIT_LOG_DONE)
        faults.reach(faults.CrashPoint.STORE_FLUSH)
finally:
    print("finally", flush=True)
"""
LIVED = ["1", "2", "3", "4", "5", "finally", "left cleanly"]


def visit(armed: str, **env: str) -> tuple[int, list[str]]:
    with child(VISITING, armed, env=env) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert errors == ""
    return process.returncode, output.split("\n")[:-1]


@pytest.mark.parametrize(
    ("armed", "visits"),
    [("store.flush", 1), ("store.flush:1", 1), ("store.flush:3", 3), ("commit.log-done:5", 5)],
)
def test_the_armed_visit_dies_by_sigkill_and_nothing_runs_after_it(armed: str, visits: int) -> None:
    assert visit(armed) == (-signal.SIGKILL, LIVED[:visits])


@pytest.mark.parametrize("armed", ["", "store.flush:6", "commit.begin"])
def test_other_visits_live(armed: str) -> None:
    assert visit(armed) == (0, LIVED)


def test_a_token_file_lets_one_process_die_once(tmp_path: Path) -> None:
    token = tmp_path / "token:with a colon"
    armed = f"store.flush:2:{token}"
    assert visit(armed) == (-signal.SIGKILL, LIVED[:2])
    left = json.loads(token.read_text(encoding="utf-8"))
    assert left["point"] == "store.flush"
    assert visit(armed) == (0, LIVED)
    assert json.loads(token.read_text(encoding="utf-8")) == left


def test_a_point_is_armed_from_the_environment() -> None:
    died = visit("environment", STATESTORE_CRASH_AT="store.flush:2")
    assert died == (-signal.SIGKILL, LIVED[:2])
    assert visit("environment", STATESTORE_CRASH_AT="") == (0, LIVED)


@pytest.mark.parametrize("nothing", ["None", "''"])
def test_arming_nothing_disarms(nothing: str) -> None:
    disarmed = VISITING.replace("try:", f"faults.arm({nothing})\ntry:", 1)
    with child(disarmed, "store.flush") as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output.split("\n")[:-1], errors) == (0, LIVED, "")


def test_a_simulation_takes_every_visit_until_it_lets_go() -> None:
    visited: list[CrashPoint] = []
    faults.arm("store.flush")
    faults.on_reach(visited.append)
    faults.reach(CrashPoint.STORE_FLUSH)
    faults.reach(CrashPoint.COMMIT_DONE)
    faults.on_reach(None)
    faults.reach(CrashPoint.STORE_FLUSH)
    assert visited == [CrashPoint.STORE_FLUSH, CrashPoint.COMMIT_DONE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("store.flus", r"no crash point 'store\.flus'; known: .*store\.flush.*"),
        ("store.flush:soon", "soon"),
        ("store.flush:0", "0"),
        ("store.flush:-1", "-1"),
    ],
)
def test_what_cannot_be_armed_is_refused(text: str, message: str) -> None:
    with pytest.raises(Misuse, match=message):
        faults.arm(text)
    faults.reach(CrashPoint.STORE_FLUSH)


def test_points_are_named_phase_dot_step_and_once() -> None:
    assert len(set(CrashPoint)) == len(CrashPoint)
    assert all(point.count(".") == 1 and point == point.lower() for point in CrashPoint)
