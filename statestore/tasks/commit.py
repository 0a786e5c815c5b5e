"""The steps of a commit: first the log, then the stores, whose batches carry the log's offsets.

Under exactly_once (SEMANTICS E2), a crash point between any two steps:
    commit.begin
    1 changelog records join the outputs in the open transaction      commit.records-sent
    2 input offsets join it, with {commit number, stream time, tally} commit.offsets-sent
    3 the log commits                                                 commit.log-done
    4 one engine batch per store, with its changelog's offset         commit.store-written
    5 pending has become committed                                    commit.done
A table whose log is its source topic adds nothing in 1, and its offset in 4 is that of 2.
Under at_least_once (E6) step 3 is a flush of the producer, and the input offsets follow the stores.
There the outputs are flushed before step 1 as well. A restore takes what is logged for done, so an
item that waited in a store would be lost if the log refused the output with which it left.

A commit pauses for answers behind 1, behind 2, and within 3 once the log was asked to commit
(commit.log-asked); the next step begins with them. Other tasks of the slot commit meanwhile
(steps.py), each in this order. Clients that cannot ask without waiting do all of it behind a pause.

Keeps I4, I6 and I34.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec.structs import replace

from statestore.errors import UNREADABLE, CommitUnknown, Fenced, Misuse, RecordFailed
from statestore.faults import CrashPoint, reach
from statestore.model.decoders import json_decoder
from statestore.model.ids import Position, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.ports import Changelog, Cluster, GroupOffset, Outbox
from statestore.tasks.owned import OwnedStore
from statestore.tasks.plan import Tally
from statestore.tasks.steps import Pause, Steps
from statestore.tasks.watermarks import ChannelStamp
from statestore.topology.failures import NodeFailed, Stage

_ANSWER_ATTEMPTS = 3
_INT64_MAX = (1 << 63) - 1
_TimeMs = Annotated[int, msgspec.Meta(ge=-_INT64_MAX, le=_INT64_MAX)]
_TEXT_MAX_BYTES = 4096
"""Brokers refuse longer metadata (offset.metadata.max.bytes)."""


class CommitStamp(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of every committed input offset (SEMANTICS E4).

    `tally` tells the next worker that serves the task in the same run what was done; None: unknown.
    `partition_times` has the times of inputs whose extractor needs them, by `topic_digest`. So have
    `channels` what upstream tasks said in internal topics, and `untold` the latest times written
    there that are to be told. `seen_ms`: the latest time seen, if upstream tasks hold stream time
    back.
    """

    number: Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
    stream_time_ms: _TimeMs | None
    tally: Tally | None = None
    partition_times: dict[str, _TimeMs] = {}
    seen_ms: _TimeMs | None = None
    channels: dict[str, ChannelStamp] = {}
    untold: dict[str, _TimeMs] = {}

    def text(self) -> str:
        """Return the metadata; what there is no room for is what only holds time back longer."""
        made = msgspec.json.encode(self)
        if len(made) > _TEXT_MAX_BYTES:
            made = msgspec.json.encode(replace(self, channels={}))
        if len(made) > _TEXT_MAX_BYTES:
            made = msgspec.json.encode(replace(self, channels={}, untold={}))
        return made.decode()

    @classmethod
    def latest(cls, committed: Mapping[TopicPartition, GroupOffset]) -> "CommitStamp":
        """Return the number and tally of the last commit, and the latest stream time.

        The number is 0 if there was no commit.

        A topology change may give a task the inputs of several: the one that committed most often
        need not be the one that had come furthest in time (SEMANTICS E4b).
        """
        found = map(cls.read, committed.values())
        stamps = [stamp for stamp in found if stamp is not None]
        times = [stamp.stream_time_ms for stamp in stamps if stamp.stream_time_ms is not None]
        seen = [stamp.seen_ms for stamp in stamps if stamp.seen_ms is not None]
        last = max(stamps, key=lambda stamp: stamp.number, default=cls(0, None))
        return cls(
            last.number,
            max(times, default=None),
            last.tally,
            seen_ms=max(seen + times) if seen else None,
            untold=last.untold,
        )

    @classmethod
    def read(cls, offset: GroupOffset) -> "CommitStamp | None":
        """Return the stamp that a committed input offset carries; None if it carries none."""
        try:
            return json_decoder(cls).decode(offset.metadata)
        except UNREADABLE:
            return None

    @classmethod
    def number_in(cls, metadata: str) -> int:
        """Return the commit number that a committed input offset carries; 0 if it has no metadata.

        Misuse if there is metadata that cannot be read: an owner who took it for 0 would believe
        that nobody had committed since.
        """
        try:
            return json_decoder(cls).decode(metadata).number if metadata else 0
        except UNREADABLE:
            raise _foreign("a committed input offset", metadata) from None


def check_metadata(committed: Mapping[TopicPartition, GroupOffset]) -> None:
    """Raise Misuse for committed input offsets whose metadata are not a CommitStamp's."""
    for tp, offset in committed.items():
        if offset.metadata and CommitStamp.read(offset) is None:
            raise _foreign(f"the committed offset {offset.offset} of input {tp}", offset.metadata)


def _foreign(what: str, metadata: str) -> Misuse:
    return Misuse(
        f"{what} has metadata that this application did not write ({metadata[:60]!r}): another "
        "program commits in the group of this application.id, and its commits cannot be told from "
        "ours: give each its own application.id; or, once the other program has stopped for good, "
        "commit the offset again without metadata"
    )


def topic_digest(topic: str) -> str:
    """Return what stands for a topic in a stamp, because metadata has at most 4096 bytes."""
    return blake2b(topic.encode(), digest_size=8).hexdigest()


def in_stamp(partition_times: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Return the times of the partitions of one stream task as a stamp has them."""
    return {topic_digest(tp.topic): time_ms for tp, time_ms in sorted(partition_times.items())}


def partition_times_in(
    committed: Mapping[TopicPartition, GroupOffset],
) -> dict[TopicPartition, int]:
    """Return the time of each input, in ms, as its own last commit has it."""
    stamps = ((tp, CommitStamp.read(offset)) for tp, offset in committed.items())
    found = ((tp, stamp.partition_times) for tp, stamp in stamps if stamp is not None)
    return {tp: times[digest] for tp, times in found if (digest := topic_digest(tp.topic)) in times}


def channels_in(committed: Mapping[TopicPartition, GroupOffset]) -> dict[str, ChannelStamp]:
    """Return by input topic what its upstream tasks had said, as its own last commit has it."""
    stamps = ((tp, CommitStamp.read(offset)) for tp, offset in committed.items())
    found = ((tp, stamp.channels) for tp, stamp in stamps if stamp is not None)
    return {
        tp.topic: channels[digest]
        for tp, channels in found
        if (digest := topic_digest(tp.topic)) in channels
    }


Settle = Callable[["TaskCommit"], Mapping[TopicPartition, int] | None]
"""Asks the log about an unanswered commit; returns the changelogs' ends if it succeeded."""


@dataclass(frozen=True)
class TaskCommit:
    """What one commit is to make true: input offsets NEXT to read, and the stamp."""

    offsets: Mapping[TopicPartition, int]
    stamp: CommitStamp

    def position(self) -> Position:
        """Return the offsets processed last."""
        return position_at(self.offsets)


def position_at(offsets: Mapping[TopicPartition, int]) -> Position:
    """Return what was processed last if these offsets are NEXT to read."""
    return Position.of({tp: offset - 1 for tp, offset in offsets.items() if offset > 0})


def settled(
    commit: TaskCommit, stores: Sequence[OwnedStore], cluster: Cluster, changelog: Changelog
) -> Mapping[TopicPartition, int] | None:
    """Return the changelogs' ends if the log holds this very commit, None if it does not.

    Ask only after the transactional id was opened again: then the commit cannot happen any more.
    """
    text = commit.stamp.text()
    wanted = {tp: GroupOffset(offset, text) for tp, offset in commit.offsets.items()}
    if cluster.group_offsets(list(wanted)) != wanted:
        return None
    logs = [opened.log.tp for opened in stores if opened.log.exists]
    bounds = changelog.bounds(logs) if logs else {}
    return {tp: bound.end for tp, bound in bounds.items()}


def commit_task(
    commit: TaskCommit,
    stores: Sequence[OwnedStore],
    outbox: Outbox,
    guarantee: ProcessingGuarantee,
    settle: Settle,
) -> Steps[None]:
    """Run the steps above; `settle` asks the log whether an unanswered commit went through (E4).

    An error before step 3 leaves nothing committed: abort, roll back, go on from the last commit.
    """
    reach(CrashPoint.COMMIT_BEGIN)
    exactly_once = guarantee is ProcessingGuarantee.EXACTLY_ONCE
    if not exactly_once:
        with _producing("commit"):
            outbox.flush()
    for opened in stores:
        _log_changes(opened, outbox, commit.stamp)
    with _producing("commit"):
        outbox.push()
    reach(CrashPoint.COMMIT_RECORDS_SENT)
    yield Pause.ASKED
    if exactly_once:
        with _producing("commit"):
            outbox.send_offsets(commit.offsets, commit.stamp.text())
    reach(CrashPoint.COMMIT_OFFSETS_SENT)
    yield Pause.ASKED
    with _producing("commit"):
        outbox.ask_commit()
    reach(CrashPoint.COMMIT_LOG_ASKED)
    yield Pause.ASKED
    ends = _commit_log(outbox, commit, settle)
    reach(CrashPoint.COMMIT_LOG_DONE)
    position = commit.position()
    for opened in stores:
        opened.commit(opened.log.offset_after(ends, commit.offsets), position)
        reach(CrashPoint.COMMIT_STORE_WRITTEN)
    if not exactly_once:
        outbox.send_offsets(commit.offsets, commit.stamp.text())
    reach(CrashPoint.COMMIT_DONE)


def rehearse(
    stores: Sequence[OwnedStore],
    outbox: Outbox,
    guarantee: ProcessingGuarantee,
    stamp: CommitStamp,
) -> None:
    """Send what a commit would send, and commit nothing; NodeFailed if the log refuses any of it.

    Under at_least_once the changes are not sent: a restore would take them for committed.
    """
    if guarantee is ProcessingGuarantee.EXACTLY_ONCE:
        for opened in stores:
            _log_changes(opened, outbox, stamp)
    with _producing("commit"):
        outbox.flush()


def _log_changes(opened: OwnedStore, outbox: Outbox, stamp: CommitStamp) -> None:
    """Send the pending changes of a store, in their order."""
    with _producing(f"store {opened.name!r}"):
        opened.log.append(partial(opened.changes, stamp.stream_time_ms or 0), outbox)


@contextmanager
def _producing(what: str) -> Iterator[None]:
    """Raise NodeFailed if the log refuses a record, whichever record made it since the commit."""
    try:
        yield
    except RecordFailed as error:
        raise NodeFailed(Stage.PRODUCTION, what, error, where="since the last commit") from error


def _commit_log(outbox: Outbox, commit: TaskCommit, settle: Settle) -> Mapping[TopicPartition, int]:
    """Commit the log and return the changelogs' ends; CommitUnknown if it did not commit."""
    for _ in range(_ANSWER_ATTEMPTS):
        try:
            with _producing("commit"):
                outbox.commit()
        except CommitUnknown:
            continue
        except Fenced:
            ends = settle(commit)
            if ends is None:
                raise
            return ends
        return outbox.ends()
    ends = settle(commit)
    if ends is None:
        raise CommitUnknown("the log says that it did not commit: the transaction is repeated")
    return ends
