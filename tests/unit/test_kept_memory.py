"""Empty memory is kept while tasks are served, trimmed, and given back at the end."""

import subprocess
import sys
from typing import Final

from statestore.tasks import _arenas, kept_memory
from tests.builders import ROOT

_MANY: Final = 200_000
_LEAST_KEPT: Final = 5


def batch() -> None:
    """Make objects of some MiB, and forget them."""
    texts = [str(number) * 3 for number in range(_MANY)]
    del texts


def test_what_a_batch_leaves_is_kept_until_the_end() -> None:
    with kept_memory.kept():
        batch()
        assert _arenas.count() >= _LEAST_KEPT
    assert _arenas.count() == 0


def test_outside_nothing_is_kept() -> None:
    with kept_memory.kept():
        pass
    batch()
    assert _arenas.count() == 0


def test_what_is_needed_stays_and_what_is_not_is_given_back() -> None:
    with kept_memory.kept():
        batch()
        kept_memory.trim()  # All of it came since the last one.
        before = _arenas.count()
        batch()
        kept_memory.trim()
        assert abs(_arenas.count() - before) <= 2
        kept_memory.trim()
        assert _arenas.count() == 0


def test_of_two_the_last_one_gives_back() -> None:
    with kept_memory.kept():
        with kept_memory.kept():
            batch()
        assert _arenas.count() >= _LEAST_KEPT
    assert _arenas.count() == 0


_FAULTS = """
import resource
from statestore.tasks import kept_memory
from tests.unit.test_kept_memory import batch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batch()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

batch()
given_back = faults()
with kept_memory.kept():
    batch()
    kept = faults()
print(given_back, kept)
"""


def test_the_next_batch_does_not_ask_for_its_memory_again() -> None:
    made = subprocess.run(
        [sys.executable, "-c", _FAULTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    given_back, kept = map(int, made.stdout.split())
    assert kept < given_back / 4, made.stdout


def test_without_a_compiler_nothing_is_kept_and_nothing_fails() -> None:
    plain = (
        "import sys; sys.modules['statestore.tasks._arenas'] = None\n"
        "from statestore.tasks import kept_memory\n"
        "with kept_memory.kept():\n    kept_memory.trim()\n"
    )
    subprocess.run([sys.executable, "-c", plain], cwd=ROOT, check=True)
