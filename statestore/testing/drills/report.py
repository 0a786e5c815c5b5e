"""A drill report for people: a table for terminals, and one HTML page that needs no other file."""

from datetime import UTC, datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from statestore.operations.page import Cell, listed, page, table, text
from statestore.testing.drills.drill_plan import Drilled, DrillReport, Outcome

_COLOURS: Final = {Outcome.GREEN: "green", Outcome.RED: "red", Outcome.NOT_DRILLED: "yellow"}
_COLUMNS: Final = ("drill", "seed", "verdict", "restored", "restore", "back in", "what happened")


def table_of(report: DrillReport) -> Table:
    """The report as a table for a terminal."""
    table = Table(title=f"crash drill {report.application_id}, seed {report.seed}")
    for column in _COLUMNS:
        table.add_column(column, no_wrap=column != _COLUMNS[-1])
    for drill in report.drills:
        said = "\n".join([drill.happened, *drill.findings])
        colour = _COLOURS[drill.outcome]
        texts = [drill.name, str(drill.seed), *_figures(drill)]
        cells = [Text(text) for text in texts]
        table.add_row(*cells[:2], Text(drill.outcome, colour), *cells[2:], Text(said))
    return table


def html_of(report: DrillReport) -> str:
    """The report as one page that loads nothing else."""
    when = datetime.fromtimestamp(report.started_ms / 1000, UTC)
    counts = ", ".join(
        f'<b class="{_COLOURS[outcome]}">{report.count(outcome)} {text(outcome)}</b>'
        for outcome in Outcome
    )
    return page(
        f"Crash drill {report.application_id}",
        f"<p>{when:%Y-%m-%d %H:%M} UTC, {report.seconds:.0f} s, workload {text(report.workload)}, "
        f"seed {report.seed}: {counts}.</p>",
        table(_COLUMNS, map(_row, report.drills)),
        '<p>"Back in" is the time from the start of the run after the death to its end, caught up; '
        '"restore" is the time its slowest stream task spent replaying changelogs. What was '
        "not drilled proves nothing.</p>",
    )


def _row(drill: Drilled) -> tuple[Cell, ...]:
    kept = f"<br>evidence: <code>{text(drill.evidence)}</code>" if drill.evidence else ""
    return (
        Cell(f"<b>{text(drill.name)}</b><br>{text(drill.kind)}"),
        Cell(str(drill.seed), "n"),
        Cell(text(drill.outcome), _COLOURS[drill.outcome]),
        *(Cell(figure, "n") for figure in _figures(drill)),
        Cell(text(drill.happened) + kept + listed(drill.findings)),
    )


def _figures(drill: Drilled) -> list[str]:
    """Records replayed, seconds spent on that, seconds until the run has caught up."""
    return [
        "" if drill.restored_records is None else f"{drill.restored_records:,}",
        "" if drill.restore_seconds is None else f"{drill.restore_seconds:.2f} s",
        "" if drill.recovery_seconds is None else f"{drill.recovery_seconds:.1f} s",
    ]
