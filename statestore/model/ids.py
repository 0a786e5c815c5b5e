"""Identifiers of partitions and stream tasks, and input positions; all are immutable."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from statestore.errors import Misuse

_TASK = re.compile(r"(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})")


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TaskId(NamedTuple):
    """A stream task: `<sub-topology ordinal>_<partition>` (SEMANTICS T1)."""

    sub_topology: int
    partition: int

    @classmethod
    def parse(cls, text: str) -> "TaskId":
        """Parse a task id such as `2_14`; Misuse if the text is not one."""
        if not (match := _TASK.fullmatch(text)):
            raise Misuse(f"task id {text!r}: want <sub-topology>_<partition>, such as 2_14")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"


@dataclass(frozen=True, slots=True)
class Position:
    """The offset of the LAST processed record per input partition (KIP-796, SEMANTICS S14)."""

    _last: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, offsets: "Mapping[TopicPartition, int] | Mapping[str, Mapping[int, int]]"
    ) -> "Position":
        """Create a position from `{TopicPartition("t", 0): 41}` or `{"t": {0: 41}}`."""
        flat: dict[TopicPartition, int] = {}
        for name, value in offsets.items():
            if isinstance(name, str):
                assert isinstance(value, Mapping)
                flat.update({TopicPartition(name, p): last for p, last in value.items()})
            else:
                assert isinstance(value, int)
                flat[TopicPartition(*name)] = value
        return cls(flat)

    def merge(self, other: "Position") -> "Position":
        """Return a position that has the larger of the two offsets of each partition."""
        merged = dict(self._last)
        for tp, last in other._last.items():
            merged[tp] = max(last, merged.get(tp, last))
        return Position(merged)

    def as_dict(self) -> dict[TopicPartition, int]:
        """Return the last processed offset of each partition."""
        return dict(self._last)

    def among(self, tps: Collection[TopicPartition]) -> "Position":
        """Return the part of this position that concerns these partitions."""
        return Position({tp: last for tp, last in self._last.items() if tp in tps})

    def covers(self, bound: "Position") -> bool:
        """Return whether every partition of `bound` has been processed at least that far."""
        return all(self._last.get(tp, -1) >= last for tp, last in bound._last.items())


@dataclass(frozen=True, slots=True)
class PositionBound:
    """A condition on a read: answer only once the copy has processed at least this position.

    A store considers only the partitions that its stream task reads, so one position, merged over
    all tasks, can be used for the stores of every task.
    """

    position: Position

    @classmethod
    def at(cls, position: Position) -> "PositionBound":
        """Create a bound at `position`."""
        return cls(position)
