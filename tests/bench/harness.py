"""What every benchmark needs: repeats and their spread, the machine, one JSON document, one table.

A figure is a list of repeats; ratios are taken repeat by repeat, between things measured right
after each other, so that a busy machine slows both sides. Nothing here judges a wall clock.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import time
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
SCRATCH = ROOT / ".scratch" / "bench"
_VERSIONS = ("rocksdict", "confluent-kafka", "pyspark", "pyarrow")


@dataclass(frozen=True)
class Figure:
    """One measured thing: every repeat, its unit, and the goal it is held against, if any."""

    name: str
    unit: str
    repeats: tuple[float, ...]
    goal: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.repeats)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "least": min(self.repeats),
            "most": max(self.repeats),
            "repeats": list(self.repeats),
            **({"goal": self.goal} if self.goal else {}),
        }


@dataclass
class Bench:
    """The figures of one run, written as one document when the run is over."""

    name: str
    console: Console = field(default_factory=Console)
    figures: list[Figure] = field(default_factory=list)
    load_average: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, unit: str, repeats: Sequence[float], goal: str = "") -> Figure:
        """Record a figure and show it."""
        figure = Figure(name, unit, tuple(repeats), goal)
        self.figures.append(figure)
        self.load_average.append(os.getloadavg()[0])
        self.console.print(f"{name}: {_number(figure.median)} {unit}", highlight=False)
        return figure

    def ratios(
        self, name: str, over: Sequence[float], under: Sequence[float], goal: str = ""
    ) -> Figure:
        """The quotient of each repeat."""
        return self.add(name, "x", [a / b for a, b in zip(over, under, strict=True)], goal)

    def finish(self) -> Path:
        """Print the table, write `.scratch/bench/<name>.json`."""
        table = Table(title=f"{self.name}, {len(self.figures)} figures", title_justify="left")
        for column in ("figure", "median", "least", "most", "unit", "n", "goal"):
            number = column in {"median", "least", "most", "n"}
            table.add_column(column, justify="right" if number else "left")
        for figure in self.figures:
            numbers = (figure.median, min(figure.repeats), max(figure.repeats))
            table.add_row(
                figure.name,
                *map(_number, numbers),
                figure.unit,
                str(len(figure.repeats)),
                figure.goal,
            )
        self.console.print(table)
        SCRATCH.mkdir(parents=True, exist_ok=True)
        path = SCRATCH / f"{self.name}.json"
        path.write_text(json.dumps(self._document(), indent=1) + "\n", encoding="utf-8")
        self.console.print(f"written to {path.relative_to(ROOT)}")
        return path

    def _document(self) -> dict[str, Any]:
        return {
            "benchmark": self.name,
            "command": " ".join(["python", "-m", f"tests.bench.{self.name}", *sys.argv[1:]]),
            "commit": _commit(),
            "ended": int(time()),
            "machine": machine(),
            "load_average": {"least": min(self.load_average), "most": max(self.load_average)},
            "versions": {name: version(name) for name in _VERSIONS},
            **self.notes,
            "figures": [figure.as_dict() for figure in self.figures],
        }


def machine() -> dict[str, Any]:
    """Cores, processor, memory, kernel, Python."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":")[1].strip() for line in lines if "model name" in line), model)
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the repository's volume, gone afterwards."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(dir=SCRATCH))
    try:
        yield folder
    finally:
        rmtree(folder, ignore_errors=True)


def _commit() -> str:
    """The commit measured; `+` where the tree differs from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-c", "safe.directory=*", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "statestore", "jobs")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+" if changed else "")


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
