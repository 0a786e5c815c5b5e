"""Modules that name each other: each of them can be the first that a process imports."""

import subprocess
import sys
from pathlib import Path

import statestore.topology

FOLDER = Path(statestore.topology.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if path.stem != "__init__"
)


# Forgets the library before each of them, so that none finds what another has imported.
EACH_FIRST = """
import importlib, sys
for first in sys.argv[1:]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "statestore"]:
        del sys.modules[name]
    try:
        importlib.import_module("statestore.topology." + first)
    except ImportError as error:
        print(first, error)
"""


def test_each_module_of_the_dsl_can_be_imported_first() -> None:
    names = [name for name in MODULES if name.endswith(("streams", "tables"))]
    assert len(names) > 5
    done = subprocess.run(
        [sys.executable, "-c", EACH_FIRST, *names], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
