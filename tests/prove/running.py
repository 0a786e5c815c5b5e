"""Runs sections one after another, each in a process of its own, and keeps what they found.

A section may die or hang: that is told as such, and the others are tried all the same.
"""

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from statestore.errors import Misuse
from tests.prove.section import Deadline, Section, SectionResult, Verdict

# What a section has begun when its time is over, it may finish.
_GRACE_S = 600.0
_END_S = 60.0
_LOG_LINES = 40


class Tried(msgspec.Struct, frozen=True):
    """A section, what it handed back, and how it ended.

    `result` is None where the section failed, and `failure` says how.
    """

    name: str
    tries: str
    seed: int
    budget_s: float
    took_s: float
    result: SectionResult | None
    failure: str = ""

    @property
    def verdict(self) -> Verdict:
        return self.result.verdict if self.result else Verdict.FAILED


def chosen(names: str, sections: Sequence[Section]) -> list[Section]:
    """The sections of a list with commas, all if it is empty; Misuse if one is unknown."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = {section.name: section for section in sections}
    if unknown := [name for name in wanted if name not in known]:
        raise Misuse(f"there is no section {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)] if wanted else list(sections)


def tried(
    sections: Sequence[Section],
    *,
    seed: int,
    seconds: float,
    folder: Path,
    begin: Callable[[Section, float], None] = lambda _section, _budget_s: None,
    grace_s: float = _GRACE_S,
) -> Iterator[Tried]:
    """Each section, as soon as it is done; what one leaves of its time the next ones have."""
    whole = Deadline(seconds)
    for place, section in enumerate(sections):
        left = sum(later.share for later in sections[place:])
        budget_s = max(0.0, whole.left_s) * section.share / left
        begin(section, budget_s)
        began = time.monotonic()
        result, failure = _in_a_process(section, seed, budget_s, folder, grace_s)
        took_s = time.monotonic() - began
        yield Tried(section.name, section.tries, seed, budget_s, took_s, result, failure)


def _in_a_process(
    section: Section, seed: int, budget_s: float, folder: Path, grace_s: float
) -> tuple[SectionResult | None, str]:
    out, log = folder / f"{section.name}.result", folder / f"{section.name}.log"
    out.unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_alone, args=(section, seed, budget_s, out, log))
    process.start()
    try:
        process.join(budget_s + grace_s)
        hung = process.is_alive()
    finally:
        _end(process)
    if process.exitcode == 0:
        return msgspec.json.decode(out.read_bytes(), type=SectionResult), ""
    how = f"it hung: {grace_s:g} s after its time it was ended" if hung else _death(process)
    return None, f"{how}; the end of {log}:\n{_tail(log)}"


def _alone(section: Section, seed: int, budget_s: float, out: Path, log: Path) -> None:
    """What the process of a section does."""
    os.setsid()  # what it started ends with it
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    try:
        result = section.run(seed, Deadline(budget_s))
        made = out.with_suffix(".part")
        made.write_bytes(msgspec.json.encode(result))
        made.replace(out)
    except BaseException:  # noqa: BLE001 - whatever it is, the report tells it
        traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(1) from None


def _end(process: BaseProcess) -> None:
    """End a section's process and whatever it left behind."""
    assert process.pid is not None
    # Its group has its number, once it has begun.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.is_alive():
        process.kill()
    process.join(_END_S)


def _death(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"its process died by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def _tail(log: Path) -> str:
    if not log.exists():
        return "(nothing)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
