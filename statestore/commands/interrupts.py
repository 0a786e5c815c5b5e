"""Ctrl-C, wherever it meets a command."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Raise the KeyboardInterrupt that an extension module has turned into a SystemError.

    A signal is handled in the next Python code that runs, which may be a callback inside the client
    library. Some of its calls then return a value although an exception is set, and Python reports
    just that.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
