"""Random sound histories break no rule, and one random change of the right kind always does."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statestore.model.ids import TopicPartition
from tests.kafka.log_checker import (
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

TASKS, KEYS = 2, 3
seeds = st.integers(0, 1 << 48).map(Random)


class World:
    """Two tasks that pass on and count their input, and move money, in steps that interleave."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._raw: dict[TopicPartition, list[RawBatch]] = defaultdict(list)
        self._ends: dict[TopicPartition, int] = defaultdict(int)
        self._all: dict[TopicPartition, list[Entry]] = defaultdict(list)
        self._final: dict[TopicPartition, list[Entry]] = defaultdict(list)
        self._commits: dict[TopicPartition, list[Mark]] = defaultdict(list)
        self._seen: dict[TopicPartition, list[Seen]] = defaultdict(list)
        self._passed: list[Result] = []
        self._counts: list[Result] = []
        self._inputs = {task: chance.randrange(1, 9) for task in range(TASKS)}

    def evidence(self) -> Evidence:
        """What is there in the end."""
        lives = {task: self._life(task) for task in range(TASKS)}
        while lives:
            task = self._chance.choice(list(lives))
            if next(lives[task], None) is None:
                del lives[task]
        final = {tp: sorted(self._final[tp]) for tp in self._raw}
        logs = ("log", "bank")
        return Evidence(
            topics={
                "passed": Topic(self._passed),
                "counts": Topic(self._counts),
                "log": Topic(self._counts, is_changelog=True),
            },
            ends={TopicPartition("in", task): end for task, end in self._inputs.items()},
            committed=[
                {tp: rows[: self._chance.randint(0, len(rows))] for tp, rows in final.items()},
                final,
            ],
            uncommitted=[{tp: self._all[tp] for tp in self._raw}],
            raw=self._raw,
            commits=self._commits,
            stores={
                tp: Stored(folded(final[tp]), self._ends[tp]) for tp in final if tp.topic in logs
            },
            seen=self._seen,
            imbalance={"bank": balance},
        )

    def _life(self, task: int) -> Iterator[bool]:
        """Commits until all is taken; some attempts are aborted before."""
        at, number, epoch, counts = 0, 0, 0, dict[str, int]()
        results: list[tuple[Result, Result]] = []
        for offset in range(self._inputs[task]):
            key: str = f"{task}{self._chance.randrange(KEYS)}"
            counts[key] = counts.get(key, 0) + 1
            causes = frozenset({Origin("in", task, offset)})
            passed = Result(key, 100 * task + offset, causes)
            results.append((passed, Result(key, counts[key], causes)))
        self._passed += [passed for passed, _ in results]
        self._counts += [count for _, count in results]
        while at < len(results):
            size = self._chance.randint(1, 4)
            taken = results[at : at + size]
            while True:
                kind = self._chance.choice((Kind.COMMIT, Kind.COMMIT, Kind.ABORT))
                epoch += 1
                written: dict[TopicPartition, list[Entry]] = defaultdict(list)
                for tp, about, said in self._records(task, taken, number + 1):
                    written[tp].append(self._append(tp, about, said, Transaction(task, epoch)))
                    yield True
                for tp, rows in written.items():
                    self._raw[tp].append(
                        RawBatch(self._ends[tp], self._ends[tp], task, kind, epoch)
                    )
                    self._ends[tp] += 1
                    self._final[tp] += rows if kind is Kind.COMMIT else []
                if kind is Kind.COMMIT:
                    break
            at, number = at + len(taken), number + 1
            mark = Mark(at, number, Transaction(task, epoch))
            self._commits[TopicPartition("in", task)].append(mark)
            self._ask(task)

    def _records(
        self, task: int, taken: Sequence[tuple[Result, Result]], number: int
    ) -> Iterator[tuple[TopicPartition, Datum, Datum]]:
        for passed, count in taken:
            home = int(str(passed.key)) % 2
            yield TopicPartition("passed", home), passed.key, passed.value
            yield TopicPartition("counts", home), count.key, count.value
        changes = {count.key: count.value for _, count in taken}
        for changed in self._chance.sample(list(changes), len(changes)):
            yield TopicPartition("log", task), changed, changes[changed]
        yield TopicPartition("bank", task), "x", -number
        yield TopicPartition("bank", task), "y", number

    def _append(self, tp: TopicPartition, key: Datum, value: Datum, of: Transaction) -> Entry:
        entry = Entry(self._ends[tp], key, value)
        self._raw[tp].append(
            RawBatch(entry.offset, entry.offset, of.producer_id, Kind.RECORDS, of.epoch)
        )
        self._ends[tp] += 1
        self._all[tp].append(entry)
        return entry

    def _ask(self, task: int) -> None:
        for topic, keys in (("log", [f"{task}{key}" for key in range(KEYS)]), ("bank", ["x", "y"])):
            tp = TopicPartition(topic, task)
            rows = folded(self._final[tp])
            self._seen[tp].append(Seen("1", {key: rows.get(key) for key in keys}))


def folded(entries: Sequence[Entry]) -> dict[Datum, Datum]:
    return {entry.key: entry.value for entry in entries}


def balance(rows: Mapping[Datum, Datum]) -> int:
    return sum(int(str(value)) for value in rows.values())


def shown(evidence: Evidence, tp: TopicPartition, rows: Sequence[Entry]) -> Evidence:
    view: View = {**evidence.final, tp: rows}
    return replace(evidence, committed=[view], uncommitted=[view])


def output(evidence: Evidence, chance: Random, least: int = 1) -> TopicPartition:
    """A partition of an output that has some records."""
    fit = [
        tp
        for tp, rows in evidence.final.items()
        if tp.topic in {"passed", "counts"} and len(rows) >= least
    ]
    assume(fit)
    return chance.choice(fit)


Change = Callable[[Evidence, Random], Evidence]


def lost_write(evidence: Evidence, chance: Random) -> Evidence:
    tp = output(evidence, chance)
    rows = list(evidence.final[tp])
    rows.pop(chance.randrange(len(rows)))
    return shown(evidence, tp, rows)


def duplicate(evidence: Evidence, chance: Random) -> Evidence:
    tp = output(evidence, chance)
    end = max(batch.last for batch in evidence.raw[tp]) + 1
    again = chance.choice(evidence.final[tp])._replace(offset=end)
    more = [RawBatch(end, end, 9, Kind.RECORDS), RawBatch(end + 1, end + 1, 9, Kind.COMMIT)]
    raw = {**evidence.raw, tp: [*evidence.raw[tp], *more]}
    return replace(shown(evidence, tp, [*evidence.final[tp], again]), raw=raw)


def ww_cycle(evidence: Evidence, chance: Random) -> Evidence:
    """Two results of one input partition change places."""
    tp = output(evidence, chance, 2)
    rows = list(evidence.final[tp])
    one, other = sorted(chance.sample(range(len(rows)), 2))
    assume(str(rows[one].key)[0] == str(rows[other].key)[0])
    first, last = rows[one], rows[other]
    rows[one] = last._replace(offset=first.offset)
    rows[other] = first._replace(offset=last.offset)
    return shown(evidence, tp, rows)


def internal_contiguity(evidence: Evidence, chance: Random) -> Evidence:
    """Two results of a key in one transaction change places."""
    tp = output(evidence, chance, 2)
    pairs = [
        (one, other)
        for _, _, together in evidence.wholes(tp)
        for one, other in combinations(together, 2)
        if one.key == other.key
    ]
    assume(pairs)
    one, other = chance.choice(pairs)
    moved = {one: other._replace(offset=one.offset), other: one._replace(offset=other.offset)}
    return shown(evidence, tp, [moved.get(row, row) for row in evidence.final[tp]])


def aborted_read(evidence: Evidence, chance: Random) -> Evidence:
    tp = output(evidence, chance)
    markers = [it for it in evidence.raw[tp] if it.kind is Kind.COMMIT]
    turned = chance.choice(markers)
    batches = [it._replace(kind=Kind.ABORT) if it is turned else it for it in evidence.raw[tp]]
    return replace(evidence, raw={**evidence.raw, tp: batches})


def precommitted_read(evidence: Evidence, chance: Random) -> Evidence:
    """The markers of an owner are missing from one on."""
    tp = output(evidence, chance)
    first = chance.choice([it for it in evidence.raw[tp] if it.kind is Kind.COMMIT])
    batches = [
        it
        for it in evidence.raw[tp]
        if it.kind is Kind.RECORDS or it.producer_id != first.producer_id or it.first < first.first
    ]
    return replace(evidence, raw={**evidence.raw, tp: batches})


def divergent_offset(evidence: Evidence, chance: Random) -> Evidence:
    tp = output(evidence, chance)
    at = chance.randrange(len(evidence.final[tp]))
    other = evidence.final[tp][at]._replace(key="other")
    return replace(evidence, uncommitted=[*evidence.uncommitted, {tp: [other]}])


def torn_transaction(evidence: Evidence, chance: Random) -> Evidence:
    """Some offsets were committed on their own."""
    tp = chance.choice(list(evidence.commits))
    marks = list(evidence.commits[tp])
    at = chance.randrange(len(marks))
    marks[at] = marks[at]._replace(of=None)
    return replace(evidence, commits={**evidence.commits, tp: marks})


def epoch_used_twice(evidence: Evidence, chance: Random) -> Evidence:
    tp = TopicPartition("bank", chance.randrange(TASKS))
    assume(len(evidence.commits[TopicPartition("in", tp.partition)]) > 1)
    batches = [batch._replace(epoch=1) for batch in evidence.raw[tp]]
    return replace(evidence, raw={**evidence.raw, tp: batches})


def offset_going_back(evidence: Evidence, chance: Random) -> Evidence:
    """A commit of before comes once more."""
    tp = chance.choice(list(evidence.commits))
    marks = list(evidence.commits[tp])
    marks.append(chance.choice(marks)._replace(of=None))
    assume(marks[-1][:2] != marks[-2][:2])
    return replace(evidence, commits={**evidence.commits, tp: marks})


def other_rows(evidence: Evidence, chance: Random) -> Evidence:
    tp = chance.choice(list(evidence.stores))
    stored = evidence.stores[tp]
    rows = dict(stored.rows)
    rows[chance.choice(list(rows))] = 99
    return replace(evidence, stores={**evidence.stores, tp: stored._replace(rows=rows)})


def sum_not_conserved(evidence: Evidence, chance: Random) -> Evidence:
    tp = TopicPartition("bank", chance.randrange(TASKS))
    answers = list(evidence.seen[tp])
    answers.append(Seen("2", {**chance.choice(answers).rows, "x": 1}))
    return replace(evidence, seen={**evidence.seen, tp: answers})


def rw_cycle(evidence: Evidence, chance: Random) -> Evidence:
    """A row of one moment is told beside another of a later moment."""
    tp = TopicPartition("bank", chance.randrange(TASKS))
    answers = evidence.seen[tp]
    assume(len(answers) > 1)
    first, last = sorted(chance.sample(range(len(answers)), 2))
    one, other = chance.sample(["x", "y"], 2)
    torn = Seen("2", {one: answers[first].rows[one], other: answers[last].rows[other]})
    return replace(evidence, seen={**evidence.seen, tp: [torn]})


def read_going_back(evidence: Evidence, chance: Random) -> Evidence:
    tp = TopicPartition("bank", chance.randrange(TASKS))
    answers = evidence.seen[tp]
    assume(len(answers) > 1)
    earlier = chance.choice(answers[:-1])
    return replace(evidence, seen={**evidence.seen, tp: [*answers, earlier]})


CHANGES: Mapping[Change, str] = {
    aborted_read: "aborted read",
    precommitted_read: "precommitted read",
    lost_write: "lost write",
    duplicate: "duplicate",
    divergent_offset: "divergent offset",
    ww_cycle: "ww cycle",
    rw_cycle: "rw cycle",
    internal_contiguity: "internal contiguity",
    read_going_back: "read going back",
    offset_going_back: "offset going back",
    torn_transaction: "torn transaction",
    epoch_used_twice: "epoch used twice",
    other_rows: "store unlike its changelog",
    sum_not_conserved: "sum not conserved",
}


@given(seeds)
def test_a_sound_history_breaks_no_rule(chance: Random) -> None:
    assert check(World(chance).evidence()) == []


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@given(chance=seeds)
def test_one_change_is_always_found(change: Change, chance: Random) -> None:
    changed = change(World(chance).evidence(), chance)
    assert CHANGES[change] in {finding.rule for finding in check(changed)}
