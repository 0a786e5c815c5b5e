"""Write statestore/client/blocking.py, the same client as coroutines.py without coroutines.

tests/unit/test_blocking_client.py fails when it is out of date.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from unasync import Rule, unasync_files  # type: ignore[import-untyped]  # it has no stubs

FOLDER = Path(__file__).resolve().parents[1] / "statestore" / "client"
SOURCE, MADE = FOLDER / "coroutines.py", FOLDER / "blocking.py"
_DOCSTRING = '''"""`StateClient`: asks a server of state, and waits for the answer.

`python -m scripts.blocking_client` makes this of coroutines.py.
"""'''
_OF_LIBRARIES = {
    "AsyncStateClient": "StateClient",
    "AsyncClient": "Client",
    "AsyncRetrying": "Retrying",
    "aclose": "close",
}


def blocking() -> str:
    """Return the text of the module."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = (Path(folder) / name / "client.py" for name in ("async", "sync"))
        source.parent.mkdir()
        source.write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
        rule = Rule(str(source.parent), str(made.parent), additional_replacements=_OF_LIBRARIES)
        unasync_files([str(source)], [rule])
        text = made.read_text(encoding="utf-8")
    rest = text.split('"""', 2)[2]
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", MADE, "-"],
        input=_DOCSTRING + rest,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return formatted.stdout


if __name__ == "__main__":
    MADE.write_text(blocking(), encoding="utf-8")
