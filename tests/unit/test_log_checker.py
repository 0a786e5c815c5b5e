"""The log checker finds each anomaly planted into sound evidence, by its rule.

Where an anomaly breaks other rules as well, these are said too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from statestore.model.ids import TopicPartition
from tests.kafka.log_checker import (
    RULES,
    Datum,
    Entry,
    Evidence,
    Mark,
    Origin,
    Result,
    Seen,
    Stored,
    Topic,
    Transaction,
    View,
    check,
)
from tests.kafka.wire import Kind, RawBatch

IN, PASSED, COUNTS, LOG, BANK, NEXT = (
    TopicPartition(name, 0) for name in ("in", "passed", "counts", "log", "bank", "next")
)
OWNER, LATER = 7, 8
FIRST, SECOND = Transaction(OWNER, 1), Transaction(OWNER, 2)
ONLY = Transaction(LATER, 1)


def entries(*rows: tuple[int, str, Datum]) -> list[Entry]:
    return [Entry(*row) for row in rows]


def raw(*stretches: tuple[int, int, Kind], producer: int = OWNER) -> list[RawBatch]:
    """Batches of a producer that has another epoch after each marker."""
    made, epoch = [], 1
    for first, last, kind in stretches:
        made.append(RawBatch(first, last, producer, kind, epoch))
        epoch += kind is not Kind.RECORDS
    return made


def caused(tp: TopicPartition, *rows: tuple[str, Datum, int]) -> list[Result]:
    return [Result(key, value, frozenset({Origin(*tp, at)})) for key, value, at in rows]


TWO_COMMITS = raw(
    (0, 1, Kind.RECORDS), (2, 2, Kind.COMMIT), (3, 4, Kind.RECORDS), (5, 5, Kind.COMMIT)
)


def balance(rows: Mapping[Datum, Datum]) -> int:
    return sum(int(str(value)) for value in rows.values())


def sound() -> Evidence:
    """Four inputs of two keys, taken in two transactions; another task then reads what was passed.

    Between x and y, ten are moved in the first transaction and two in the second.
    """
    counts = caused(IN, ("a", 1, 0), ("b", 1, 1), ("a", 2, 2), ("a", 3, 3))
    seen = {
        PASSED: entries((0, "a", 10), (1, "b", 11), (3, "a", 12), (4, "a", 13)),
        COUNTS: entries((0, "a", 1), (1, "b", 1), (3, "a", 2), (4, "a", 3)),
        LOG: entries((0, "a", 1), (1, "b", 1), (3, "a", 3)),
        BANK: entries((0, "x", -10), (1, "y", 10), (3, "x", -12), (4, "y", 12)),
        NEXT: entries((0, "n", 0), (1, "n", 1), (2, "n", 3), (3, "n", 4)),
    }
    log = raw((0, 1, Kind.RECORDS), (2, 2, Kind.COMMIT), (3, 3, Kind.RECORDS), (4, 4, Kind.COMMIT))
    return Evidence(
        topics={
            "passed": Topic(caused(IN, ("a", 10, 0), ("b", 11, 1), ("a", 12, 2), ("a", 13, 3))),
            "counts": Topic(counts),
            "log": Topic(counts, is_changelog=True),
            "next": Topic(caused(PASSED, *(("n", at, at) for at in (0, 1, 3, 4)))),
        },
        ends={IN: 4, PASSED: 5},
        committed=[seen],
        uncommitted=[seen],
        raw={
            PASSED: TWO_COMMITS,
            COUNTS: TWO_COMMITS,
            LOG: log,
            BANK: TWO_COMMITS,
            NEXT: raw((0, 3, Kind.RECORDS), (4, 4, Kind.COMMIT), producer=LATER),
        },
        commits={IN: [Mark(2, 1, FIRST), Mark(4, 2, SECOND)], PASSED: [Mark(5, 1, ONLY)]},
        stores={LOG: Stored({"a": 3, "b": 1}, 4), BANK: Stored({"x": -12, "y": 12}, 5)},
        seen={
            LOG: [Seen("1", {"a": a, "b": b}) for a, b in ((None, None), (1, 1), (3, 1))],
            BANK: [Seen("1", {"x": -at, "y": at}) for at in (10, 12)],
        },
        imbalance={"bank": balance},
    )


def showing(
    evidence: Evidence, tp: TopicPartition, rows: Sequence[Entry], raw: Sequence[RawBatch] = ()
) -> Evidence:
    """The same, but readers see these rows in that partition."""
    view: View = {**evidence.final, tp: rows}
    logs: Mapping[TopicPartition, Sequence[RawBatch]] = evidence.raw
    if raw:
        logs = {**evidence.raw, tp: raw}
    return replace(evidence, committed=[view], uncommitted=[view], raw=logs)


def answering(evidence: Evidence, tp: TopicPartition, *answers: Mapping[Datum, Datum]) -> Evidence:
    """The same, but this is what the running store said at last."""
    more = [Seen("1", rows) for rows in answers]
    return replace(evidence, seen={**evidence.seen, tp: [*evidence.seen[tp], *more]})


def aborted_read(evidence: Evidence) -> Evidence:
    ends = [*TWO_COMMITS[:3], RawBatch(5, 5, OWNER, Kind.ABORT, 2)]
    return replace(evidence, raw={**evidence.raw, PASSED: ends})


def record_nobody_wrote(evidence: Evidence) -> Evidence:
    return showing(evidence, LOG, [*evidence.final[LOG][:2], Entry(3, "a", 99)])


def row_nobody_wrote(evidence: Evidence) -> Evidence:
    return answering(evidence, LOG, {"a": 2, "b": 1})


def precommitted_read(evidence: Evidence) -> Evidence:
    return replace(evidence, raw={**evidence.raw, COUNTS: TWO_COMMITS[:3]})


def lost_write(evidence: Evidence) -> Evidence:
    """In an output that has none of this key, as nobody knows where it should be."""
    rows = [row for row in evidence.final[PASSED] if row.offset != 1]
    return showing(evidence, PASSED, rows)


def lost_last_write(evidence: Evidence) -> Evidence:
    return showing(evidence, PASSED, evidence.final[PASSED][:-1])


def duplicate(evidence: Evidence) -> Evidence:
    return showing(evidence, NEXT, [*evidence.final[NEXT], Entry(4, "n", 4)], _five_of_later())


def _five_of_later() -> list[RawBatch]:
    return raw((0, 4, Kind.RECORDS), (5, 5, Kind.COMMIT), producer=LATER)


def divergent_offset(evidence: Evidence) -> Evidence:
    live: View = {**evidence.final, PASSED: [Entry(0, "b", 11)]}
    return replace(evidence, committed=[live, evidence.final])


def divergence_from_uncommitted(evidence: Evidence) -> Evidence:
    other: View = {**evidence.final, LOG: [Entry(0, "b", 1)]}
    return replace(evidence, uncommitted=[other])


def ww_cycle(evidence: Evidence) -> Evidence:
    """Of two keys, so that each of them is in order."""
    rows = entries((0, "b", 11), (1, "a", 10), (3, "a", 12), (4, "a", 13))
    return showing(evidence, PASSED, rows)


def wr_cycle(evidence: Evidence) -> Evidence:
    """The other task has read what it has written: its output is also its input."""
    reads = {**evidence.commits, NEXT: [Mark(4, 1, ONLY)]}
    return replace(evidence, commits=reads)


def wr_cycle_of_two(evidence: Evidence) -> Evidence:
    """And so has the first task, after whom the other one came."""
    reads = {**evidence.commits, NEXT: [Mark(4, 1, FIRST)]}
    return replace(evidence, commits=reads)


def rw_cycle(evidence: Evidence) -> Evidence:
    """All of b is there that was written together with a, and a is not."""
    first = [Seen("1", {"a": None, "b": 1}), *evidence.seen[LOG][1:]]
    return replace(evidence, seen={**evidence.seen, LOG: first})


def rw_cycle_across_commits(evidence: Evidence) -> Evidence:
    """The second transfer has reached y alone; ten and twelve are no sum."""
    return replace(
        answering(evidence, BANK, {"x": -12, "y": 12}),
        seen={**evidence.seen, BANK: [Seen("1", {"x": -10, "y": 12})]},
        imbalance={},
    )


def gap_within_a_transaction(evidence: Evidence) -> Evidence:
    rows = entries((0, "n", 0), (1, "n", 3), (2, "n", 1), (3, "n", 4))
    return showing(evidence, NEXT, rows)


def read_going_back(evidence: Evidence) -> Evidence:
    return answering(evidence, LOG, {"a": 1, "b": 1})


def offset_going_back(evidence: Evidence) -> Evidence:
    again = [Mark(2, 1, FIRST), Mark(1, 2, None), Mark(4, 3, SECOND)]
    return replace(evidence, commits={**evidence.commits, IN: again})


def number_used_twice(evidence: Evidence) -> Evidence:
    same = [Mark(2, 1, FIRST), Mark(4, 1, SECOND)]
    return replace(evidence, commits={**evidence.commits, IN: same})


def input_not_taken(evidence: Evidence) -> Evidence:
    return replace(evidence, ends={**evidence.ends, IN: 5})


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
    rows = entries((0, "a", 1), (1, "b", 1), (3, "a", 2), (5, "a", 3))
    return showing(evidence, COUNTS, rows, halves)


def torn_changelog(evidence: Evidence) -> Evidence:
    """The first transaction's change of b came with the second's of a."""
    log = raw((0, 0, Kind.RECORDS), (2, 2, Kind.COMMIT), (3, 4, Kind.RECORDS), (5, 5, Kind.COMMIT))
    rows = entries((0, "a", 1), (3, "b", 1), (4, "a", 3))
    torn = showing(evidence, LOG, rows, log)
    stores = {**evidence.stores, LOG: Stored({"a": 3, "b": 1}, 5)}
    return replace(torn, stores=stores, seen={})


def offsets_outside_the_transaction(evidence: Evidence) -> Evidence:
    outside = [Mark(2, 1, FIRST), Mark(4, 2, None)]
    return replace(evidence, commits={**evidence.commits, IN: outside})


def epoch_used_twice(evidence: Evidence) -> Evidence:
    """Where no result says what belongs together."""
    same = [batch._replace(epoch=1) for batch in TWO_COMMITS]
    return replace(evidence, raw={**evidence.raw, BANK: same})


def other_rows(evidence: Evidence) -> Evidence:
    stores = {**evidence.stores, LOG: Stored({"a": 2, "b": 1}, 4)}
    return replace(evidence, stores=stores)


def store_behind(evidence: Evidence) -> Evidence:
    return replace(evidence, stores={**evidence.stores, LOG: Stored({"a": 1, "b": 1}, 2)})


def sum_of_a_log(evidence: Evidence) -> Evidence:
    rows = [*evidence.final[BANK][:1], Entry(1, "y", 11), *evidence.final[BANK][2:]]
    return replace(showing(evidence, BANK, rows), seen={})


def sum_of_a_store(evidence: Evidence) -> Evidence:
    return replace(evidence, imbalance={"log": lambda rows: len(rows) - 2})


def sum_of_an_answer(evidence: Evidence) -> Evidence:
    return replace(evidence, seen={BANK: [Seen("1", {"x": -10, "y": 10}), Seen("2", {"x": -10})]})


PLANTED: dict[Callable[[Evidence], Evidence], set[str]] = {
    aborted_read: {"aborted read"},
    record_nobody_wrote: {"aborted read", "torn transaction", "store unlike its changelog"},
    row_nobody_wrote: {"aborted read"},
    precommitted_read: {"precommitted read"},
    lost_write: {"lost write"},
    lost_last_write: {"lost write", "torn transaction"},
    duplicate: {"duplicate", "internal contiguity"},
    divergent_offset: {"divergent offset"},
    divergence_from_uncommitted: {"divergent offset"},
    ww_cycle: {"ww cycle"},
    wr_cycle: {"wr cycle"},
    wr_cycle_of_two: {"wr cycle"},
    rw_cycle: {"rw cycle"},
    rw_cycle_across_commits: {"rw cycle"},
    gap_within_a_transaction: {"internal contiguity", "ww cycle"},
    read_going_back: {"read going back"},
    offset_going_back: {"offset going back", "torn transaction"},
    number_used_twice: {"offset going back"},
    input_not_taken: {"offset going back"},
    torn_output: {"torn transaction"},
    torn_changelog: {"torn transaction"},
    offsets_outside_the_transaction: {"torn transaction"},
    epoch_used_twice: {"epoch used twice"},
    other_rows: {"store unlike its changelog"},
    store_behind: {"store unlike its changelog"},
    sum_of_a_log: {"sum not conserved"},
    sum_of_a_store: {"sum not conserved"},
    sum_of_an_answer: {"sum not conserved"},
}


def test_sound_evidence_breaks_no_rule() -> None:
    assert check(sound()) == []


def test_an_aborted_attempt_that_nobody_sees_breaks_no_rule() -> None:
    """Nor does a marker in a partition that has nothing of its transaction."""
    attempt = [RawBatch(0, 1, OWNER, Kind.RECORDS, 0), RawBatch(2, 2, OWNER, Kind.ABORT, 0)]
    shifted = [batch._replace(first=batch.first + 3, last=batch.last + 3) for batch in TWO_COMMITS]
    evidence = sound()
    rows = [row._replace(offset=row.offset + 3) for row in evidence.final[COUNTS]]
    lone = raw((9, 9, Kind.COMMIT))
    moved = showing(evidence, COUNTS, rows, [*attempt, *shifted, *lone])
    everything: View = {**moved.final, COUNTS: [*entries((0, "a", 1), (1, "b", 1)), *rows]}
    assert check(replace(moved, uncommitted=[everything])) == []


def test_a_marker_may_come_after_records_of_the_next_transaction() -> None:
    """Whoever asks a store in between has all of the first one, and nothing of the second."""
    evidence = sound()
    late = [
        RawBatch(0, 1, OWNER, Kind.RECORDS, 1),
        RawBatch(2, 3, LATER, Kind.RECORDS, 1),
        RawBatch(4, 4, OWNER, Kind.COMMIT, 1),
        RawBatch(5, 5, LATER, Kind.COMMIT, 1),
    ]
    rows = entries((0, "x", -10), (1, "y", 10), (2, "x", -12), (3, "y", 12))
    assert check(showing(evidence, BANK, rows, late)) == []


def test_markers_may_have_the_next_epoch() -> None:
    """As under KIP-890."""
    evidence = sound()
    logs = {
        tp: [it._replace(epoch=it.epoch + (it.kind is not Kind.RECORDS)) for it in batches]
        for tp, batches in evidence.raw.items()
    }
    assert check(replace(evidence, raw=logs)) == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_anomaly_is_found_by_its_rule(plant: Callable[[Evidence], Evidence]) -> None:
    assert PLANTED[plant] == {finding.rule for finding in check(plant(sound()))}


def test_every_rule_has_a_planted_anomaly() -> None:
    assert {rule for rules in PLANTED.values() for rule in rules} == set(RULES)
