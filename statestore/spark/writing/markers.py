"""What a marker topic says, and what follows from it for a partition of a batch: values only.

The topic has two partitions. CLAIMS has no transactions: who the current attempt at the output is,
which partitions an attempt is about to write, and which batch is finished. MARKERS has a marker of
each partition that was written, in the transaction that wrote it (docs/adr/0043). Both are
compacted; each kind of record has a key of its own, so that the newest is kept.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from statestore.errors import UNREADABLE, Fenced, FormatTooNew, RecordFailed
from statestore.model.decoders import json_decoder

CLAIMS: Final = 0
MARKERS: Final = 1
FORMAT: Final = 1
WHOLE_BATCH: Final = -1
"""The partition that stands for all rows of a batch, with atomic = batch."""


class Contents(msgspec.Struct, frozen=True):
    """How many rows there are, and a digest that does not depend on their order."""

    rows: int
    digest: int

    def __add__(self, other: "Contents") -> "Contents":
        return Contents(self.rows + other.rows, (self.digest + other.digest) % 2**64)


NO_ROWS: Final = Contents(0, 0)


class AttemptBegun(msgspec.Struct, frozen=True, tag="begun"):
    """An attempt at a batch took the output over from all that were before it."""

    attempt: str
    format: int = FORMAT


class Intent(msgspec.Struct, frozen=True, tag="intent"):
    """A task of an attempt has opened the transactional id of a partition."""

    attempt: str
    partition: int


class Marker(msgspec.Struct, frozen=True, tag="marker"):
    """The rows of a partition of a batch are in the topic.

    `batch` None: of a write without a number, which is never repeated. `stream`: Spark's id of the
    streaming query, which lasts as long as its checkpoint.
    """

    attempt: str
    partition: int
    batch: int | None
    contents: Contents
    stream: str | None = None


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """All rows of a batch are in the topic; `partitions` are those that have any."""

    attempt: str
    batch: int | None
    partitions: tuple[int, ...]
    contents: Contents


Entry = AttemptBegun | Intent | Marker | Finished

_LATE_MAX: Final = 16
_ENTRY: Any = Entry
_decode = json_decoder(_ENTRY).decode


def encoded(entry: Entry) -> tuple[bytes, bytes]:
    """Return the key and the value of an entry."""
    return _key(entry).encode(), msgspec.json.encode(entry)


def _key(entry: Entry) -> str:
    match entry:
        case AttemptBegun():
            return "begun"
        case Intent():
            return f"intent {entry.partition}"
        case Marker():
            return f"{'write' if entry.batch is None else 'batch'} {entry.partition}"
        case Finished(batch=None):
            return "finished write"
        case Finished():
            # A driver that was replaced may say late that an old batch is finished.
            assert entry.batch is not None
            return f"finished {entry.batch % _LATE_MAX}"


class Known(msgspec.Struct, frozen=True):
    """What the topic says up to some point."""

    current: str = ""
    intents: Mapping[int, str] = {}
    markers: Mapping[str, Marker] = {}
    finished: Mapping[str, Finished] = {}

    def with_values(self, values: Iterable[bytes | None]) -> "Known":
        """Return what it says with these records, in their order, after what is known."""
        current = self.current
        intents, markers = dict(self.intents), dict(self.markers)
        finished = dict(self.finished)
        for value in values:
            if value is None:
                continue
            entry = _decoded(value)
            match entry:
                case AttemptBegun():
                    current = entry.attempt
                case Intent():
                    intents[entry.partition] = entry.attempt
                case Marker():
                    markers[_key(entry)] = entry
                case Finished():
                    finished[_key(entry)] = entry
                    if entry.attempt == current:
                        # It has fenced all others when it began, and no copy of its tasks writes
                        # a partition that has its marker.
                        done = entry.partitions
                        intents = {
                            p: attempt
                            for p, attempt in intents.items()
                            if attempt == current and p not in done
                        }
        return Known(current, intents, markers, finished)

    @property
    def unsettled(self) -> list[int]:
        """The partitions for which an attempt may have a transaction open, or open one soon."""
        return sorted(self.intents)

    @property
    def newest_batch(self) -> int | None:
        """The largest number of a batch of which rows are in the topic."""
        numbers = [one.batch for one in self.markers.values()]
        numbers += [one.batch for one in self.finished.values()]
        return max((number for number in numbers if number is not None), default=None)

    def marker(self, batch: int | None, partition: int) -> Marker | None:
        """The newest marker of a partition, of whatever batch."""
        return self.markers.get(f"{'write' if batch is None else 'batch'} {partition}")

    def markers_of(self, batch: int | None, attempt: str) -> dict[int, Marker]:
        """The markers of a batch, by partition; of a write without a number those of its attempt.

        Of a batch with a number they may be of several attempts.
        """
        return {
            one.partition: one
            for one in self.markers.values()
            if one.batch == batch and (batch is not None or one.attempt == attempt)
        }

    def finished_of(self, batch: int | None) -> Finished | None:
        """The end of this batch, if it was finished."""
        found = self.finished.values()
        return next((one for one in found if batch is not None and one.batch == batch), None)


def _decoded(value: bytes) -> Entry:
    try:
        entry: Entry = _decode(value)
    except UNREADABLE as error:
        raise FormatTooNew(
            f"a marker topic has the record {value[:80]!r}, which this statestore cannot read "
            f"({error}): another program writes to the topic, or a newer statestore did"
        ) from error
    if isinstance(entry, AttemptBegun) and entry.format > FORMAT:
        raise FormatTooNew(
            f"a marker topic was written in format {entry.format}, and this statestore knows "
            f"{FORMAT}: upgrade it"
        )
    return entry


class Duty(StrEnum):
    """What a task has to do with the rows of its partition."""

    WRITE = "write"
    COMPARE = "compare"
    HAND_OVER = "hand over"
    COUNT = "count"


class WritePart(msgspec.Struct, frozen=True):
    """A partition of a batch in one attempt, and the output that it belongs to."""

    query: str
    attempt: str
    batch: int | None
    partition: int
    stream: str | None = None

    def __str__(self) -> str:
        which = "a write" if self.batch is None else f"batch {self.batch}"
        if self.partition == WHOLE_BATCH:
            return f"{which} of output {self.query!r}"
        return f"partition {self.partition} of {which} of output {self.query!r}"

    def duty(self, known: Known) -> Duty:
        """Return what is to be done; Fenced or RecordFailed if nothing may be.

        A batch that another attempt has begun is not written by its tasks: whether they divide the
        rows as that attempt did is known only when all that was written has been compared. Of one
        that is finished it does not matter: all its rows are there, however they are divided now.
        """
        self.require_current(known)
        if self.batch is None:
            found = known.marker(None, self.partition)
            return Duty.COMPARE if found and found.attempt == self.attempt else Duty.WRITE
        self.require_next(known)
        if known.finished_of(self.batch):
            return Duty.COUNT
        written = known.markers_of(self.batch, self.attempt)
        if self.partition in written:
            return Duty.COMPARE
        if any(one.attempt != self.attempt for one in written.values()):
            return Duty.HAND_OVER
        return Duty.WRITE

    def require_current(self, known: Known) -> None:
        """Fenced if another attempt has taken the output over."""
        if known.current != self.attempt:
            raise Fenced(
                f"{self}: another attempt has taken this output over: it writes the batch; if two "
                "programs write at the same time, give each a `query` of its own"
            )

    def require_next(self, known: Known) -> None:
        """RecordFailed if the batch is older than what was written, or an older one is open."""
        assert self.batch is not None, "only numbered batches follow each other"
        streams = {one.stream for one in known.markers.values() if one.batch is not None}
        if self.stream and (others := streams - {self.stream, None}):
            raise RecordFailed(
                f"{self}: a streaming query with another checkpoint ({others.pop()}) wrote to this "
                "output, and this one numbers its batches anew: give it another `query`"
            )
        newest = known.newest_batch
        if newest is None or newest == self.batch:
            return
        if newest > self.batch:
            raise RecordFailed(
                f"{self}: batch {newest} was written already, and what batch {self.batch} wrote is "
                "known no more: go on after that batch; for a new checkpoint or other data use "
                "another `query`"
            )
        if known.finished_of(newest) is None:
            partitions = sorted(known.markers_of(newest, self.attempt))
            raise RecordFailed(
                f"{self}: batch {newest} was begun and never finished: its partitions "
                f"{partitions} are in the topic and others may be missing: write batch {newest} "
                "again first"
            )

    def compare(self, found: Contents, written: Contents) -> None:
        """RecordFailed if the rows are not those that were written before."""
        if found != written:
            raise RecordFailed(
                f"{self}: {written.rows} rows were written before, and now there are {found.rows}"
                f"{'' if found.rows != written.rows else ' others'}: nothing more was written. The "
                "plan gives other rows, or divides them otherwise, each time it runs: use the same "
                "spark.sql.shuffle.partitions and code as before, and no rand() or uuid(); "
                "or persist the rows before they are written; and give each of several outputs a "
                "`query` of its own"
            )

    def marker(self, contents: Contents) -> Marker:
        """The marker of this partition with these rows."""
        return Marker(self.attempt, self.partition, self.batch, contents, self.stream)
