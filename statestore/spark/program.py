"""How a job of this package runs as a program."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from statestore.cli import exit_code_of
from statestore.extras import SPARK_REMOTE

_HERE = Path(__file__).resolve().parent


def run_program(command: Callable[[], object]) -> NoReturn:
    """Run a job's command and exit with its code.

    Python puts the folder of a script first on the import path. Of a script in this package that
    folder is taken off again: `process` and `session` may be modules of the user's.

    SIGTERM ends a client of Spark Connect as Ctrl-C does, which ends what the server does for it.
    """
    if os.environ.get(SPARK_REMOTE):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _HERE]
    sys.exit(exit_code_of(command))
