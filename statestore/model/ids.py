"""Names of partitions and stream tasks, and positions in the input. All are immutable."""

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
        """Read `2_14`; anything else is Misuse."""
        if not (match := _TASK.fullmatch(text)):
            raise Misuse(f"task id {text!r}: want <sub-topology>_<partition>, such as 2_14")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"


@dataclass(frozen=True, slots=True)
class Position:
    """Per input partition, the offset of the LAST record processed (KIP-796, SEMANTICS S14)."""

    _last: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, offsets: "Mapping[TopicPartition, int] | Mapping[str, Mapping[int, int]]"
    ) -> "Position":
        """From `{TopicPartition("t", 0): 41}` or `{"t": {0: 41}}`."""
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
        """The later of both, per partition."""
        merged = dict(self._last)
        for tp, last in other._last.items():
            merged[tp] = max(last, merged.get(tp, last))
        return Position(merged)

    def as_dict(self) -> dict[TopicPartition, int]:
        """Partition to last processed offset."""
        return dict(self._last)

    def among(self, tps: Collection[TopicPartition]) -> "Position":
        """What it says of these partitions."""
        return Position({tp: last for tp, last in self._last.items() if tp in tps})

    def covers(self, bound: "Position") -> bool:
        """Whether every partition of `bound` has been processed at least that far."""
        return all(self._last.get(tp, -1) >= last for tp, last in bound._last.items())


@dataclass(frozen=True, slots=True)
class PositionBound:
    """A reader's demand: answer only when the copy has processed at least this.

    A store of a stream task waits for what its task reads: so one position, merged over all tasks,
    will do for the stores of each.
    """

    position: Position

    @classmethod
    def at(cls, position: Position) -> "PositionBound":
        """A bound at `position`."""
        return cls(position)
