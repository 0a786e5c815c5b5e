"""A page whose blocks of Python are the cells of a notebook, run in a kernel.

A block of `text` with the title `output` shows what the cell above it prints and returns; "..."
stands for anything.
"""

import doctest
import os
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

BLOCK = re.compile(r"^```(?P<info>[a-z]+[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
OUTPUT = 'text title="output"'
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PICTURE = "image/png"


@dataclass(frozen=True)
class Cell:
    """A cell, where it stands on the page, and what the page shows of its output."""

    line: int
    code: str
    expected: str = ""


@dataclass(frozen=True)
class Shown:
    """What a cell has printed and returned, and the pictures that it has drawn."""

    cell: Cell
    text: str
    pictures: tuple[bytes, ...]

    def fault(self) -> str | None:
        """How what was shown differs from what the page shows; None if it does not."""
        wanted = self.cell.expected
        if doctest.OutputChecker().check_output(wanted, self.text, OPTIONS):
            return None
        return f"line {self.cell.line}: {self.cell.code}\nexpected:\n{wanted}got:\n{self.text}"


def cells(page: str) -> list[Cell]:
    """The cells of a page, in order."""
    found: list[Cell] = []
    for block in BLOCK.finditer(page):
        line = page[: block.start()].count("\n") + 2
        if block["info"] == "python":
            found.append(Cell(line, block["text"]))
        elif block["info"] == OUTPUT:
            assert found, f"line {line}: output without a cell"
            assert not found[-1].expected, f"line {line}: the cell has an output already"
            found[-1] = Cell(found[-1].line, found[-1].code, block["text"])
    return found


def run_cells(
    todo: list[Cell], folder: Path, env: Mapping[str, str], *, timeout_s: int
) -> list[Shown]:
    """Run the cells in a kernel in that folder; an error of a cell is raised.

    The kernel has of our environment nothing that the library or Spark reads.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STATESTORE", "PY", "SPARK"))}
    made: Any = nbformat.v4
    notebook = made.new_notebook(cells=[made.new_code_cell(cell.code) for cell in todo])
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=timeout_s,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**kept, **env})
    return [_shown(cell, ran.outputs) for cell, ran in zip(todo, notebook.cells, strict=True)]


def _shown(cell: Cell, outputs: list[Any]) -> Shown:
    texts, pictures = [], []
    for output in outputs:
        if output.output_type == "stream":
            # What Spark's JVM says on the other stream differs from machine to machine.
            texts += [output.text] if output.name == "stdout" else []
        elif PICTURE in output.data:
            pictures.append(b64decode(output.data[PICTURE]))
        else:
            texts.append(output.data["text/plain"])
    return Shown(cell, "\n".join(texts), tuple(pictures))
