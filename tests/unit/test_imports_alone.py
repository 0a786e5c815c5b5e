"""Modules that name each other: each of them can be the first that a process imports."""

import subprocess
import sys
from pathlib import Path

import pytest

import statestore.topology

FOLDER = Path(statestore.topology.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if path.stem != "__init__"
)


@pytest.mark.parametrize(
    "first", [name for name in MODULES if name.endswith(("streams", "tables"))]
)
def test_a_module_of_the_dsl_can_be_imported_first(first: str) -> None:
    program = f"import statestore.topology.{first}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
