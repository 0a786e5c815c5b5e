"""Searches the model of the commit protocol (commit.pml) with SPIN, and follows traces with it.

    python -m tests.model.search COMMITS=3 LIVES=2 FAULTS=1        one search, with its story

SPIN makes a program in C of the model, which is compiled once for all searches of a process.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).with_name("commit.pml")
# -n: unreached states are not told; -E: an end anywhere is no error; -m: the deepest search.
_SEARCH = ("-n", "-E", "-m1000000")
_FOUND = re.compile(r"assertion violated (.*) \(at depth")
_STATES = re.compile(r"(\d+) states, stored")
_MEGABYTES = re.compile(r"([\d.]+)\s+total actual memory usage")
# Few traces take more than a second: those of many owners at once.
_TRACE_CPU_S = 15
_TOLD = "the broker gets", "left on its way"


class Event(NamedTuple):
    """One step of a trace: its kind (E_… in the model), whose, and a commit number or -1."""

    kind: int
    owner: int
    number: int


@dataclass(frozen=True)
class Searched:
    """What a search found: the assertion that fails, None if no state violates one."""

    violated: str | None
    states: int
    megabytes: float
    story: tuple[str, ...] = ()


def missing() -> str | None:
    """Return what a search needs and this machine does not have."""
    lacking = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} (Debian: apt-get install spin gcc)" if lacking else None


def search(parameters: Mapping[str, int]) -> Searched:
    """Search all states within the bounds; stop at the first violation, and tell how it came."""
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        told = _run(_built(), _SEARCH, parameters, folder)
        found = _FOUND.search(told)
        story: tuple[str, ...] = ()
        if found:
            replayed = _run(_built(), ("-r", "commit.pml.trail"), parameters, folder)
            story = tuple(
                line.strip() for line in replayed.splitlines() if line.strip().startswith(_TOLD)
            )
        states, megabytes = _STATES.search(told), _MEGABYTES.search(told)
        assert states is not None, told
        assert megabytes is not None, told
        assert found or "errors: 0" in told, told
        return Searched(found and found[1], int(states[1]), float(megabytes[1]), story)


def accepts(trace: Iterable[Event], parameters: Mapping[str, int]) -> bool | None:
    """Return whether the model can do what the trace tells; None if too much is to be searched."""
    text = "".join(f"{kind} {owner} {number}\n" for kind, owner, number in trace)
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        told = _run(_built("-DTRACE"), _SEARCH, parameters, folder, text, _TRACE_CPU_S)
    if "errors: " not in told:
        return None
    violated = _FOUND.search(told)
    # Anything else than the end of the trace would be a violation on the way.
    assert violated is None or violated[1] == "0", told
    return violated is not None


def _run(
    program: Path,
    options: Iterable[str],
    parameters: Mapping[str, int],
    folder: str,
    given: str = "",
    cpu_s: int | None = None,
) -> str:
    environment = os.environ | {name: str(value) for name, value in parameters.items()}
    limit = [] if cpu_s is None else ["prlimit", f"--cpu={cpu_s}"]
    done = subprocess.run(
        [*limit, program, *options],
        cwd=folder,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@cache
def _built(*defined: str) -> Path:
    """Return the program that searches, compiled for as long as this process lives."""
    folder = tempfile.TemporaryDirectory(prefix="model-")
    _kept.append(folder)
    at = Path(folder.name)
    shutil.copy(MODEL, at / MODEL.name)
    _do(["spin", "-a", *defined, MODEL.name], at)
    options = ["-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-DCOLLAPSE", "-DMEMLIM=7000", *defined]
    _do(["gcc", *options, "-o", "pan", "pan.c"], at)
    return at / "pan"


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _do(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def main() -> None:
    """Search with the parameters of the command line."""
    parameters = {name: int(value) for name, value in (text.split("=") for text in sys.argv[1:])}
    print(search(parameters))  # noqa: T201 - asked for


if __name__ == "__main__":
    main()
