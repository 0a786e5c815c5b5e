"""`make prove`: tries to lose and to double records, and writes down what came of it."""

import os
import platform
import secrets
import subprocess
from contextlib import closing
from pathlib import Path

import click
from rich.console import Console

from statestore.errors import Misuse
from tests.builders import ROOT
from tests.prove.registry import SECTIONS
from tests.prove.report import Report, now, table_of, written
from tests.prove.running import Tried, chosen, tried
from tests.prove.section import Section

_HOURS = 0.5
_LONG_COLUMNS = 160


@click.command(help=__doc__)
@click.option("--hours", type=float, default=_HOURS, show_default=True)
@click.option("--sections", default="", help="Names with commas; all if there are none.")
@click.option("--seed", type=int, default=None, help="Of an earlier run, to repeat it.")
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path),
    default=ROOT / ".scratch" / "prove",
    help="The folder of report.html, report.json and a log for each section.",
)
def main(hours: float, sections: str, seed: int | None, folder: Path) -> None:
    """Try the sections, print a table, and fail unless all that was tried held."""
    try:
        wanted = chosen(sections, SECTIONS)
    except Misuse as error:
        raise click.UsageError(str(error)) from error
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if os.isatty(1) else _LONG_COLUMNS)
    report = _report_of(wanted, seed, hours * 3600, folder, console)
    page = written(report, folder)
    console.print(table_of(report))
    console.print(f"{report.headline}\n{page}", soft_wrap=True)
    if not report.passes:
        raise SystemExit(1)


def _report_of(
    sections: list[Section], seed: int, seconds: float, folder: Path, console: Console
) -> Report:
    started = now()
    console.print(f"seed {seed}: repeat it with  make prove SEED={seed} HOURS={seconds / 3600:g}")
    done: list[Tried] = []
    with console.status("…") as status:

        def begin(section: Section, budget_s: float) -> None:
            status.update(f"{section.name}: {budget_s / 60:.1f} minutes")

        ends = tried(sections, seed=seed, seconds=seconds, folder=folder, begin=begin)
        with closing(ends):
            for one in ends:
                console.print(f"{one.name}: {one.verdict} ({one.took_s / 60:.1f} minutes)")
                done.append(one)
                took_s = (now() - started).total_seconds()
                # The page is there while the rest goes on, and after whatever ends this process.
                report = Report(seed, _commit(), _machine(), started, took_s, tuple(done))
                written(report, folder)
    return Report(
        seed, _commit(), _machine(), started, (now() - started).total_seconds(), tuple(done)
    )


def _commit() -> str:
    command = ["git", "-c", "safe.directory=*", "describe", "--always", "--dirty", "--abbrev=12"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return told.strip() or "unknown"


def _machine() -> str:
    load = ", ".join(f"{figure:.1f}" for figure in os.getloadavg())
    kind = f"{platform.machine()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {kind}, load {load}"


if __name__ == "__main__":
    main()
