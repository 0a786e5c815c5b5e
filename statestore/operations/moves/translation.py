"""Finds the offset of a group in a mirror: where the record that was processed last was copied to.

    by an offset sync   of that record, or of the group's offset itself
    by the records      those before the offset, which the export tells of, found by their time

What is found is exact: the next record is the first one that was not processed. If several places
fit, or none, nothing is chosen, because a wrong one would lose records or process them twice.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from statestore.errors import Misuse, Unavailable
from statestore.model.ids import TopicPartition
from statestore.operations.environment import Environment
from statestore.operations.exports.manifest import InputMark
from statestore.operations.exports.marks import RECORDS, MarkedRecord, digest_of, records_in
from statestore.ports import Bounds

_SYNCS = "name MirrorMaker's offset syncs with --offset-syncs"


class MirrorPlace(NamedTuple):
    """Where an input begins in a mirror, and how that is known, in words."""

    offset: int
    found_by: str


class _Fit(NamedTuple):
    """A place behind a record that is equal to the last one; `matched`: so many before it are, too.

    `reaches_start`: the mirror has no record before those.
    """

    offset: int
    matched: int
    reaches_start: bool


class Mirror:
    """The mirrored topics on the cluster of `environment`."""

    def __init__(
        self, environment: Environment, syncs: Mapping[TopicPartition, Mapping[int, int]]
    ) -> None:
        self._cluster = environment.cluster
        self._changelog = environment.changelog
        self._syncs = syncs

    def place(self, mark: InputMark, offset: int, tp: TopicPartition) -> MirrorPlace:
        """Find the group's offset of an input in its mirror `tp`.

        Unavailable if the mirror does not have the records before it yet. Misuse if it cannot be
        told from others.
        """
        bounds = self._cluster.bounds([tp])[tp]
        synced = self._by_sync(mark, offset, tp, bounds)
        if synced is not None:
            return synced
        if not mark.digests:
            return self._without_records(mark, offset, tp, bounds)
        return self._by_records(mark, offset, tp, bounds)

    def _by_sync(
        self, mark: InputMark, offset: int, tp: TopicPartition, bounds: Bounds
    ) -> MirrorPlace | None:
        known = self._syncs.get(TopicPartition(mark.topic, mark.partition), {})
        last = mark.offset_last
        if last is not None and last in known:
            found = known[last] + 1
        elif offset in known:
            found = known[offset]
        else:
            return None
        before = Bounds(max(bounds.start, found - 1), found)
        if not bounds.start <= found <= bounds.end:
            raise Misuse(
                f"the offset syncs say that offset {offset} of {mark.topic}-{mark.partition} is "
                f"{found} of {tp}, which has {bounds.start} to {bounds.end}: they are of another "
                "topic; leave out --offset-syncs"
            )
        if last in known and before.start < found and mark.digests:
            copies = list(records_in(self._changelog, tp, before))
            if copies and digest_of(copies[-1]) != mark.digests[-1]:
                raise Misuse(
                    f"the offset syncs say that the record at {found - 1} of {tp} is the one at "
                    f"{last} of {mark.topic}-{mark.partition}, but it is another one: they are of "
                    "another topic; leave out --offset-syncs"
                )
        return MirrorPlace(found, "an offset sync")

    def _without_records(
        self, mark: InputMark, offset: int, tp: TopicPartition, bounds: Bounds
    ) -> MirrorPlace:
        if mark.whole:
            return MirrorPlace(bounds.start, "nothing was processed yet")
        if bounds.start == bounds.end:
            return MirrorPlace(bounds.end, "the mirror is empty")
        raise Misuse(
            f"the records before offset {offset} of {mark.topic}-{mark.partition} were gone at the "
            f"export, so nothing tells where it is in {tp}: {_SYNCS}, or run once, then export"
        )

    def _by_records(
        self, mark: InputMark, offset: int, tp: TopicPartition, bounds: Bounds
    ) -> MirrorPlace:
        begin = min(self._cluster.offsets_at([tp], mark.since_ms)[tp], bounds.end)
        begin = max(begin, bounds.start)
        fits = self._fits(mark, tp, Bounds(begin, bounds.end), begins=begin == bounds.start)
        what = f"the record that was processed last of {mark.topic}-{mark.partition}"
        for best in (
            [fit for fit in fits if fit.matched == len(mark.digests)],
            [fit for fit in fits if fit.reaches_start],
        ):
            if len(best) > 1:
                places = ", ".join(str(fit.offset - 1) for fit in best[:3])
                raise Misuse(
                    f"{what} (offset {mark.offset_last}) and those before it are in {tp} "
                    f"{len(best)} times ({places}…): equal times, keys and values, or a mirror "
                    f"that has doubled them; {_SYNCS}"
                )
            if best:
                return MirrorPlace(best[0].offset, _by(best[0].matched))
        if len(fits) == 1 and self._is_compacted(tp.topic):
            return MirrorPlace(fits[0].offset, _by(fits[0].matched))
        if fits:
            raise Misuse(
                f"{what} is at {fits[0].offset - 1} of {tp}, but the records before it are not "
                f"those before offset {offset}: the mirror leaves records out, or has doubled "
                f"them; {_SYNCS}"
            )
        raise Unavailable(
            f"{what} (offset {mark.offset_last}) is not in {tp} ({bounds.start} to {bounds.end}): "
            "wait until the mirror has caught up, and look whether it keeps times, keys and "
            f"values (message.timestamp.type=CreateTime); or {_SYNCS}"
        )

    def _fits(
        self, mark: InputMark, tp: TopicPartition, bounds: Bounds, *, begins: bool
    ) -> list[_Fit]:
        """All places behind a record equal to the last one; `begins`: at the start of the log."""
        found, before = list[_Fit](), deque[MarkedRecord](maxlen=RECORDS)
        for read, record in enumerate(records_in(self._changelog, tp, bounds), 1):
            before.append(record)
            if digest_of(record) == mark.digests[-1]:
                matched = _matched(mark.digests, before)
                found.append(_Fit(record.offset + 1, matched, begins and matched == read))
        return found

    def _is_compacted(self, topic: str) -> bool:
        return "compact" in self._cluster.topic_settings([topic])[topic]["cleanup.policy"]


def _matched(digests: list[str], before: deque[MarkedRecord]) -> int:
    """How many of the last records are those of the digests."""
    count = 0
    for digest, record in zip(reversed(digests), reversed(before), strict=False):
        if digest_of(record) != digest:
            break
        count += 1
    return count


def _by(matched: int) -> str:
    return "the last record" if matched == 1 else f"the last {matched} records"
