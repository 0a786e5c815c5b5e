"""An attempt at writing a batch: begun on the driver, carried out by tasks, ended on the driver.

1. `begin` on the driver: append AttemptBegun, read the claims up to it, fence all partitions that
   earlier attempts may still write, read the markers. Nothing of those commits from here on.
2. `write` in a task that has rows: open the transactional id of its partition, append Intent, and
   read both partitions of the log up to it. Then, as `WritePart.duty` says: write rows and marker
   in one transaction; or compare the rows with the marker; or hand them over to the driver.
3. `finish` on the driver, once all tasks have ended: compare all markers of the batch with the rows
   of this attempt, write what was handed over, append Finished.

A task whose Intent lies before another attempt's AttemptBegun is fenced by that attempt; one whose
Intent lies behind it finds it. So at most one attempt commits, and it knows all markers of those
before.

Keeps I43.
"""

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time_ns
from typing import Final, NamedTuple

from statestore.errors import CommitUnknown, Misuse, RecordFailed, StateStoreError, TopicMissing
from statestore.faults import CrashPoint, reach
from statestore.model.records import Header
from statestore.ports import LogEntryBytes, Outbox, OutputLog, Records
from statestore.runtime.brokers import KafkaBrokers
from statestore.runtime.outputs import output_clients
from statestore.settings import Settings
from statestore.spark.writing.markers import (
    CLAIMS,
    MARKERS,
    NO_ROWS,
    WHOLE_BATCH,
    AttemptBegun,
    Contents,
    Duty,
    Entry,
    Finished,
    Intent,
    Known,
    WritePart,
    encoded,
)

_log = logging.getLogger(__name__)

# A commit without an answer is asked for again; then the next attempt at the task finds out.
_ASK_AGAIN: Final = 2
_END: Final = b"end"
"""The key of records without a value, which only tell where the log ends."""


class EncodedRows(NamedTuple):
    """Rows for one topic. A time of None is that at which they are written.

    `numbers`: which rows of Spark partition `origin` they are, for errors.
    """

    topic: str
    keys: list[bytes | None]
    values: list[bytes | None]
    times: list[int | None] | None = None
    headers: list[tuple[Header, ...]] | None = None
    partitions: list[int | None] | None = None
    numbers: Sequence[int] = ()
    origin: int = 0

    def records(self) -> Records:
        """These rows for an outbox."""
        now_ms = time_ns() // 1_000_000
        if self.times is None:
            times = [now_ms] * len(self.keys)
        else:
            times = [now_ms if time_ms is None else time_ms for time_ms in self.times]
        choose = None if self.partitions is None else self._placed
        return Records(
            self.topic, self.keys, self.values, times, headers=self.headers, choose=choose
        )

    def where(self, at: int) -> str:
        """Where the user finds a row."""
        return f"row {self.numbers[at]} of Spark partition {self.origin}"

    def _placed(self, count: int) -> list[int | None]:
        """The partition of each row; RecordFailed names a row whose partition is not there."""
        places = self.partitions or []
        for at, place in enumerate(places):
            if place is not None and place >= count:
                raise RecordFailed(
                    f"{self.where(at)}: partition {place} of topic {self.topic}, which has {count} "
                    "partitions: correct the column `partition`, or leave it null"
                )
        return places


class EncodedChunk(NamedTuple):
    """The rows of a chunk of a partition, by topic, and what they are together."""

    rows: list[EncodedRows]
    contents: Contents


class Output(NamedTuple):
    """An output: its name, its marker topic and the settings of its clients."""

    query: str
    marker_topic: str
    settings: Mapping[str, object]
    topic: str | None = None

    def transactional_id(self, partition: int) -> str:
        """The id of a partition; it names the output, for ACLs with a prefix."""
        place = "batch" if partition == WHOLE_BATCH else str(partition)
        return f"{self.query}-spark-{place}"


class WriteAttempt(NamedTuple):
    """An attempt that has begun; `starts` are the next offsets of what `known` has been read to."""

    output: Output
    name: str
    known: Known
    starts: Mapping[int, int]

    def require_begun(self, batch: int, first: int) -> None:
        """RecordFailed if a stream is past its first batch and nothing is known of any before.

        Then nobody can tell whether an attempt wrote a part of this one.
        """
        if batch > first and self.known.newest_batch is None:
            raise RecordFailed(
                f"batch {batch} of output {self.output.query!r}: its marker topic "
                f"{self.output.marker_topic} knows no batch before it, so nobody can tell what of "
                "this one was written: go back to the `query` and markerTopic that this checkpoint "
                f"had; or, if the topic was deleted or the checkpoint is of another sink, pass "
                f'.option("firstBatch", {batch}) once you know that nothing of batch {batch} was '
                "written"
            )


class PartOutcome(NamedTuple):
    """What became of the rows of a partition. `handed`: the driver has to write them."""

    attempt: str
    batch: int | None
    stream: str | None
    partition: int
    contents: Contents
    handed: list[EncodedRows] | None = None


def begin(output: Output) -> WriteAttempt:
    """Take the output over from all earlier attempts, and learn what they have written."""
    name = uuid.uuid4().hex
    with _opened(output) as (log, _):
        log.create()
        if output.topic is not None and not log.partitions([output.topic]):
            raise TopicMissing(f"there is no topic {output.topic!r}: create it, or correct `topic`")
        ends = _appended(log, AttemptBegun(name))
        known = Known().with_values(log.read(CLAIMS, 0, ends[CLAIMS]))
        if known.unsettled:
            log.fence([output.transactional_id(p) for p in known.unsettled])
        known = known.with_values(log.read(MARKERS, 0, ends[MARKERS]))
    reach(CrashPoint.WRITE_BEGUN)
    return WriteAttempt(output, name, known, ends)


def write(
    attempt: WriteAttempt, part: WritePart, chunks: Iterable[EncodedChunk], *, hand_over: bool
) -> PartOutcome:
    """Do what is to be done with the rows of a partition; see the top of the module.

    With `hand_over` the driver writes them in any case.
    """
    contents, handed = NO_ROWS, list[EncodedRows]()
    ahead = (chunk for chunk in chunks if chunk.contents.rows)
    first = next(ahead, None)
    if first is not None and hand_over:
        for chunk in _with_first(first, ahead):
            contents, handed = contents + chunk.contents, handed + chunk.rows
    elif first is not None:
        with _claimed(attempt, part) as (claim, duty):
            match duty:
                case Duty.WRITE:
                    contents = claim.write(_with_first(first, ahead))
                case Duty.COMPARE | Duty.HAND_OVER | Duty.COUNT:
                    for chunk in _with_first(first, ahead):
                        contents += chunk.contents
                        handed += chunk.rows if duty is Duty.HAND_OVER else ()
                    if duty is Duty.COMPARE:
                        claim.compare(contents)
    return PartOutcome(
        attempt.name, part.batch, part.stream, part.partition, contents, handed or None
    )


def finish(output: Output, outcomes: Sequence[PartOutcome], *, whole: bool) -> None:
    """Compare all markers of the batch, write what was handed over, and say that it is finished.

    With `whole` all rows are handed over, and become one transaction.
    """
    attempt, batch, stream = outcomes[0].attempt, outcomes[0].batch, outcomes[0].stream
    everything = WritePart(output.query, attempt, batch, WHOLE_BATCH, stream)
    found = {one.partition: one.contents for one in outcomes if one.contents.rows}
    with _opened(output) as (log, _):
        known, ends = _read_all(log)
        everything.require_current(known)
        if batch is not None:
            everything.require_next(known)
        handed = [one for one in outcomes if one.handed]
        if whole:
            total = sum(found.values(), start=NO_ROWS)
            rows = [rows for one in handed for rows in one.handed or ()]
            handed = [PartOutcome(attempt, batch, stream, WHOLE_BATCH, total, rows)] if rows else []
            found = {WHOLE_BATCH: total} if rows else {}
        begun = WriteAttempt(output, attempt, known, ends)
        for one in handed if _is_to_write(everything, known, found) else ():
            _write_handed(begun, everything, one)
        reach(CrashPoint.WRITE_COMPARED)
        total = sum(found.values(), start=NO_ROWS)
        _appended(log, Finished(attempt, batch, tuple(sorted(found)), total))
    reach(CrashPoint.WRITE_FINISHED)


def _is_to_write(everything: WritePart, known: Known, found: Mapping[int, Contents]) -> bool:
    """Return whether the batch may miss rows; RecordFailed if what was written is not of it.

    Each partition that was written has the same rows in this attempt. Only of a finished batch they
    may be divided otherwise.
    """
    finished = known.finished_of(everything.batch)
    total = sum(found.values(), start=NO_ROWS)
    if finished is not None and finished.contents == total:
        return False
    written = known.markers_of(everything.batch, everything.attempt)
    has_other_atomic = written and found and (WHOLE_BATCH in written) != (WHOLE_BATCH in found)
    if has_other_atomic and finished is None:
        raise RecordFailed(
            f"{everything}: it was begun with another `atomic`: finish it with the one it was "
            "begun with, then change it"
        )
    for partition, marker in () if has_other_atomic else sorted(written.items()):
        part = WritePart(everything.query, everything.attempt, everything.batch, partition)
        part.compare(found.get(partition, NO_ROWS), marker.contents)
    if finished is not None:
        everything.compare(total, finished.contents)
    return True


def _write_handed(attempt: WriteAttempt, everything: WritePart, one: PartOutcome) -> None:
    """Write rows that a task handed over, unless they are there."""
    part = WritePart(everything.query, attempt.name, one.batch, one.partition, one.stream)
    with _claimed(attempt, part) as (claim, duty):
        if duty is Duty.COMPARE:
            claim.compare(one.contents)
        else:
            claim.write([EncodedChunk(one.handed or [], one.contents)])


class _Claim:
    """A partition whose transactional id is this process's, and what the log says up to that."""

    def __init__(
        self, attempt: WriteAttempt, part: WritePart, outbox: Outbox, known: Known
    ) -> None:
        self._output = attempt.output
        self._part = part
        self._outbox = outbox
        self._known = known
        self._sent: EncodedRows | None = None

    def write(self, chunks: Iterable[EncodedChunk]) -> Contents:
        """Write rows and marker in one transaction; return what was written."""
        contents = NO_ROWS
        self._outbox.begin()
        for chunk in chunks:
            for rows in chunk.rows:
                self._send(rows)
            contents += chunk.contents
            reach(CrashPoint.WRITE_ROWS_SENT)
        # Open transactions hold back readers of the log, so all rows are there first.
        try:
            self._outbox.flush()
        except (RecordFailed, TopicMissing) as refused:
            raise self._refused(refused) from refused
        key, value = encoded(self._part.marker(contents))
        now_ms = time_ns() // 1_000_000
        topic = self._output.marker_topic
        self._outbox.send(Records(topic, [key], [value], [now_ms], partition=MARKERS))
        self._outbox.flush()
        reach(CrashPoint.WRITE_MARKED)
        self._commit()
        reach(CrashPoint.WRITE_COMMITTED)
        return contents

    def compare(self, contents: Contents) -> None:
        """RecordFailed unless these are the rows that the marker says."""
        marker = self._known.marker(self._part.batch, self._part.partition)
        assert marker is not None, "there is nothing to compare with"
        self._part.compare(contents, marker.contents)
        _log.info("%s: %d rows were written before", self._part, contents.rows)

    def _send(self, rows: EncodedRows) -> None:
        """Send rows; an error that is about one of them names it."""
        self._sent = rows
        try:
            self._outbox.send(rows.records())
        except RecordFailed as refused:
            if refused.at is None:
                raise
            # The options of this sink have another prefix.
            said = str(refused).replace("producer.message.", "kafka.message.")
            raise RecordFailed(f"{rows.where(refused.at)}: {said}") from refused
        except TopicMissing as refused:
            raise self._refused(refused) from refused

    def _refused(self, refused: StateStoreError) -> StateStoreError:
        """A refusal of the brokers, which take many rows at once: one of those so far."""
        if self._sent is None:
            return refused
        return type(refused)(f"one of the rows up to {self._sent.where(-1)}: {refused}")

    def _commit(self) -> None:
        for _ in range(_ASK_AGAIN):
            try:
                self._outbox.commit()
            except CommitUnknown as unknown:
                _log.warning("%s: %s", self._part, unknown)
            else:
                return
        self._outbox.commit()


@contextmanager
def _claimed(attempt: WriteAttempt, part: WritePart) -> Iterator[tuple[_Claim, Duty]]:
    """Open the partition's id, then say so, then read; the order matters (see the top)."""
    output = attempt.output
    with _opened(output) as (log, clients):
        outbox = clients.output_outbox(output.transactional_id(part.partition))
        try:
            outbox.open()
            ends = _appended(log, Intent(attempt.name, part.partition))
            known = attempt.known
            for place in (CLAIMS, MARKERS):
                known = known.with_values(log.read(place, attempt.starts[place], ends[place]))
            duty = part.duty(known)
            reach(CrashPoint.WRITE_CLAIMED)
            yield _Claim(attempt, part, outbox, known), duty
        finally:
            outbox.close()


@contextmanager
def _opened(output: Output) -> Iterator[tuple[OutputLog, KafkaBrokers]]:
    with output_clients(Settings.of(output.settings)) as clients:
        yield clients.output_log(output.marker_topic), clients


def _appended(log: OutputLog, entry: Entry) -> dict[int, int]:
    """Append an entry to the claims; return the ends of both partitions behind it."""
    return log.append([LogEntryBytes(CLAIMS, *encoded(entry)), LogEntryBytes(MARKERS, _END, None)])


def _read_all(log: OutputLog) -> tuple[Known, dict[int, int]]:
    ends = log.append([LogEntryBytes(place, _END, None) for place in (CLAIMS, MARKERS)])
    known = Known()
    for place in (CLAIMS, MARKERS):
        known = known.with_values(log.read(place, 0, ends[place]))
    return known, ends


def _with_first(first: EncodedChunk, others: Iterator[EncodedChunk]) -> Iterator[EncodedChunk]:
    yield first
    yield from others


def one_batch(outcomes: Sequence[PartOutcome], batch: int | None) -> None:
    """Misuse unless all outcomes are of one attempt, at this batch."""
    if len({(one.attempt, one.batch, one.stream) for one in outcomes}) > 1 or (
        batch is not None and outcomes[0].batch != batch
    ):
        raise Misuse(f"the tasks of batch {batch} wrote several batches: {outcomes}")
