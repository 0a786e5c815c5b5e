"""The page for notebooks is a notebook: its cells run in a kernel, and show what the page shows."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import pytest

from statestore.testing.kafka_jars import SCRATCH_VARIABLE, kafka_libs, scratch_dir
from statestore.testing.kafka_node import reserved_ports
from tests.builders import ROOT
from tests.docs.notebook_page import Cell, cells, run_cells

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.thorough,
    pytest.mark.timeout(900),
]
PAGE = ROOT / "docs" / "guides" / "notebook.md"
PORT = "9092"  # what the page names; the test takes a free one
CELL_S = 350  # Spark starts in one, beside other tests


@pytest.fixture
def port() -> Iterator[str]:
    with reserved_ports(1, scratch_dir() / "ports") as (free,):
        yield str(free)


def page_cells(port: str) -> list[Cell]:
    page = PAGE.read_text(encoding="utf-8")
    page = page.replace("kafka start\n", f"kafka start --port {PORT}\n")
    return cells(page.replace(PORT, port))


def test_the_cells_of_the_page_show_what_it_says(tmp_path: Path, port: str) -> None:
    own = {
        "HOME": str(tmp_path),
        SCRATCH_VARIABLE: str(tmp_path / "scratch"),
        "STATESTORE_KAFKA_LIBS": str(kafka_libs()),
    }
    work = tmp_path / "work"
    work.mkdir()
    try:
        shown = run_cells(page_cells(port), work, own, timeout_s=CELL_S)
    finally:
        # Also if a cell failed: the broker outlives the kernel.
        stop = [sys.executable, "-m", "statestore", "kafka", "stop"]
        subprocess.run(stop, env={**os.environ, **own}, check=False, timeout=CELL_S)
    faults = [fault for one in shown if (fault := one.fault()) is not None]
    assert not faults, "\n".join(faults)
    (picture,) = [picture for one in shown for picture in one.pictures]
    if keep := os.environ.get("KEEP_PICTURE"):
        Path(keep).write_bytes(picture)
    drawn = matplotlib.image.imread(io.BytesIO(picture))
    colours = {tuple(pixel) for row in drawn for pixel in row}
    assert len(colours) > 3, "nothing is drawn: one colour for each item and the ground"
    assert not list(work.iterdir()), "the page tidies up"
