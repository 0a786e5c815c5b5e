"""Memory that batches leave behind, and that the next ones take, without asking the system for it.

The objects of a batch live about as long as the batch. When they go, the interpreter gives their
memory back, and the system hands it out again page by page, with zeros: a third of what it takes to
make the objects (docs/adr/0055). While tasks are served, empty memory is kept instead, and given
back once nothing has asked for it for a while.

The work is done by `_arenas`, an extension in C that is built where there is a compiler. Without
it, and where the interpreter is not CPython, memory is given back at once as always.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_arenas: Any = None
with suppress(ImportError):  # Without a compiler.
    from statestore.tasks import _arenas


@contextmanager
def kept() -> Iterator[None]:
    """Keep empty memory inside `with`, in this process; all of it is given back at the end."""
    keeps = _arenas is not None and _arenas.begin()
    try:
        yield
    finally:
        if keeps:
            _arenas.end()


def trim() -> None:
    """Give back what has been empty, and was not asked for, since the last call."""
    if _arenas is not None:
        _arenas.trim()
