"""Sections that do little, for the tests of what runs and reports them."""

import os
import signal
import subprocess
import threading

from tests.prove.section import (
    Coverage,
    Deadline,
    Finding,
    Harm,
    Planted,
    Section,
    SectionResult,
    repeating,
)


def holds(seed: int, deadline: Deadline) -> SectionResult:
    tried = sum(1 for _ in deadline.rounds(least=3))
    return SectionResult(
        tried={"dice": tried},
        planted=(Planted("a loaded die", ("chance",), 2),),
        coverage=(Coverage("Dice by colour", ("red", "<blue>"), {"six": (1, None)}, least=1),),
        figures={"seed": str(seed), "budget": f"{deadline.seconds:.2f}"},
    )


def breaks(seed: int, _deadline: Deadline) -> SectionResult:
    repeat = repeating("breaks", seed)
    return SectionResult(
        tried={"dice": 1},
        findings=(
            Finding("lost write", "<script>alert(1)</script> is lost", repeat, Harm.LOST),
            *(Finding("duplicate", f"{n} is there twice", repeat, Harm.DOUBLED) for n in range(60)),
        ),
        planted=(Planted("a loaded die", (), 7),),
    )


def tries_nothing(_seed: int, _deadline: Deadline) -> SectionResult:
    return SectionResult(tried={"dice": 3, "coins": 0})


def tries_little(_seed: int, _deadline: Deadline) -> SectionResult:
    table = Coverage("Dice by colour", ("red",), {"six": (1,)}, least=2)
    return SectionResult(tried={"dice": 3}, least={"dice": 4}, coverage=(table,))


def raises(_seed: int, _deadline: Deadline) -> SectionResult:
    raise ValueError("no dice")


def dies(_seed: int, _deadline: Deadline) -> SectionResult:
    os.kill(os.getpid(), signal.SIGABRT)
    raise AssertionError("not reached")


def hangs(_seed: int, _deadline: Deadline) -> SectionResult:
    with subprocess.Popen(["tail", "-f", "/dev/null"]) as child:
        print(f"child {child.pid}", flush=True)  # noqa: T201 - the log is what the test reads
        threading.Event().wait()
    raise AssertionError("not reached")


def leaves(_seed: int, _deadline: Deadline) -> SectionResult:
    child = subprocess.Popen(["tail", "-f", "/dev/null"])
    print(f"child {child.pid}", flush=True)  # noqa: T201 - the log is what the test reads
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


HOLDS, BREAKS, NOTHING, LITTLE, RAISES, DIES, HANGS, LEAVES = (
    Section(run.__name__, f"Whether it {run.__name__}.", share, run)
    for run, share in (
        (holds, 1.0),
        (breaks, 2.0),
        (tries_nothing, 1.0),
        (tries_little, 1.0),
        (raises, 1.0),
        (dies, 1.0),
        (hangs, 1.0),
        (leaves, 1.0),
    )
)
