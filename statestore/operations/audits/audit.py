"""The judgement of an audit: does a store hold what its log makes of it, at the same offset?

Pure, whoever reads the rows: this process (`examine`), or Spark, which joins both sides itself and
asks `judge` about what differs. `checks` name what must hold; a verdict is a pass only if something
was compared, nothing failed, and few rows were superseded.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from statestore.errors import AuditFailed, ExportDamaged, Misuse, NotChecked, TaskCorrupted
from statestore.layout.audits import (
    AuditedPlace,
    AuditedStore,
    AuditFailure,
    AuditRecord,
    Verdict,
)
from statestore.operations.audits.rows import Fold, Row, Rows, Subject, placing_keys
from statestore.operations.environment import Partitioner
from statestore.stores import serdes

EXAMPLES: Final = 20
"""Keys named per failure."""

MISPLACED_MAX_PERCENT: Final = 10
"""A hash is held to place a store's keys if it puts no more of them elsewhere."""

FEW: Final = 30
"""Of fewer keys a hash must place all: some would fit any by chance."""

_NONE_FOUND: Final[Mapping["Finding", int]] = {}


class Check(StrEnum):
    """What must hold of every store."""

    PRESENT = "every partition is there"
    READABLE = "files are readable"
    ROW_COUNTS = "equal row counts"
    UNIQUE_KEYS = "unique keys"
    NON_NULL_KEYS = "non-null keys"
    NONE_MISSING = "no key missing"
    NONE_EXTRA = "no key the log does not have"
    EQUAL_VALUES = "equal values"
    NOTHING_PENDING = "nothing pending persisted"
    STABLE_OFFSETS = "offsets at or below the last stable offset"
    FORWARD_OFFSETS = "offsets never go back"
    RIGHT_PARTITION = "no key in a wrong partition"
    VERSIONS_APART = "versions do not overlap"
    ONE_LATEST = "one latest version"


class Finding(StrEnum):
    """What comparing the two sides of one row gives."""

    EQUAL = "equal"
    SUPERSEDED = "superseded"
    DIFFERS = "differs"
    MISSING = "missing"
    EXTRA = "extra"
    PENDING = "pending"


FAILED_BY: Final = {
    Finding.DIFFERS: Check.EQUAL_VALUES,
    Finding.MISSING: Check.NONE_MISSING,
    Finding.EXTRA: Check.NONE_EXTRA,
    Finding.PENDING: Check.NOTHING_PENDING,
}


def judge(
    stored: Row | None,
    logged: Row | None,
    *,
    begins: int,
    known: bool,
    later: bool,
    later_value: bytes | None,
    compactable_ms: int | None,
) -> Finding:
    """What a row says, given both sides of it; `compactable_ms` None: a store without history.

    Without history, a key that has a record after the store's offset may have lost the one before
    it to compaction. But if the log still has one before (`known`), and the store has what comes
    after, it was given that too early. With history, only versions old enough are ever removed.
    """
    if stored == logged:
        return Finding.EQUAL
    if compactable_ms is None:
        if later and known and (None if stored is None else stored.value) == later_value:
            return Finding.PENDING
        excused = later
    else:
        ended = any(row is not None and row.ends is not None for row in (stored, logged))
        excused = begins < compactable_ms and (ended or later)
    if excused:
        return Finding.SUPERSEDED
    if stored is None:
        return Finding.MISSING
    return Finding.EXTRA if logged is None else Finding.DIFFERS


class Examined:
    """One store, as far as it was examined; the partitions one after the other."""

    def __init__(self, store: str, kind: str, key_serde: str | None) -> None:
        self.store = store
        self.kind = kind
        self.findings: Counter[Finding] = Counter()
        self.failures: list[AuditFailure] = []
        self._keys = KeyTexts(key_serde)
        self._latest: set[bytes | None] = set()
        self._placing = 0
        self._misplaced: dict[str, Counter[str]] = {}
        self._misplaced_keys: dict[tuple[str, str], list[bytes]] = {}

    def examine(
        self,
        subject: Subject,
        stored: Iterable[Rows],
        folded: Fold,
        hashes: Mapping[str, Partitioner],
    ) -> None:
        """Compare one partition; `stored` is read once, row by row in lots."""
        left = dict.fromkeys(folded.rows)
        keys_of: dict[Finding, list[bytes | None]] = {}
        found: Counter[Finding] = Counter()
        spans: dict[bytes | None, list[tuple[int, int | None]]] = {}
        compactable_ms = subject.compactable_ms if subject.versioned else None

        def weigh(key: bytes | None, begins: int, ours: Row | None, theirs: Row | None) -> None:
            finding = judge(
                ours,
                theirs,
                begins=begins,
                known=key in folded.known,
                later=key in folded.later,
                later_value=folded.later.get(key),
                compactable_ms=compactable_ms,
            )
            found[finding] += 1
            if finding in FAILED_BY:
                keys_of.setdefault(finding, []).append(key)

        failed_before = len(self.failures)
        for rows in self._readable(subject, stored):
            for key, begins, ends, value in zip(*rows, strict=True):
                ours, theirs = Row(value, ends), folded.rows.get((key, begins))
                left.pop((key, begins), None)
                if ours == theirs:
                    found[Finding.EQUAL] += 1
                else:
                    weigh(key, begins, ours, theirs)
                if subject.versioned:
                    spans.setdefault(key, []).append((begins, ends))
            self._place(subject, placing_keys(rows.keys, subject.kind, subject.key_serde), hashes)
        if len(self.failures) > failed_before:
            return  # of files that cannot be read to their end no row proves anything
        for key, begins in left:
            weigh(key, begins, None, folded.rows[key, begins])
        self.findings += found
        for finding, keys in keys_of.items():
            self._fail(FAILED_BY[finding], subject, keys)
        self._check_counts(subject, found)
        self._check_offsets(subject)
        self._check_spans(subject, spans)
        nulls = [key for key, _ in folded.rows if key is None]
        if nulls:
            self._fail(Check.NON_NULL_KEYS, subject, nulls)

    def result(self) -> AuditedStore:
        """What is said of the store; now also where its keys lie was judged."""
        placement = self._judge_placement()
        return audited_store(self.store, self.kind, self.findings, placement)

    def _readable(self, subject: Subject, stored: Iterable[Rows]) -> Iterator[Rows]:
        """The rows up to where the files cannot be read any more, which is a failure."""
        try:
            yield from stored
        except (TaskCorrupted, ExportDamaged) as error:
            self.failures.append(unreadable(subject, error))

    def _check_counts(self, subject: Subject, found: Counter[Finding]) -> None:
        if subject.is_missing and found:
            self.failures.append(absent(subject))
        if found[Finding.EXTRA] != found[Finding.MISSING]:
            self._fail(Check.ROW_COUNTS, subject, [], found)

    def _check_offsets(self, subject: Subject) -> None:
        at, last = subject.offset_next, subject.last_offset
        if at > subject.log_end:
            self._fail(Check.STABLE_OFFSETS, subject, [])
        if last is not None and at < last:
            self._fail(Check.FORWARD_OFFSETS, subject, [])

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
            (Check.UNIQUE_KEYS, twice),
            (Check.VERSIONS_APART, overlapping),
            (Check.ONE_LATEST, latest),
        ):
            if keys:
                self._fail(check, subject, keys)

    def _place(
        self, subject: Subject, keys: list[bytes], hashes: Mapping[str, Partitioner]
    ) -> None:
        self._placing += len(keys)
        task = subject.stream_task
        for name, homes in hashes.items():
            found = homes(keys, subject.partitions)
            wrong = [
                key for key, home in zip(keys, found, strict=True) if home != subject.partition
            ]
            self._misplaced.setdefault(name, Counter())[task] += len(wrong)
            some = self._misplaced_keys.setdefault((name, task), [])
            some += wrong[: EXAMPLES - len(some)]

    def _judge_placement(self) -> str | None:
        """Fails what one hash would put elsewhere; the hash, None if neither places the keys."""
        totals = {name: wrong.total() for name, wrong in self._misplaced.items()}
        name = placing_hash(self._placing, totals)
        if name is not None:
            for task, count in self._misplaced[name].items():
                if count:
                    texts = self._keys.texts(self._misplaced_keys[name, task])
                    detail = _elsewhere(name)
                    self.failures.append(
                        AuditFailure(Check.RIGHT_PARTITION, self.store, task, count, texts, detail)
                    )
        return name

    def _fail(
        self,
        check: Check,
        subject: Subject,
        keys: Sequence[bytes | None],
        found: Mapping[Finding, int] = _NONE_FOUND,
    ) -> None:
        task, texts = subject.stream_task, self._keys.texts(keys)
        detail = detail_of(check, subject, found)
        self.failures.append(AuditFailure(check, self.store, task, len(keys) or 1, texts, detail))


_CONTRADICTION = "their versions contradict each other"
_SAYS: Final = {
    Check.EQUAL_VALUES: "the store has another value than its log",
    Check.NONE_MISSING: "the log has them, the store does not",
    Check.NONE_EXTRA: "the store has them, its log does not",
    Check.NOTHING_PENDING: "the store has what the log says only after the store's offset",
    Check.NON_NULL_KEYS: "the log has records without a key",
    Check.UNIQUE_KEYS: _CONTRADICTION,
    Check.VERSIONS_APART: _CONTRADICTION,
    Check.ONE_LATEST: _CONTRADICTION,
}


def detail_of(
    check: Check,
    subject: Subject,
    found: Mapping[Finding, int],
    placement: str | None = None,
) -> str:
    """What is wrong where a check failed, in words, whoever made it.

    `found`: in that partition; `placement`: the hash that places the store's keys.
    """
    stands = f"it stands at offset {subject.offset_next} of {subject.log}"
    match check:
        case Check.ROW_COUNTS:
            more = found.get(Finding.EXTRA, 0) - found.get(Finding.MISSING, 0)
            return f"the store has {more:+d} rows against its log"
        case Check.STABLE_OFFSETS:
            return f"{stands}, which ends at {subject.log_end}"
        case Check.FORWARD_OFFSETS:
            return f"{stands}, the audit before saw {subject.last_offset}"
        case Check.RIGHT_PARTITION:
            return _elsewhere(placement)
        case _:
            return _SAYS[check]


def _elsewhere(placement: str | None) -> str:
    return f"{placement} puts them elsewhere"


def unreadable(subject: Subject, error: Exception) -> AuditFailure:
    """The failure of files that cannot be read, under the names they have at home."""
    why = str(error)
    if subject.home and subject.path:
        why = why.replace(subject.path, subject.home)
    return AuditFailure(Check.READABLE, subject.store, subject.stream_task, 1, [], why)


def absent(subject: Subject) -> AuditFailure:
    """The failure of a store that was deployed and has no files, though its log has records."""
    where = "the state dir" if subject.export is None else f"export {subject.export}"
    why = (
        f"it is not there: {where} has no such store of partition {subject.partition}, and its log "
        f"{subject.log} has records; the next run restores it from there"
    )
    return AuditFailure(Check.PRESENT, subject.store, subject.stream_task, 1, [], why)


def sides(found: Mapping[Finding, int]) -> tuple[int, int]:
    """How many rows a store and its log have, superseded ones left out."""
    both = sum(found.get(one, 0) for one in (Finding.EQUAL, Finding.DIFFERS, Finding.PENDING))
    return both + found.get(Finding.EXTRA, 0), both + found.get(Finding.MISSING, 0)


def audited_store(
    store: str, kind: str, found: Mapping[Finding, int], placement: str | None
) -> AuditedStore:
    """What is said of a store of which so many of each finding were made."""
    equal, superseded = found.get(Finding.EQUAL, 0), found.get(Finding.SUPERSEDED, 0)
    return AuditedStore(store, kind, *sides(found), equal, superseded, placement)


class KeyTexts:
    """Keys as people read them: through their serde where it is known, else escaped bytes."""

    def __init__(self, key_serde: str | None) -> None:
        try:
            self._serde = serdes.BYTES if key_serde is None else serdes.by_name(key_serde)
        except Misuse:
            self._serde = serdes.BYTES

    def text(self, key: bytes | None) -> str:
        """One key."""
        if key is None:
            return "null"
        if self._serde is serdes.BYTES:
            return serdes.printable(key)
        try:
            decoded: Any = self._serde.deserialize(key)
        except Exception:  # noqa: BLE001  # a user's serde may raise anything; bytes always show
            return serdes.printable(key)
        return decoded if isinstance(decoded, str) else str(decoded)

    def texts(self, keys: Iterable[bytes | None]) -> list[str]:
        """The first of many."""
        return [self.text(key) for key, _ in zip(keys, range(EXAMPLES), strict=False)]


def placing_hash(keys: int, misplaced: dict[str, int]) -> str | None:
    """The hash that places a store's keys, but for a few; None: they are placed some other way."""
    wrong_max = 0 if keys < FEW else keys * MISPLACED_MAX_PERCENT / 100
    fitting = [name for name, wrong in misplaced.items() if wrong <= wrong_max]
    return min(fitting, key=misplaced.__getitem__, default=None)


def verdict_of(
    stores: Iterable[AuditedStore],
    failures: Sequence[AuditFailure],
    *,
    superseded_max_percent: int,
) -> Verdict:
    """The verdict; a failure outweighs all else."""
    if failures:
        return Verdict.WRONG
    known = list(stores)
    if not any(store.equal or store.superseded for store in known):
        return Verdict.NOTHING_CHECKED
    for store in known:
        if store.superseded * 100 > superseded_max_percent * (store.equal + store.superseded):
            return Verdict.NOT_ENOUGH_CHECKED
    return Verdict.RIGHT


def places_of(subjects: Iterable[Subject]) -> list[AuditedPlace]:
    """Where the stores stood, for the record."""
    return [
        AuditedPlace(s.store, s.stream_task, s.topic, s.partition, s.offset_next, s.log_end)
        for s in subjects
        if not s.is_missing
    ]


def require_pass(record: AuditRecord) -> AuditRecord:
    """The record itself; AuditFailed or NotChecked say what, where and the way out."""
    where = f"; report: {record.link}" if record.link else ""
    name = record.application_id
    match record.verdict:
        case Verdict.RIGHT:
            return record
        case Verdict.WRONG:
            told = "; ".join(map(failure_line, record.failures[:10]))
            raise AuditFailed(
                f"the stores of {name} are not what their changelogs say: {told}{where}; see the "
                'runbook, "An audit is red"'
            )
        case Verdict.NOT_ENOUGH_CHECKED:
            stores = ", ".join(
                f"{s.store}: {s.superseded} of {s.superseded + s.equal}"
                for s in record.stores
                if s.superseded
            )
            raise NotChecked(
                f"too many keys of {name} could not be judged, as compaction removed what to "
                f"compare with ({stores}): audit again when less is being written, or look at an "
                f"export{where}"
            )
        case Verdict.NOTHING_CHECKED:
            left_out = "".join(f"; {s}: {why}" for s, why in record.not_checked.items())
            raise NotChecked(
                f"nothing of {name} was compared: its stores and their changelogs are empty, or "
                f"no store can be read from outside{left_out}: process something first{where}"
            )


def failure_line(failure: AuditFailure) -> str:
    """A failure in one line, its keys named."""
    task = "" if failure.stream_task is None else f" of task {failure.stream_task}"
    keys = ", ".join(failure.keys)
    more = ", …" if failure.count > len(failure.keys) > 0 else ""
    named = f" ({failure.count}: {keys}{more})" if keys else ""
    return f"{failure.check}: store {failure.store!r}{task}: {failure.detail}{named}"
