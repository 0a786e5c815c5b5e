"""The failures that an audit on Spark reports, in the same words as `statestore audit`.

Great Expectations says which rows are unexpected, by names of its own. What a row is (different,
missing, extra, pending), and how many such rows there are, comes from `audit.judge`, as it does
without Spark.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from statestore.layout.audits import AuditFailure
from statestore.model.ids import TaskId
from statestore.operations.audits.audit import (
    EXAMPLES,
    FAILED_BY,
    RowFinding,
    detail_of,
)
from statestore.operations.audits.both_sides import Subject
from statestore.operations.audits.checks import AuditCheck
from statestore.spark.expectations import Unexpected

_COMPARED = {check: finding for finding, check in FAILED_BY.items()}
_COUNTED_BY_KEY = {AuditCheck.UNIQUE_KEYS, AuditCheck.VERSIONS_APART, AuditCheck.ONE_LATEST}
_NONE: Counter[RowFinding] = Counter()


def failures_of(
    unexpected: Iterable[Unexpected],
    subjects: Sequence[Subject],
    found: Mapping[int, Counter[RowFinding]],
    placements: Mapping[str, str | None],
) -> list[AuditFailure]:
    """The failures by check, store and stream task; every row that failed is in exactly one."""
    keys, rows = _by_place(unexpected)
    failures = []
    for number, subject in enumerate(subjects):
        place, findings = (subject.store, subject.stream_task), found.get(number, _NONE)
        pending = set(keys.pop((AuditCheck.NOTHING_PENDING, *place), []))
        for check in AuditCheck:
            known = keys.pop((check, *place), [])
            if check is AuditCheck.NOTHING_PENDING:
                known, count = sorted(pending), findings[RowFinding.PENDING]
            elif check in _COMPARED:
                # A pending row differs from the log as well.
                known = [key for key in known if key not in pending]
                count = findings[_COMPARED[check]] or len(known)
            elif check in _COUNTED_BY_KEY:
                count = len(known)
            else:
                count = rows[check, *place]
            if count:
                detail = detail_of(check, subject, findings, placements.get(subject.store))
                failures.append(AuditFailure(check, *place, count, known[:EXAMPLES], detail))
    # These are of expectations that name no rows.
    failures += [
        AuditFailure(check, store, None, rows[check, store, task], [], "it does not hold somewhere")
        for check, store, task in keys
        if not any(failure.check == check for failure in failures)
    ]
    return failures


_Place = tuple[AuditCheck, str, str | None]


def _by_place(unexpected: Iterable[Unexpected]) -> tuple[dict[_Place, list[str]], Counter[_Place]]:
    """The keys and the numbers of rows, with each fault under one check only."""
    keys: dict[_Place, list[str]] = {}
    rows: Counter[_Place] = Counter()
    for one in unexpected:
        place = (one.check, one.store, one.stream_task)
        keys[place] = one.keys
        rows[place] = one.rows
    first: dict[tuple[str, str], _Place] = {}
    for place in sorted((it for it in keys if it[0] is AuditCheck.ONE_LATEST), key=_partition):
        for key in list(keys[place]):
            # Of several partitions that have a key, the first one is not at fault.
            before = first.setdefault((place[1], key), place)
            if before != place and key in keys[before]:
                keys[before].remove(key)
    for (check, store, task), known in keys.items():
        if check is AuditCheck.VERSIONS_APART:
            twice = keys.get((AuditCheck.UNIQUE_KEYS, store, task), [])
            known[:] = [key for key in known if key not in twice]
    return keys, rows


def _partition(place: _Place) -> int:
    return -1 if place[2] is None else TaskId.parse(place[2]).partition
