"""A drill report for people: a table for terminals, one HTML file that needs nothing else."""

from datetime import UTC, datetime
from html import escape
from typing import Final

from rich.table import Table
from rich.text import Text

from statestore.operations.drills.plan import Drilled, DrillReport, Outcome

_COLOURS: Final = {Outcome.GREEN: "green", Outcome.RED: "red", Outcome.NOT_DRILLED: "yellow"}
_COLUMNS: Final = ("drill", "seed", "verdict", "restored", "restore", "back in", "what happened")

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Crash drill {id}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; color: #222; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; }}
th, td {{ padding: .35rem .6rem; border-bottom: 1px solid #ddd; }}
td.n {{ text-align: right; }}
.green {{ color: #146c2e; }} .red {{ color: #b3261e; font-weight: 600; }}
.not-drilled {{ color: #8a5a00; }} ul {{ margin: .3rem 0 0; padding-left: 1.1rem; }}
</style></head><body>
<h1>Crash drill {id}</h1>
<p>{when}, {seconds:.0f} s, workload {workload}, seed {seed}:
<b class="green">{green} green</b>, <b class="red">{red} red</b>,
<b class="not-drilled">{missed} not drilled</b>.</p>
<table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table>
<p>"Back in" is the time from the start of the run after the death to its end, caught up; "restore"
is what its slowest stream task spent replaying changelogs. What was not drilled proves nothing.</p>
</body></html>
"""


def table_of(report: DrillReport) -> Table:
    """For a terminal."""
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
    """One page, nothing outside it."""
    when = datetime.fromtimestamp(report.started_ms / 1000, UTC)
    return _PAGE.format(
        id=escape(report.application_id),
        when=when.strftime("%Y-%m-%d %H:%M UTC"),
        seconds=report.seconds,
        workload=escape(report.workload),
        seed=report.seed,
        green=report.count(Outcome.GREEN),
        red=report.count(Outcome.RED),
        missed=report.count(Outcome.NOT_DRILLED),
        head="".join(f"<th>{column}</th>" for column in _COLUMNS),
        rows="\n".join(map(_row, report.drills)),
    )


def _row(drill: Drilled) -> str:
    findings = "".join(f"<li>{escape(finding)}</li>" for finding in drill.findings)
    kept = f"<br>evidence: <code>{escape(drill.evidence)}</code>" if drill.evidence else ""
    outcome = drill.outcome
    cells = [
        f"<td><b>{escape(drill.name)}</b><br>{drill.kind}</td>",
        f'<td class="n">{drill.seed}</td>',
        f'<td class="{outcome.replace(" ", "-")}">{outcome}</td>',
        *(f'<td class="n">{figure}</td>' for figure in _figures(drill)),
        f"<td>{escape(drill.happened)}{kept}{f'<ul>{findings}</ul>' if findings else ''}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _figures(drill: Drilled) -> list[str]:
    """Records replayed, seconds of that, seconds until caught up."""
    return [
        "" if drill.restored_records is None else f"{drill.restored_records:,}",
        "" if drill.restore_seconds is None else f"{drill.restore_seconds:.2f} s",
        "" if drill.recovery_seconds is None else f"{drill.recovery_seconds:.1f} s",
    ]
