"""Commands over a volume that fails: what `faulty_volume.c` makes of one, for a single program."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.builders import ROOT


def built(folder: Path) -> Path:
    """Return the library, which is compiled into the folder."""
    library, source = folder / "faulty_volume.so", ROOT / "tests" / "kafka" / "faulty_volume.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
    return library


def over(library: Path, folder: Path, **how: object) -> Sequence[str]:
    """Return what runs a command for which the volume of `folder` has these faults.

    They are the variables of the library, in lower case and without what these begin with.
    """
    said = {f"FAULTY_{name.upper()}": value for name, value in how.items()}
    said = {"LD_PRELOAD": library, "FAULTY_FOLDER": folder, **said}
    return ["env", *(f"{name}={value}" for name, value in said.items())]
