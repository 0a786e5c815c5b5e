"""The values everybody shares: names of partitions and tasks, records, batches, positions, modes.

All are immutable. What exists once per record is a NamedTuple, so a plain tuple matches it.
A `Batch` is the unit of work between edges and operators: columns, decoded when first asked for.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Self, TypeVar

from statestore.errors import Misuse

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

Time = int | datetime
Span = int | timedelta
Header = tuple[str, bytes | None]
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


class Record(NamedTuple, Generic[K, V]):
    """One record as a processor sees it; topic, partition and offset are the input's, if any."""

    key: K
    value: V
    timestamp_ms: int
    headers: tuple[Header, ...] = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    def replace(self, **fields: Any) -> "Record[Any, Any]":
        """The same record with some fields changed."""
        return self._replace(**fields)


class VersionedRecord(NamedTuple, Generic[V]):
    """A version: from `timestamp_ms` to `valid_to_ms`, exclusive; None: still valid (KIP-889)."""

    value: V
    timestamp_ms: int
    valid_to_ms: int | None


class PutResult(NamedTuple):
    """What a versioned put did: `accepted` False means older than the history retention."""

    accepted: bool
    latest: bool
    valid_to_ms: int | None


class Windowed(NamedTuple, Generic[K]):
    """A key in one window: `start_ms` inclusive, `end_ms` exclusive."""

    key: K
    start_ms: int
    end_ms: int


WINDOW_BYTES = 8
"""How many bytes of a key in a window are the window, the last ones; the others place it."""


class _Word(StrEnum):
    """Its text will do, in capitals or not; Misuse tells what there is."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        if found := {word.lower(): word for word in cls}.get(str(value).lower()):
            return found
        raise Misuse(f"{value!r} is no {cls.__name__}: it is one of {', '.join(cls)}")


class IsolationLevel(_Word):
    """What a reader sees of a writer's pending writes (KIP-892)."""

    READ_COMMITTED = "READ_COMMITTED"
    READ_UNCOMMITTED = "READ_UNCOMMITTED"


class ProcessingGuarantee(_Word):
    """How often the effect of one input record is seen (KIP-129)."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"

    @classmethod
    def _missing_(cls, value: object) -> "ProcessingGuarantee":
        return cls.EXACTLY_ONCE if value == "exactly_once_v2" else super()._missing_(value)


class PunctuationType(_Word):
    """Which clock drives a punctuation."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


class EmitStrategy(_Word):
    """When a windowed aggregate is forwarded."""

    ON_UPDATE = "on_update"
    ON_WINDOW_CLOSE = "on_window_close"


class OnError(_Word):
    """What a handler does with a record that cannot be decoded, processed or produced."""

    FAIL = "fail"
    CONTINUE = "continue"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A named pair of functions between values and bytes; `ordered`: bytes sort as the values do.

    None never reaches either function. The name is stored with the deployed topology, so that
    tools can decode a store without the pipeline.
    """

    name: str
    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]
    ordered: bool = False

    def __repr__(self) -> str:
        return f"Serde({self.name})"


def _same(data: bytes) -> bytes:
    return data


def _bytes(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("want bytes")
    return value


BYTES: Serde[bytes] = Serde("BYTES", _bytes, _same, ordered=True)
"""Bytes as they are; columns know it by identity, as a user's own may have that name too."""


class Rows(Sequence[T]):
    """One field of a client's records, read out when asked for: what nobody asks for is free."""

    __slots__ = ("_all", "_read", "_rows")

    def __init__(self, rows: "list[Any]", read: "Callable[[Any], T]") -> None:
        self._rows = rows
        self._read = read
        self._all: list[T] | None = None

    def all(self) -> list[T]:
        """The field of every record, read once."""
        if self._all is None:
            self._all = list(map(self._read, self._rows))
        return self._all

    def take(self, indices: Sequence[int]) -> "Rows[T]":
        """The rows at `indices`."""
        return Rows([self._rows[i] for i in indices], self._read)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Rows(self._rows[index], self._read)
        return self._read(self._rows[index]) if self._all is None else self._all[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self._rows)


class Column:
    """One column of a batch: stored bytes, decoded values, or both once both were needed."""

    __slots__ = ("_objects", "_raw", "_serde")

    def __init__(
        self,
        *,
        raw: "list[bytes | None] | None" = None,
        objects: "list[Any] | None" = None,
        serde: "Serde[Any] | None" = None,
    ) -> None:
        self._raw = raw
        self._objects = objects
        self._serde = serde

    def with_serde(self, serde: "Serde[Any]") -> "Column":
        """The same bytes, to be read through `serde`."""
        return Column(raw=self._raw, serde=serde)

    @property
    def objects(self) -> list[Any]:
        """The decoded values; a plain bytes column decodes to itself."""
        if self._objects is None:
            raw = self._raw
            assert raw is not None
            if self._serde is None or self._serde is BYTES:
                self._objects = raw
            else:
                decode = self._serde.deserialize
                self._objects = [None if data is None else decode(data) for data in raw]
        return self._objects

    def encoded(self, serde: "Serde[Any]") -> "list[bytes | None]":
        """The bytes under `serde`; free where the column arrived as bytes of that serde."""
        if self._raw is not None and (self._serde is serde or self._serde is None):
            return self._raw
        if serde is BYTES:
            return _all_bytes(self.objects)
        encode = serde.serialize
        return [None if item is None else encode(item) for item in self.objects]

    def nulls(self) -> list[int]:
        """The places without a value; nothing is decoded."""
        rows = self._objects if self._raw is None else self._raw
        if rows is None or (self._raw is not None and all(rows)):
            return []
        return [i for i, item in enumerate(rows) if item is None]

    def picked(self, pick: Callable[[Any], Any]) -> "Column":
        """The rows that `pick` takes out of each list of rows."""
        raw, objects = self._raw, self._objects
        return Column(
            raw=None if raw is None else pick(raw),
            objects=None if objects is None else pick(objects),
            serde=self._serde,
        )


@dataclass(slots=True, eq=False)
class Batch:
    """Records in order, as columns of equal length; of one topic partition where `topic` is set.

    `headers`: None, or per record, maybe empty. `offsets`: None once an operator made new records;
    without a topic, places among what waited in an operator, for whoever has to find one.
    `before`: the values a table's updates replace, where a table below asked. `stream_times`: the
    stream time as each record's input record came, where a node asked (topology/stream_time.py).
    """

    keys: Column
    values: Column
    timestamps: list[int]
    headers: Sequence[tuple[Header, ...]] | None = None
    topic: str | None = None
    partition: int | None = None
    offsets: Sequence[int] | None = None
    before: Column | None = None
    stream_times: list[int] | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, indices: Sequence[int]) -> "Batch":
        """The records at `indices`, in that order."""
        return self._picked(lambda rows: _taken(rows, indices))

    def slice(self, start: int, stop: int) -> "Batch":
        """The records from `start` to `stop`, exclusive."""
        return self._picked(lambda rows: rows[start:stop])

    def _picked(self, pick: Callable[[Any], Any]) -> "Batch":
        return Batch(
            keys=self.keys.picked(pick),
            values=self.values.picked(pick),
            timestamps=pick(self.timestamps),
            headers=None if self.headers is None else pick(self.headers),
            topic=self.topic,
            partition=self.partition,
            offsets=None if self.offsets is None else pick(self.offsets),
            before=None if self.before is None else self.before.picked(pick),
            stream_times=None if self.stream_times is None else pick(self.stream_times),
        )

    def with_columns(self, *, keys: Column | None = None, values: Column | None = None) -> "Batch":
        """The same records with other keys, values or both."""
        return Batch(
            keys=self.keys if keys is None else keys,
            values=self.values if values is None else values,
            timestamps=self.timestamps,
            headers=self.headers,
            topic=self.topic,
            partition=self.partition,
            offsets=self.offsets,
            stream_times=self.stream_times,
        )

    def records(self) -> Iterator[Record[Any, Any]]:
        """The records one by one: for a user's per-record code, not for hot paths."""
        headers, offsets = self.headers, self.offsets if self.topic else None
        for i, (key, value, time_ms) in enumerate(
            zip(self.keys.objects, self.values.objects, self.timestamps, strict=True)
        ):
            yield Record(
                key,
                value,
                time_ms,
                () if headers is None else headers[i],
                self.topic,
                self.partition,
                None if offsets is None else offsets[i],
            )

    @classmethod
    def of(cls, records: Iterable[Record[Any, Any]]) -> "Batch":
        """A batch of decoded records."""
        rows = list(records)
        return cls(
            keys=Column(objects=[row.key for row in rows]),
            values=Column(objects=[row.value for row in rows]),
            timestamps=[row.timestamp_ms for row in rows],
            headers=[r.headers for r in rows] if any(r.headers for r in rows) else None,
        )


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


def _all_bytes(items: list[Any]) -> list[bytes | None]:
    for kind in set(map(type, items)) - {bytes, type(None)}:
        raise TypeError(f"want bytes, not {kind.__name__}")
    return items


def to_ms(time: Time) -> int:
    """Milliseconds since the epoch from an int or an aware datetime (INTERFACE rule 5)."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise Misuse(f"time {time.isoformat()} has no time zone: pass an aware datetime or ms")
        return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return time


def _taken(column: Sequence[T], indices: Sequence[int]) -> "list[T] | Rows[T]":
    return column.take(indices) if isinstance(column, Rows) else [column[i] for i in indices]


def span_ms(span: Span) -> int:
    """Milliseconds from an int or a timedelta."""
    return span // timedelta(milliseconds=1) if isinstance(span, timedelta) else span
