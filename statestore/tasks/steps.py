"""Steps that pause once brokers were asked for something, so that several tasks wait at once.

A commit is a generator: it yields where its next step waits for an answer, and returns what it has
done. `at_once` takes one to its end; `together` takes several, each from pause to pause in turn. A
generator keeps its own order of steps (SEMANTICS E2) whoever else goes on meanwhile.
"""

import logging
from collections.abc import Generator, Sequence
from enum import Enum, auto
from typing import TypeVar

from statestore.errors import log_left

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Pause(Enum):
    """Why steps pause."""

    ASKED = auto()
    """A broker was asked, and the next step waits for its answer."""
    FAILED = auto()
    """Something failed, and going back takes long: others had better end first."""


Steps = Generator[Pause, None, T]


def at_once(steps: Steps[T]) -> T:
    """Take steps to their end without a pause; return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found


def together(these: Sequence[Steps[object]]) -> None:
    """Take all to their ends, even if some fail; then raise the first error.

    Those that failed and can go on do so after the others.
    """
    failures: list[Exception] = []
    failed: list[Steps[object]] = []
    asking = list(these)
    while asking:
        paused = [(one, _next(one, failures)) for one in asking]
        failed += [one for one, pause in paused if pause is Pause.FAILED]
        asking = [one for one, pause in paused if pause is Pause.ASKED]
    for one in failed:
        while _next(one, failures) is not None:
            continue
    for error in failures[1:]:
        log_left(_log, error, "another stream task failed at the same time")
    if failures:
        raise failures[0]


def _next(steps: Steps[object], failures: list[Exception]) -> Pause | None:
    """Take steps to their next pause; None: to their end, or to an error that is kept."""
    try:
        return next(steps, None)
    except Exception as failure:  # noqa: BLE001 - raised once the others have ended
        failures.append(failure)
        return None
