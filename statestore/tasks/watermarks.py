"""The event time of a stream task below internal topics: a watermark for each upstream task (E4d).

Upstream tasks write their batches into an internal topic one after the other, so the times of its
records say little about how far all of them have come. Each says that by marks
(model/time_marks.py). The bound of the task is the least of what they have said. Stream time is the
latest time seen, but not past the bound, and it rises only as a mark says so: the records before
the first mark of a run could be those of the one upstream task that was served first.

An upstream task that has said nothing yet is at the beginning of time. One that is idle holds back
nobody, as long as the marks are of the run in which it said so: in the next run it may have a
backlog like all others. Once a bounded run has processed all of its input, nothing holds back
anything (`all_seen`), until the next mark comes.

What is known goes with the offsets into the stamp of each commit, one character for each upstream
task. A time may come back from there earlier than it was, by less than its distance from the bound.

Keeps I42.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from statestore.model.time_marks import TimeMark

UNBOUNDED: Final = (1 << 63) - 1
"""The bound of a task that nobody holds back."""
NO_TIME: Final = -1
"""Stream time before the first record, where there has to be a number."""
_UNHEARD: Final = -(1 << 63)
_LEVELS: Final = 44
_CHARACTERS: Final = "".join(chr(c) for c in range(35, 127) if c != ord("\\"))
"""By twice the level, plus one for an idle task. JSON writes each as one byte."""
_BYTES_MAX: Final = 1_500
_BYTES_BESIDE: Final = 70
"""What a topic takes beside its characters."""


class ChannelStamp(msgspec.Struct, frozen=True, array_like=True):
    """The `count` channels of a topic in a commit's metadata: `size` of them share a character."""

    base_ms: Annotated[int, Meta(ge=-UNBOUNDED, le=UNBOUNDED)]
    states: Annotated[str, Meta(pattern=r"\A[#-\[\]-~]*\Z")]
    run: str
    count: Annotated[int, Meta(ge=0, le=UNBOUNDED)]
    size: Annotated[int, Meta(ge=1, le=UNBOUNDED)] = 1


class Channels:
    """What the upstream tasks of one internal topic have said in one partition of it."""

    def __init__(self, upstream: int) -> None:
        self._times = [_UNHEARD] * upstream
        self._idle: list[str | None] = [None] * upstream
        self._run = ""

    def take(self, mark: TimeMark) -> None:
        """Note what one of them says; a task that the topology no longer has says nothing."""
        self._run = mark.run
        if mark.channel >= len(self._times):
            return
        if mark.time_ms is not None:
            self._times[mark.channel] = mark.time_ms
        self._idle[mark.channel] = mark.run if mark.idle else None

    def bound_ms(self) -> int:
        """Return the time up to which all of them have come, at least `NO_TIME`."""
        run = self._run
        busy = (time for time, idle in zip(self._times, self._idle, strict=True) if idle != run)
        return max(min(busy, default=UNBOUNDED), NO_TIME)

    def stamp(self, most: int) -> ChannelStamp:
        """Return what a commit keeps of it, in at most so many characters."""
        base = min((time for time in self._times if time != _UNHEARD), default=0)
        idle = [said == self._run for said in self._idle]
        size = max(-(-len(idle) // most), 1)
        # Of tasks that share a character, the one that is furthest back counts.
        states = (
            _character(min(self._times[i : i + size]), base, all(idle[i : i + size]))
            for i in range(0, len(idle), size)
        )
        return ChannelStamp(base, "".join(states), self._run, len(idle), size)

    def restore(self, stamp: ChannelStamp) -> None:
        """Take back what a commit kept; tasks that it did not know have said nothing."""
        self._run = stamp.run
        known = min(stamp.count, len(self._times))
        for place, character in enumerate(stamp.states):
            level, idle = divmod(_CHARACTERS.index(character), 2)
            ahead = 0 if level <= 1 else 1 << (level - 2)
            for channel in range(place * stamp.size, min((place + 1) * stamp.size, known)):
                heard_ms = min(stamp.base_ms + ahead, UNBOUNDED)
                self._times[channel] = heard_ms if level else _UNHEARD
                self._idle[channel] = stamp.run if idle else None


class Watermarks:
    """How far the upstream tasks of a stream task have come, by the internal topics it reads.

    `bound_ms`: the least time up to which all have come. `sent_ms`: the latest time that they have
    sent to any partition; None: none.
    """

    def __init__(self, upstream: Mapping[str, int], kept: Mapping[str, ChannelStamp]) -> None:
        """`upstream`: by topic with more than one upstream task, how many there are.

        `kept`: by topic, what the last commit has of them.
        """
        self._channels = {topic: Channels(count) for topic, count in upstream.items()}
        for topic in self._channels.keys() & kept.keys():
            self._channels[topic].restore(kept[topic])
        self._all_seen = False
        self.sent_ms: int | None = None
        self.bound_ms = self.bound_of(self._channels)

    @property
    def are_any(self) -> bool:
        """Whether there are upstream tasks that could hold back this one."""
        return bool(self._channels)

    @property
    def has_seen_all(self) -> bool:
        """Whether all there is was processed."""
        return self._all_seen

    def marks_all(self, topics: Iterable[str]) -> bool:
        """Return whether upstream tasks mark each of these topics."""
        return self._channels.keys() >= set(topics)

    def take(self, topic: str, mark: TimeMark) -> None:
        """Note a mark, once all records before it were processed."""
        channels = self._channels.get(topic)
        if channels is None:
            return
        channels.take(mark)
        if mark.sent_ms is not None and (self.sent_ms is None or mark.sent_ms > self.sent_ms):
            self.sent_ms = mark.sent_ms
        self._all_seen = False
        self.bound_ms = self.bound_of(self._channels)

    def all_seen(self) -> None:
        """Note that all there is was processed; the next mark ends that."""
        self._all_seen = True
        self.bound_ms = UNBOUNDED

    def bound_of(self, topics: Iterable[str]) -> int:
        """Return up to where all upstream tasks of some topics have come."""
        if self._all_seen:
            return UNBOUNDED
        found = (self._channels[topic] for topic in topics if topic in self._channels)
        return min((channels.bound_ms() for channels in found), default=UNBOUNDED)

    def limit_ms(self, stream_time_ms: int | None) -> int | None:
        """Return what no time may pass until the next mark; None: there is no upstream task.

        What comes after all was seen may be of one upstream task alone, until a mark says more.
        """
        if not self._channels:
            return None
        if self.bound_ms == UNBOUNDED:
            return NO_TIME if stream_time_ms is None else stream_time_ms
        return self.bound_ms

    def stamps(self) -> dict[str, ChannelStamp]:
        """Return what a commit keeps, by topic."""
        most = max(_BYTES_MAX // max(len(self._channels), 1) - _BYTES_BESIDE, 1)
        return {topic: channels.stamp(most) for topic, channels in self._channels.items()}


def _character(time_ms: int, base_ms: int, idle: bool) -> str:  # noqa: FBT001  # half of a state
    """Return the character of a task: unheard, or how far it is ahead, rounded down."""
    level = 0 if time_ms == _UNHEARD else min((time_ms - base_ms).bit_length() + 1, _LEVELS)
    return _CHARACTERS[2 * level + idle]
