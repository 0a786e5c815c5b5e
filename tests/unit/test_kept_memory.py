"""Empty memory is kept while tasks are served, trimmed, and given back at the end.

Each case has a process of its own: in one that has done much before, a batch finds room among what
is left there, and makes no arena empty.
"""

import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Final

import pytest

from statestore.tasks import _arenas, kept_memory
from tests.builders import ROOT

_MANY: Final = 200_000
_LEAST_KEPT: Final = 5


def batch() -> None:
    """Make objects of some MiB, and forget them."""
    texts = [str(number) * 3 for number in range(_MANY)]
    del texts


def what_a_batch_leaves_is_kept_until_the_end() -> None:
    with kept_memory.kept():
        batch()
        assert _arenas.count() >= _LEAST_KEPT
    assert _arenas.count() == 0


def outside_nothing_is_kept() -> None:
    with kept_memory.kept():
        pass
    batch()
    assert _arenas.count() == 0


def what_is_needed_stays_and_what_is_not_is_given_back() -> None:
    with kept_memory.kept():
        batch()
        kept_memory.trim()  # All of it came since the last one.
        before = _arenas.count()
        assert before >= _LEAST_KEPT
        batch()
        kept_memory.trim()
        assert abs(_arenas.count() - before) <= 2
        kept_memory.trim()
        assert _arenas.count() == 0


def of_two_the_last_one_gives_back() -> None:
    with kept_memory.kept():
        with kept_memory.kept():
            batch()
        assert _arenas.count() >= _LEAST_KEPT
    assert _arenas.count() == 0


def what_began_before_goes_on_after_an_error() -> None:
    with suppress(KeyError), kept_memory.kept():
        batch()
        raise KeyError
    assert _arenas.count() == 0


def the_next_batch_does_not_ask_for_its_memory_again() -> None:
    faults = []
    for keeps in (nullcontext(), kept_memory.kept()):
        with keeps:
            batch()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            batch()
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert faults[1] < faults[0] / 4, faults


@pytest.mark.parametrize(
    "case",
    [
        what_a_batch_leaves_is_kept_until_the_end,
        outside_nothing_is_kept,
        what_is_needed_stays_and_what_is_not_is_given_back,
        of_two_the_last_one_gives_back,
        what_began_before_goes_on_after_an_error,
        the_next_batch_does_not_ask_for_its_memory_again,
    ],
)
def test_in_a_process_of_its_own(case: Callable[[], None]) -> None:
    run(f"from {__name__} import {case.__name__} as case; case()")


def test_without_a_compiler_nothing_is_kept_and_nothing_fails() -> None:
    run(
        "import sys; sys.modules['statestore.tasks._arenas'] = None\n"
        "from statestore.tasks import kept_memory\n"
        "with kept_memory.kept():\n    kept_memory.trim()\n"
    )


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
