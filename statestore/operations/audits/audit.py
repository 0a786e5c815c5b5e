"""The comparison of an audit: does a store have the rows that its log produces up to its offset?

These functions do no I/O. Either this process compares the rows (`StoreAudit.examine`), or Spark
joins both sides and calls `judge` for rows that differ. An
audit passes only if something was compared, nothing failed, and few rows were superseded.

Keeps I22.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any, Final

from statestore import serdes
from statestore.errors import AuditFailed, ExportDamaged, Misuse, NotChecked, TaskCorrupted
from statestore.layout.audits import (
    AuditedPlace,
    AuditedStore,
    AuditedWriter,
    AuditFailure,
    AuditRecord,
    AuditVerdict,
)
from statestore.operations.audits.both_sides import (
    AuditRow,
    AuditRows,
    ReplayedLog,
    Subject,
    placing_keys,
)
from statestore.operations.audits.checks import AuditCheck, Fault
from statestore.operations.audits.writers import WrittenRows
from statestore.operations.environment import Partitioner

EXAMPLES: Final = 20
"""The largest number of keys that a failure names."""

MISPLACED_MAX_PERCENT: Final = 10
"""A hash counts as the one that places a store's keys if it misplaces at most this many of them."""

FEW: Final = 30
"""Of fewer keys than this, a hash must place all, because some keys fit any hash by chance."""

_NONE_FOUND: Final[Mapping["RowFinding", int]] = {}


class RowFinding(StrEnum):
    """The result of comparing the two sides of one row."""

    EQUAL = "equal"
    SUPERSEDED = "superseded"
    UNSEEN = "unseen"
    DIFFERS = "differs"
    MISSING = "missing"
    EXTRA = "extra"
    PENDING = "pending"


FAILED_BY: Final = {
    RowFinding.DIFFERS: AuditCheck.EQUAL_VALUES,
    RowFinding.MISSING: AuditCheck.NONE_MISSING,
    RowFinding.EXTRA: AuditCheck.NONE_EXTRA,
    RowFinding.PENDING: AuditCheck.NOTHING_PENDING,
}


def judge(
    stored: AuditRow | None,
    logged: AuditRow | None,
    *,
    known: bool,
    later: bool,
    later_value: bytes | None,
    is_whole: bool,
) -> RowFinding:
    """Compare the two sides of a row; `is_whole`: the log has a record for each version.

    If a row has a record after the store's offset, compaction may have removed the record before
    it. But if the log still has a record before the offset (`known`) and the store has the value
    from after it, that value was written too early. A log that is not whole has lost versions.
    """
    if stored == logged:
        return RowFinding.EQUAL
    if later and known and (None if stored is None else stored.value) == later_value:
        return RowFinding.PENDING
    if later:
        return RowFinding.SUPERSEDED
    if not is_whole:
        return RowFinding.UNSEEN
    if stored is None:
        return RowFinding.MISSING
    return RowFinding.EXTRA if logged is None else RowFinding.DIFFERS


class StoreAudit:
    """The findings and failures of one store, whose partitions are examined one after another."""

    def __init__(
        self, store: str, kind: str, key_serde: str | None, *, placed_apart: bool = False
    ) -> None:
        self.store = store
        self.kind = kind
        self.placed_apart = placed_apart
        self.findings: Counter[RowFinding] = Counter()
        self.failures: list[AuditFailure] = []
        self._keys = KeyTexts(key_serde)
        self._written: WrittenRows | None = None
        self._latest: set[bytes | None] = set()
        self._placing = 0
        self._misplaced: dict[str, Counter[str]] = {}
        self._misplaced_keys: dict[tuple[str, str], list[bytes]] = {}

    def examine(
        self,
        subject: Subject,
        stored: Iterable[AuditRows | Fault],
        replayed: ReplayedLog,
        hashes: Mapping[str, Partitioner],
    ) -> None:
        """Compare one partition; `stored` is read once, in chunks."""
        left = dict.fromkeys(replayed.rows)
        keys_of: dict[RowFinding, list[bytes | None]] = {}
        found: Counter[RowFinding] = Counter()
        spans: dict[bytes | None, list[tuple[int, int | None]]] = {}
        written = WrittenRows(subject.writers)

        def compare(
            key: bytes | None, begins: int, ours: AuditRow | None, theirs: AuditRow | None
        ) -> None:
            place = key, begins
            finding = judge(
                ours,
                theirs,
                known=place in replayed.known,
                later=place in replayed.later,
                later_value=replayed.later.get(place),
                is_whole=subject.is_whole,
            )
            found[finding] += 1
            if finding in FAILED_BY:
                keys_of.setdefault(finding, []).append(key)

        failed_before = len(self.failures)
        faults: dict[AuditCheck, list[bytes | None]] = {}
        for rows in self._readable(subject, chain(replayed.faults, stored), faults):
            for key, begins, ends, value in zip(*rows, strict=True):
                ours, theirs = AuditRow(value, ends), replayed.rows.get((key, begins))
                left.pop((key, begins), None)
                if ours == theirs:
                    found[RowFinding.EQUAL] += 1
                else:
                    compare(key, begins, ours, theirs)
                if subject.versioned:
                    spans.setdefault(key, []).append((begins, ends))
            written.add(rows.keys, rows.values)
            if not self.placed_apart:
                placing = placing_keys(rows.keys, subject.kind, subject.key_serde)
                self._place(subject, placing, hashes)
        if len(self.failures) > failed_before:
            return  # rows of another kind, or not read to their end, prove nothing
        for key, begins in left:
            compare(key, begins, None, replayed.rows[key, begins])
        self.findings += found
        for check, wrong in faults.items():
            self._fail(check, subject, wrong)
        for finding, keys in keys_of.items():
            self._fail(FAILED_BY[finding], subject, keys)
        self._check_counts(subject, found)
        self._check_offsets(subject)
        self._check_spans(subject, spans)
        self._check_writers(subject, written)

    def result(self) -> AuditedStore:
        """Check the partitions of the keys, and return the counts of the store."""
        placement = self._judge_placement()
        return audited_store(
            self.store,
            self.kind,
            self.findings,
            placement,
            placed_apart=self.placed_apart,
            writers=[] if self._written is None else self._written.told(),
        )

    def _readable(
        self,
        subject: Subject,
        stored: Iterable[AuditRows | Fault],
        faults: dict[AuditCheck, list[bytes | None]],
    ) -> Iterator[AuditRows]:
        """Yield rows until the files cannot be read, which is recorded; collect their faults."""
        try:
            for rows in stored:
                if isinstance(rows, Fault) and rows.check is AuditCheck.FORMAT:
                    self._fail(rows.check, subject, [])
                elif isinstance(rows, Fault):
                    faults.setdefault(rows.check, []).append(rows.key)
                else:
                    yield rows
        except (TaskCorrupted, ExportDamaged) as error:
            self.failures.append(unreadable(subject, error))

    def _check_counts(self, subject: Subject, found: Counter[RowFinding]) -> None:
        if subject.is_missing and found:
            self.failures.append(absent(subject))
        if found[RowFinding.EXTRA] != found[RowFinding.MISSING]:
            self._fail(AuditCheck.ROW_COUNTS, subject, [], found)

    def _check_offsets(self, subject: Subject) -> None:
        at, last = subject.offset_next, subject.last_offset
        if at > subject.log_end:
            self._fail(AuditCheck.STABLE_OFFSETS, subject, [])
        if last is not None and at < last:
            self._fail(AuditCheck.FORWARD_OFFSETS, subject, [])

    def _check_spans(
        self, subject: Subject, spans: dict[bytes | None, list[tuple[int, int | None]]]
    ) -> None:
        overlapping, twice, latest = [], [], []
        for key, found in spans.items():
            found.sort(key=lambda span: span[0])
            ends = [end for _, end in found]
            if ends.count(None) > 1 or (None in ends and key in self._latest):
                latest.append(key)
            if None in ends:
                self._latest.add(key)
            begins = [begin for begin, _ in found]
            if len(set(begins)) < len(begins):
                twice.append(key)
            elif any(end is None or end > n for end, n in zip(ends, begins[1:], strict=False)):
                overlapping.append(key)
        for check, keys in (
            (AuditCheck.UNIQUE_KEYS, twice),
            (AuditCheck.VERSIONS_APART, overlapping),
            (AuditCheck.ONE_LATEST, latest),
        ):
            if keys:
                self._fail(check, subject, keys)

    def _check_writers(self, subject: Subject, written: WrittenRows) -> None:
        if written.unknown:
            self._fail(AuditCheck.KNOWN_WRITERS, subject, written.unknown)
        if self._written is not None:
            written.counts.update(self._written.counts)
        self._written = written

    def _place(
        self, subject: Subject, keys: list[bytes], hashes: Mapping[str, Partitioner]
    ) -> None:
        self._placing += len(keys)
        task = subject.stream_task
        for name, partitioner in hashes.items():
            found = partitioner(keys, subject.partitions)
            wrong = [
                key for key, placed in zip(keys, found, strict=True) if placed != subject.partition
            ]
            self._misplaced.setdefault(name, Counter())[task] += len(wrong)
            some = self._misplaced_keys.setdefault((name, task), [])
            some += wrong[: EXAMPLES - len(some)]

    def _judge_placement(self) -> str | None:
        """Return the hash that places the keys, None if neither does; record misplaced keys."""
        totals = {name: wrong.total() for name, wrong in self._misplaced.items()}
        name = placing_hash(self._placing, totals)
        if name is not None:
            for task, count in self._misplaced[name].items():
                if count:
                    texts = self._keys.texts(self._misplaced_keys[name, task])
                    detail = _elsewhere(name)
                    self.failures.append(
                        AuditFailure(
                            AuditCheck.RIGHT_PARTITION, self.store, task, count, texts, detail
                        )
                    )
        return name

    def _fail(
        self,
        check: AuditCheck,
        subject: Subject,
        keys: Sequence[bytes | None],
        found: Mapping[RowFinding, int] = _NONE_FOUND,
    ) -> None:
        task, texts = subject.stream_task, self._keys.texts(keys)
        detail = detail_of(check, subject, found)
        self.failures.append(AuditFailure(check, self.store, task, len(keys) or 1, texts, detail))


_CONTRADICTION = "their versions contradict each other"
_DETAILS: Final = {
    AuditCheck.EQUAL_VALUES: "the store has other values, or other times of rows, than its log",
    AuditCheck.DERIVED_ROWS: "these rows do not follow from the rows that the log has",
    AuditCheck.FORMAT: "its files say that they are of another kind than the one deployed",
    AuditCheck.STREAM_TIME: "the stream time in its files is not the one that its log says",
    AuditCheck.NONE_MISSING: "the log has them, the store does not",
    AuditCheck.NONE_EXTRA: "the store has them, its log does not",
    AuditCheck.NOTHING_PENDING: "the store has values that are in the log only after its offset",
    AuditCheck.UNIQUE_KEYS: _CONTRADICTION,
    AuditCheck.VERSIONS_APART: _CONTRADICTION,
    AuditCheck.ONE_LATEST: _CONTRADICTION,
    AuditCheck.KNOWN_WRITERS: "no serde that topology.json names wrote them",
}


def detail_of(
    check: AuditCheck,
    subject: Subject,
    found: Mapping[RowFinding, int],
    placement: str | None = None,
) -> str:
    """Describe the failure of a check, in the same words for both ways of comparing.

    `found` has the findings in that partition; `placement` is the hash that places the keys.
    """
    offset = f"the store is at offset {subject.offset_next} of {subject.log}"
    match check:
        case AuditCheck.ROW_COUNTS:
            more = found.get(RowFinding.EXTRA, 0) - found.get(RowFinding.MISSING, 0)
            return f"the store has {more:+d} rows compared with its log"
        case AuditCheck.STABLE_OFFSETS:
            return f"{offset}, which ends at {subject.log_end}"
        case AuditCheck.FORWARD_OFFSETS:
            return f"{offset}; the previous audit found it at {subject.last_offset}"
        case AuditCheck.RIGHT_PARTITION:
            return _elsewhere(placement)
        case _:
            return _DETAILS[check]


def _elsewhere(placement: str | None) -> str:
    return f"{placement} maps them to other partitions"


def unreadable(subject: Subject, error: Exception) -> AuditFailure:
    """Return the failure of unreadable files; its message has their paths in the state dir."""
    why = str(error)
    if subject.shown_path and subject.path:
        why = why.replace(subject.path, subject.shown_path)
    return AuditFailure(AuditCheck.READABLE, subject.store, subject.stream_task, 1, [], why)


def absent(subject: Subject) -> AuditFailure:
    """Return the failure of a store that was deployed and has no files, but records in its log."""
    where = "the state dir" if subject.export is None else f"export {subject.export}"
    why = (
        f"it is missing: {where} has no such store of partition {subject.partition}, but its log "
        f"{subject.log} has records; the next run restores it from there"
    )
    return AuditFailure(AuditCheck.PRESENT, subject.store, subject.stream_task, 1, [], why)


def row_counts(found: Mapping[RowFinding, int]) -> tuple[int, int]:
    """Return how many rows a store and its log have, not counting superseded ones."""
    both = sum(
        found.get(one, 0) for one in (RowFinding.EQUAL, RowFinding.DIFFERS, RowFinding.PENDING)
    )
    return both + found.get(RowFinding.EXTRA, 0), both + found.get(RowFinding.MISSING, 0)


def audited_store(
    store: str,
    kind: str,
    found: Mapping[RowFinding, int],
    placement: str | None,
    *,
    placed_apart: bool,
    writers: Sequence[AuditedWriter],
) -> AuditedStore:
    """Return the counts of a store from its findings."""
    equal, superseded = found.get(RowFinding.EQUAL, 0), found.get(RowFinding.SUPERSEDED, 0)
    counts = *row_counts(found), equal, superseded
    unseen = found.get(RowFinding.UNSEEN, 0)
    return AuditedStore(store, kind, *counts, placement, placed_apart, list(writers), unseen)


class KeyTexts:
    """Converts keys to text, with their serde if it is known, otherwise as escaped bytes."""

    def __init__(self, key_serde: str | None) -> None:
        try:
            self._serde = serdes.BYTES if key_serde is None else serdes.by_name(key_serde)
        except Misuse:
            self._serde = serdes.BYTES

    def text(self, key: bytes | None) -> str:
        """Return the text of one key."""
        if key is None:
            return "null"
        if self._serde is serdes.BYTES:
            return serdes.printable(key)
        try:
            decoded: Any = self._serde.deserialize(key)
        except Exception:  # noqa: BLE001  # a user's serde may raise anything
            return serdes.printable(key)
        return decoded if isinstance(decoded, str) else str(decoded)

    def texts(self, keys: Iterable[bytes | None]) -> list[str]:
        """Return the texts of the first `EXAMPLES` keys."""
        return [self.text(key) for key, _ in zip(keys, range(EXAMPLES), strict=False)]


def placing_hash(keys: int, misplaced: dict[str, int]) -> str | None:
    """Return the hash that places all but a few of a store's keys; None if neither does."""
    wrong_max = 0 if keys < FEW else keys * MISPLACED_MAX_PERCENT / 100
    fitting = [name for name, wrong in misplaced.items() if wrong <= wrong_max]
    return min(fitting, key=misplaced.__getitem__, default=None)


def verdict_of(
    stores: Iterable[AuditedStore],
    failures: Sequence[AuditFailure],
    *,
    superseded_max_percent: int,
) -> AuditVerdict:
    """Return the verdict; any failure makes it `wrong`."""
    if failures:
        return AuditVerdict.WRONG
    known = list(stores)
    if not any(store.equal or store.superseded or store.unseen for store in known):
        return AuditVerdict.NOTHING_CHECKED
    if any(store.unseen for store in known):
        return AuditVerdict.NOT_ENOUGH_CHECKED
    for store in known:
        if store.superseded * 100 > superseded_max_percent * (store.equal + store.superseded):
            return AuditVerdict.NOT_ENOUGH_CHECKED
    return AuditVerdict.RIGHT


def places_of(subjects: Iterable[Subject]) -> list[AuditedPlace]:
    """Return the stores' offsets for the record."""
    return [
        AuditedPlace(s.store, s.stream_task, s.topic, s.partition, s.offset_next, s.log_end)
        for s in subjects
        if not s.is_missing
    ]


def require_pass(record: AuditRecord) -> AuditRecord:
    """Return the record if the audit passed; otherwise raise AuditFailed or NotChecked."""
    where = f"; report: {record.link}" if record.link else ""
    name = record.application_id
    match record.verdict:
        case AuditVerdict.RIGHT:
            return record
        case AuditVerdict.WRONG:
            lines = "; ".join(map(failure_line, record.failures[:10]))
            raise AuditFailed(
                f"the stores of {name} differ from their changelogs: {lines}{where}; see the "
                'runbook, "An audit is red"'
            )
        case AuditVerdict.NOT_ENOUGH_CHECKED if any(s.unseen for s in record.stores):
            stores = ", ".join(f"{s.store}: {s.unseen}" for s in record.stores if s.unseen)
            raise NotChecked(
                f"the changelogs of {name} do not have a record for each version ({stores}), as an "
                "older version of statestore or a store without history wrote them: the next run "
                f"logs all versions; audit again after it{where}"
            )
        case AuditVerdict.NOT_ENOUGH_CHECKED:
            stores = ", ".join(
                f"{s.store}: {s.superseded} of {s.superseded + s.equal}"
                for s in record.stores
                if s.superseded
            )
            raise NotChecked(
                f"too many keys of {name} could not be compared, because compaction removed their "
                f"records ({stores}): audit again when less is being written, or audit an "
                f"export{where}"
            )
        case AuditVerdict.NOTHING_CHECKED:
            left_out = "".join(f"; {s}: {why}" for s, why in record.not_checked.items())
            raise NotChecked(
                f"nothing of {name} was compared: its stores and their changelogs are empty, or "
                f"no store can be read from outside{left_out}: process something first{where}"
            )


def failure_line(failure: AuditFailure) -> str:
    """Return a failure as one line that names keys."""
    task = "" if failure.stream_task is None else f" of task {failure.stream_task}"
    keys = ", ".join(failure.keys)
    more = ", …" if failure.count > len(failure.keys) > 0 else ""
    named = f" ({failure.count}: {keys}{more})" if keys else ""
    return f"{failure.check}: store {failure.store!r}{task}: {failure.detail}{named}"
