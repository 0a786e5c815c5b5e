"""Which records the last run and all runs left out, as `progress.json` of each stream task says."""

from collections.abc import Mapping
from typing import Final

import msgspec

from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId
from statestore.model.left_out import Fate, LeftOut, LeftOutSums
from statestore.model.texts import time_text
from statestore.tasks.plan import run_of
from statestore.tasks.progress_file import KeptSums, Sums

_CAUSES: Final = 5


class LeftOutStatus(msgspec.Struct, frozen=True):
    """Records that came in, and those of them that are in no result, by node and reason.

    `since_ms`: since when all runs are counted; None: these are of the last run. As in the summary
    of a run, dead letters were dropped, too.
    """

    records_in: int = 0
    dropped_records: int = 0
    dropped: list[LeftOut] = []
    dead_letter_records: int = 0
    dead_letters: list[LeftOut] = []
    unmatched_records: int = 0
    unmatched: list[LeftOut] = []
    since_ms: int | None = None


def left_out_rows(last: LeftOutStatus | None, every: LeftOutStatus | None) -> list[tuple[str, str]]:
    """What to show people: what the last run left out, by cause, and all runs if that is more."""
    if last is None or every is None:
        return []
    rows = []
    for name, causes in (
        ("dropped", last.dropped),
        ("dead letters", last.dead_letters),
        ("unmatched", last.unmatched),
    ):
        rows += [(name, str(one)) for one in causes[:_CAUSES]]
        if len(causes) > _CAUSES:
            rows.append((name, f"and {len(causes) - _CAUSES} more causes, which --json has"))
    counts = {
        "dropped": (every.dropped_records, last.dropped_records),
        "dead letters": (every.dead_letter_records, last.dead_letter_records),
        "unmatched": (every.unmatched_records, last.unmatched_records),
    }
    told = [f"{count:,} {name}" for name, (count, now) in counts.items() if count != now]
    if told:
        since = time_text(every.since_ms or 0)
        rows.append(
            ("all runs", f"{', '.join(told)} of {every.records_in:,} records since {since}")
        )
    return rows


def last_run(layout: StateLayout) -> str:
    """What names the run that goes on or was last; empty: there was none."""
    try:
        return layout.nonce_file.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def of_last_run(kept: Mapping[TaskId, KeptSums], run: str) -> LeftOutStatus | None:
    """What that run has counted in these stream tasks; None: no run has counted in any."""
    found = {task: sums.in_run for task, sums in kept.items() if run_of(sums.serving) == run}
    return _left_out(found) if found or any(sums.serving for sums in kept.values()) else None


def of_all_runs(kept: Mapping[TaskId, KeptSums]) -> LeftOutStatus | None:
    """What all runs have counted in these stream tasks; None: no run has counted in any."""
    found = {task: sums for task, sums in kept.items() if sums.serving}
    if not found:
        return None
    since_ms = min(sums.since_ms for sums in found.values())
    return _left_out({task: sums.in_all for task, sums in found.items()}, since_ms)


def _left_out(sums: Mapping[TaskId, Sums], since_ms: int | None = None) -> LeftOutStatus:
    total = LeftOutSums()
    for task, each in sums.items():
        total.add(str(task), each.records_in, each.left_out)
    dropped, dead, unmatched = (total.of(fate) for fate in Fate)
    return LeftOutStatus(
        total.records_in.total(),
        sum(one.records for one in dropped),
        dropped,
        sum(one.records for one in dead),
        dead,
        sum(one.records for one in unmatched),
        unmatched,
        since_ms,
    )
