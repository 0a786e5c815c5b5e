"""The log checker finds each anomaly planted into sound evidence, by the rule made for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from statestore.model.ids import TopicPartition
from tests.kafka.log_checker import RULES, Entry, Evidence, Mark, Stored, View, check
from tests.kafka.wire import Kind, RawBatch

PASSED, COUNTS, LOG = (TopicPartition(name, 0) for name in ("passed", "counts", "log"))
PRODUCER = 7


def entries(*rows: tuple[int, str, int]) -> list[Entry]:
    return [Entry(*row) for row in rows]


def raw(*stretches: tuple[int, int, Kind]) -> list[RawBatch]:
    return [RawBatch(first, last, PRODUCER, kind) for first, last, kind in stretches]


TWO_COMMITS = raw(
    (0, 1, Kind.RECORDS), (2, 2, Kind.COMMIT), (3, 4, Kind.RECORDS), (5, 5, Kind.COMMIT)
)


def sound() -> Evidence:
    """Four inputs of two keys, taken in two transactions, in one partition."""
    seen = {
        PASSED: entries((0, "a", 10), (1, "b", 11), (3, "a", 12), (4, "a", 13)),
        COUNTS: entries((0, "a", 1), (1, "b", 1), (3, "a", 2), (4, "a", 3)),
        LOG: entries((0, "a", 1), (1, "b", 1), (3, "a", 3)),
    }
    log = raw((0, 1, Kind.RECORDS), (2, 2, Kind.COMMIT), (3, 3, Kind.RECORDS), (4, 4, Kind.COMMIT))
    return Evidence(
        inputs={0: entries((0, "a", 10), (1, "b", 11), (2, "a", 12), (3, "a", 13))},
        ends={0: 4},
        passed="passed",
        counts="counts",
        changelog="log",
        committed=[seen],
        uncommitted=[seen],
        raw={PASSED: TWO_COMMITS, COUNTS: TWO_COMMITS, LOG: log},
        commits={0: [Mark(2, 1), Mark(4, 2)]},
        stores={0: Stored({"a": 3, "b": 1}, 4)},
    )


def showing(
    evidence: Evidence, tp: TopicPartition, rows: Sequence[Entry], raw: Sequence[RawBatch] = ()
) -> Evidence:
    """The same, but readers see these rows in that partition."""
    view: View = {**evidence.seen, tp: rows}
    logs: Mapping[TopicPartition, Sequence[RawBatch]] = evidence.raw
    if raw:
        logs = {**evidence.raw, tp: raw}
    return replace(evidence, committed=[view], uncommitted=[view], raw=logs)


def aborted_read(evidence: Evidence) -> Evidence:
    ends = [*TWO_COMMITS[:3], RawBatch(5, 5, PRODUCER, Kind.ABORT)]
    return replace(evidence, raw={**evidence.raw, PASSED: ends})


def record_nobody_wrote(evidence: Evidence) -> Evidence:
    rows = [*evidence.seen[PASSED][:3], Entry(4, "a", 99)]
    return showing(evidence, PASSED, rows)


def precommitted_read(evidence: Evidence) -> Evidence:
    return replace(evidence, raw={**evidence.raw, COUNTS: TWO_COMMITS[:3]})


def lost_write(evidence: Evidence) -> Evidence:
    return showing(evidence, PASSED, [row for row in evidence.seen[PASSED] if row.offset != 1])


def lost_last_write(evidence: Evidence) -> Evidence:
    return showing(evidence, PASSED, evidence.seen[PASSED][:-1])


def duplicate(evidence: Evidence) -> Evidence:
    again = raw((6, 7, Kind.RECORDS), (8, 8, Kind.COMMIT))
    rows = [*evidence.seen[PASSED], Entry(6, "a", 12), Entry(7, "a", 13)]
    return showing(evidence, PASSED, rows, [*TWO_COMMITS, *again])


def divergent_offset(evidence: Evidence) -> Evidence:
    live: View = {**evidence.seen, PASSED: [Entry(0, "b", 11)]}
    return replace(evidence, committed=[live, evidence.seen])


def divergence_from_uncommitted(evidence: Evidence) -> Evidence:
    other: View = {**evidence.seen, LOG: [Entry(0, "b", 1)]}
    return replace(evidence, uncommitted=[other])


def write_cycle(evidence: Evidence) -> Evidence:
    rows = entries((0, "b", 11), (1, "a", 10), (3, "a", 12), (4, "a", 13))
    return showing(evidence, PASSED, rows)


def gap_in_counts(evidence: Evidence) -> Evidence:
    rows = entries((0, "a", 1), (1, "b", 1), (3, "a", 3), (4, "a", 2))
    return showing(evidence, COUNTS, rows)


def offset_going_back(evidence: Evidence) -> Evidence:
    return replace(evidence, commits={0: [Mark(2, 1), Mark(1, 2), Mark(4, 3)]})


def number_used_twice(evidence: Evidence) -> Evidence:
    return replace(evidence, commits={0: [Mark(2, 1), Mark(4, 1)]})


def input_not_taken(evidence: Evidence) -> Evidence:
    return replace(evidence, commits={0: [Mark(2, 1)]})


def torn_output(evidence: Evidence) -> Evidence:
    """Half of the second transaction is committed for itself, and the rest later."""
    halves = raw(
        (0, 1, Kind.RECORDS),
        (2, 2, Kind.COMMIT),
        (3, 3, Kind.RECORDS),
        (4, 4, Kind.COMMIT),
        (5, 5, Kind.RECORDS),
        (6, 6, Kind.COMMIT),
    )
    rows = entries((0, "a", 10), (1, "b", 11), (3, "a", 12), (5, "a", 13))
    return showing(evidence, PASSED, rows, halves)


def torn_changelog(evidence: Evidence) -> Evidence:
    """The first transaction's change of b came with the second's of a."""
    log = raw((0, 0, Kind.RECORDS), (2, 2, Kind.COMMIT), (3, 4, Kind.RECORDS), (5, 5, Kind.COMMIT))
    rows = entries((0, "a", 1), (3, "b", 1), (4, "a", 3))
    return replace(showing(evidence, LOG, rows, log), stores={0: Stored({"a": 3, "b": 1}, 5)})


def other_rows(evidence: Evidence) -> Evidence:
    return replace(evidence, stores={0: Stored({"a": 2, "b": 1}, 4)})


def store_behind(evidence: Evidence) -> Evidence:
    return replace(evidence, stores={0: Stored({"a": 1, "b": 1}, 2)})


PLANTED: dict[Callable[[Evidence], Evidence], str] = {
    aborted_read: "aborted read",
    record_nobody_wrote: "aborted read",
    precommitted_read: "precommitted read",
    lost_write: "lost write",
    lost_last_write: "lost write",
    duplicate: "duplicate",
    divergent_offset: "divergent offset",
    divergence_from_uncommitted: "divergent offset",
    write_cycle: "write cycle",
    gap_in_counts: "gap in counts",
    offset_going_back: "offset going back",
    number_used_twice: "offset going back",
    input_not_taken: "offset going back",
    torn_output: "torn transaction",
    torn_changelog: "torn transaction",
    other_rows: "store unlike its changelog",
    store_behind: "store unlike its changelog",
}


def test_sound_evidence_breaks_no_rule() -> None:
    assert check(sound()) == []


def test_an_aborted_attempt_that_nobody_sees_breaks_no_rule() -> None:
    """Nor does a marker in a partition that has nothing of its transaction."""
    attempt = raw((0, 1, Kind.RECORDS), (2, 2, Kind.ABORT))
    shifted = [batch._replace(first=batch.first + 3, last=batch.last + 3) for batch in TWO_COMMITS]
    evidence = sound()
    rows = [row._replace(offset=row.offset + 3) for row in evidence.seen[PASSED]]
    lone = raw((9, 9, Kind.COMMIT))
    moved = showing(evidence, PASSED, rows, [*attempt, *shifted, *lone])
    everything: View = {**moved.seen, PASSED: [*entries((0, "a", 10), (1, "b", 11)), *rows]}
    assert check(replace(moved, uncommitted=[everything])) == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_anomaly_is_found_by_its_rule(plant: Callable[[Evidence], Evidence]) -> None:
    assert PLANTED[plant] in {finding.rule for finding in check(plant(sound()))}


def test_every_rule_has_a_planted_anomaly() -> None:
    assert set(PLANTED.values()) == set(RULES)
