"""The report: an HTML page that loads nothing else, the same as JSON, a table for terminals."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import jinja2
import msgspec
from rich.table import Table
from rich.text import Text

from tests.prove.running import Tried
from tests.prove.section import Harm, Verdict

SHOWN = 50
"""Findings of a section in the page; the JSON has all of them."""
COLOURS = {
    Verdict.HELD: "green",
    Verdict.BROKEN: "red",
    Verdict.SHORT: "yellow",
    Verdict.NOTHING: "red",
    Verdict.FAILED: "red",
}
_TEMPLATE = Path(__file__).with_name("report.html")


class Report(msgspec.Struct, frozen=True):
    """All that was tried, on what, and how to try it again."""

    seed: int
    commit: str
    machine: str
    started: datetime
    seconds: float
    sections: tuple[Tried, ...]

    @property
    def passes(self) -> bool:
        """At least one section was tried, and none says no."""
        return bool(self.sections) and all(it.verdict.passes for it in self.sections)

    @property
    def headline(self) -> str:
        if not self.sections:
            return "Nothing was tried, so nothing is proved."
        if not self.passes:
            broken = [it.name for it in self.sections if not it.verdict.passes]
            return f"It does not hold: {', '.join(broken)}."
        return "It held: nothing was lost, nothing was doubled, and each planted defect was found."

    def harmed(self, harm: Harm) -> int:
        return sum(it.result.harmed(harm) for it in self.sections if it.result)


def written(report: Report, folder: Path) -> Path:
    """Write both files; the path of the page."""
    page = folder / "report.html"
    page.write_text(html_of(report), encoding="utf-8")
    (folder / "report.json").write_bytes(msgspec.json.format(json_of(report)))
    return page


def json_of(report: Report) -> bytes:
    """The report with its verdicts, which are not kept in it."""
    told = msgspec.to_builtins(report)
    told["passes"] = report.passes
    for section, one in zip(told["sections"], report.sections, strict=True):
        section["verdict"] = one.verdict
        if one.result:
            section["harm"] = {str(harm): one.result.harmed(harm) for harm in Harm}
            section["short_of"] = one.result.short_of()
    return msgspec.json.encode(told)


def html_of(report: Report) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(report=report, harms=list(Harm), colours=COLOURS, shown=SHOWN)


def table_of(report: Report) -> Table:
    """What a terminal shows."""
    table = Table(title=f"proof, seed {report.seed}, commit {report.commit}")
    for column in ("section", "verdict", "tried", *Harm, "defects caught"):
        table.add_column(column)
    for one in report.sections:
        table.add_row(one.name, Text(one.verdict, COLOURS[one.verdict]), *_cells(one))
    return table


def _cells(one: Tried) -> Sequence[str]:
    if one.result is None:
        return (one.failure.partition("\n")[0],)
    result = one.result
    tried = "\n".join(f"{number:,} {name}" for name, number in result.tried.items())
    caught = f"{len(result.planted) - len(result.missed)} of {len(result.planted)}"
    harmed = [str(result.harmed(harm)) for harm in Harm]
    return (tried, *harmed, caught if result.planted else "-")


def now() -> datetime:
    return datetime.now(UTC)
