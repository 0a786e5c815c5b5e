"""What the tests cost: tests/times.json from a run, and docs/test-times.md from that.

`make test`, `make test-fast` and `make test-thorough` leave a line for each test in
.scratch/test-times. On a machine with nothing else to do:

    python -m scripts.test_times clock "make check" "make test-fast" "make test"
    python -m scripts.test_times write

The first runs the commands, and keeps how long each took and what its tests cost. The second makes
the page, and the durations in the table of CONTRIBUTING.md. tests/test_tidy.py fails where these
are not what was measured.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "tests" / "times.json"
PAGE = ROOT / "docs" / "test-times.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
RUNS = ROOT / ".scratch" / "test-times"
FOLDERS = {"make test": "first", "make test-fast": "fast", "make test-thorough": "second"}
_TESTS, _MODULES, _OTHERS = 30, 25, 12
_MINUTE_S = 60
_WORTH_KEEPING_S = 0.2
BEGIN = """\
# What the tests cost

Seconds of a processor (CPU), those of started processes included, and seconds that passed while a
test ran beside others. `python -m scripts.test_times` makes this page; its module says how to
measure again. The broker that all processes of a run share counts apart, not in the tests.

"""


class Sums:
    """Seconds and how many, by name."""

    def __init__(self) -> None:
        self._rows: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])

    def add(self, name: str, line: dict[str, Any]) -> None:
        row = self._rows[name]
        row[0] += line["phase"] not in {"setup", "teardown"}
        row[1] += line["cpu"]
        row[2] += line["real"]

    def most(self, count: int) -> dict[str, list[float]]:
        """Those that cost most first."""
        rows = sorted(self._rows.items(), key=lambda item: (-item[1][1], item[0]))[:count]
        return {name: [int(n), round(cpu, 1), round(real, 1)] for name, (n, cpu, real) in rows}

    def total(self) -> tuple[int, float, float]:
        rows = self._rows.values()
        return int(sum(r[0] for r in rows)), sum(r[1] for r in rows), sum(r[2] for r in rows)

    def means(self, least_s: float) -> dict[str, float]:
        """CPU seconds of one, of those that cost at least so much together."""
        return {
            name: round(cpu / count, 3)
            for name, (count, cpu, _) in sorted(self._rows.items())
            if count and cpu >= least_s
        }


def summary(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What one run of pytest cost, from the lines that its processes wrote, one after another.

    A fixture of a module is a cost of the first test that asked for it, but not of that function:
    next time another one may be the first.
    """
    phases, modules, folders, fixtures, imports, others, functions = (Sums() for _ in range(7))
    seen: set[str] = set()
    shared = 0.0
    for line in lines:
        name = line["name"]
        if line["what"] == "test":
            seen.add(name)
            module = name.partition("::")[0]
            phases.add(name, line)
            modules.add(module, line)
            own = {**line, "cpu": max(line["cpu"] - shared, 0.0)}
            functions.add(name.partition("[")[0], own)
            shared = 0.0
            folders.add("/".join(module.split("/")[:2]), line)
        elif line["what"] == "fixture":
            fixtures.add(f"{name} ({line['phase']})", line)
            shared += line["cpu"] if line["phase"] != "function" else 0.0
        elif line["what"] == "module":
            imports.add(name, line)
        else:
            others.add(line["what"], line)
    _, cpu, real = phases.total()
    return {
        "tests": len(seen),
        "cpu": round(cpu, 1),
        "real": round(real, 1),
        "beside": others.most(_OTHERS),
        "folders": folders.most(_MODULES),
        "modules": modules.most(len(seen)),
        "functions": functions.means(_WORTH_KEEPING_S),
        "dearest": phases.most(_TESTS),
        "fixtures": fixtures.most(_OTHERS),
        "imports": imports.most(_OTHERS),
    }


def lines_of(folder: Path) -> Iterable[dict[str, Any]]:
    """Of a run; a process that died may have left the last one unfinished."""
    for file in sorted(folder.glob("*.jsonl")):
        for text in file.read_text(encoding="utf-8").splitlines(keepends=True):
            if text.endswith("\n"):
                yield json.loads(text)


def measured() -> dict[str, Any]:
    """What is committed."""
    if not MEASURED.exists():
        return {}
    found: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))
    return found


def page(kept: dict[str, Any]) -> str:
    """The page of what is committed."""
    parts = [BEGIN, *_table(("command", "seconds", "commit", "load before"), _commands(kept))]
    for command, run in kept.items():
        if "tests" not in run:
            continue
        parts += [
            f"\n## `{command}`\n\n{run['tests']} tests, {run['cpu']:.0f} CPU seconds in all.\n",
            "\nBeside the tests:\n\n",
            *_table(("what", "processes", "CPU", "passed"), _rows(run["beside"])),
        ]
        for title, what, count in (
            ("Folders", "folders", _MODULES),
            ("Modules", "modules", _MODULES),
            ("Tests", "dearest", _TESTS),
            ("Fixtures", "fixtures", _OTHERS),
            ("Imports of modules", "imports", _OTHERS),
        ):
            heads = ("name", "times", "CPU", "passed")
            rows = _rows(dict(list(run[what].items())[:count]))
            parts += [f"\n### {title} of `{command}`\n\n", *_table(heads, rows)]
    return "".join(parts)


def _commands(kept: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (f"`{name}`", f"{run['seconds']:.0f}", f"`{run['commit']}`", f"{run['load']:.1f}")
        for name, run in kept.items()
    ]


def _rows(sums: dict[str, list[float]]) -> list[tuple[str, ...]]:
    return [
        (f"`{_short(name)}`", str(int(count)), f"{cpu:.1f}", f"{real:.1f}")
        for name, (count, cpu, real) in sums.items()
    ]


def _short(name: str, most: int = 90) -> str:
    """Lines of pages have at most 120 characters."""
    name = name.removeprefix("tests/").replace("|", "/")
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    aligned = ("---", *["--:"] * (len(heads) - 1))
    return [f"| {' | '.join(cells)} |\n" for cells in (heads, aligned, *rows)]


def told_durations(text: str) -> dict[str, float]:
    """Seconds by command, as the table of CONTRIBUTING.md tells them."""
    units = {"s": 1, "min": _MINUTE_S}
    rows = re.findall(r"^\| `([^`]+)` \|.*\| ([\d.]+) (s|min) on two cores \|$", text, re.MULTILINE)
    return {command: float(number) * units[unit] for command, number, unit in rows}


def _told(seconds: float) -> str:
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE_S:.1f} min"


@click.group()
def main() -> None:
    """Measure the tests and say where the minutes go."""


@main.command()
@click.argument("commands", nargs=-1, required=True)
def clock(commands: tuple[str, ...]) -> None:
    """Run commands of make and keep how long each took."""
    for command in commands:
        load, began = os.getloadavg()[0], time.perf_counter()
        done = subprocess.run(command.split(), cwd=ROOT, check=False)
        if done.returncode != 0:
            sys.exit(f"{command} failed: nothing is kept of it")
        _keep(command, time.perf_counter() - began, load)


@main.command()
@click.argument("command")
@click.argument("seconds", type=float)
@click.argument("load", type=float)
def keep(command: str, seconds: float, load: float) -> None:
    """Keep a run that was made otherwise: its seconds, and the load of the machine before it."""
    _keep(command, seconds, load)


def _keep(command: str, seconds: float, load: float) -> None:
    kept = measured()
    asked = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    run: dict[str, Any] = {"seconds": round(seconds), "load": round(load, 1)}
    run["commit"] = commit.strip()
    if command in FOLDERS:
        run |= summary(lines_of(RUNS / FOLDERS[command]))
        # Of what takes turns, the run had a part.
        before = kept.get(command, {}).get("functions", {})
        run["functions"] = dict(sorted({**before, **run["functions"]}.items()))
    kept[command] = run
    MEASURED.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@main.command()
def write() -> None:
    """Make the page, and the durations in CONTRIBUTING.md, from what is kept."""
    kept = measured()
    PAGE.write_text(page(kept), encoding="utf-8")
    text = CONTRIBUTING.read_text(encoding="utf-8")
    for command, run in kept.items():
        row = rf"^(\| `{re.escape(command)}` \|.*\| )[^|]*\|$"
        told = rf"\g<1>{_told(run['seconds'])} on two cores |"
        text = re.sub(row, told, text, flags=re.MULTILINE)
    CONTRIBUTING.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
