"""The file `history.jsonl`, in which a stream task keeps samples of its work for people.

No task depends on it: it is not synced to disk, and may be missing or contain half a line. It gets
about a sample a minute and loses its older half when it is larger than `SIZE_MAX_BYTES`, so that it
holds at least the last ten hours of steady work, unless the task has dozens of topics.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from statestore.faults import CrashPoint, reach
from statestore.layout import documents
from statestore.layout.documents import Amount, Count, TimeMs, Topic
from statestore.layout.files import opener, read_whole, write_whole
from statestore.ports import Clock
from statestore.tasks.plan import Standing, TaskReport

NAME: Final = "history.jsonl"
SIZE_MAX_BYTES: Final = 1 << 19
_EVERY_S: Final = 60.0


class WorkSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stream task did from `since_ms` to `until_ms`, both by the wall clock.

    The seconds are those of polling, of processing, of committing and of restoring. `lag_records`
    and `held_records` are as they were at the end; None: not known. `taken` and `sent`: records by
    topic; empty if an older version wrote the sample.
    """

    since_ms: TimeMs
    until_ms: TimeMs
    records_in: Count = 0
    commits: Count = 0
    restored_records: Count = 0
    poll_seconds: Amount = 0.0
    process_seconds: Amount = 0.0
    commit_seconds: Amount = 0.0
    restore_seconds: Amount = 0.0
    lag_records: Count | None = None
    held_records: Count = 0
    taken: dict[Topic, Count] = {}
    sent: dict[Topic, Count] = {}

    def rates(self) -> "Rates":
        """Return the records per second."""
        seconds = max(1, self.until_ms - self.since_ms) / 1000
        return Rates(
            self.records_in / seconds,
            {topic: count / seconds for topic, count in self.taken.items()},
            {topic: count / seconds for topic, count in self.sent.items()},
        )


class Rates(NamedTuple):
    """The records per second of a sample: all that came in, and by topic what came and went."""

    records_in: float
    taken: dict[str, float]
    sent: dict[str, float]


class WorkHistory:
    """Keeps the samples of one stream task."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / NAME
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._since_s = clock.monotonic()
        self._before: TaskReport | None = None
        self._taken: Mapping[str, int] = {}
        self._sent: Mapping[str, int] = {}

    def note(self, report: TaskReport, standing: Standing) -> None:
        """Keep a sample if the last one is a minute old."""
        if self._clock.monotonic() - self._since_s >= _EVERY_S:
            self.write(report, standing)

    def write(self, report: TaskReport, standing: Standing) -> None:
        """Keep a sample now, as at the end of a run, if there is anything to tell.

        The first call, at the start, tells what the report already has from earlier workers.
        """
        if self._before is None:
            self._before = replace(report, restored_records=0, restore_seconds=0.0)
            self._taken, self._sent = standing.taken, standing.sent
            return
        before, now_ms = self._before, self._clock.now_ms()
        sample = WorkSample(
            self._since_ms,
            max(self._since_ms, now_ms),
            report.records_in - before.records_in,
            report.commits - before.commits,
            report.restored_records - before.restored_records,
            report.poll_seconds - before.poll_seconds,
            report.process_seconds - before.process_seconds,
            report.commit_seconds - before.commit_seconds,
            report.restore_seconds - before.restore_seconds,
            standing.lag_records,
            standing.held_records,
            _added(standing.taken, self._taken),
            _added(standing.sent, self._sent),
        )
        worked = sample.records_in or sample.commits or sample.restored_records
        if not worked and not sample.lag_records:
            return
        self._since_ms, self._since_s = now_ms, self._clock.monotonic()
        self._before = replace(report)
        self._taken, self._sent = standing.taken, standing.sent
        # If the folder cannot be written, the task itself will report it.
        with suppress(OSError):
            self._append(msgspec.json.encode(sample))

    def _append(self, line: bytes) -> None:
        # The line break comes first, because a killed owner may have left half a line.
        with open(self._path, "ab", buffering=0, opener=opener) as file:
            file.write(b"\n" + line)
            is_full = file.tell() > SIZE_MAX_BYTES
        reach(CrashPoint.HISTORY_WRITTEN)
        if is_full:
            lines = read_whole(self._path, 2 * SIZE_MAX_BYTES).split(b"\n")
            temporary = self._path.with_name(f".{NAME}.tmp")
            write_whole(temporary, b"\n".join(lines[len(lines) // 2 :]))
            temporary.replace(self._path)


def read_history(folder: Path) -> list[WorkSample]:
    """Return the samples of a stream task, oldest first; those that are unreadable are skipped."""
    found = documents.read_lines(folder / NAME, WorkSample, most_bytes=2 * SIZE_MAX_BYTES)
    return sorted(found, key=lambda sample: sample.until_ms)


def _added(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {topic: count - before.get(topic, 0) for topic, count in now.items()}
