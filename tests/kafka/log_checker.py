"""Judges what an application left behind: pure functions over what was seen of it.

The first rules are those of Jepsen's workload for Kafka: aborted read, precommitted read, lost
write, duplicate, divergent offset, cycles of writes and reads, internal contiguity. The others are
ours.

What input leads to is given as results: what each says, and the input records that cause it. A
result belongs to the commit that takes the last of its causes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise
from typing import NamedTuple, TypeVar

from statestore.model.ids import TopicPartition
from tests.kafka.wire import Kind, RawBatch

Datum = Hashable
"""A key or a value, in whichever form the evidence has them all."""
_Node = TypeVar("_Node", bound=Hashable)


class Entry(NamedTuple):
    """A record as a consumer saw it."""

    offset: int
    key: Datum
    value: Datum


class Origin(NamedTuple):
    """A record of an input."""

    topic: str
    partition: int
    offset: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Transaction(NamedTuple):
    """What tells transactions apart: each has an epoch of its own (ADR 13)."""

    producer_id: int
    epoch: int


class Mark(NamedTuple):
    """A commit of a group for one input partition: the offset NEXT to read, and its number.

    `of`: the transaction it was part of, None if it was part of none.
    """

    offset: int
    number: int
    of: Transaction | None


class Stored(NamedTuple):
    """The rows of a task's store, and the changelog offset it says they stand for."""

    rows: Mapping[Datum, Datum]
    offset: int | None


class Seen(NamedTuple):
    """One answer of a running store about some keys; None: no such row. `life`: who was asked."""

    life: str
    rows: Mapping[Datum, Datum]


class Result(NamedTuple):
    """What some input leads to."""

    key: Datum
    value: Datum
    causes: frozenset[Origin]


@dataclass(frozen=True)
class Topic:
    """What must be in a topic, in the order of each key; no two results are alike.

    `is_changelog`: it has the last result of each key in a transaction only.
    `is_ordered`: whether the results of a key, and those of an input partition, have an order.
    """

    results: Sequence[Result]
    is_changelog: bool = False
    is_ordered: bool = True

    @cached_property
    def places(self) -> Mapping[tuple[Datum, Datum], int]:
        """Where each result is in `results`, by its key and value."""
        return {(result.key, result.value): at for at, result in enumerate(self.results)}

    @cached_property
    def turns(self) -> Mapping[tuple[Datum, Datum], tuple[Hashable, int]]:
        """Which result of its key each is, among those of the same inputs."""
        numbers: Counter[Hashable] = Counter()
        found = {}
        for result in self.results:
            stem = result.key, frozenset(origin.tp for origin in result.causes)
            found[result.key, result.value] = stem, numbers[stem]
            numbers[stem] += 1
        return found

    def result(self, entry: Entry) -> Result | None:
        """None: no input leads to this."""
        at = self.places.get((entry.key, entry.value))
        return None if at is None else self.results[at]


View = Mapping[TopicPartition, Sequence[Entry]]


@dataclass(frozen=True)
class Evidence:
    """All that is known about one application; `raw` was read after every view.

    `topics`: what must be in each; a topic that is not among them is judged by no result.
    `ends`: NEXT offset of each input. `commits`: what the group committed for each input, in the
    order of its log. `stores`: closed ones, by their changelogs; `changelogs` of them may be among
    the views. `seen`: what running stores said, in order. `imbalance`: by changelog, how far rows
    are from what their sum is always to be.
    """

    topics: Mapping[str, Topic]
    ends: Mapping[TopicPartition, int]
    committed: Sequence[View]
    uncommitted: Sequence[View]
    raw: Mapping[TopicPartition, Sequence[RawBatch]]
    commits: Mapping[TopicPartition, Sequence[Mark]]
    stores: Mapping[TopicPartition, Stored] = field(default_factory=dict)
    seen: Mapping[TopicPartition, Sequence[Seen]] = field(default_factory=dict)
    imbalance: Mapping[str, Callable[[Mapping[Datum, Datum]], int]] = field(default_factory=dict)

    @cached_property
    def final(self) -> View:
        """What readers of committed records see in the end."""
        return self.committed[-1]

    def entries(self, topic: str) -> Iterator[tuple[TopicPartition, Entry]]:
        """Of one topic, as readers of committed records see it."""
        for tp, entries in self.final.items():
            if tp.topic == topic:
                for entry in entries:
                    yield tp, entry

    def results(self, tp: TopicPartition) -> Iterator[tuple[Entry, Result]]:
        """Of one partition, those entries that some input leads to."""
        topic = self.topics.get(tp.topic)
        for entry in self.final[tp] if topic else ():
            if topic and (result := topic.result(entry)):
                yield entry, result

    @cached_property
    def takings(self) -> Mapping[TopicPartition, Sequence[tuple[range, Mark]]]:
        """By input, which offsets each commit took."""
        found = {}
        for tp, marks in self.commits.items():
            ends = (0, *(mark.offset for mark in marks))
            taken = [range(*pair) for pair in pairwise(ends)]
            found[tp] = [(part, mark) for part, mark in zip(taken, marks, strict=True) if part]
        return found

    def taker(self, origin: Origin) -> Mark | None:
        """The commit that took an input."""
        return self._taker_of.get(origin)

    @cached_property
    def _taker_of(self) -> Mapping[Origin, Mark]:
        return {
            Origin(*tp, offset): mark
            for tp, takings in self.takings.items()
            for taken, mark in takings
            for offset in taken
        }

    def completed_by(self, result: Result) -> Mark | None:
        """The commit that took the last cause; None if not all were taken."""
        marks = [self.taker(origin) for origin in result.causes]
        known = [mark for mark in marks if mark is not None]
        return max(known, key=lambda mark: mark.number) if len(known) == len(marks) else None

    def wholes(self, tp: TopicPartition) -> Iterator[tuple[int, Transaction, list[Entry]]]:
        """Each commit marker: its offset, its transaction, and what readers see of it."""
        by_offset = {entry.offset: entry for entry in self.final.get(tp, ())}
        for at, kind, transaction, offsets in _ended(self.raw.get(tp, ())):
            if kind is Kind.COMMIT and transaction is not None:
                yield at, transaction, [by_offset[it] for it in offsets if it in by_offset]


class Finding(NamedTuple):
    """An anomaly, and the rule it breaks."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check(evidence: Evidence) -> list[Finding]:
    """Every anomaly by every rule; empty is what exactly-once means."""
    return [Finding(name, text) for name, rule in RULES.items() for text in rule(evidence)]


# The rules of Jepsen's workload.


def aborted_reads(evidence: Evidence) -> Iterator[str]:
    """A reader of committed records sees one of an aborted transaction, or one nobody wrote.

    So does one who asks a store for a row that no committed record ever made.
    """
    for view in evidence.committed:
        for tp, entries in view.items():
            endings = _endings(evidence.raw[tp])
            topic = evidence.topics.get(tp.topic)
            for entry in entries:
                if endings.get(entry.offset) is Kind.ABORT:
                    yield f"{tp} shows {entry}, whose transaction was aborted"
                elif topic is not None and topic.result(entry) is None:
                    yield f"{tp} shows {entry}, which stems from no input"
    for tp, answers in evidence.seen.items():
        written = _versions(evidence.final.get(tp, ()))
        for answer in answers:
            for key, value in answer.rows.items():
                if value is not None and value not in written.get(key, {}).values():
                    yield f"the store of {tp} said {key!r} is {value!r}, which was never committed"


def precommitted_reads(evidence: Evidence) -> Iterator[str]:
    """A reader of committed records sees one whose transaction has not ended."""
    for view in evidence.committed:
        for tp, entries in view.items():
            endings = _endings(evidence.raw[tp])
            for entry in entries:
                if entry.offset not in endings:
                    yield f"{tp} shows {entry}, whose transaction was not committed"


def lost_writes(evidence: Evidence) -> Iterator[str]:
    """What input leads to cannot be read."""
    for name, topic in evidence.topics.items():
        if not topic.is_changelog:
            found = {(entry.key, entry.value) for _, entry in evidence.entries(name)}
            for said, place in topic.places.items():
                if said not in found:
                    yield f"{name} lacks {topic.results[place]}"


def duplicates(evidence: Evidence) -> Iterator[str]:
    """An output has a result more than once."""
    for name, topic in evidence.topics.items():
        times = Counter((entry.key, entry.value) for _, entry in evidence.entries(name))
        for said, count in times.items():
            if count > 1 and said in topic.places:
                yield f"{name} has {said} {count} times"


def divergent_offsets(evidence: Evidence) -> Iterator[str]:
    """Two readers see different records at one offset."""
    known: dict[tuple[TopicPartition, int], Entry] = {}
    for view in (*evidence.uncommitted, *evidence.committed):
        for tp, entries in view.items():
            for entry in entries:
                other = known.setdefault((tp, entry.offset), entry)
                if other != entry:
                    yield f"{tp} shows {entry} to one reader and {other} to another"


def ww_cycles(evidence: Evidence) -> Iterator[str]:
    """Two logs disagree about what was written first: inputs, outputs and changelogs."""
    before: dict[Origin, set[Origin]] = defaultdict(set)
    for tp, entries in evidence.final.items():
        topic = evidence.topics.get(tp.topic)
        if topic is None or not topic.is_ordered:
            continue
        orders: dict[TopicPartition, dict[Origin, None]] = defaultdict(dict)
        for entry in entries:
            result = topic.result(entry)
            if result is not None and len(result.causes) == 1:
                (origin,) = result.causes
                # The first of each: that there are more is another rule's.
                orders[origin.tp].setdefault(origin)
        for order in orders.values():
            for earlier, later in pairwise(order):
                # Within a commit a changelog has its keys in any order.
                taker = evidence.taker(earlier)
                together = taker is not None and taker == evidence.taker(later)
                if not (topic.is_changelog and together):
                    before[later].add(earlier)
    by_input: dict[TopicPartition, set[Origin]] = defaultdict(set)
    for origin in {*before, *(one for some in before.values() for one in some)}:
        by_input[origin.tp].add(origin)
    for origins in by_input.values():
        for earlier, later in pairwise(sorted(origins)):
            before[later].add(earlier)
    if cycle := _cycle(before):
        yield f"each of these was written before the next: {cycle}"


def wr_cycles(evidence: Evidence) -> Iterator[str]:
    """Transactions read what one another wrote, in a circle; or one reads what it has written."""
    before: dict[Transaction, set[Transaction]] = defaultdict(set)
    writers: dict[Origin, Transaction] = {}
    for tp in evidence.final:
        for _, transaction, entries in evidence.wholes(tp):
            writers |= {Origin(*tp, entry.offset): transaction for entry in entries}
    for tp, takings in evidence.takings.items():
        marks = [mark for _, mark in takings]
        for earlier, later in pairwise(marks):
            if earlier.of and later.of and earlier.of != later.of:
                before[later.of].add(earlier.of)
        for taken, mark in takings:
            for offset in taken:
                writer = writers.get(Origin(*tp, offset))
                if writer is not None and mark.of is not None:
                    before[mark.of].add(writer)
    if cycle := _cycle(before):
        yield f"each of these was read by, or went before, the next: {cycle}"


def rw_cycles(evidence: Evidence) -> Iterator[str]:
    """An answer lacks a write of a transaction that another part of the answer has.

    It read one row before, and another row after that transaction wrote both.
    """
    for tp, answers in evidence.seen.items():
        versions = _versions(evidence.final.get(tp, ()))
        # A marker may come after records of the next transaction.
        lasts = {
            entry.offset: entries[-1].offset
            for _, _, entries in evidence.wholes(tp)
            for entry in entries
        }
        for answer in answers:
            times = [_time_of(versions.get(key, {}), said) for key, said in answer.rows.items()]
            known = [time for time in times if time is not None]
            since = max((first for first, _ in known), default=-1)
            until = min((last for _, last in known if last is not None), default=None)
            # It shows all of a transaction whose record it has.
            if until is not None and until <= lasts.get(since, -1):
                yield (
                    f"the store of {tp} said {dict(answer.rows)}: it has what was written at "
                    f"{since} and lacks what was written at {until}"
                )


def internal_contiguity(evidence: Evidence) -> Iterator[str]:
    """Within a transaction, the results of a key skip some, or go back."""
    for tp in evidence.final:
        topic = evidence.topics.get(tp.topic)
        if topic is None or topic.is_changelog or not topic.is_ordered:
            continue
        for at, _, entries in evidence.wholes(tp):
            turns: dict[Hashable, list[int]] = defaultdict(list)
            for entry in entries:
                if turn := topic.turns.get((entry.key, entry.value)):
                    turns[turn[0]].append(turn[1])
            for stem, told in turns.items():
                if told != list(range(told[0], told[0] + len(told))):
                    yield f"what the marker at {at} of {tp} commits of {stem} has the turns {told}"


# Ours.


def reads_only_advance(evidence: Evidence) -> Iterator[str]:
    """Who asks a store again is not told of an earlier moment."""
    for tp, answers in evidence.seen.items():
        versions = _versions(evidence.final.get(tp, ()))
        known: dict[tuple[str, Datum], int] = {}
        for answer in answers:
            for key, said in answer.rows.items():
                time = _time_of(versions.get(key, {}), said)
                if time is None:
                    continue
                if time[0] < known.get((answer.life, key), -1):
                    yield f"the store of {tp} said {key!r} is {said!r}, and something later before"
                known[answer.life, key] = time[0]


def offsets_only_rise(evidence: Evidence) -> Iterator[str]:
    """Every commit moves its input on and has the next number; the last is at the input's end."""
    for tp, end in evidence.ends.items():
        # A request that was repeated says the same again.
        marks = [mark for mark, _ in groupby(evidence.commits.get(tp, ()), key=lambda it: it[:2])]
        for before, after in pairwise(((0, 0), *marks)):
            # A commit without progress is one of wall-clock work, or moves another input.
            if after[0] < before[0] or after[1] != before[1] + 1:
                yield f"input {tp} is at {after} after {before}"
        if (marks[-1][0] if marks else 0) != end:
            yield f"input {tp} ends at {end} and the group is at {marks[-1:]}"


def transactions_are_whole(evidence: Evidence) -> Iterator[str]:
    """A transaction has the offsets of some input, and in each log all that this input leads to.

    A result is looked for where its key was seen.
    """
    of_commit: dict[tuple[Transaction | None, str], list[Result]] = defaultdict(list)
    for name, topic in evidence.topics.items():
        for result in topic.results:
            if (mark := evidence.completed_by(result)) is not None:
                of_commit[mark.of, name].append(result)
    homes: dict[tuple[str, Datum], set[int]] = defaultdict(set)
    for tp, entries in evidence.final.items():
        for entry in entries:
            homes[tp.topic, entry.key].add(tp.partition)
    for tp in evidence.final:
        if tp.topic not in evidence.topics:
            continue
        topic = evidence.topics[tp.topic]
        for at, transaction, entries in evidence.wholes(tp):
            if not entries:
                continue
            wanted = [
                result
                for result in of_commit[transaction, tp.topic]
                if tp.partition in homes[tp.topic, result.key]
            ]
            if topic.is_changelog:
                wanted = list({result.key: result for result in wanted}.values())
            found = {topic.result(entry) for entry in entries} - {None}
            if found != set(wanted):
                more = [it for it in found if it not in wanted]
                less = [it for it in wanted if it not in found]
                yield (
                    f"the marker at {at} of {tp} commits {len(more)} results more and {len(less)} "
                    f"less than the offsets of its transaction {tuple(transaction)} lead to: "
                    f"{[*map(_short, more[:3])]}, {[*map(_short, less[:3])]}"
                )


def epochs_are_used_once(evidence: Evidence) -> Iterator[str]:
    """No two committed transactions have one epoch: a late message of one could meet the other."""
    for tp in evidence.final:
        times = Counter(transaction for _, transaction, _ in evidence.wholes(tp))
        for transaction, count in times.items():
            if count > 1:
                yield f"{count} transactions in {tp} have the epoch {tuple(transaction)}"


def stores_fold_their_changelog(evidence: Evidence) -> Iterator[str]:
    """A store is its changelog up to the offset it names, and has all that was committed."""
    for tp, stored in evidence.stores.items():
        entries = evidence.final.get(tp, ())
        at = stored.offset or 0
        folded = _folded(entry for entry in entries if entry.offset < at)
        apart = {
            key: (stored.rows.get(key), folded.get(key))
            for key in stored.rows.keys() | folded.keys()
            if stored.rows.get(key) != folded.get(key)
        }
        if apart:
            some = dict(list(apart.items())[:3])
            yield f"the store of {tp} at {at} differs from its log in {len(apart)} rows: {some}"
        if any(entry.offset >= at for entry in entries):
            yield f"the store of {tp} is at {at}; its log has {entries[-1]}"


def sums_are_kept(evidence: Evidence) -> Iterator[str]:
    """The sum is the same at each commit, in each store, and in each answer of a running store."""
    for tp, entries in evidence.final.items():
        if (imbalance := evidence.imbalance.get(tp.topic)) is None:
            continue
        lasts = {together[-1].offset for _, _, together in evidence.wholes(tp) if together}
        for last in sorted(lasts):
            if off := imbalance(_folded(entry for entry in entries if entry.offset <= last)):
                yield f"the sum of {tp} is {off} off after the commit up to {last}"
        stored = evidence.stores.get(tp)
        if stored is not None and (off := imbalance(stored.rows)):
            yield f"the sum of the store of {tp} is {off} off"
        for answer in evidence.seen.get(tp, ()):
            if off := imbalance({key: it for key, it in answer.rows.items() if it is not None}):
                yield f"the sum of what the store of {tp} said is {off} off"


RULES: Mapping[str, Callable[[Evidence], Iterable[str]]] = {
    "aborted read": aborted_reads,
    "precommitted read": precommitted_reads,
    "lost write": lost_writes,
    "duplicate": duplicates,
    "divergent offset": divergent_offsets,
    "ww cycle": ww_cycles,
    "wr cycle": wr_cycles,
    "rw cycle": rw_cycles,
    "internal contiguity": internal_contiguity,
    "read going back": reads_only_advance,
    "offset going back": offsets_only_rise,
    "torn transaction": transactions_are_whole,
    "epoch used twice": epochs_are_used_once,
    "store unlike its changelog": stores_fold_their_changelog,
    "sum not conserved": sums_are_kept,
}


def _ended(
    batches: Sequence[RawBatch],
) -> Iterator[tuple[int, Kind, Transaction | None, list[int]]]:
    """Each marker: its offset, what it does, to which transaction, and to which offsets.

    The transaction is None where nothing of it is there.
    """
    pending: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for batch in batches:
        if batch.kind is Kind.RECORDS:
            written = range(batch.first, batch.last + 1)
            pending[batch.producer_id] += [(offset, batch.epoch) for offset in written]
        else:
            found = pending.pop(batch.producer_id, [])
            # A marker has the next epoch under KIP-890: that of the records counts.
            of = Transaction(batch.producer_id, found[0][1]) if found else None
            yield batch.first, batch.kind, of, [offset for offset, _ in found]


def _endings(batches: Sequence[RawBatch]) -> dict[int, Kind]:
    """How the transaction of each offset ended; without those that are still open."""
    return {offset: kind for _, kind, _, offsets in _ended(batches) for offset in offsets}


def _cycle(before: Mapping[_Node, set[_Node]]) -> list[_Node] | None:
    """Some nodes each of which goes before the next, and the last is the first."""
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        found: list[_Node] = error.args[1]
        return found
    return None


def _folded(entries: Iterable[Entry]) -> dict[Datum, Datum]:
    rows: dict[Datum, Datum] = {}
    for entry in entries:
        if entry.value is None:
            rows.pop(entry.key, None)
        else:
            rows[entry.key] = entry.value
    return rows


def _versions(entries: Sequence[Entry]) -> dict[Datum, dict[int, Datum]]:
    """What each key was from which offset on."""
    found: dict[Datum, dict[int, Datum]] = defaultdict(dict)
    for entry in entries:
        found[entry.key][entry.offset] = entry.value
    return found


def _time_of(versions: Mapping[int, Datum], said: Datum) -> tuple[int, int | None] | None:
    """Since which offset a row was so, and until which; None if it was so never, or twice."""
    starts = [
        *([] if said is not None else [-1]),
        *(at for at, it in versions.items() if it == said),
    ]
    if len(starts) != 1:
        return None
    return starts[0], min((at for at in versions if at > starts[0]), default=None)


def _short(result: Result | None) -> tuple[Datum, ...]:
    return () if result is None else (result.key, result.value)
