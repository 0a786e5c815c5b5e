"""The section `bad-input`: files, requests and command lines that nobody means, as fast as they go.

Who reads them gives an answer or an error of the library's own; a run on an application with one
mangled file ends right or is refused, and loses nothing.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from statestore.cli import cli
from statestore.layout import documents
from statestore.ports import Bounds
from statestore.tasks import restore
from statestore.tasks.owned import OwnedStore
from tests.contract import test_commands_fuzzed as commands
from tests.contract.test_documents_fuzzed import DOORS, tried
from tests.contract.test_files_fuzzed import KINDS, Lived, changed, lived_in, run_over
from tests.contract.test_serve_fuzzed import fuzzed_in
from tests.mangling import encoded, extreme, mangled
from tests.prove.section import (
    Deadline,
    Finding,
    Harm,
    Planted,
    Section,
    SectionResult,
    repeating,
)
from tests.relocation_rig import in_memory_folder
from tests.ui_rig import told_of

_TRIALS = 60
_RUNS = tuple(kind for kind in KINDS if kind not in {"export", "content"})
_FOREIGN = "an error that is none of ours"
_UNLIKE = "store unlike its changelog"


def run(seed: int, deadline: Deadline) -> SectionResult:
    """Mangle documents and files in turn until the time is over."""
    found = _Found(seed)
    with in_memory_folder() as base, lived_in() as lived, ExitStack() as quiet:
        logging.disable(logging.CRITICAL)
        quiet.callback(logging.disable, logging.NOTSET)
        told_of(base / "state", "shop")
        fuzzed = quiet.enter_context(fuzzed_in(base / "served"))
        lines = _Lines(base / "commands", seed, quiet.enter_context(pytest.MonkeyPatch.context()))
        planted = (_swallowed(base, seed), _forgetful(lived, seed))
        for number in deadline.rounds(least=1):
            for name in DOORS:
                found.take("documents", partial(document, base, name, number, seed))
            kind = _RUNS[number % len(_RUNS)]
            found.take("runs", partial(mangled_run, lived, kind, number, seed))
            found.take("requests", partial(fuzzed.ask, random.Random(f"{seed} {number}")))
            found.take("command lines", lines.call_next)
        found.take("requests", fuzzed.still_answers)
    return SectionResult(
        tried=found.tried,
        findings=tuple(found.findings),
        planted=planted,
        notes=("Brokers are in memory here; files, stores and their readers are the real ones.",),
    )


def document(base: Path, name: str, number: int, seed: int) -> None:
    """Have all who read that kind of document read one."""
    chance = random.Random(f"{seed} {name} {number}")
    data = encoded(extreme(chance, DOORS[name].kind))
    if number % 3:
        data = mangled(chance, data)
    tried(base, DOORS[name], number, data, f"seed {seed}, number {number}")


class _Lines:
    """Command lines, of one command after the other."""

    def __init__(self, folder: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
        self._rig = commands.lived_in(folder)
        self._chance = random.Random(f"{seed} command lines")
        self._patch = patch
        patch.chdir(folder)
        self._plans = self._drawn()

    def call_next(self) -> None:
        """Call one; AssertionError if a user would see what nobody should."""
        wrong = commands.fault_of(next(self._plans), self._patch)
        assert wrong is None, wrong

    def _drawn(self) -> Iterator[list[str]]:
        while True:
            for path, command in commands.commands(cli):
                given = commands.usual(self._rig, command)
                drawn = list(commands.plans(command, given, self._chance, 1))
                if drawn:
                    yield commands.words(path, command, self._chance.choice(drawn))


class _Found:
    """Counts what was tried, and notes what must not be."""

    def __init__(self, seed: int) -> None:
        self.tried: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self._repeat = repeating("bad-input", seed)

    def take(self, what: str, attempt: Callable[[], object]) -> None:
        self.tried[what] += 1
        try:
            attempt()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
            unlike = isinstance(error, AssertionError)
            rule, harm = (_UNLIKE, Harm.LOST) if unlike else (_FOREIGN, Harm.ANOMALY)
            said = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
            self.findings.append(Finding(rule, f"{what}: {said:.500}", self._repeat, harm))


def mangled_run(lived: Lived, kind: str, number: int, seed: int) -> None:
    """Run on an application one of whose files is mangled."""
    run_over(lived, *changed(lived, kind, number, seed))


def _swallowed(base: Path, seed: int) -> Planted:
    """Let what a decoder raises through to the user."""
    found = _Found(seed)
    with pytest.MonkeyPatch.context() as planting:
        planting.setattr(documents, "UNREADABLE", ())
        for number in range(_TRIALS):
            found.take("documents", partial(document, base, "Owner", number, seed))
            if found.findings:
                break
    return _planted("a document that cannot be read is a traceback", found)


def _forgetful(lived: Lived, seed: int) -> Planted:
    """Let a restore skip the records that a store lacks."""

    def at_the_end(_opened: OwnedStore, bounds: Bounds) -> int:
        return bounds.end

    found = _Found(seed)
    with pytest.MonkeyPatch.context() as planting:
        planting.setattr(restore, "_start", at_the_end)
        for number in range(_TRIALS):
            found.take("runs", partial(mangled_run, lived, "MANIFEST-#", number, seed))
            if found.findings:
                break
    return _planted("a store that was set aside is not restored", found)


def _planted(defect: str, found: _Found) -> Planted:
    caught_by = tuple(sorted({finding.rule for finding in found.findings}))
    return Planted(defect, caught_by, sum(found.tried.values()))


SECTION = Section(
    "bad-input",
    "Mangles every kind of document and file of an application, requests and command lines.",
    1.0,
    run,
)
