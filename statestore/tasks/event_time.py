"""What one attempt of a stream task knows of event time, and what a commit keeps of it (E4d)."""

from collections.abc import Mapping
from typing import NamedTuple

from statestore.model.ids import TopicPartition
from statestore.tasks.announcer import Announcer
from statestore.tasks.watermarks import ChannelStamp, Watermarks

NO_CHANNELS: Mapping[str, ChannelStamp] = {}


class TimesAtCommit(NamedTuple):
    """Event time as of a commit, in ms.

    `seen_ms`: the latest time seen, where upstream tasks hold stream time back; None: it is stream
    time. `partitions`: of inputs whose extractor needs it, the latest time of their records.
    `channels`: by topic, what upstream tasks have said. `untold`: by topic that the task marks, the
    latest time it has written there and not told.
    """

    stream_time_ms: int | None
    seen_ms: int | None = None
    partitions: Mapping[TopicPartition, int] = {}
    channels: Mapping[str, ChannelStamp] = NO_CHANNELS
    untold: Mapping[str, int] = {}


class EventTime:
    """The watermarks of an attempt, the marks of its task, and since when it has had no input."""

    def __init__(
        self,
        watermarks: Watermarks,
        announcer: Announcer,
        *,
        settles: bool,
        idle_ms: int | None,
        now_s: float,
    ) -> None:
        """`settles`: at the planned ends, all there is was seen.

        `idle_ms`: how long a task without input waits before it holds nobody back; None: it does
        not tell that, as in a bounded run.
        """
        self.watermarks = watermarks
        self.announcer = announcer
        self.settles = settles
        self._idle_ms = idle_ms
        self._input_s = now_s

    @property
    def continuous(self) -> bool:
        """Whether the task has no planned end."""
        return self._idle_ms is not None

    def had_input(self, now_s: float) -> None:
        """Note that there was input."""
        self._input_s = now_s

    def has_waited(self, now_s: float) -> bool:
        """Return whether there was no input for so long that the task is idle."""
        return self._idle_ms is not None and 1000 * (now_s - self._input_s) >= self._idle_ms

    def at_commit(
        self,
        stream_time_ms: int | None,
        seen_ms: int | None,
        partitions: Mapping[TopicPartition, int],
    ) -> TimesAtCommit:
        """Return what a commit keeps."""
        return TimesAtCommit(
            stream_time_ms,
            None if seen_ms == stream_time_ms else seen_ms,
            partitions,
            self.watermarks.stamps(),
            dict(self.announcer.sent),
        )
