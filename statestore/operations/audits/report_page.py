"""The report of an audit: a self-contained HTML page, stored beside the audit's record."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from statestore.layout.audits import (
    AuditedPlace,
    AuditedStore,
    AuditFailure,
    AuditRecord,
    AuditVerdict,
)
from statestore.operations.page import Cell, listed, number, page, table, text

ROWS_MAX: Final = 500
"""The largest number of failures, or of places, that the page shows; the record has them all."""
_KEY_MAX: Final = 200
_COLOURS: Final = {AuditVerdict.RIGHT: "green", AuditVerdict.WRONG: "red"}
_MEANING: Final = {
    AuditVerdict.RIGHT: "every store has what its changelog says, at the offsets below.",
    AuditVerdict.WRONG: "stores differ from their changelogs. Nothing was changed; the runbook "
    'says what to do: "An audit is red".',
    AuditVerdict.NOT_ENOUGH_CHECKED: "compaction removed too many of the records to compare with, "
    "so the audit did not pass. Audit again when less is being written.",
    AuditVerdict.NOTHING_CHECKED: "nothing could be compared, so the audit did not pass.",
}

_OF_FAILURES: Final = ("check", "store", "stream task", "rows", "keys", "what was found")
_OF_STORES: Final = (
    "store",
    "kind",
    "rows",
    "rows of log",
    "equal",
    "superseded",
    "unseen",
    "placed by",
    "written by",
)
_OF_PLACES: Final = ("store", "stream task", "changelog", "stands at offset", "its log ends at")


def audit_page(record: AuditRecord) -> str:
    """Return the page of an audit."""
    return page(f"Audit of {record.application_id}", *_parts(record))


def _parts(record: AuditRecord) -> Iterator[str]:
    when = datetime.fromtimestamp(record.time_ms / 1000, UTC)
    colour = _COLOURS.get(record.verdict, "yellow")
    yield (
        f'<p><b class="{colour}">{text(record.verdict)}</b>: {text(_MEANING[record.verdict])}<br>'
        f"{when:%Y-%m-%d %H:%M:%S} UTC, source: {text(record.source)}</p>"
    )
    if record.failures:
        yield f"<h2>Failures ({len(record.failures):,})</h2>"
        yield _capped(_OF_FAILURES, map(_failure, record.failures), len(record.failures))
    yield "<h2>Stores</h2>"
    yield table(_OF_STORES, map(_store, record.stores))
    if record.not_checked:
        yield "<h2>Not checked</h2>"
        yield listed(f"{store}: {why}" for store, why in sorted(record.not_checked.items()))
    count = len(record.places)
    shown = _capped(_OF_PLACES, map(_place, record.places), count)
    yield f"<details><summary>Where the stores stood ({count:,})</summary>{shown}</details>"
    if record.data_docs:
        yield (
            "<p>Data Docs of Great Expectations, which need the Internet to look right: "
            f"<code>{text(record.data_docs)}</code></p>"
        )


def _capped(columns: Sequence[str], rows: Iterable[tuple[Cell | str, ...]], count: int) -> str:
    shown = table(columns, (row for row, _ in zip(rows, range(ROWS_MAX), strict=False)))
    rest = f"<p>… and {count - ROWS_MAX:,} more in the record.</p>" if count > ROWS_MAX else ""
    return shown + rest


def _failure(failure: AuditFailure) -> tuple[Cell | str, ...]:
    keys = [key if len(key) <= _KEY_MAX else f"{key[:_KEY_MAX]}…" for key in failure.keys]
    more = ["…"] if failure.count > len(keys) > 0 else []
    return (
        Cell(text(failure.check), "red"),
        failure.store,
        failure.stream_task or "",
        number(failure.count),
        Cell(listed([*keys, *more])),
        failure.detail,
    )


def _store(store: AuditedStore) -> tuple[Cell | str, ...]:
    found = (store.rows, store.rows_of_log, store.equal, store.superseded, store.unseen)
    counts = map(number, found)
    writers = Cell(listed(map(str, store.writers)))
    return (store.store, store.kind, *counts, store.placement_text(), writers)


def _place(place: AuditedPlace) -> tuple[Cell | str, ...]:
    log = f"{place.topic}-{place.partition}"
    return (place.store, place.stream_task, log, number(place.offset_next), number(place.log_end))
