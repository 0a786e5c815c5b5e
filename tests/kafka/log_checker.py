"""Judges what a task that counts by key left behind: pure functions over what was seen.

The first rules are those of Jepsen's workload for Kafka, said of this task: aborted read, lost
write, duplicate, divergent offset, write cycle, precommitted read. The others are ours.

A record of an output or of the changelog tells which input it stems from: `passed` holds the
input's own number; in `counts` and in the changelog, count n of a key stems from the key's n-th
input.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise, product
from typing import NamedTuple

from statestore.model.ids import TopicPartition
from tests.kafka.wire import Kind, RawBatch


class Entry(NamedTuple):
    """A record as a consumer saw it."""

    offset: int
    key: str
    value: int


class Mark(NamedTuple):
    """A commit of a group for one input partition: the offset NEXT to read, and its number."""

    offset: int
    number: int


class Stored(NamedTuple):
    """The rows of a task's store, and the changelog offset it says they stand for."""

    rows: Mapping[str, int]
    offset: int | None


class Origin(NamedTuple):
    """The input record that something stems from."""

    partition: int
    offset: int


View = Mapping[TopicPartition, Sequence[Entry]]


@dataclass(frozen=True)
class Evidence:
    """All that is known about one schedule; `raw` was read after every view.

    `inputs`: without those that a handler passes over; `ends`: NEXT offset of each input.
    `commits`: per input partition what the group committed, in the order of its log.
    `stores`: per partition; closed ones only.
    """

    inputs: Mapping[int, Sequence[Entry]]
    ends: Mapping[int, int]
    passed: str
    counts: str
    changelog: str
    committed: Sequence[View]
    uncommitted: Sequence[View]
    raw: Mapping[TopicPartition, Sequence[RawBatch]]
    commits: Mapping[int, Sequence[Mark]]
    stores: Mapping[int, Stored]

    @cached_property
    def origins(self) -> Mapping[int, Origin]:
        """By the number an input holds."""
        return {
            entry.value: Origin(partition, entry.offset)
            for partition, entries in self.inputs.items()
            for entry in entries
        }

    @cached_property
    def by_key(self) -> Mapping[str, Sequence[Origin]]:
        """The inputs of each key, in order."""
        found: dict[str, list[Origin]] = defaultdict(list)
        for partition, entries in self.inputs.items():
            for entry in entries:
                found[entry.key].append(Origin(partition, entry.offset))
        return found

    @cached_property
    def seen(self) -> Mapping[TopicPartition, Sequence[Entry]]:
        """What readers of committed records see in the end."""
        return self.committed[-1]

    def origin(self, topic: str, entry: Entry) -> Origin | None:
        """None: no input can have led to this."""
        if topic == self.passed:
            return self.origins.get(entry.value)
        of_key = self.by_key.get(entry.key, ())
        return of_key[entry.value - 1] if 0 < entry.value <= len(of_key) else None

    def entries(self, topic: str) -> Iterator[tuple[TopicPartition, Entry]]:
        """Of one topic, as readers of committed records see it."""
        for tp, entries in self.seen.items():
            if tp.topic == topic:
                for entry in entries:
                    yield tp, entry


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
    """A reader of committed records sees one of an aborted transaction, or one nobody wrote."""
    for view in evidence.committed:
        for tp, entries in view.items():
            endings = _endings(evidence.raw[tp])
            for entry in entries:
                if endings.get(entry.offset) is Kind.ABORT:
                    yield f"{tp} shows {entry}, whose transaction was aborted"
                elif evidence.origin(tp.topic, entry) is None:
                    yield f"{tp} shows {entry}, which stems from no input"


def precommitted_reads(evidence: Evidence) -> Iterator[str]:
    """A reader of committed records sees one whose transaction has not ended."""
    for view in evidence.committed:
        for tp, entries in view.items():
            endings = _endings(evidence.raw[tp])
            for entry in entries:
                if entry.offset not in endings:
                    yield f"{tp} shows {entry}, whose transaction was not committed"


def lost_writes(evidence: Evidence) -> Iterator[str]:
    """An input was taken, or lies before one that was, and its outputs cannot be read."""
    for topic in (evidence.passed, evidence.counts):
        found = {evidence.origin(topic, entry) for _, entry in evidence.entries(topic)}
        for origin in evidence.origins.values():
            if origin not in found:
                yield f"{topic} lacks what {origin} leads to"


def duplicates(evidence: Evidence) -> Iterator[str]:
    """One input led to more than one record of an output."""
    for topic in (evidence.passed, evidence.counts):
        times = Counter(evidence.origin(topic, entry) for _, entry in evidence.entries(topic))
        for origin, count in times.items():
            if origin is not None and count > 1:
                yield f"{topic} has {count} records that stem from {origin}"


def divergent_offsets(evidence: Evidence) -> Iterator[str]:
    """Two readers see different records at one offset."""
    known: dict[tuple[TopicPartition, int], Entry] = {}
    for view in (*evidence.uncommitted, *evidence.committed):
        for tp, entries in view.items():
            for entry in entries:
                other = known.setdefault((tp, entry.offset), entry)
                if other != entry:
                    yield f"{tp} shows {entry} to one reader and {other} to another"


def write_cycles(evidence: Evidence) -> Iterator[str]:
    """Two logs disagree about what was written first: inputs, outputs and changelog."""
    followers: dict[Origin, set[Origin]] = defaultdict(set)
    commit_of = {
        evidence.origins[entry.value]: number
        for number, stretch in enumerate(_stretches(evidence))
        for entry in stretch
    }
    for partition, entries in evidence.inputs.items():
        for before, after in pairwise(Origin(partition, entry.offset) for entry in entries):
            followers[after].add(before)
    for (tp, entries), partition in product(evidence.seen.items(), evidence.inputs):
        found = (evidence.origin(tp.topic, entry) for entry in entries)
        # The first of each: that there are more is another rule's.
        order = dict.fromkeys(origin for origin in found if origin is not None)
        for before, after in pairwise(origin for origin in order if origin.partition == partition):
            # Within a commit a changelog has its keys in any order.
            together = before in commit_of and commit_of[before] == commit_of.get(after)
            if tp.topic != evidence.changelog or not together:
                followers[after].add(before)
    try:
        TopologicalSorter(followers).prepare()
    except CycleError as error:
        yield f"each of these was written before the next: {error.args[1]}"


# Ours.


def counts_are_contiguous(evidence: Evidence) -> Iterator[str]:
    """The counts of a key read 1, 2, 3 up to the number of its inputs."""
    told: dict[str, list[int]] = defaultdict(list)
    for _, entry in evidence.entries(evidence.counts):
        told[entry.key].append(entry.value)
    for key, origins in evidence.by_key.items():
        if told[key] != list(range(1, len(origins) + 1)):
            yield f"the counts of {key} read {told[key]}, not 1 to {len(origins)}"


def offsets_only_rise(evidence: Evidence) -> Iterator[str]:
    """Every commit moves its input on and has the next number; the last is at the input's end."""
    for partition, end in evidence.ends.items():
        # A request that was repeated says the same again.
        marks = [mark for mark, _ in groupby(evidence.commits.get(partition, ()))]
        for before, after in pairwise((Mark(0, 0), *marks)):
            # A commit without progress is one of wall-clock work, or moves another input.
            if after.offset < before.offset or after.number != before.number + 1:
                yield f"input {partition} is at {after} after {before}"
        if (marks[-1].offset if marks else 0) != end:
            yield f"input {partition} ends at {end} and the group is at {marks[-1:]}"


def transactions_are_whole(evidence: Evidence) -> Iterator[str]:
    """What a marker commits in a partition is all that some commit of the group leads to there."""
    wanted = {topic: _wanted(evidence, topic) for topic in (evidence.passed, evidence.counts)}
    wanted[evidence.changelog] = _wanted_of_changelog(evidence)
    for tp, entries in evidence.seen.items():
        for at, group in _committed_together(evidence.raw[tp], entries):
            origins = {evidence.origin(tp.topic, entry) for entry in group}
            if frozenset(origins) not in wanted[tp.topic]:
                text = ", ".join(str(tuple(origin or ())) for origin in sorted(origins, key=str))
                yield f"the marker at {at} of {tp} commits {text}: no commit of the group does"


def stores_fold_their_changelog(evidence: Evidence) -> Iterator[str]:
    """A store is its changelog up to the offset it names, and has all that was committed."""
    for partition, stored in evidence.stores.items():
        entries = evidence.seen.get(TopicPartition(evidence.changelog, partition), ())
        at = stored.offset or 0
        folded = {entry.key: entry.value for entry in entries if entry.offset < at}
        if folded != dict(stored.rows):
            yield f"store {partition} has {dict(stored.rows)}; its log up to {at} gives {folded}"
        if any(entry.offset >= at for entry in entries):
            yield f"store {partition} is at {at}; its log has {entries[-1]}"


RULES: Mapping[str, Callable[[Evidence], Iterable[str]]] = {
    "aborted read": aborted_reads,
    "precommitted read": precommitted_reads,
    "lost write": lost_writes,
    "duplicate": duplicates,
    "divergent offset": divergent_offsets,
    "write cycle": write_cycles,
    "gap in counts": counts_are_contiguous,
    "offset going back": offsets_only_rise,
    "torn transaction": transactions_are_whole,
    "store unlike its changelog": stores_fold_their_changelog,
}


def _endings(batches: Sequence[RawBatch]) -> dict[int, Kind]:
    """How the transaction of each offset ended; without those that are still open."""
    found: dict[int, Kind] = {}
    pending: dict[int, list[int]] = defaultdict(list)
    for batch in batches:
        if batch.kind is Kind.RECORDS:
            pending[batch.producer_id] += range(batch.first, batch.last + 1)
        else:
            found.update(dict.fromkeys(pending.pop(batch.producer_id, ()), batch.kind))
    return found


def _committed_together(
    batches: Sequence[RawBatch], entries: Sequence[Entry]
) -> Iterator[tuple[int, list[Entry]]]:
    """The offset of each commit marker, and the records it commits; not of those with none."""
    by_offset = {entry.offset: entry for entry in entries}
    pending: dict[int, list[int]] = defaultdict(list)
    for batch in batches:
        if batch.kind is Kind.RECORDS:
            pending[batch.producer_id] += range(batch.first, batch.last + 1)
            continue
        offsets = pending.pop(batch.producer_id, ())
        if batch.kind is Kind.COMMIT and (
            group := [by_offset[at] for at in offsets if at in by_offset]
        ):
            yield batch.first, group


def _stretches(evidence: Evidence) -> Iterator[list[Entry]]:
    """The inputs of each commit of the group."""
    for partition, entries in evidence.inputs.items():
        ends = sorted({0, *(mark.offset for mark in evidence.commits.get(partition, ()))})
        for start, end in pairwise(ends):
            yield [entry for entry in entries if start <= entry.offset < end]


def _wanted(evidence: Evidence, topic: str) -> set[frozenset[Origin | None]]:
    """What each commit leads to in each partition of an output, where its keys were seen."""
    places: dict[str, set[int]] = defaultdict(set)
    for tp, entry in evidence.entries(topic):
        places[entry.key].add(tp.partition)
    wanted: set[frozenset[Origin | None]] = set()
    for stretch in _stretches(evidence):
        there: dict[int, set[Origin | None]] = defaultdict(set)
        for entry in stretch:
            for place in places[entry.key]:
                there[place].add(evidence.origins[entry.value])
        wanted |= {frozenset(origins) for origins in there.values()}
    return wanted


def _wanted_of_changelog(evidence: Evidence) -> set[frozenset[Origin | None]]:
    """The last change of each key in a commit."""
    return {
        frozenset({entry.key: evidence.origins[entry.value] for entry in stretch}.values())
        for stretch in _stretches(evidence)
    }
