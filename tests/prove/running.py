"""Runs sections, each in a process of its own, and keeps what they found.

They take turns, but for those that have all of the time, beside the others.

A section may die or hang: that is told as such, and the others are tried all the same.
"""

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
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
) -> Generator[Tried, None, None]:
    """Each section, as soon as it is done; what one leaves of its time the next ones have.

    Those that have no share of it are told last.
    """
    whole = Deadline(seconds)
    with ExitStack() as stack:

        def begun(section: Section, budget_s: float) -> _Running:
            begin(section, budget_s)
            one = _Running(section, seed, Deadline(budget_s, seconds), folder)
            stack.callback(one.end)
            return one

        beside = [begun(section, seconds) for section in sections if section.share is None]
        turns = [(section, section.share) for section in sections if section.share is not None]
        for place, (section, share) in enumerate(turns):
            left = sum(later for _, later in turns[place:])
            yield begun(section, max(0.0, whole.left_s) * share / left).ended(grace_s)
        for one in beside:
            yield one.ended(grace_s)


class _Running:
    """A section in a process of its own."""

    def __init__(self, section: Section, seed: int, deadline: Deadline, folder: Path) -> None:
        self._section = section
        self._seed = seed
        self._deadline = deadline
        self._out, self._log = folder / f"{section.name}.result", folder / f"{section.name}.log"
        self._out.unlink(missing_ok=True)
        self._began_s = self._ended_s = time.monotonic()
        given = section, seed, deadline.seconds, deadline.whole_s, self._out, self._log
        self._process = multiprocessing.get_context("spawn").Process(target=_alone, args=given)
        self._process.start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def ended(self, grace_s: float) -> Tried:
        """What it handed back, or how it ended; past its time and grace it is ended."""
        process, section, failure, result = self._process, self._section, "", None
        process.join(max(0.0, self._deadline.left_s) + grace_s)
        hung = process.is_alive()
        self.end()
        if process.exitcode == 0:
            result = msgspec.json.decode(self._out.read_bytes(), type=SectionResult)
        else:
            how = _death(process)
            if hung:
                how = f"it hung: {grace_s:g} s after its time it was ended"
            failure = f"{how}; the end of {self._log}:\n{_tail(self._log)}"
        budget_s, took_s = self._deadline.seconds, self._ended_s - self._began_s
        return Tried(section.name, section.tries, self._seed, budget_s, took_s, result, failure)

    def end(self) -> None:
        """End its process and whatever it left behind."""
        # Something that it has started may keep the watcher waiting.
        if self._process.is_alive() or self._watcher.is_alive():
            _end(self._process)
        self._watcher.join(_END_S)

    def _watch(self) -> None:
        """Note when it ends, and end what it left behind, while its number is nobody else's."""
        wait([self._process.sentinel])
        self._ended_s = time.monotonic()
        _end_group(self._process)


def _alone(
    section: Section, seed: int, budget_s: float, whole_s: float, out: Path, log: Path
) -> None:
    """What the process of a section does."""
    os.setsid()  # what it started ends with it
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    try:
        result = section.run(seed, Deadline(budget_s, whole_s))
        made = out.with_suffix(".part")
        made.write_bytes(msgspec.json.encode(result))
        made.replace(out)
    except BaseException:  # noqa: BLE001 - whatever it is, the report tells it
        traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(1) from None


def _end(process: BaseProcess) -> None:
    """End a section's process and whatever it left behind."""
    _end_group(process)
    if process.is_alive():
        process.kill()
    process.join(_END_S)


def _end_group(process: BaseProcess) -> None:
    assert process.pid is not None
    # Its group has its number, once it has begun.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _death(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"its process died by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def _tail(log: Path) -> str:
    if not log.exists():
        return "(nothing)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
