"""Records that came in and are in no result: dropped, written as dead letters, or without a match.

Each is counted by its cause: what became of it, at which node, and why. A `Counts` has a number of
records by cause, under names that go into JSON and into the columns of Spark as they are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from statestore.model.ids import TaskId

Counts = Mapping[str, int]
"""Records by the name of their cause, as `str(Cause(…))` has it."""
NO_MATCH: Final = "no_match"
OTHER: Final = "other"
"""The reason of causes that are counted together because there are too many of them."""
_TOLD: Final = 5
_HANDLED: Final = "the log has the first of them; correct the records or the pipeline"
_REMEDIES: Final = {
    "late": "records that come out of order need a larger grace",
    "null_key": "give them a key, or filter() them out",
    "null_key_or_value": "give them a key and a value, or filter() them out",
    "older_than_history": "they need a larger history_retention",
    "negative_timestamp": "look at what the timestamp extractor returns",
    "deserialization": _HANDLED,
    "processing": _HANDLED,
    "production": _HANDLED,
    "punctuation": _HANDLED,
}


class Fate(StrEnum):
    """What became of a record that is in no result. A dead letter counts as dropped as well."""

    DROPPED = "dropped"
    DEAD_LETTER = "dead_letter"
    UNMATCHED = "unmatched"


class Cause(NamedTuple):
    """What became of records, the node that left them out, and its reason."""

    fate: Fate
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.fate}/{self.reason}/{self.node}"

    @classmethod
    def parse(cls, name: str) -> "Cause | None":
        """Return the cause with that name; None if it is not one, as of a newer version."""
        fate, _, rest = name.partition("/")
        reason, _, node = rest.partition("/")
        return cls(Fate(fate), node, reason) if fate in tuple(Fate) else None


def total(counts: Counts, fate: Fate) -> int:
    """Return how many records met that fate."""
    return sum(count for name, count in counts.items() if name.startswith(f"{fate}/"))


@dataclass(frozen=True)
class LeftOut:
    """How many records one node left out for one reason.

    `records_in`: how many came into the stream tasks that have the node, for the share.
    """

    node: str
    reason: str
    records: int
    records_in: int

    def share(self) -> str:
        """The number and the share for people, such as "2,700 of 3,600 records, 75 %"."""
        if not 0 < self.records <= self.records_in:
            # Operators make records, too, so there may be more than came in.
            return f"{self.records:,} record{'' if self.records == 1 else 's'}"
        percent = 100 * self.records / self.records_in
        rounded = f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"
        return f"{self.records:,} of {self.records_in:,} records, {rounded} %"

    def __str__(self) -> str:
        why = self.reason.replace("_", " ")
        return f"{self.share()}: {why}" + (f", node {self.node}" if self.node else "")


@dataclass
class LeftOutSums:
    """Sums up what stream tasks left out: by sub-topology, what came in, and what met which end."""

    records_in: Counter[int] = field(default_factory=Counter)
    counts: Counter[tuple[int, Cause]] = field(default_factory=Counter)

    def add(self, stream_task: str, records_in: int, counts: Counts) -> None:
        """Add what one stream task counted, and how many records came in meanwhile."""
        part = TaskId.parse(stream_task).sub_topology
        self.records_in[part] += records_in
        for name, count in counts.items():
            cause = Cause.parse(name)
            if cause is not None:
                self.counts[part, cause] += count

    def merge(self, other: "LeftOutSums") -> None:
        """Add the sums of others."""
        self.records_in.update(other.records_in)
        self.counts.update(other.counts)

    def of(self, fate: Fate) -> list[LeftOut]:
        """Return what met that fate, the most records first."""
        found = [
            LeftOut(cause.node, cause.reason, count, self.records_in[part])
            for (part, cause), count in self.counts.items()
            if cause.fate is fate and count
        ]
        return sorted(found, key=lambda one: (-one.records, one.node, one.reason))


def warning_of(dropped: Iterable[LeftOut], dead_letters: Iterable[LeftOut]) -> str:
    """Say what a run dropped and what helps; empty if it dropped nothing."""
    buried = {(one.node, one.reason): one.records for one in dead_letters}
    told = []
    for one in dropped:
        at = f" by node {one.node}" if one.node else ""
        why = "late" if one.reason == "late" else f"dropped ({one.reason.replace('_', ' ')})"
        said = f"{one.share()}, were {'dropped as ' if why == 'late' else ''}{why}{at}"
        letters = buried.get((one.node, one.reason), 0)
        if letters:
            said += f", {letters:,} of them into the dead letter topic"
        remedy = _REMEDIES.get(one.reason)
        told.append(f"{said}: {remedy}" if remedy else said)
    if len(told) > _TOLD:
        told[_TOLD:] = [f"{len(told) - _TOLD} more causes, which the summary has"]
    return "; ".join(told)


def left_out_lines(
    dropped: Iterable[LeftOut], dead_letters: Iterable[LeftOut], unmatched: Iterable[LeftOut]
) -> list[str]:
    """Return a line for each cause, for people."""
    return [
        *(f"dropped: {one}" for one in dropped),
        *(f"dead letters: {one}" for one in dead_letters),
        *(f"unmatched: {one}" for one in unmatched),
    ]
